package rdmap

import (
	"encoding/binary"
	"errors"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/internal/fifo"
)

// receiver is the state of the receiving goroutine.
type receiver struct {
	q      [4]ddp.RecvQueue        // by queue number
	buf    *RecvBuffer             // of the message of queue 0 that is next or in progress, nil: not taken
	ahead  fifo.Queue[*RecvBuffer] // of the messages after it, taken because they came early
	direct direct
	early  bool // a run of segments is out of order
	kick   bool // the sender may have work
	sends  bool // operations of ours have been reported
}

// direct is the segment whose payload the LLP reads directly into place.
type direct struct {
	op   Opcode
	stag uint32
	to   uint64 // or message offset of a Send
	left uint32
	n    uint32 // payload bytes of the segment
	last bool
	pin  Pin
	seg  [ddp.UntaggedHeaderLen]byte // its header
}

func (r *receiver) init() {
	for i := range r.q {
		r.q[i] = ddp.NewRecvQueue(uint32(i), ddp.FirstMSN)
	}
}

// sink is the Stream as its LLP sees it.
type sink Stream

var _ ddp.Sink = (*sink)(nil)

// Segment implements ddp.Sink.
func (k *sink) Segment(seg []byte) error {
	s := (*Stream)(k)
	if s.stop.Load() {
		return errStopped
	}
	s.rx.early = false
	if ddp.HeaderLen(seg) == 0 {
		return tooShort(seg)
	}
	if ddp.IsTagged(seg) {
		t := ddp.Tagged(seg)
		op, err := checkTagged(t)
		if err != nil {
			return err
		}
		if op == OpReadResponse {
			return s.readResponse(t, t.Payload())
		}
		return s.write(t)
	}
	return s.untagged(ddp.Untagged(seg))
}

// errStopped ends Receive when a fault has been found elsewhere: what follows
// it is dropped (RFC 5041 section 7.1).
var errStopped = errors.New("rdmap: the stream has ended")

func tooShort(seg []byte) error {
	return ddp.Faultf(ddp.LayerRDMA, TypeRemoteOperation, CodeUnspecified, seg, "a DDP segment of %d bytes is too short for its header", len(seg))
}

// write places a segment of an RDMA Write. One without payload touches no
// memory and needs no valid STag (RFC 5041 section 5.2).
func (s *Stream) write(t ddp.Tagged) error {
	p := t.Payload()
	if len(p) == 0 {
		return s.up.Slow(SlowEmpty)
	}
	buf, pin, fault := s.up.Acquire(t.STag(), t.TO(), uint32(len(p)), RemoteWrite)
	if fault != FaultNone {
		return writeFault(fault, t, len(t))
	}
	if to := targetOf(pin); to == nil || !to.Place(t.TO(), p) {
		copy(buf, p)
	}
	pin.Unpin()
	s.written.Add(uint64(len(p)))
	if !t.Last() {
		return s.tiny(len(p))
	}
	return nil
}

// checkTagged validates version and opcode of a tagged segment (RFC 5041
// section 7.1, RFC 5040 section 7.2).
func checkTagged(t ddp.Tagged) (Opcode, error) {
	if t.Version() != ddp.Version {
		return 0, ddp.Faultf(ddp.LayerDDP, ddp.TypeTagged, ddp.CodeTaggedInvalidVersion, t, "DDP version %d", t.Version())
	}
	v, op := ParseControl(t.ULP())
	if v != Version {
		return 0, ddp.Faultf(ddp.LayerRDMA, TypeRemoteOperation, CodeInvalidVersion, t, "RDMAP version %d", v)
	}
	if op != OpWrite && op != OpReadResponse {
		return 0, ddp.Faultf(ddp.LayerRDMA, TypeRemoteOperation, CodeUnexpectedOpcode, t, "%v in a tagged segment", op)
	}
	return op, nil
}

func writeFault(fault Fault, t ddp.Tagged, total int) error {
	layer, typ, code := fault.tagged()
	e := ddp.Faultf(layer, typ, code, t, "RDMA Write of %d bytes to STag %#08x at %d: %v", total-ddp.TaggedHeaderLen, t.STag(), t.TO(), fault)
	e.SegLen = total
	return e
}

