package rdmap

import (
	"encoding/binary"
	"errors"

	"github.com/ironwarp/ironwarp/ddp"
)

// sender is the state of whoever sends (Stream.busy).
type sender struct {
	active bool     // a message has been begun and has bytes left
	op     *Op      // it is this operation
	resp   response // or, if op is nil, this response
	off    uint32   // bytes of it in segments so far
	msn    uint32   // its message sequence number
	sent   uint64   // operations before it are wholly in the batch or gone
	turn   bool     // the peer's responses are due before our operations
	sqMSN  uint32   // next on queue 0
	rrMSN  uint32   // next on queue 1
	arMSN  uint32   // next on queue 3
	term   bool     // the message begun is the Terminate
	hdr    []byte
	sgl    [MaxSGE][]byte
	pins   []Pin // memory of Read Responses in the batch
}

func (t *sender) init() {
	t.sqMSN, t.rrMSN, t.arMSN = 1, 1, 1
	t.hdr = make([]byte, 0, ddp.UntaggedHeaderLen+maxTerminateLen)
}

// workLocked reports whether the sender could do something now.
func (s *Stream) workLocked() bool {
	switch {
	case s.state == Closed:
		return false
	case s.term != nil:
		return !s.termSent
	case s.state == Terminating || s.finSent:
		return false
	case s.tx.active || s.readyDue || s.irrq.n > 0:
		return true
	case s.readyLocked():
		return true
	}
	return s.finDueLocked()
}

// stalledLocked reports that op has to wait for the response to an earlier
// Read or Atomic: the peer's depth is never exceeded (RFC 5040 section 6.1).
func (s *Stream) stalledLocked(op *Op) bool {
	return s.reads.n > 0 && (op.Fence || op.waits() && s.reads.n >= s.ord)
}

func (s *Stream) finDueLocked() bool {
	return s.state == Closing && !s.finSent && s.sq.head == s.sq.tail && s.irrq.n == 0
}

// drive sends until there is nothing left to do, the LLP would block or it has
// been enough for the calling goroutine; then the driver goroutine goes on. The
// caller has set busy.
func (s *Stream) drive(engine bool) {
	rounds := maxInlineRounds
	if engine {
		rounds = maxEngineRounds
	}
	for round := 0; ; round++ {
		ok, done := s.sendBatch()
		if !ok {
			return
		}
		if done {
			s.batchGone(engine)
		}
		if !done || round == rounds {
			go s.driverFn()
			return
		}
	}
}

// sendBatch builds a batch and writes what of it the LLP takes without
// blocking; done tells whether that was all. It is not ok when there is nothing
// to send or no way to: then the sender's role has been given back.
func (s *Stream) sendBatch() (ok, done bool) {
	pending, err := s.fill()
	if err == nil && pending {
		done, err = s.llp.TryFlush()
	}
	switch {
	case err != nil:
		s.sendFailed(err)
		return false, false
	case !pending:
		return false, false
	case !done && len(s.tx.pins) > 0:
		s.llp.Detach()
		s.unpin()
	}
	return true, done
}

// driver is the stream's sending goroutine, there only while the LLP blocks or
// a poster has done its share.
func (s *Stream) driver() {
	for {
		if err := s.llp.Flush(); err != nil {
			s.sendFailed(err)
			return
		}
		s.batchGone(true)
		if ok, _ := s.sendBatch(); !ok {
			return
		}
	}
}

// batchGone follows a complete flush.
func (s *Stream) batchGone(engine bool) {
	s.unpin()
	s.mu.Lock()
	s.flushed = s.tx.sent
	last := s.termSent && !s.termOver
	if last {
		s.termOverLocked()
	}
	any := s.retireLocked()
	s.mu.Unlock()
	if last {
		s.llp.CloseWrite() // so that the Terminate is delivered (RFC 5040 section 6.2.1)
	}
	if any {
		s.up.Completions(engine)
	}
}

// retireLocked reports finished operations from the head of the queue, in
// order (RFC 5040 section 5.5).
func (s *Stream) retireLocked() (any bool) {
	for s.sq.head < s.flushed {
		op := s.sq.at(s.sq.head)
		if op.waits() {
			break
		}
		s.up.SendDone(op, op.err)
		s.sq.head++
		any = true
	}
	return any
}

func (s *Stream) unpin() {
	for i, p := range s.tx.pins {
		p.Unpin()
		s.tx.pins[i] = nil
	}
	s.tx.pins = s.tx.pins[:0]
}

// sendFailed ends the sender's work for good. A peer that broke the connection
// may have said why before: where it is the LLP's connection that failed, what
// has arrived is still received.
func (s *Stream) sendFailed(err error) {
	s.unpin()
	var fault *ddp.Error
	broken := errors.As(err, &fault)
	s.mu.Lock()
	s.sendLost = s.sendLost || s.err == nil
	s.failLocked(err)
	s.termOverLocked()
	s.armKillerLocked()
	s.stopLocked()
	s.mu.Unlock()
	if !broken {
		s.llp.Close()
	}
}

