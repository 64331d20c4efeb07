//go:build !amd64

package crc32c

// Update returns the CRC-32C of the bytes whose CRC-32C is crc, followed by p.
// The CRC-32C of no bytes is 0.
func Update(crc uint32, p []byte) uint32 { return updateStdlib(crc, p) }
