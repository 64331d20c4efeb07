package verbs

import (
	"errors"
	"fmt"

	"github.com/ironwarp/ironwarp/rdmap"
)

// ErrQueueFull is returned by a post to a queue that is at its depth.
var ErrQueueFull = errors.New("verbs: work queue full")

// SGE is a piece of registered local memory: Len bytes at Off of the region's
// memory (not of its current window).
type SGE struct {
	MR  *MR
	Off uint32
	Len uint32
}

// Opcode is the kind of a send work request.
type Opcode uint8

// The operations. OpSend with an InvalidateSTag is a Send with Invalidate.
const (
	OpSend Opcode = iota + 1
	OpWrite
	OpRead
	OpImmediate // 8 bytes, consumes a receive of the peer (RFC 7306 section 6)
	OpFetchAdd  // RFC 7306 section 5.1.1
	OpCmpSwap   // RFC 7306 section 5.1.2

	// The following are executed in send queue order and send nothing: after every
	// earlier operation has begun, with Fence after earlier Reads and Atomics are
	// done, and before any later one begins. One that fails ends the stream.

	OpBind            // open memory window MW for Access to the one element of SGL, see MW
	OpRegister        // MR.Reregister of the one element of SGL for Access
	OpInvalidateLocal // end access through InvalidateSTag, of this queue pair's windows or a region of its PD
)

// Flags modify a send work request.
type Flags uint8

// The flags.
const (
	Signaled  Flags = 1 << iota // completes with a WC; errors always do
	Solicited                   // the receiver's completion is solicited (RFC 5040 section 4.3)
	Fence                       // starts only when earlier Reads and Atomics are done
	More                        // more posts follow at once: do not start sending yet
	Inline                      // the source is copied by the post and may then be reused
)

// SendWR is a send work request. It is copied by the post.
type SendWR struct {
	ID             uint64
	Op             Opcode
	Flags          Flags
	SGL            []SGE  // source of Sends and Writes, sink of a Read or (8 bytes, optional) of an Atomic
	RemoteSTag     uint32 // of Writes, Reads, Atomics
	RemoteTO       uint64
	Invalidate     bool   // OpSend: invalidate InvalidateSTag at the peer
	InvalidateSTag uint32 // OpSend with Invalidate: at the peer. OpInvalidateLocal: our own
	MW             *MW    // OpBind
	Key            uint8  // OpBind of a window of AllocKeyedMW: the lower 8 bits of its new STag, other than those of the last
	Access         Access // OpBind, OpRegister: the remote rights
	Base           uint64 // OpBind, OpRegister: the tagged offset of the first byte
	Data           []byte // with Inline: the source of a Send or Write, in place of SGL; it need not be registered
	Imm            uint64 // OpImmediate
	Add, AddMask   uint64 // OpFetchAdd; or what to swap in and its mask, OpCmpSwap
	Compare        uint64 // OpCmpSwap
	CompareMask    uint64
}

// RecvWR is a receive work request. It is copied by the post.
type RecvWR struct {
	ID  uint64
	SGL []SGE // empty: takes Immediate Data and zero-length Sends
}

