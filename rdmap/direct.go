package rdmap

import (
	"errors"

	"github.com/ironwarp/ironwarp/ddp"
)

// Direct implements ddp.Sink: Writes, Read Responses and Sends are read
// directly into place if no CRC has to be verified first. What has a target elsewhere
// is collected: under one STag memory loses a target, and never gets one.
func (k *sink) Direct(head []byte, total int) (hdrLen int, ok bool, err error) {
	hdrLen, ok, err = (*Stream)(k).direct(head, total)
	return hdrLen, ok, ofSegment(err, total)
}

// ofSegment completes a fault that was found with only part of a segment of
// total bytes at hand.
func ofSegment(err error, total int) error {
	if err == nil {
		return nil
	}
	var fault *ddp.Error
	if errors.As(err, &fault) {
		fault.SegLen = total
	}
	return err
}

func (s *Stream) direct(head []byte, total int) (hdrLen int, ok bool, err error) {
	if s.stop.Load() {
		return 0, false, errStopped
	}
	hdrLen = ddp.HeaderLen(head)
	if hdrLen == 0 || total <= hdrLen {
		return 0, false, nil
	}
	d := &s.rx.direct
	n := uint32(total - hdrLen)
	if ddp.IsTagged(head) {
		t := ddp.Tagged(head)
		op, err := checkTagged(t)
		if err != nil {
			return 0, false, err
		}
		if op == OpReadResponse {
			if _, _, err := s.expectRead(t, int(n), total); err != nil {
				return 0, false, err
			}
		} else {
			_, pin, fault := s.up.Acquire(t.STag(), t.TO(), n, RemoteWrite)
			if fault != FaultNone {
				return 0, false, writeFault(fault, t, total)
			}
			elsewhere := targetOf(pin) != nil
			pin.Unpin()
			if elsewhere {
				return 0, false, nil
			}
		}
		*d = direct{op: op, stag: t.STag(), to: t.TO(), left: n, n: n, last: t.Last()}
	} else {
		u := ddp.Untagged(head)
		op, err := checkUntagged(u)
		if err != nil {
			return 0, false, err
		}
		if u.QN() != QNSend || op == OpImmediate || op == OpImmediateSE {
			return 0, false, nil
		}
		if err := s.rx.q[QNSend].Accept(u); err != nil {
			return 0, false, err
		}
		if _, err := s.sendBuffer(u, int(n), total); err != nil {
			return 0, false, err
		}
		*d = direct{op: op, to: uint64(u.MO()), left: n, n: n, last: u.Last()}
	}
	copy(d.seg[:], head[:hdrLen])
	if !d.last {
		err = s.tiny(int(n))
	}
	return hdrLen, true, err
}

// DirectBuffer implements ddp.Sink. Access to tagged memory is checked anew for
// each piece, since it may be revoked while the LLP waits for bytes.
func (k *sink) DirectBuffer() ([]byte, error) {
	s := (*Stream)(k)
	d := &s.rx.direct
	switch d.op {
	case OpWrite:
		buf, pin, fault := s.up.Acquire(d.stag, d.to, d.left, RemoteWrite)
		if fault != FaultNone {
			return nil, writeFault(fault, ddp.Tagged(d.seg[:ddp.TaggedHeaderLen]), ddp.TaggedHeaderLen+int(d.n))
		}
		d.pin = pin
		return buf, nil
	case OpReadResponse:
		s.mu.Lock()
		op := s.reads.At(0).op
		s.mu.Unlock()
		return span(op.SGL, uint32(d.to), d.left), nil
	}
	r := s.rx.buf
	return span(r.SGL, uint32(d.to), d.left), nil
}

// DirectDone implements ddp.Sink.
func (k *sink) DirectDone(n int) error {
	s := (*Stream)(k)
	d := &s.rx.direct
	if d.pin != nil {
		d.pin.Unpin()
		d.pin = nil
	}
	d.to += uint64(n)
	d.left -= uint32(n)
	if d.left > 0 {
		return nil
	}
	switch d.op {
	case OpWrite:
		s.written.Add(uint64(d.n))
	case OpReadResponse:
		s.readPlaced(d.n)
		if d.last {
			s.answered()
		}
	default:
		s.rx.q[QNSend].Placed(int(d.n), d.last)
		if d.last {
			return ofSegment(s.deliver(ddp.Untagged(d.seg[:]), s.rx.buf, Message{Op: d.op, Len: uint32(d.to)}), len(d.seg)+int(d.n))
		}
	}
	return nil
}
