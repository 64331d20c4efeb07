#include "textflag.h"

// doc.go has the method, crc32c_amd64.go the constants.

// FOLD multiplies the halves of the 128-bit lanes of acc by those of k, one fold
// each, and adds src (memory or a register). It spoils tmp.
#define FOLD(k, acc, tmp, src) \
	VPCLMULQDQ $0x11, k, acc, tmp \
	VPCLMULQDQ $0x00, k, acc, acc \
	VPXOR src, tmp, tmp           \
	VPXOR tmp, acc, acc

// STEP takes 8 bytes of each of the first three parts.
#define STEP(at) \
	CRC32Q at(SI), R10 \
	CRC32Q at(R8), R11 \
	CRC32Q at(R9), R12

// MOVE multiplies the remainder in reg by the constant at DX, and adds it to the first
// lane of Y0. It spoils X4 and X5.
#define MOVE(reg) \
	VMOVD reg, X4                \
	VMOVQ (R13)(DX*8), X5        \
	VPCLMULQDQ $0x00, X5, X4, X4 \
	VPXOR Y4, Y0, Y0

// func foldAVX2(crc uint32, p []byte, rounds int) uint32
//
// SI, R8 and R9 are the next bytes to read of the first three parts, R10, R11 and R12
// their remainders. DI is the next byte of the fourth, Y0..Y3 are its accumulators.
// BX is the number of bytes behind them.
TEXT ·foldAVX2(SB), NOSPLIT, $0-44
	MOVL crc+0(FP), R10
	MOVQ p_base+8(FP), SI
	MOVQ p_len+16(FP), BX
	MOVQ rounds+32(FP), CX
	XORL R11, R11
	XORL R12, R12
	MOVQ CX, AX
	SHLQ $5, AX // bytes of each of the first three parts
	LEAQ (SI)(AX*1), R8
	LEAQ (R8)(AX*1), R9
	LEAQ (R9)(AX*1), DI
	IMUL3Q $7, AX, AX
	SUBQ AX, BX
	VMOVDQU 0x00(DI), Y0
	VMOVDQU 0x20(DI), Y1
	VMOVDQU 0x40(DI), Y2
	VMOVDQU 0x60(DI), Y3
	VBROADCASTI128 ·foldConstants+0x20(SB), Y8 // 1024 bits
	MOVQ CX, DX
	SUBQ $1, DX
	JZ   last

	PCALIGN $32
round:
	ADDQ $128, DI
	FOLD(Y8, Y0, Y4, 0x00(DI))
	STEP(0)
	FOLD(Y8, Y1, Y5, 0x20(DI))
	STEP(8)
	FOLD(Y8, Y2, Y6, 0x40(DI))
	STEP(16)
	FOLD(Y8, Y3, Y7, 0x60(DI))
	STEP(24)
	ADDQ $32, SI
	ADDQ $32, R8
	ADDQ $32, R9
	SUBQ $1, DX
	JNZ  round

last:
	ADDQ $128, DI
	STEP(0)
	STEP(8)
	STEP(16)
	STEP(24)

	// The three remainders move onto the first lane, which begins the last 128
	// bytes of the fourth part: the third by 4*rounds-4 times 32 bytes, and
	// those before it by 32 bytes more for each round.
	LEAQ ·shiftConstants(SB), R13
	LEAQ -4(CX*4), DX
	MOVE(R12)
	ADDQ CX, DX
	MOVE(R11)
	ADDQ CX, DX
	MOVE(R10)

	// Four accumulators become two, and one.
	VBROADCASTI128 ·foldConstants+0x30(SB), Y8 // 512 bits
	VBROADCASTI128 ·foldConstants+0x50(SB), Y9 // 256 bits
	FOLD(Y8, Y0, Y4, Y2)
	FOLD(Y8, Y1, Y5, Y3)
	FOLD(Y9, Y0, Y4, Y1)
	SUBQ $32, BX
	JB   lanes

blocks:
	FOLD(Y9, Y0, Y4, (DI))
	ADDQ $32, DI
	SUBQ $32, BX
	JAE  blocks

lanes:
	VMOVDQU ·foldConstants+0x60(SB), X8 // 128 bits
	VEXTRACTI128 $1, Y0, X1
	FOLD(X8, X0, X4, X1)

	// The CRC32 instruction takes the remainder of the 128 bits left, and of the
	// up to 31 bytes behind them.
	VMOVQ X0, AX
	VPEXTRQ $1, X0, CX
	VZEROUPPER
	XORL DX, DX
	CRC32Q AX, DX
	CRC32Q CX, DX
	ADDQ $32, BX
	SUBQ $8, BX
	JB   tail

quads:
	CRC32Q (DI), DX
	ADDQ $8, DI
	SUBQ $8, BX
	JAE  quads

tail:
	TESTB $4, BX // BX is negative: the lowest three bits are those of the number left
	JZ   pair
	CRC32L (DI), DX
	ADDQ $4, DI

pair:
	TESTB $2, BX
	JZ   single
	CRC32W (DI), DX
	ADDQ $2, DI

single:
	TESTB $1, BX
	JZ   done
	CRC32B (DI), DX

done:
	MOVL DX, ret+40(FP)
	RET

// func hasVPCLMULQDQ() bool
TEXT ·hasVPCLMULQDQ(SB), NOSPLIT, $0-1
	MOVL $7, AX
	XORL CX, CX
	CPUID
	SHRL $10, CX
	ANDL $1, CX
	MOVB CX, ret+0(FP)
	RET
