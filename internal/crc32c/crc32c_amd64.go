package crc32c

import "golang.org/x/sys/cpu"

// minAVX512 is the shortest input in bytes that foldAVX512 takes: one block. It
// is faster than hash/crc32 from there on.
const minAVX512 = 64

var hasAVX512 = cpu.X86.HasSSE42 &&
	cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VBMI &&
	cpu.X86.HasAVX512VPCLMULQDQ

const (
	// roundAVX2 is the number of bytes that foldAVX2 takes in a round, and the
	// shortest input that it takes at all. It is faster than hash/crc32 from there on.
	roundAVX2 = 7 * 32
	// maxRounds is how many rounds it makes in one call: so many that what comes
	// between two calls no longer counts.
	maxRounds = 64
)

var hasAVX2 = cpu.X86.HasSSE42 && cpu.X86.HasPCLMULQDQ && cpu.X86.HasAVX2 && hasVPCLMULQDQ()

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

// shiftConstants has for each distance i of 32 bytes the first constant of a fold by as
// many, x^(256i+63) mod P.
//
//lint:ignore U1000 crc32c_avx2_amd64.s reads it
var shiftConstants = func() (k [6*maxRounds - 3]uint64) {
	const reversed = 0x82f63b78 // P without its x^32, bit i being x^(31-i)
	power := uint32(1 << 31)    // x^0
	for n := 0; n <= 256*(len(k)-1)+63; n++ {
		if n%256 == 63 {
			k[n/256] = uint64(power) << 32
		}
		power = power>>1 ^ power&1*reversed
	}
	return k
}()

// Update returns the CRC-32C of the bytes whose CRC-32C is crc, followed by p.
// The CRC-32C of no bytes is 0.
func Update(crc uint32, p []byte) uint32 {
	switch {
	case len(p) >= minAVX512 && hasAVX512:
		return updateAVX512(crc, p)
	case len(p) >= roundAVX2 && hasAVX2:
		return updateAVX2(crc, p)
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

// updateAVX2 is Update for a p of at least roundAVX2 bytes, where hasAVX2.
func updateAVX2(crc uint32, p []byte) uint32 {
	for crc = ^crc; len(p) > 0; {
		rounds := min(len(p)/roundAVX2, maxRounds)
		n := rounds * roundAVX2
		if len(p)-n < roundAVX2 {
			n = len(p)
		}
		crc = foldAVX2(crc, p[:n], rounds)
		p = p[n:]
	}
	return ^crc
}

// foldAVX2 returns the CRC register after p, given the one before it. Of p the first
// rounds*roundAVX2 bytes are taken in that many rounds, of 1 to maxRounds, and
// the rest more slowly.
//
//go:noescape
func foldAVX2(crc uint32, p []byte, rounds int) uint32

// hasVPCLMULQDQ reports whether CPUID has the instruction. Its registers of 256 bits need
// no AVX-512, of which package cpu makes it a part. There is leaf 7 where there is AVX2.
func hasVPCLMULQDQ() bool
