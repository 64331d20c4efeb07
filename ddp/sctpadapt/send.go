package sctpadapt

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/transport/assoc"
)

// batch is what is appended and not flushed.
type batch struct {
	msgs  []assoc.Outgoing
	sent  int      // of msgs
	bufs  [][]byte // of msgs, in a row
	arena []byte   // numbers and headers
	bytes int

	detached bool
	copy     []byte // of a detached batch's payloads
}

// sending is the sending half of a session. The batch is of whoever sends, nil
// when nothing is pending; what is below mu is shared with those who end the
// session.
type sending struct {
	*batch

	mu    sync.Mutex // guards the fields below it
	ssn   uint16     // of the next chunk
	ended bool       // the Terminate is sent, or must not be
	err   error
}

func (t *sending) isEnded() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ended
}

// end makes sure that nothing more is sent.
func (t *sending) end() {
	t.mu.Lock()
	t.ended = true
	t.mu.Unlock()
}

func (t *sending) fail(err error) {
	t.mu.Lock()
	if t.err == nil {
		t.err = err
	}
	t.mu.Unlock()
}

// MULPDU is the longest segment in bytes: what fits a packet beside a SACK, at
// least 516 bytes (RFC 5043 section 9).
func (s *Stream) MULPDU() int {
	return max((s.mux.assoc.MaxMessage()-sackRoom-ssnLen)&^3, minMULPDU)
}

// EvenSegments implements ddp.EvenSegments: packets of one length leave in one
// system call.
func (s *Stream) EvenSegments() {}

// Outq implements ddp.Outqueuer. The chunks of all streams leave in one order, so as
// long as something of this stream is not acknowledged the count is that of the whole
// association, and 0 after that. It fails when the association is over.
func (s *Stream) Outq() (int, error) {
	if s.mux.assoc.Outstanding(s.id) == 0 {
		return 0, nil
	}
	return s.mux.assoc.Outq()
}

// Append adds a segment to the pending batch; see ddp.LLP. It fails with ErrTooLong,
// and with why the stream is over.
func (s *Stream) Append(hdr []byte, sgl [][]byte) error {
	t := &s.tx
	n := ssnLen + len(hdr)
	for _, p := range sgl {
		n += len(p)
	}
	if n-ssnLen > s.MULPDU() {
		return fmt.Errorf("%w: %d bytes, MULPDU is %d", ErrTooLong, n-ssnLen, s.MULPDU())
	}
	if t.batch == nil {
		t.batch = s.mux.getBatch()
	}
	if len(t.arena)+ssnLen+len(hdr) > cap(t.arena) {
		t.arena = make([]byte, 0, max(arenaSize, ssnLen+len(hdr))) // the batch keeps the one before alive
	}
	at := len(t.arena)
	t.arena = append(append(t.arena, 0, 0), hdr...)
	from := len(t.bufs)
	t.bufs = append(append(t.bufs, t.arena[at:len(t.arena):len(t.arena)]), sgl...)
	t.msgs = append(t.msgs, assoc.Outgoing{Stream: s.id, PPID: PPIDSegment, Bufs: t.bufs[from:len(t.bufs):len(t.bufs)]})
	t.bytes += n
	return nil
}

// Full reports that the batch should be flushed before the next Append: it has
// 128 segments or 128 KiB.
func (s *Stream) Full() bool {
	t := &s.tx
	return t.batch != nil && (len(t.msgs) >= batchSegments || t.bytes >= batchBytes || len(t.arena)+ssnLen+ddp.MaxHeaderLen > arenaSize)
}

// TryFlush queues what the association has room for; see ddp.LLP. SCTP copies
// it. It fails with why the stream is over.
func (s *Stream) TryFlush() (done bool, err error) {
	t := &s.tx
	if t.batch == nil {
		t.mu.Lock()
		err = t.err
		t.mu.Unlock()
		return err == nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.err != nil:
		err = t.err
	case t.ended:
		err = fmt.Errorf("sctpadapt: stream %d: a segment after the Terminate: %w", s.id, ddp.ErrClosed)
	default:
		for again := true; again; {
			// Numbers are given when chunks go, so that a Terminate can come between.
			for i := t.sent; i < len(t.msgs); i++ {
				binary.BigEndian.PutUint16(t.msgs[i].Bufs[0], t.ssn+uint16(i-t.sent))
			}
			var n int
			n, err = s.mux.assoc.TrySend(t.msgs[t.sent:])
			if n > 0 && s.mux.tap.On() {
				s.showSent(t.msgs[t.sent : t.sent+n])
			}
			t.sent += n
			t.ssn += uint16(n)
			again = errors.Is(err, assoc.ErrTooLong) && s.resegment()
		}
	}
	if err != nil {
		err = s.sendError(err)
		t.err = err
		s.mux.putBatch(t.batch)
		t.batch = nil
		return false, err
	}
	if t.sent < len(t.msgs) {
		return false, nil
	}
	s.mux.putBatch(t.batch)
	t.batch = nil
	return true, nil
}

