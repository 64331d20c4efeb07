// Package crc32c computes the CRC-32C (Castagnoli) that MPA (RFC 5044, section
// 4.4), iSCSI (RFC 3720, section 12.1) and SCTP (RFC 9260, appendix A) use. Its
// results are those of hash/crc32; it is there because it takes about half
// the time on CPUs that multiply polynomials 512 bits at a time (amd64 with
// AVX-512 and VPCLMULQDQ: Intel since Ice Lake, AMD since Zen 4), or 256 (with AVX2
// and VPCLMULQDQ: AMD since Zen 3, Intel's without AVX-512 since Alder Lake).
// Everywhere else, and for inputs under 64 or 224 bytes, it calls hash/crc32.
//
// # Folding
//
// The method is that of V. Gopal et al., "Fast CRC Computation for Generic
// Polynomials Using PCLMULQDQ Instruction", Intel, 2009, on 512-bit registers.
//
// A message is a polynomial over GF(2), its first bit the highest power, and
// its CRC is the remainder of that polynomial times x^32 modulo P. The
// remainder does not change when a block X that is followed by D more bits,
// that is, X * x^D, is replaced by X times (x^D mod P), which is short: X is
// folded onto the bits D further on. For a block of 128 bits with halves H
// (first) and L, a fold is two multiplications of 64 by 32 bits and two
// additions:
//
//	H * (x^(D+64) mod P)  +  L * (x^D mod P)  +  the 128 bits at distance D
//
// Bytes have their first bit in bit 0, so that registers hold polynomials
// reversed: bit i of a 64-bit half is x^(63-i). The carry-less product of two
// such halves is a 127-bit number in a 128-bit register, one bit short of being
// aligned, which reads as the product times x. The constants make up for it
// with exponents that are one less: x^(D+63) and x^(D-1), reversed in 64 bits.
//
// Four 512-bit accumulators, each of four such blocks, fold by 2048 bits while
// 256 bytes or more are left. They are then folded onto one, that one over
// what remains, and its four blocks onto 128 bits, of which the CRC32
// instruction takes the remainder.
//
// # Folding and dividing at once
//
// With 256-bit registers folding is no faster than the CRC32 instruction, which takes
// the remainder of 8 bytes each cycle if three independent ones take turns. But they
// use different parts of the CPU, so both work at the same time: a block of 7 times n
// bytes, n being a multiple of 32, has three parts of n bytes, each of which CRC32
// takes, and a fourth of 4n bytes, which four accumulators of two 128-bit blocks fold by
// 1024 bits. The three remainders are then folded onto the beginning of the last 128
// bytes of the fourth part, by 6n-128, 5n-128 and 4n-128 bytes, with constants
// from a table. The accumulators are folded onto one, which goes on over what remains.
package crc32c