// stopLocked gives the sender's role back.
func (s *Stream) stopLocked() {
	s.busy = false
	s.idle.Broadcast()
}

// termOverLocked records that the Terminate has left or never will.
func (s *Stream) termOverLocked() {
	if !s.termOver {
		s.termOver = true
		close(s.termDone)
	}
}

// fill builds a batch. When there is nothing to send it gives the sender's role
// back and reports false.
func (s *Stream) fill() (pending bool, err error) {
	t := &s.tx
	for !s.llp.Full() {
		if s.cutShort() {
			t.active, t.op = false, nil
		}
		if !t.active {
			s.mu.Lock()
			if !s.pickLocked() {
				if pending {
					s.mu.Unlock()
					return true, nil
				}
				fin := s.state != Closed && s.finDueLocked()
				if fin {
					s.finSent = true
				} else {
					s.stopLocked()
				}
				s.mu.Unlock()
				if !fin {
					return false, nil
				}
				if err := s.llp.CloseWrite(); err != nil {
					return false, err
				}
				continue
			}
			s.mu.Unlock()
		}
		if t.op != nil && t.op.Kind == OpLocal {
			if len(t.pins) > 0 {
				return true, nil // it may have to wait for what we hold
			}
			s.local()
			pending = true // there is at least its end to report
			continue
		}
		if err := s.segment(); err != nil {
			var fault *ddp.Error
			if !errors.As(err, &fault) {
				return false, err
			}
			t.active = false
			s.mu.Lock()
			s.terminateLocked(fault, fault)
			s.mu.Unlock()
			continue
		}
		pending = true
	}
	return true, nil
}

// terminateFor makes the Terminate message for a fault (RFC 5040 section 4.8).
func terminateFor(fault *ddp.Error) *Terminate {
	t := &Terminate{Layer: fault.Layer, Type: fault.Type, Code: fault.Code, RDMAP: fault.Upper}
	if fault.Header != nil {
		t.DDP, t.SegLen = fault.Header, uint16(min(fault.SegLen, 0xffff))
	}
	return t
}

// pickLocked chooses the next message: a Terminate before all, then the peer's
// responses and our operations in turn.
func (s *Stream) pickLocked() bool {
	t := &s.tx
	switch {
	case s.state == Closed:
		return false
	case s.term != nil:
		if s.termSent {
			return false
		}
		s.termSent = true
		t.op, t.active, t.term = nil, true, true
		return true
	case s.state == Terminating || s.finSent:
		return false
	}
	if s.readyDue {
		s.readyDue = false
		s.beginLocked(s.ready)
		return true
	}
	ready := s.readyLocked()
	if s.irrq.n > 0 && (t.turn || !ready) {
		t.op, t.resp = nil, *s.irrq.front()
		t.active, t.off, t.turn = true, 0, false
		if t.resp.atomic {
			t.msn = t.arMSN
			t.arMSN++
		}
		return true
	}
	if !ready {
		return false
	}
	op := s.sq.at(s.sq.next)
	s.sq.next++
	s.beginLocked(op)
	return true
}

// readyLocked reports that there is an operation that may begin.
func (s *Stream) readyLocked() bool {
	return s.sq.next < s.sq.tail && !s.stalledLocked(s.sq.at(s.sq.next))
}

// local carries out the current message, which is a local operation. RFC 5040
// has no code for its failure: the peer is told a local catastrophic error
// (section 4.8).
func (s *Stream) local() {
	t := &s.tx
	op := t.op
	t.active, t.op = false, nil
	t.sent++
	if op.err = s.up.Local(op); op.err == nil {
		return
	}
	s.mu.Lock()
	s.terminateLocked(&ddp.Error{Layer: ddp.LayerRDMA, Type: TypeLocalCatastrophic, Text: op.err.Error()}, &LocalError{Err: op.err})
	s.mu.Unlock()
}

// cutShort reports that the message in progress is left unfinished because the
// stream is at its end and the Terminate is more important.
func (s *Stream) cutShort() bool {
	t := &s.tx
	if !t.active || t.term || !s.stop.Load() {
		return false
	}
	return t.op == nil || t.op.Kind == OpWrite || t.op.Len-t.off > termBehind
}

// beginLocked makes op the current message.
func (s *Stream) beginLocked(op *Op) {
	t := &s.tx
	t.op, t.active, t.off, t.turn = op, true, 0, true
	s.extended = s.extended || op.Kind.extension()
	switch op.Kind {
	case OpWrite, OpLocal:
	case OpReadRequest, OpAtomicRequest:
		t.msn = t.rrMSN
		t.rrMSN++
		s.sinkTag++
		s.reads.push(outstanding{op: op, stag: s.sinkTag})
		op.Atomic.ID = s.sinkTag
	default:
		t.msn = t.sqMSN
		t.sqMSN++
	}
}

