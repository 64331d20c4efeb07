package rtrs

import (
	"math/bits"
	"syscall"
)

// Types of immediates: the topmost 4 of the low 32 bits.
const (
	immIOReq = 0
	immIORsp = 1
	immHB    = 8
	immHBAck = 9
	immBye   = 10
)

const (
	immPayloadBits = 28
	immPayloadMask = 1<<immPayloadBits - 1
	rspIDBits      = 19
	rspIDMask      = 1<<rspIDBits - 1
	rspErrnoMax    = 1<<(immPayloadBits-rspIDBits) - 1
)

func immType(imm uint64) uint32    { return uint32(imm) >> immPayloadBits }
func immPayload(imm uint64) uint32 { return uint32(imm) & immPayloadMask }
func immSTag(imm uint64) uint32    { return uint32(imm >> 32) }

func makeImm(typ, payload uint32) uint64 { return uint64(typ<<immPayloadBits | payload) }

// offsetBits returns how many low bits of an IO_REQ's payload hold the offset in the
// chunk if there are depth chunks.
func offsetBits(depth int) int { return immPayloadBits - bits.Len(uint(depth-1)) }

// reqImm returns the immediate of a request in chunk id whose message is at off.
func reqImm(id, off uint32, offBits int) uint64 { return makeImm(immIOReq, id<<offBits|off) }

func splitReq(imm uint64, offBits int) (id, off uint32) {
	p := immPayload(imm)
	return p >> offBits, p & (1<<offBits - 1)
}

// rspImm returns the immediate of a response: the request's chunk, its result and the
// chunk's new STag (0 if it keeps its STag). An errno that does not fit 9 bits becomes
// EIO.
func rspImm(id uint32, errno syscall.Errno, stag uint32) uint64 {
	if errno > rspErrnoMax {
		errno = syscall.EIO
	}
	return makeImm(immIORsp, uint32(errno)<<rspIDBits|id&rspIDMask) | uint64(stag)<<32
}

func splitRsp(imm uint64) (id uint32, errno syscall.Errno, stag uint32) {
	p := immPayload(imm)
	return p & rspIDMask, syscall.Errno(p >> rspIDBits), immSTag(imm)
}
