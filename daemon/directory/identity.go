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

// VPortOf is the alias GUID of a local consumer of a host: of those that begin as the host's own GUID, which the directory gives to nobody else.
func VPortOf(identity, ulp string) mad.GUID {
	return GUIDOf(identity)&ownRange | guid(canonical(identity)+"\x00"+ulp)&^ownRange
}

// ownRange are the bits of a GUID that those of one host have in common.
const ownRange mad.GUID = 0xffffffff_00000000

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
