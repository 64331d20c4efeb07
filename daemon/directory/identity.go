package directory

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"strings"

	"github.com/ironwarp/ironwarp/fabric/mad"
)

// GUIDOf is the GUID of a host: the first 64 bits of the SHA-256 of its IKE identity, of a name in small letters, of
// an address in the shortest form.
func GUIDOf(identity string) mad.GUID { return guid(canonical(identity)) }

// VPortOf is the alias GUID of a local consumer of a host.
func VPortOf(identity, ulp string) mad.GUID { return guid(canonical(identity) + "\x00" + ulp) }

func guid(s string) mad.GUID {
	sum := sha256.Sum256([]byte(s))
	return max(1, mad.GUID(binary.BigEndian.Uint64(sum[:]))) // 0 is no GUID
}

func canonical(identity string) string {
	if a, err := netip.ParseAddr(identity); err == nil {
		return a.Unmap().String()
	}
	return strings.ToLower(identity)
}
