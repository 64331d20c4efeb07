package tap

import "github.com/ironwarp/ironwarp/ddp"

// The RDMAP opcodes whose messages are not, or not all, payload of a ULP (RFC 5040 section 4.2, RFC 7306 section 7).
const (
	opcodeMask      = 0x0f
	opReadRequest   = 0x1
	opTerminate     = 0x7
	opImmediate     = 0x8
	opImmediateSE   = 0x9
	opAtomicRequest = 0xa
	opAtomicReply   = 0xb
)

// Bytes of these messages that are RDMAP's own.
const (
	readRequestLen   = 28              // all of it
	terminateLen     = 4 + 2 + 18 + 28 // the error, and the length and headers of what it is about
	immediateLen     = 8               // the Immediate Data
	atomicRequestLen = 4 + 4 + 4 + 8   // the operation, its number, STag and offset, without operands
	atomicReplyLen   = 4               // the request's number, without what the memory held
)

// Visible returns how many of the n bytes of a DDP segment are shown to those who may not see payload: the headers of DDP and
// RDMAP, RDMA Read Requests and Terminates, the Immediate Data, and what atomic operations are done where, without their
// operands. head is the beginning of the segment: all of it, or ddp.MaxHeaderLen bytes at least.
func Visible(head []byte, n int) int {
	hdr := ddp.HeaderLen(head)
	if hdr == 0 || ddp.IsTagged(head) {
		return min(hdr, n)
	}
	switch ddp.Untagged(head).ULP() & opcodeMask {
	case opReadRequest:
		hdr += readRequestLen
	case opTerminate:
		hdr += terminateLen
	case opImmediate, opImmediateSE:
		hdr += immediateLen
	case opAtomicRequest:
		hdr += atomicRequestLen
	case opAtomicReply:
		hdr += atomicReplyLen
	}
	return min(hdr, n)
}
