package rdmap

import (
	"encoding/binary"

	"github.com/ironwarp/ironwarp/ddp"
)

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
	if s.irrq.Len() > 0 && (t.turn || !ready) {
		t.op, t.resp = nil, *s.irrq.At(0)
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

// readyLocked reports whether there is an operation that may begin.
func (s *Stream) readyLocked() bool {
	return s.sq.next < s.sq.tail && !s.stalledLocked(s.sq.at(s.sq.next))
}

// local executes the current message, which is a local operation. RFC 5040
// has no code for its failure: the peer is sent a local catastrophic error
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
		s.answers++
		op.answer = s.answers
		s.reads.Push(outstanding{op: op})
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
		hdr = ReadRequest{SinkSTag: op.answer, Size: op.Len, SourceSTag: op.STag, SourceTO: op.TO}.Append(hdr)
	case OpAtomicRequest:
		a := op.Atomic
		a.ID, a.STag, a.TO = op.answer, op.STag, op.TO
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
	sgl := t.gather(op.SGL, t.off, n)
	if op.Volatile && t.stage.on && n > 0 {
		sgl = append(sgl[:0], t.stage.copy(sgl...))
	}
	err := s.llp.Append(hdr, sgl)
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
	room := uint32(s.llp.MULPDU() - header)
	if n <= room {
		return n, true
	}
	if s.even {
		left := (n-1)/room + 1 // segments
		room = (n-1)/left + 1
	}
	return room, false
}

// gather cuts n bytes at off out of sgl.
func (t *sender) gather(sgl [][]byte, off, n uint32) [][]byte {
	t.sgl = t.sgl[:0]
	for _, b := range sgl {
		if n == 0 {
			break
		}
		if off >= uint32(len(b)) {
			off -= uint32(len(b))
			continue
		}
		b = b[off:]
		if uint32(len(b)) > n {
			b = b[:n]
		}
		t.sgl = append(t.sgl, b)
		off, n = 0, n-uint32(len(b))
	}
	return t.sgl
}

// segmentResponse sends the next piece of the response at the front of the IRRQ.
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
		if v, ok := pin.(VolatilePin); ok && t.stage.on && v.Volatile() {
			buf = t.stage.copy(buf)
			pin.Unpin()
		} else {
			t.pins = append(t.pins, pin)
		}
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
	s.irrq.Pop()
	s.mu.Unlock()
}
