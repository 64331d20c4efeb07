//go:build !weakened

package sctp

import "encoding/binary"

// The check that integration/simulation shows to be needed. weakened.go has it with a switch.

// intact reports whether p is long enough to be a packet and has the right checksum,
// which is stored low byte first (RFC 9260 appendix A).
func (p packet) intact() bool {
	return len(p) >= headerLen+chunkHeaderLen && binary.LittleEndian.Uint32(p[8:]) == p.checksum()
}