// PostSend posts a send work request. It never blocks: what the connection does not
// accept at once is sent by the stream's own goroutine. An OpBind or OpRegister gives the
// new STag at once, see MW.STag and MR.STag: a later Send may tell the peer. It fails
// with ErrIdle before the stream is up, with ErrQueueFull when MaxSend work requests
// are outstanding, with ErrClosed in its chain when the stream is ending or memory that
// it names is deregistered, with ErrTrust if the trust model forbids it, and
// if the work request is invalid. Nothing is posted then.
func (qp *QP) PostSend(wr *SendWR) error {
	stream := qp.stream.Load()
	if stream == nil {
		return qp.noStream()
	}
	if wr.Op >= OpBind && wr.Op <= OpInvalidateLocal {
		return qp.postLocal(stream, wr)
	}
	kind, err := kindOf(stream, wr)
	if err != nil {
		return err
	}
	total, err := qp.pd.checkSGL(wr.SGL, qp.cfg.MaxSendSGE, wr.Op == OpRead || wr.Op == OpFetchAdd || wr.Op == OpCmpSwap)
	if err != nil {
		return err
	}
	inline := wr.Flags&Inline != 0
	if len(wr.Data) > 0 {
		switch {
		case !inline || len(wr.SGL) > 0 || wr.Op != OpSend && wr.Op != OpWrite:
			return errors.New("verbs: post a send work request: Data is for a Send or Write with Inline and no SGL")
		case uint64(len(wr.Data)) > rdmap.MaxMessageLen:
			return fmt.Errorf("verbs: a message of %d bytes: %d are possible", len(wr.Data), uint64(rdmap.MaxMessageLen))
		}
		total = uint32(len(wr.Data))
	}
	if (wr.Op == OpFetchAdd || wr.Op == OpCmpSwap) && len(wr.SGL) > 0 && (len(wr.SGL) > 1 || total != 8 || inline) {
		return errors.New("verbs: post an Atomic: its result goes to one element of 8 bytes, not inline, or to none")
	}
	op, err := reserve(stream)
	if err != nil {
		return err
	}
	op.Kind, op.ID = kind, wr.ID
	op.Signaled, op.Fence = wr.Flags&Signaled != 0, wr.Flags&Fence != 0
	op.STag, op.TO, op.Imm, op.Len = wr.RemoteSTag, wr.RemoteTO, wr.Imm, total
	switch wr.Op {
	case OpSend:
		op.STag = wr.InvalidateSTag
	case OpFetchAdd:
		op.Atomic = rdmap.AtomicRequest{Op: rdmap.AtomicFetchAdd, AddSwap: wr.Add, AddSwapMask: wr.AddMask, CompareMask: ^uint64(0)}
	case OpCmpSwap:
		op.Atomic = rdmap.AtomicRequest{Op: rdmap.AtomicCmpSwap, AddSwap: wr.Add, AddSwapMask: wr.AddMask, Compare: wr.Compare, CompareMask: wr.CompareMask}
	}
	if op.Ref, err = claim(wr.SGL, op.Ref); err != nil {
		stream.Cancel()
		return err
	}
	for _, e := range wr.SGL {
		op.SGL = append(op.SGL, e.MR.buf[e.Off:e.Off+e.Len])
		op.Volatile = op.Volatile || e.MR.volatile
	}
	if len(wr.Data) > 0 {
		op.SetInline(wr.Data)
	} else if inline && wr.Op != OpRead {
		op.CopyInline()
		op.Volatile = false
		release(op.Ref)
	}
	stream.Commit(wr.Flags&More != 0)
	return nil
}

// reserve takes an element of the send queue, see rdmap.Stream.Reserve.
func reserve(stream *rdmap.Stream) (*rdmap.Op, error) {
	op, err := stream.Reserve()
	switch {
	case err == nil:
		return op, nil
	case errors.Is(err, rdmap.ErrQueueFull):
		return nil, ErrQueueFull
	}
	return nil, &closedError{"post a send", err}
}

// claim keeps the memory that sgl names registered for a work request, whose refs it returns.
func claim(sgl []SGE, refs []rdmap.Pin) ([]rdmap.Pin, error) {
	for _, e := range sgl {
		p, err := e.MR.claim()
		if err != nil {
			release(refs)
			return refs[:0], err
		}
		refs = append(refs, p)
	}
	return refs, nil
}

// Flush starts sending what was posted with More.
func (qp *QP) Flush() {
	if s := qp.stream.Load(); s != nil {
		s.Flush()
	}
}

// noStream is the error of posting a send on a queue pair without a stream.
func (qp *QP) noStream() error {
	if qp.State() == QPIdle {
		return fmt.Errorf("verbs: post a send: %w; post from prepare is for receives", ErrIdle)
	}
	return &closedError{what: "post a send"}
}

// closedError matches ErrClosed and names the operation that failed.
type closedError struct {
	what string
	err  error // why it is closed, may be nil
}

func (e *closedError) Error() string {
	why := "closed"
	if e.err != nil {
		why = e.err.Error()
	}
	return "verbs: " + e.what + ": " + why
}

func (e *closedError) Unwrap() error        { return e.err }
func (e *closedError) Is(target error) bool { return target == ErrClosed }

