package crc32c

import "hash/crc32"

// Checksum returns the CRC-32C of p.
func Checksum(p []byte) uint32 { return Update(0, p) }

// updateStdlib is Update by hash/crc32. MakeTable returns the one table that
// hash/crc32 has for this polynomial; it builds it in the first call.
func updateStdlib(crc uint32, p []byte) uint32 {
	return crc32.Update(crc, crc32.MakeTable(crc32.Castagnoli), p)
}