// getBatch and putBatch keep batches while streams do not need them.
func (m *Mux) getBatch() *batch {
	if b, ok := m.batches.Get().(*batch); ok {
		return b
	}
	return new(batch)
}

func (m *Mux) putBatch(b *batch) {
	clear(b.msgs)
	clear(b.bufs)
	*b = batch{msgs: b.msgs[:0], bufs: b.bufs[:0], arena: b.arena[:0], copy: b.copy[:0]}
	m.batches.Put(b)
}

// Flush is TryFlush that waits for room. It fails as TryFlush does.
func (s *Stream) Flush() error {
	for {
		done, err := s.TryFlush()
		if done || err != nil {
			return err
		}
		if err := s.mux.assoc.Wait(s.ctx); err != nil && s.ctx.Err() == nil {
			return s.sendError(err)
		}
	}
}

// Detach copies what is pending, so that the payloads' memory may be reused.
func (s *Stream) Detach() {
	t := &s.tx
	if t.batch == nil || t.detached {
		return
	}
	t.detached = true
	n := 0
	for _, m := range t.msgs[t.sent:] {
		for _, p := range m.Bufs {
			n += len(p)
		}
	}
	t.copy = slices.Grow(t.copy[:0], n) // never moves below
	for i := range t.msgs[t.sent:] {
		m := &t.msgs[t.sent+i]
		at := len(t.copy)
		for j, p := range m.Bufs {
			t.copy = append(t.copy, p...)
			m.Bufs[j] = nil
		}
		m.Bufs = m.Bufs[:1]
		m.Bufs[0] = t.copy[at:]
	}
}

// sendError wraps the association's error.
func (s *Stream) sendError(err error) error {
	var f *ddp.Error
	switch {
	case errors.Is(err, ddp.ErrClosed) || errors.As(err, &f):
		return err
	case s.mux.assoc.Err() != nil || errors.Is(err, assoc.ErrShutdown):
		return lost(err)
	}
	return fmt.Errorf("sctpadapt: stream %d: %w", s.id, err)
}

// sendFirst sends the session's first message.
func (s *Stream) sendFirst(b []byte) error {
	t := &s.tx
	s.mu.Lock()
	if s.st == stateClosed {
		s.mu.Unlock()
		return ErrTerminated
	}
	if s.st == statePending {
		s.st = stateOpen
	}
	s.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		return t.err
	}
	t.ssn = 1
	return s.sendControl(b, false)
}

// sendControl sends a session control message; see assoc.Outgoing for barrier.
func (s *Stream) sendControl(b []byte, barrier bool) error {
	m := assoc.Outgoing{Stream: s.id, PPID: PPIDControl, Bufs: [][]byte{b}, Barrier: barrier}
	if s.mux.tap.On() {
		s.showSent([]assoc.Outgoing{m})
	}
	return s.mux.assoc.SendNow(m)
}

// sendTerminate sends the session's last chunk, once. Until something from the peer
// shows that it has received our first message, the Terminate waits for the
// acknowledgement of what was sent before it (RFC 5043 section 6.6).
func (s *Stream) sendTerminate() error {
	s.mu.Lock()
	heard := s.heard
	s.mu.Unlock()
	t := &s.tx
	t.mu.Lock()
	if t.ended || t.err != nil {
		t.ended = true
		t.mu.Unlock()
		return nil
	}
	t.ended = true
	c := Control{SSN: t.ssn, Function: FunctionTerminate}
	b, _ := c.Append(nil)
	err := s.sendControl(b, !heard)
	t.mu.Unlock()
	if err != nil {
		s.mux.assoc.Abort("a DDP Stream Session Terminate could not be sent")
		return s.sendError(err)
	}
	return nil
}

// Drain reads and throws away what the peer still sends, until its Terminate or
// until d has passed; see ddp.LLP.
func (s *Stream) Drain(d time.Duration) {
	timer := time.AfterFunc(d, func() {
		s.mu.Lock()
		if s.err == nil {
			s.err = ddp.ErrClosed
		}
		s.mu.Unlock()
		s.wake()
	})
	defer timer.Stop()
	whole := func(record) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.endKnown && s.chunks == s.endSSN+1 {
			return io.EOF
		}
		return nil
	}
	if whole(record{}) == nil {
		_ = s.receive(nil, whole)
	}
	s.drop()
}