func kindOf(stream *rdmap.Stream, wr *SendWR) (rdmap.Opcode, error) {
	switch wr.Op {
	case OpSend:
		k := rdmap.OpSend
		if wr.Invalidate {
			k = rdmap.OpSendInvalidate
		}
		if wr.Flags&Solicited != 0 {
			k += rdmap.OpSendSE - rdmap.OpSend
		}
		return k, nil
	case OpWrite:
		return rdmap.OpWrite, nil
	case OpRead, OpFetchAdd, OpCmpSwap:
		if stream.ORD() == 0 {
			return 0, errors.New("verbs: post a Read or Atomic: the negotiated ORD is 0, the peer accepts none")
		}
		if wr.Op == OpRead {
			return rdmap.OpReadRequest, nil
		}
		return rdmap.OpAtomicRequest, nil
	case OpImmediate:
		if len(wr.SGL) > 0 {
			return 0, errors.New("verbs: post Immediate Data: it carries Imm and no SGL")
		}
		if wr.Flags&Solicited != 0 {
			return rdmap.OpImmediateSE, nil
		}
		return rdmap.OpImmediate, nil
	}
	return 0, fmt.Errorf("verbs: post a send work request: unknown operation %d", wr.Op)
}

// checkSGL checks that sgl has at most most elements within registered memory, and returns its size. written:
// the operation stores into it.
func (pd *PD) checkSGL(sgl []SGE, most int, written bool) (total uint32, err error) {
	if len(sgl) > most {
		return 0, fmt.Errorf("verbs: post %d scatter/gather elements: the queue is made for %d", len(sgl), most)
	}
	var sum uint64
	for i, e := range sgl {
		switch {
		case e.MR == nil:
			return 0, fmt.Errorf("verbs: scatter/gather element %d names no memory region", i)
		case e.MR.win.pd.isForeign(pd):
			return 0, fmt.Errorf("verbs: scatter/gather element %d: the memory region belongs to another protection domain", i)
		case uint64(e.Off)+uint64(e.Len) > uint64(len(e.MR.buf)):
			return 0, fmt.Errorf("verbs: scatter/gather element %d: %d bytes at %d of a region of %d", i, e.Len, e.Off, len(e.MR.buf))
		case written && !e.MR.local:
			return 0, fmt.Errorf("verbs: scatter/gather element %d: the memory region has no LocalWrite right", i)
		}
		sum += uint64(e.Len)
	}
	if sum > rdmap.MaxMessageLen {
		return 0, fmt.Errorf("verbs: a message of %d bytes: %d are possible", sum, uint64(rdmap.MaxMessageLen))
	}
	return uint32(sum), nil
}

// PostRecv posts a receive. Receives may be posted before the stream is up. It fails
// with ErrQueueFull when MaxRecv receives are posted and not yet delivered, with
// ErrClosed when the stream is over, and if the queue pair has an SRQ or the work
// request is invalid.
func (qp *QP) PostRecv(wr RecvWR) error {
	if qp.cfg.SRQ != nil {
		return errors.New("verbs: post a receive on a queue pair with a shared receive queue: post it there")
	}
	total, err := qp.pd.checkSGL(wr.SGL, qp.cfg.MaxRecvSGE, true)
	if err != nil {
		return err
	}
	q := &qp.rq
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return &closedError{what: "post a receive"}
	}
	r := q.reserveLocked()
	if r == nil {
		return ErrQueueFull
	}
	if err := fillRecv(r, &wr, total); err != nil {
		return err
	}
	q.tail++
	return nil
}

// fillRecv fills r from wr and claims its memory.
func fillRecv(r *rdmap.RecvBuffer, wr *RecvWR, total uint32) error {
	refs, err := claim(wr.SGL, r.Ref[:0])
	if err != nil {
		return err
	}
	r.ID, r.Len, r.Ref = wr.ID, total, refs
	for _, e := range wr.SGL {
		r.SGL = append(r.SGL, e.MR.buf[e.Off:e.Off+e.Len])
	}
	return nil
}

// reserveLocked returns the slot at tail, growing the ring if necessary; nil: full.
func (q *recvQueue) reserveLocked() *rdmap.RecvBuffer {
	used := int(q.tail - q.head)
	if used >= q.max {
		return nil
	}
	if used == len(q.slots) {
		n := min(q.max, max(initialRecv, 2*used))
		slots := make([]*rdmap.RecvBuffer, n)
		for i := q.head; i < q.tail; i++ {
			slots[i%uint64(n)] = q.slots[i%uint64(used)]
		}
		for i := range slots {
			if slots[i] == nil {
				slots[i] = rdmap.NewRecvBuffer(q.sges)
			}
		}
		q.slots = slots
	}
	return q.slots[q.tail%uint64(len(q.slots))]
}
