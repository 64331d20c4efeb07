package rdmap

import (
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
	sent   uint64   // operations before it are wholly in the batch or sent
	turn   bool     // the peer's responses are due before our operations
	sqMSN  uint32   // next on queue 0
	rrMSN  uint32   // next on queue 1
	arMSN  uint32   // next on queue 3
	term   bool     // the message begun is the Terminate
	hdr    []byte
	sgl    [][]byte // of a segment
	pins   []Pin    // memory of Read Responses in the batch
	stage  stage    // or copies of it
}

func (t *sender) init(sges int) {
	t.sqMSN, t.rrMSN, t.arMSN = ddp.FirstMSN, ddp.FirstMSN, ddp.FirstMSN
	t.sgl = make([][]byte, 0, sges)
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
	case s.tx.active || s.readyDue || s.irrq.Len() > 0:
		return true
	case s.readyLocked():
		return true
	}
	return s.finDueLocked()
}

// stalledLocked reports whether op has to wait for the response to an earlier
// Read or Atomic: the peer's depth is never exceeded (RFC 5040 section 6.1).
func (s *Stream) stalledLocked(op *Op) bool {
	return s.reads.Len() > 0 && (op.Fence || op.waits() && s.peerIsFullLocked())
}

func (s *Stream) finDueLocked() bool {
	return s.state == Closing && !s.finSent && s.sq.head == s.sq.tail && s.irrq.Len() == 0
}

// drive sends until there is nothing left to do, the LLP would block or the calling
// goroutine has done its share; then the driver goroutine takes over. The caller has
// set busy.
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

// sendBatch builds a batch and writes as much of it as the LLP takes without
// blocking; done reports whether that was all. ok is false if there is nothing to send
// or sending failed: then the sender's role has been given back.
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
	case !done:
		s.stalls.Add(1)
		if len(s.tx.pins) > 0 {
			s.llp.Detach()
			s.unpin()
		}
	}
	return true, done
}

// driver is the stream's sending goroutine, which runs only while the LLP blocks or
// after a poster has done its share.
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
	if any || s.tx.op != nil && !s.tx.term {
		s.progressLocked()
	}
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
		op.forget()
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
	s.tx.stage.release()
}

// sendFailed ends the sender's work for good. A peer that broke the connection
// may have sent the reason before: if the LLP's connection failed, what has arrived is
// still received.
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

// fill builds a batch. When there is nothing to send it gives the sender's role
// back and reports false.
func (s *Stream) fill() (pending bool, err error) {
	t := &s.tx
	for segments := 0; !t.stage.full() && (!s.llp.Full() || segments < restSegments && t.shortRest()); segments++ {
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

// shortRest reports whether little is left of a message that has been begun.
func (t *sender) shortRest() bool {
	if !t.active || t.term || t.off == 0 {
		return false
	}
	size := t.resp.read.Size
	if t.op != nil {
		size = t.op.Len
	}
	return size-t.off <= shortRest
}