// expectRead checks a Read Response segment of n payload bytes against the
// oldest Read: only what we asked for, in order, to the byte.
func (s *Stream) expectRead(t ddp.Tagged, n, total int) (op *Op, got uint32, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reads.Len() == 0 || !s.reads.At(0).awaits(t.STag()) {
		return nil, 0, unexpectedRead(t, total)
	}
	r := s.reads.At(0)
	if t.TO() != uint64(r.got) || uint32(n) > r.op.Len-r.got || t.Last() != (r.got+uint32(n) == r.op.Len) {
		e := ddp.Faultf(ddp.LayerDDP, ddp.TypeTagged, ddp.CodeTaggedBounds, t,
			"Read Response of %d bytes at %d (last %v), with %d of %d bytes received", n, t.TO(), t.Last(), r.got, r.op.Len)
		e.SegLen = total
		return nil, 0, e
	}
	return r.op, r.got, nil
}

func unexpectedRead(t ddp.Tagged, total int) error {
	e := ddp.Faultf(ddp.LayerDDP, ddp.TypeTagged, ddp.CodeTaggedInvalidSTag, t, "Read Response to STag %#08x that no RDMA Read awaits", t.STag())
	e.SegLen = total
	return e
}

// readPlaced records that n bytes of the oldest Read have arrived.
func (s *Stream) readPlaced(n uint32) {
	s.mu.Lock()
	s.reads.At(0).got += n
	s.placed += uint64(n)
	s.mu.Unlock()
}

func (s *Stream) readResponse(t ddp.Tagged, p []byte) error {
	op, off, err := s.expectRead(t, len(p), len(t))
	if err != nil {
		return err
	}
	s.readPlaced(uint32(len(p)))
	place(op.SGL, off, p)
	if t.Last() {
		s.answered()
		return nil
	}
	return s.tiny(len(p))
}

// answered completes the oldest Read or Atomic.
func (s *Stream) answered() {
	s.mu.Lock()
	r := s.reads.Pop()
	r.op.done = true
	if s.retireLocked() {
		s.rx.sends = true
		s.progressLocked()
	}
	s.mu.Unlock()
	s.rx.kick = true
}

// untagged handles a segment of the queues 0 to 3.
func (s *Stream) untagged(u ddp.Untagged) error {
	op, err := checkUntagged(u)
	if err != nil {
		return err
	}
	if op == OpTerminate {
		return s.terminated(u)
	}
	q := &s.rx.q[u.QN()]
	if err := q.Accept(u); err != nil {
		return err
	}
	p := u.Payload()
	if u.QN() != QNSend {
		if !u.Last() {
			return ddp.Faultf(ddp.LayerDDP, ddp.TypeUntagged, ddp.CodeUntaggedTooLong, u, "%v in more than one segment", op)
		}
		q.Placed(len(p), true)
		switch op {
		case OpReadRequest:
			return s.readRequest(u, p)
		case OpAtomicRequest:
			return s.atomicRequest(u, p)
		}
		return s.atomicResponse(u, p)
	}
	r, err := s.sendBuffer(u, len(p), len(u))
	if err != nil {
		return err
	}
	m := Message{Op: op}
	if op == OpImmediate || op == OpImmediateSE {
		if len(p) != immediateLen || !u.Last() || u.MO() != 0 {
			return ddp.Faultf(ddp.LayerRDMA, TypeRemoteOperation, CodeUnspecified, u, "Immediate Data of %d bytes", len(p))
		}
		m.Imm = binary.BigEndian.Uint64(p)
		q.Placed(len(p), true)
		return s.deliver(u, r, m)
	}
	place(r.SGL, u.MO(), p)
	q.Placed(len(p), u.Last())
	if u.Last() {
		m.Len = u.MO() + uint32(len(p))
		return s.deliver(u, r, m)
	}
	return s.tiny(len(p))
}

