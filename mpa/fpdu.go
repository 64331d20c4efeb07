package mpa

import (
	"encoding/binary"

	"github.com/ironwarp/ironwarp/internal/crc32c"
)

// An FPDU, RFC 5044 section 4.1: ULPDU length (2 bytes), ULPDU, padding to a
// multiple of 4 bytes, CRC32c (4 bytes).
const (
	lengthLen = 2
	crcLen    = 4
)

var padding [3]byte

// padLen is the padding in bytes of an FPDU with a ULPDU of n bytes.
func padLen(n int) int { return -(n + lengthLen) & 3 }

// fpduLen is the length in bytes of an FPDU with a ULPDU of n bytes, without
// markers.
func fpduLen(n int) int { return lengthLen + n + padLen(n) + crcLen }

// mulpdu is the longest ULPDU that fits one TCP segment (RFC 5044 section 4.5),
// within the bounds of section 3.
func mulpdu(emss int, markers bool) int {
	n := emss - (lengthLen + crcLen + emss%4)
	if markers {
		n -= markerLen * ((emss + markerSpacing - 1) / markerSpacing)
	}
	return max(minMULPDU, min(n, MaxULPDU))
}

// checkCRC reports whether the last 4 bytes of an FPDU are the CRC of the rest.
// As in iSCSI the CRC is sent least significant byte first (RFC 5044 section 4.4).
func checkCRC(fpdu []byte) bool {
	end := len(fpdu) - crcLen
	return crc32c.Checksum(fpdu[:end]) == binary.LittleEndian.Uint32(fpdu[end:])
}