// segment appends the next segment of the current message to the batch.
func (s *Stream) segment() error {
	t := &s.tx
	switch {
	case t.term:
		return s.segmentTerminate()
	case t.op == nil:
		return s.segmentResponse()
	}
	op := t.op
	hdr, n := t.hdr[:0], uint32(0)
	last := true
	switch op.Kind {
	case OpWrite:
		n, last = s.share(op.Len, ddp.TaggedHeaderLen)
		hdr = ddp.AppendTagged(hdr, last, Control(OpWrite), op.STag, op.TO+uint64(t.off))
	case OpReadRequest:
		hdr = ddp.AppendUntagged(hdr, true, Control(op.Kind), 0, QNReadRequest, t.msn, 0)
		hdr = ReadRequest{SinkSTag: op.Atomic.ID, Size: op.Len, SourceSTag: op.STag, SourceTO: op.TO}.Append(hdr)
	case OpAtomicRequest:
		a := op.Atomic
		a.STag, a.TO = op.STag, op.TO
		hdr = ddp.AppendUntagged(hdr, true, Control(op.Kind), 0, QNReadRequest, t.msn, 0)
		hdr = a.Append(hdr)
	case OpImmediate, OpImmediateSE:
		hdr = ddp.AppendUntagged(hdr, true, Control(op.Kind), 0, QNSend, t.msn, 0)
		hdr = binary.BigEndian.AppendUint64(hdr, op.Imm)
	default:
		n, last = s.share(op.Len, ddp.UntaggedHeaderLen)
		var inv uint32
		if op.Kind == OpSendInvalidate || op.Kind == OpSendSEInvalidate {
			inv = op.STag
		}
		hdr = ddp.AppendUntagged(hdr, last, Control(op.Kind), inv, QNSend, t.msn, t.off)
	}
	err := s.llp.Append(hdr, t.gather(op.SGL[:op.N], t.off, n))
	t.off += n
	if last {
		t.active, t.op = false, nil
		if op != s.ready {
			t.sent++
		}
	}
	return err
}

// share is how many of a message's remaining bytes the next segment takes.
func (s *Stream) share(total uint32, header int) (n uint32, last bool) {
	n = total - s.tx.off
	if room := uint32(s.llp.MULPDU() - header); n > room {
		return room, false
	}
	return n, true
}

// gather cuts n bytes at off out of sgl.
func (t *sender) gather(sgl [][]byte, off, n uint32) [][]byte {
	k := 0
	for n > 0 {
		b := span(sgl, off, n)
		t.sgl[k] = b
		k++
		off += uint32(len(b))
		n -= uint32(len(b))
	}
	return t.sgl[:k]
}

func (s *Stream) segmentTerminate() error {
	t := &s.tx
	t.active = false
	hdr := ddp.AppendUntagged(t.hdr[:0], true, Control(OpTerminate), 0, QNTerminate, 1, 0)
	t.term = false
	return s.llp.Append(s.term.Append(hdr), nil)
}

// segmentResponse sends the next piece of what the front of the IRRQ asks for.
// Memory is checked again for each segment: it may have been revoked since.
func (s *Stream) segmentResponse() error {
	t := &s.tx
	if t.resp.atomic {
		hdr := ddp.AppendUntagged(t.hdr[:0], true, Control(OpAtomicResponse), 0, QNAtomicResponse, t.msn, 0)
		err := s.llp.Append(t.resp.resp.Append(hdr), nil)
		s.responded()
		return err
	}
	r := &t.resp.read
	n, last := s.share(r.Size, ddp.TaggedHeaderLen)
	sgl := t.sgl[:0]
	if n > 0 {
		buf, pin, fault := s.up.Acquire(r.SourceSTag, r.SourceTO+uint64(t.off), n, RemoteRead)
		if fault != FaultNone {
			layer, typ, code := fault.remote()
			left := *r
			left.SinkTO += uint64(t.off)
			left.SourceTO += uint64(t.off)
			left.Size -= t.off
			e := ddp.Faultf(layer, typ, code, t.resp.header[:], "RDMA Read of STag %#08x: %v while the response was under way", r.SourceSTag, fault)
			e.SegLen, e.Upper = ddp.UntaggedHeaderLen+ReadRequestLen, left.Append(nil)
			return e
		}
		t.pins = append(t.pins, pin)
		sgl = append(sgl, buf)
	}
	hdr := ddp.AppendTagged(t.hdr[:0], last, Control(OpReadResponse), r.SinkSTag, r.SinkTO+uint64(t.off))
	err := s.llp.Append(hdr, sgl)
	t.off += n
	s.served.Add(uint64(n))
	if last {
		s.responded()
	}
	return err
}

// responded takes the answered request off the IRRQ.
func (s *Stream) responded() {
	s.tx.active = false
	s.mu.Lock()
	s.irrq.pop()
	s.mu.Unlock()
}
