package rdmap

import (
	"github.com/ironwarp/ironwarp/ddp"
)

var _ ddp.Placer = (*sink)(nil)

// Early implements ddp.Placer. Writes, Read Responses and Sends are placed;
// what is executed rather than placed is kept whole (RFC 5040 section 5.5
// rules 12 and 16).
func (k *sink) Early(seg []byte, ahead int) (keep int, err error) {
	s := (*Stream)(k)
	if s.stop.Load() {
		return 0, errStopped
	}
	hdrLen := ddp.HeaderLen(seg)
	if hdrLen == 0 {
		return 0, tooShort(seg)
	}
	if !s.rx.early {
		s.rx.early = true
		if err := s.up.Slow(SlowEarly); err != nil {
			return 0, err
		}
	}
	if ddp.IsTagged(seg) {
		t := ddp.Tagged(seg)
		op, err := checkTagged(t)
		if err == nil && op == OpReadResponse {
			err = s.earlyRead(t)
		} else if err == nil {
			err = s.write(t)
		}
		return hdrLen, err
	}
	u := ddp.Untagged(seg)
	op, err := checkUntagged(u)
	if err != nil {
		return 0, err
	}
	if u.QN() != QNSend || op == OpImmediate || op == OpImmediateSE {
		return min(len(seg), ddp.MaxKept), nil
	}
	return hdrLen, s.earlySend(u, ahead)
}

// earlyRead places a Read Response segment. Whether it is exactly what was requested is
// checked in order.
func (s *Stream) earlyRead(t ddp.Tagged) error {
	p := t.Payload()
	s.mu.Lock()
	var op *Op
	for i := range s.reads.Len() {
		if r := s.reads.At(i); r.awaits(t.STag()) {
			op = r.op
		}
	}
	s.mu.Unlock()
	switch end := t.TO() + uint64(len(p)); {
	case op == nil:
		return unexpectedRead(t, len(t))
	case end < t.TO():
		return ddp.Faultf(ddp.LayerDDP, ddp.TypeTagged, ddp.CodeTaggedTOWrap, t, "Read Response of %d bytes at %d", len(p), t.TO())
	case end > uint64(op.Len):
		return ddp.Faultf(ddp.LayerDDP, ddp.TypeTagged, ddp.CodeTaggedBounds, t, "Read Response of %d bytes at %d to a Read of %d", len(p), t.TO(), op.Len)
	}
	place(op.SGL, uint32(t.TO()), p)
	return nil
}

// earlySend places a segment of a Send in the buffer that its message number
// selects (RFC 5041 section 5.1.2). The buffers of the
// messages before it are taken, too. A message takes a segment at least, so it
// can't be further ahead than the segment.
func (s *Stream) earlySend(u ddp.Untagged, ahead int) error {
	r := &s.rx
	j := r.q[QNSend].Ahead(u)
	if uint64(j) > uint64(ahead) {
		return ddp.Faultf(ddp.LayerDDP, ddp.TypeUntagged, ddp.CodeUntaggedMSNRange, u,
			"queue %d: message sequence number %d, %d segments ahead of the one that is due", QNSend, u.MSN(), ahead)
	}
	if r.buf == nil && r.ahead.Len() > 0 {
		r.buf = r.ahead.Pop()
	}
	if r.buf == nil {
		r.buf = s.up.NextRecv()
	}
	for r.buf != nil && r.ahead.Len() < int(j) {
		b := s.up.NextRecv()
		if b == nil {
			break
		}
		r.ahead.Push(b)
	}
	if r.buf == nil || r.ahead.Len() < int(j) {
		return noBuffer(u, len(u))
	}
	b := r.buf
	if j > 0 {
		b = *r.ahead.At(int(j) - 1)
	}
	p := u.Payload()
	if err := fits(b, u, len(p), len(u)); err != nil {
		return err
	}
	place(b.SGL, u.MO(), p)
	return nil
}

// Turn implements ddp.Placer.
func (k *sink) Turn(head []byte, total int) error {
	return ofSegment((*Stream)(k).turn(head, total), total)
}

func (s *Stream) turn(head []byte, total int) error {
	if s.stop.Load() {
		return errStopped
	}
	if ddp.IsTagged(head) {
		t := ddp.Tagged(head)
		n := total - ddp.TaggedHeaderLen
		if _, op := ParseControl(t.ULP()); op == OpWrite {
			return nil
		}
		if _, _, err := s.expectRead(t, n, total); err != nil {
			return err
		}
		s.readPlaced(uint32(n))
		if t.Last() {
			s.answered()
			return nil
		}
		return s.tiny(n)
	}
	u := ddp.Untagged(head)
	_, op := ParseControl(u.ULP())
	if u.QN() != QNSend || op == OpImmediate || op == OpImmediateSE {
		return s.untagged(u)
	}
	n := total - ddp.UntaggedHeaderLen
	q := &s.rx.q[QNSend]
	if err := q.Accept(u); err != nil {
		return err
	}
	r, err := s.sendBuffer(u, n, total)
	if err != nil {
		return err
	}
	q.Placed(n, u.Last())
	if u.Last() {
		return s.deliver(u, r, Message{Op: op, Len: u.MO() + uint32(n)})
	}
	return s.tiny(n)
}
