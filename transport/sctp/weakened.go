//go:build weakened

package sctp

import (
	"encoding/binary"

	"github.com/ironwarp/ironwarp/internal/checks"
)

func (p packet) intact() bool {
	return len(p) >= headerLen+chunkHeaderLen && (binary.LittleEndian.Uint32(p[8:]) == p.checksum() || !checks.On(checks.PacketChecksum))
}
