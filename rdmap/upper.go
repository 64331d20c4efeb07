package rdmap

import (
	"github.com/ironwarp/ironwarp/ddp"
)

// Access is a set of rights on tagged memory.
type Access uint8

// The rights a peer may have through an STag.
const (
	RemoteRead Access = 1 << iota
	RemoteWrite
	RemoteAtomic
)

// Fault is why an access by the peer was refused. The order of the checks
// follows RFC 5040 section 7.2 and RFC 5041 section 7.1.
type Fault uint8

// The faults.
const (
	FaultNone Fault = iota
	FaultInvalidSTag
	FaultNotAssociated
	FaultTOWrap
	FaultBounds
	FaultAccess
	FaultCannotInvalidate
)

func (f Fault) String() string {
	return [...]string{"none", "invalid STag", "STag not associated with the stream", "tagged offset wraps",
		"base or bounds violation", "access rights violation", "STag cannot be invalidated"}[f]
}

// tagged is the Terminate code of a fault found while placing a tagged
// segment: the DDP layer's (RFC 5041 section 7.2), but for access rights,
// which only RDMAP knows (RFC 5040 section 4.8).
func (f Fault) tagged() (ddp.Layer, uint8, uint8) {
	switch f {
	case FaultNotAssociated:
		return ddp.LayerDDP, ddp.TypeTagged, ddp.CodeTaggedNotAssociated
	case FaultTOWrap:
		return ddp.LayerDDP, ddp.TypeTagged, ddp.CodeTaggedTOWrap
	case FaultBounds:
		return ddp.LayerDDP, ddp.TypeTagged, ddp.CodeTaggedBounds
	case FaultAccess:
		return ddp.LayerRDMA, TypeRemoteProtection, CodeAccess
	}
	return ddp.LayerDDP, ddp.TypeTagged, ddp.CodeTaggedInvalidSTag
}

// remote is the Terminate code of a fault found by RDMAP on a Read Request, an
// Atomic Request or an Invalidate (RFC 5040 section 4.8).
func (f Fault) remote() (ddp.Layer, uint8, uint8) {
	code := CodeInvalidSTag
	switch f {
	case FaultNotAssociated:
		code = CodeNotAssociated
	case FaultTOWrap:
		code = CodeTOWrap
	case FaultBounds:
		code = CodeBounds
	case FaultAccess:
		code = CodeAccess
	case FaultCannotInvalidate:
		code = CodeCannotInvalidate
	}
	return ddp.LayerRDMA, TypeRemoteProtection, code
}

// Pin holds tagged memory: a revocation waits until it is released.
type Pin interface{ Unpin() }

// VolatilePin is a Pin that knows whether the memory may be changed by peers
// while it is held. A Read Response from such memory is copied if the LLP
// computes a checksum before it is sent: a peer may write to what another one, or itself,
// is reading (RFC 5040 section 5.5 rules 3 and 12), which must not spoil a checksum.
type VolatilePin interface {
	Pin
	Volatile() bool
}

// TargetPin is a Pin of tagged memory that peers only write to, and whose payloads may have a
// target elsewhere.
type TargetPin interface {
	Pin
	// HasTarget reports whether payloads go to Place.
	HasTarget() bool
	// Place takes the payload p at tagged offset to. Where it returns false, it has not kept
	// p, which goes to the pinned memory. It does not wait and does not call the Stream.
	Place(to uint64, p []byte) bool
}

// targetOf returns where payloads for pinned memory go, nil: to that.
func targetOf(pin Pin) TargetPin {
	if t, ok := pin.(TargetPin); ok && t.HasTarget() {
		return t
	}
	return nil
}

// RecvBuffer is a posted receive: pieces of local memory.
type RecvBuffer struct {
	ID  uint64
	SGL [][]byte
	Ref []Pin
	Len uint32 // bytes in all
}

// NewRecvBuffer returns a receive with room for a list of up to sges pieces.
func NewRecvBuffer(sges int) *RecvBuffer {
	if sges > inlineSGE {
		return &RecvBuffer{SGL: make([][]byte, 0, sges), Ref: make([]Pin, 0, sges)}
	}
	r := new(struct {
		RecvBuffer
		pieces
	})
	r.SGL, r.Ref = r.sgl[:0], r.ref[:0]
	return &r.RecvBuffer
}

