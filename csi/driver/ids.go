package driver

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/ironwarp/ironwarp/internal/printable"
)

// ownHost is how an id, and the controller's configuration, name the host on which the controller runs. No peer is called so.
const ownHost = "."

// hashed begins the names of volumes whose name at the orchestrator cannot be that of an export.
const hashed = "csi-"

// volumeID names a volume or a snapshot to the orchestrator: "HOST/POOL/NAME".
type volumeID struct {
	host string // the peer that has it, or ownHost
	pool string // of that host. The name alone would do there, but a pool that this host manages no more has to be told from a volume that is gone
	name string // of the volume
}

func (v volumeID) String() string { return v.host + "/" + v.pool + "/" + v.name }

// peer is the host as the control API has it.
func (v volumeID) peer() string { return peerOf(v.host) }

func peerOf(host string) string {
	if host == ownHost {
		return ""
	}
	return host
}

// parseID reads an id. It fails where this driver cannot have given it; the error is the reason.
func parseID(s string) (volumeID, error) {
	if len(s) > maxID {
		return volumeID{}, fmt.Errorf("the id has %d bytes; %d are allowed", len(s), maxID)
	}
	parts := strings.Split(s, "/")
	if len(parts) != 3 || parts[0] != ownHost && !isName(parts[0], maxHost) || !isName(parts[1], maxPool) || !isName(parts[2], maxName) {
		return volumeID{}, fmt.Errorf("%q is not HOST/POOL/NAME, as the ids of this driver's volumes are", printable.Cut(printable.Text(s), maxID))
	}
	return volumeID{parts[0], parts[1], parts[2]}, nil
}

// nameOf is the name that a volume gets for the one that the orchestrator gives it: the same, if that can be the name of an
// export. Otherwise, and where it looks like such a substitute, it is made of its hash: different names stay different.
func nameOf(name string) string {
	if isName(name, maxName) && !strings.HasPrefix(name, hashed) {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return hashed + hex.EncodeToString(sum[:20])
}

// checkName returns why a name of the orchestrator's is refused: the specification wants Unicode without control characters.
func checkName(s string) error {
	if s == "" {
		return fmt.Errorf("it is empty")
	}
	if len(s) > maxID {
		return fmt.Errorf("it has %d bytes; %d are allowed", len(s), maxID)
	}
	return printable.Check(s)
}

// isName reports whether s can name an export or a peer: letters, digits, dot, dash and underscore, starting with a letter or a
// digit.
func isName(s string, limit int) bool {
	if s == "" || len(s) > limit {
		return false
	}
	for i := range len(s) {
		c := s[i]
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !alnum && (i == 0 || c != '.' && c != '-' && c != '_') {
			return false
		}
	}
	return true
}
