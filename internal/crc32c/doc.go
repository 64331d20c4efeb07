// Package crc32c computes the CRC-32C (Castagnoli) that MPA (RFC 5044, section
// 4.4), iSCSI (RFC 3720, section 12.1) and SCTP (RFC 9260, appendix A) use. Its
// results are those of hash/crc32; it is there because it takes less than half
// the time on CPUs that multiply polynomials 512 bits at a time (amd64 with
// AVX-512 and VPCLMULQDQ: Intel since Ice Lake, AMD since Zen 4). Everywhere
// else, and for inputs under 64 bytes, it calls hash/crc32.
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
package crc32c