// place copies p to offset off of sgl, which has room for it.
func place(sgl [][]byte, off uint32, p []byte) {
	for _, b := range sgl {
		if len(p) == 0 {
			return
		}
		if off >= uint32(len(b)) {
			off -= uint32(len(b))
			continue
		}
		n := copy(b[off:], p)
		p, off = p[n:], 0
	}
}

// span is the contiguous memory at offset off, at most n bytes of it.
func span(sgl [][]byte, off, n uint32) []byte {
	for _, b := range sgl {
		if off < uint32(len(b)) {
			b = b[off:]
			if uint32(len(b)) > n {
				b = b[:n]
			}
			return b
		}
		off -= uint32(len(b))
	}
	return nil
}

// Message describes a delivered untagged message of queue 0.
type Message struct {
	Op          Opcode
	Len         uint32 // bytes of payload placed
	Imm         uint64 // OpImmediate, OpImmediateSE
	Invalidated uint32 // OpSendInvalidate, OpSendSEInvalidate: the STag that is now invalid
}

// Solicited reports whether the message asks for an event at the receiver
// (RFC 5040 section 4.3).
func (m Message) Solicited() bool {
	return m.Op == OpSendSE || m.Op == OpSendSEInvalidate || m.Op == OpImmediateSE
}

// Upper is what a Stream runs under: the owner of memory, receive queue and
// completions. All its methods must be quick and must not call back into the
// Stream, except Completions and BatchEnd, which may post.
//
// Where the LLP delivers segments out of order, several receives are in
// progress at once. They are taken in the order of the messages' sequence
// numbers, a buffer for every message up to the one that has arrived, and
// delivered in that order. The Upper keeps track of what it has handed out:
// when the stream ends, in Ended, buffers that were taken but not delivered belong to
// the Upper again, some of them partly filled.
type Upper interface {
	// Acquire checks an access by the peer to n bytes at tagged offset to of
	// stag, to the byte, and pins the memory until Unpin. n is not 0.
	Acquire(stag uint32, to uint64, n uint32, need Access) ([]byte, Pin, Fault)
	// InvalidateRemote executes a Send with Invalidate.
	InvalidateRemote(stag uint32) Fault
	// NextRecv takes the next receive buffer, for the message after the one that
	// the previous buffer was taken for; nil if there is none, which is the
	// peer's fault and ends the stream. Called by the receiving goroutine.
	NextRecv() *RecvBuffer
	// Received delivers a message in r, which is the oldest buffer that was
	// taken and not delivered. Called by the receiving goroutine.
	Received(r *RecvBuffer, m Message)
	// Local executes an OpLocal in order: every earlier operation has been
	// handed to the LLP, at least in part of a pending batch, no later one has
	// been begun, and Fence is respected. The operation is done when Local
	// returns, and is reported by SendDone in the order of posting. An error is
	// the operation's and ends the stream with a *LocalError; later operations
	// are not executed. Called by whichever goroutine sends, without the
	// stream's lock and with no memory pinned, so that it may end an access to
	// memory and wait for what is pinned elsewhere.
	Local(op *Op) error
	// SendDone reports an operation that has ended, in the order of posting. err
	// is Local's error for this operation, or why the stream ended before it
	// could be reported as done: it may have been executed all the same.
	// The stream's lock is held.
	SendDone(op *Op, err error)
	// Slow reports that the peer has made the stream take a slow path. It returns
	// an error if the peer does so too often, which ends the stream. Called by the
	// receiving goroutine.
	Slow(k SlowPath) error
	// Completions follows one or more SendDone without the lock. engine: the
	// calling goroutine belongs to the stream, not to a poster.
	Completions(engine bool)
	// BatchEnd follows the last Received of one read of the LLP.
	BatchEnd()
	// Ended is the last call: the stream is over and every operation has been
	// reported. err is nil after a graceful close by both sides.
	Ended(err error)
}
