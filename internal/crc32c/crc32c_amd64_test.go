package crc32c

import (
	"math/bits"
	"testing"
)

func archImplementations() (all []implementation) {
	if hasAVX512 {
		all = append(all, implementation{"AVX-512", minAVX512, updateAVX512})
	}
	if hasAVX2 {
		all = append(all, implementation{"AVX2", roundAVX2, updateAVX2})
	}
	return all
}

// TestPathsOfThisCPU says so when the assembly is not tested.
func TestPathsOfThisCPU(t *testing.T) {
	if !hasAVX512 {
		t.Skip("no AVX-512 with VBMI and VPCLMULQDQ: foldAVX512 is not tested here")
	}
	if !hasAVX2 {
		t.Skip("no AVX2 with VPCLMULQDQ: foldAVX2 is not tested here")
	}
}

// power returns x^n mod P, bit i being x^i.
func power(n int) uint32 {
	r := uint32(1)
	for range n {
		r = r<<1 ^ r>>31*bits.Reverse32(reversed)
	}
	return r
}

func TestFoldConstants(t *testing.T) {
	if got, want := bits.Reverse32(reversed), uint32(0x1edc6f41); got != want { // RFC 3720, section 12.1
		t.Fatalf("the polynomial is %#x, want %#x", got, want)
	}
	var want [16]uint64
	for i, distance := range []int{2048, 1536, 1024, 512, 384, 256, 128} {
		want[2*i] = bits.Reverse64(uint64(power(distance + 63)))
		want[2*i+1] = bits.Reverse64(uint64(power(distance - 1)))
	}
	for i := range want {
		if foldConstants[i] != want[i] {
			t.Errorf("foldConstants[%d] = %#016x, want %#016x", i, foldConstants[i], want[i])
		}
	}
}