// checkUntagged validates version, opcode and queue of an untagged segment
// (RFC 5041 section 7.1, RFC 5040 section 7.2).
func checkUntagged(u ddp.Untagged) (Opcode, error) {
	if u.Version() != ddp.Version {
		return 0, ddp.Faultf(ddp.LayerDDP, ddp.TypeUntagged, ddp.CodeUntaggedInvalidVersion, u, "DDP version %d", u.Version())
	}
	if u.QN() > QNAtomicResponse {
		return 0, ddp.Faultf(ddp.LayerDDP, ddp.TypeUntagged, ddp.CodeUntaggedInvalidQN, u, "queue number %d", u.QN())
	}
	v, op := ParseControl(u.ULP())
	if v != Version {
		return 0, ddp.Faultf(ddp.LayerRDMA, TypeRemoteOperation, CodeInvalidVersion, u, "RDMAP version %d", v)
	}
	if want, ok := queueOf(op); !ok || want != u.QN() {
		return 0, ddp.Faultf(ddp.LayerRDMA, TypeRemoteOperation, CodeUnexpectedOpcode, u, "%v on queue %d", op, u.QN())
	}
	return op, nil
}

// queueOf is the queue that an untagged message belongs to (RFC 5040 section
// 4.1, RFC 7306 section 4.1).
func queueOf(op Opcode) (uint32, bool) {
	switch op {
	case OpSend, OpSendInvalidate, OpSendSE, OpSendSEInvalidate, OpImmediate, OpImmediateSE:
		return QNSend, true
	case OpReadRequest, OpAtomicRequest:
		return QNReadRequest, true
	case OpTerminate:
		return QNTerminate, true
	case OpAtomicResponse:
		return QNAtomicResponse, true
	}
	return 0, false
}

// sendBuffer is the receive buffer for a segment of queue 0 that is in order,
// with room for it.
func (s *Stream) sendBuffer(u ddp.Untagged, n, total int) (*RecvBuffer, error) {
	if s.rx.buf == nil {
		if s.rx.ahead.Len() > 0 {
			s.rx.buf = s.rx.ahead.Pop()
		} else if s.rx.buf = s.up.NextRecv(); s.rx.buf == nil {
			return nil, noBuffer(u, total)
		}
	}
	_, op := ParseControl(u.ULP())
	if op == OpImmediate || op == OpImmediateSE {
		return s.rx.buf, nil
	}
	return s.rx.buf, fits(s.rx.buf, u, n, total)
}

func noBuffer(u ddp.Untagged, total int) error {
	e := ddp.Faultf(ddp.LayerDDP, ddp.TypeUntagged, ddp.CodeUntaggedNoBuffer, u, "no receive buffer is posted for message %d", u.MSN())
	e.SegLen = total
	return e
}

// fits checks that n bytes of payload have their place in r (RFC 5041 section
// 7.1, untagged rules 3 and 4).
func fits(r *RecvBuffer, u ddp.Untagged, n, total int) error {
	end := uint64(u.MO()) + uint64(n)
	if end <= uint64(r.Len) {
		return nil
	}
	code := ddp.CodeUntaggedTooLong
	if u.MO() > r.Len {
		code = ddp.CodeUntaggedInvalidMO
	}
	e := ddp.Faultf(ddp.LayerDDP, ddp.TypeUntagged, code, u, "message %d has at least %d bytes, the receive buffer %d", u.MSN(), end, r.Len)
	e.SegLen = total
	return e
}

// deliver passes a complete message of queue 0 to the Upper.
func (s *Stream) deliver(u ddp.Untagged, r *RecvBuffer, m Message) error {
	if m.Op == OpSendInvalidate || m.Op == OpSendSEInvalidate {
		m.Invalidated = u.ULPWord()
		if fault := s.up.InvalidateRemote(m.Invalidated); fault != FaultNone {
			layer, typ, code := fault.remote()
			return ddp.Faultf(layer, typ, code, u, "Send with Invalidate of STag %#08x: %v", m.Invalidated, fault)
		}
	}
	s.rx.buf = nil
	s.up.Received(r, m)
	return nil
}

// BatchEnd implements ddp.Sink.
func (k *sink) BatchEnd() {
	s := (*Stream)(k)
	if s.rx.kick {
		s.rx.kick = false
		s.mu.Lock()
		s.kickAndUnlock(true)
	}
	if s.rx.sends {
		s.rx.sends = false
		s.up.Completions(true)
	}
	s.up.BatchEnd()
}
