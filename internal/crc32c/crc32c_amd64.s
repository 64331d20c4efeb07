#include "textflag.h"

// doc.go has the method, crc32c_amd64.go the constants.

// 0, 1, .. 63: the identity of VPERMB.
DATA lanes<>+0x00(SB)/8, $0x0706050403020100
DATA lanes<>+0x08(SB)/8, $0x0f0e0d0c0b0a0908
DATA lanes<>+0x10(SB)/8, $0x1716151413121110
DATA lanes<>+0x18(SB)/8, $0x1f1e1d1c1b1a1918
DATA lanes<>+0x20(SB)/8, $0x2726252423222120
DATA lanes<>+0x28(SB)/8, $0x2f2e2d2c2b2a2928
DATA lanes<>+0x30(SB)/8, $0x3736353433323130
DATA lanes<>+0x38(SB)/8, $0x3f3e3d3c3b3a3938
GLOBL lanes<>(SB), RODATA|NOPTR, $64

// FOLD multiplies the halves of the four 128-bit lanes of acc by those of k, one
// fold each, and adds src (memory). Truth table 0x96 is that of a^b^c. It spoils
// tmp.
#define FOLD(k, acc, tmp, src) \
	VPCLMULQDQ $0x11, k, acc, tmp \
	VPCLMULQDQ $0x00, k, acc, acc \
	VPTERNLOGQ $0x96, src, tmp, acc

// func foldAVX512(crc uint32, p []byte) uint32
//
// Z0..Z3 are the accumulators, Z4..Z7 scratch, Z8..Z11 constants.
// SI is the next byte to read, BX the number of bytes left.
TEXT ·foldAVX512(SB), NOSPLIT, $0-36
	MOVL crc+0(FP), AX
	MOVQ p_base+8(FP), SI
	MOVQ p_len+16(FP), BX

	// The register so far is added to the first 32 bits of the message.
	VMOVD AX, X4
	VPXORQ (SI), Z4, Z0
	VBROADCASTI32X4 ·foldConstants+0x30(SB), Z9 // 512 bits

	CMPQ BX, $256
	JB   one

	VMOVDQU64 0x40(SI), Z1
	VMOVDQU64 0x80(SI), Z2
	VMOVDQU64 0xc0(SI), Z3
	VBROADCASTI32X4 ·foldConstants+0x00(SB), Z8  // 2048 bits
	VBROADCASTI32X4 ·foldConstants+0x10(SB), Z11 // 1536 bits
	VBROADCASTI32X4 ·foldConstants+0x20(SB), Z10 // 1024 bits
	ADDQ $256, SI
	SUBQ $512, BX
	JB   join

	PCALIGN $32
four:
	FOLD(Z8, Z0, Z4, 0x00(SI))
	FOLD(Z8, Z1, Z5, 0x40(SI))
	FOLD(Z8, Z2, Z6, 0x80(SI))
	FOLD(Z8, Z3, Z7, 0xc0(SI))
	ADDQ $256, SI
	SUBQ $256, BX
	JAE  four

join:
	// Move the first three accumulators onto the fourth.
	ADDQ $256, BX
	VPCLMULQDQ $0x11, Z11, Z0, Z4
	VPCLMULQDQ $0x00, Z11, Z0, Z0
	VPCLMULQDQ $0x11, Z10, Z1, Z5
	VPCLMULQDQ $0x00, Z10, Z1, Z1
	VPCLMULQDQ $0x11, Z9, Z2, Z6
	VPCLMULQDQ $0x00, Z9, Z2, Z2
	VPTERNLOGQ $0x96, Z4, Z5, Z0
	VPTERNLOGQ $0x96, Z1, Z6, Z2
	VPTERNLOGQ $0x96, Z2, Z3, Z0
	SUBQ $64, BX
	JB   tail
	JMP  blocks

one:
	ADDQ $64, SI
	SUBQ $128, BX
	JB   tail

blocks:
	FOLD(Z9, Z0, Z4, (SI))
	ADDQ $64, SI
	SUBQ $64, BX
	JAE  blocks

tail:
	// t bytes are left, 0..63, behind the 64 of the accumulator. The 64+t
	// are taken as two blocks: 64-t zeros, which in front of a message do
	// not change its remainder, with the first t bytes of the accumulator,
	// and its other 64-t bytes with the last t of the message.
	ADDQ $64, BX // t
	JZ   lane
	VPBROADCASTB BX, Z5
	VPADDB lanes<>(SB), Z5, Z5
	VPERMB Z0, Z5, Z0 // rotated by t
	MOVQ $-1, AX
	MOVQ BX, CX
	NEGQ CX
	SHLQ CX, AX       // the t high bytes: a shift by 64-t
	KMOVQ AX, K1
	VMOVDQU8.Z Z0, K1, Z1
	VMOVDQU8 -64(SI)(BX*1), K1, Z0
	VPCLMULQDQ $0x11, Z9, Z1, Z4
	VPCLMULQDQ $0x00, Z9, Z1, Z1
	VPTERNLOGQ $0x96, Z4, Z1, Z0

lane:
	// The first three 128-bit lanes move onto the fourth, which has zeros
	// for constants and is added as it is.
	VMOVDQU64 ·foldConstants+0x40(SB), Z8 // 384, 256, 128 bits, 0
	VEXTRACTI32X4 $3, Z0, X3
	VPCLMULQDQ $0x11, Z8, Z0, Z4
	VPCLMULQDQ $0x00, Z8, Z0, Z0
	VPXORQ Z4, Z0, Z0
	VEXTRACTI64X4 $1, Z0, Y1
	VPXOR Y1, Y0, Y0
	VEXTRACTI128 $1, Y0, X1
	VPXOR X1, X0, X0
	VPXOR X3, X0, X0

	// The CRC32 instruction takes the remainder of the 128 bits left.
	VMOVQ X0, AX
	VPEXTRQ $1, X0, CX
	XORL DX, DX
	CRC32Q AX, DX
	CRC32Q CX, DX
	VZEROUPPER
	MOVL DX, ret+32(FP)
	RET
