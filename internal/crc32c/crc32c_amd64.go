package crc32c

import "golang.org/x/sys/cpu"

// minAVX512 is the shortest input in bytes that foldAVX512 takes: one block. It
// is faster than hash/crc32 from there on.
const minAVX512 = 64

var hasAVX512 = cpu.X86.HasSSE42 &&
	cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VBMI &&
	cpu.X86.HasAVX512VPCLMULQDQ

// foldConstants has a pair for each distance D in bits by which foldAVX512
// folds: x^(D+63) mod P and x^(D-1) mod P, bit i of each being x^(63-i).
// TestFoldConstants derives them. They are here and not in the assembly so
// that the test can read them.
var foldConstants = [16]uint64{
	0xe9a5d8be00000000, 0x1426a81500000000, // 2048
	0x7ccbbbf200000000, 0x31c9460800000000, // 1536
	0x6577b24500000000, 0x7417153f00000000, // 1024
	0x1c19243b00000000, 0x75bba45b00000000, // 512
	0xa46ef4aa00000000, 0x6051243f00000000, // 384
	0x33ccbbbc00000000, 0xa2158b3400000000, // 256
	0x3743f7bd00000000, 0x3171d43000000000, // 128
	0, 0, // the last block of a register stays where it is
}

// Update returns the CRC-32C of the bytes whose CRC-32C is crc, followed by p.
// The CRC-32C of no bytes is 0.
func Update(crc uint32, p []byte) uint32 {
	if len(p) >= minAVX512 && hasAVX512 {
		return updateAVX512(crc, p)
	}
	return updateStdlib(crc, p)
}

// updateAVX512 is Update for a p of at least minAVX512 bytes, where hasAVX512.
func updateAVX512(crc uint32, p []byte) uint32 { return ^foldAVX512(^crc, p) }

// foldAVX512 returns the CRC register (a CRC that is not complemented) after p,
// given the one before it. It reads outside p when p is shorter than minAVX512.
//
//go:noescape
func foldAVX512(crc uint32, p []byte) uint32
