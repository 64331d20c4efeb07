// Package iwarptest is what tests of the stack and of its users share: an
// in-memory LLP, so that DDP and RDMAP run without sockets, and a Peer that can
// send anything. Package conformance below it is the suite of cases for two
// conforming ends.
package iwarptest

import (
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/ddp"
)

// LLP is one end of an in-memory ddp.LLP. Segments arrive whole and unaltered,
// in order unless Options say otherwise. It can be made to stop taking bytes, as
// a full socket does.
type LLP struct {
	Options
	out *queue // to the peer
	in  *queue

	batch []segment
	next  uint16 // number of the next segment
	rnd   *rand.Rand
}

// segment is a DDP segment with its number in the sender's order.
type segment struct {
	n    uint16
	data []byte
}

// Options of a Pair.
type Options struct {
	MULPDU int  // 0: 1,444 bytes
	Direct bool // offer payloads through ddp.Sink.Direct, as an LLP without CRC does

	// Window, if not 0, makes the LLP deliver out of order, as SCTP does: the
	// receiver places each segment when it comes (ddp.Reorder), at most Window
	// segments ahead of its turn. With Shuffle the segments of a flush come in
	// random order within Window; the same Seed gives the same order. Direct has
	// no effect.
	Window  int
	Shuffle bool
	Seed    uint64
}

// Pair returns two connected ends.
func Pair(o Options) (a, b *LLP) {
	if o.MULPDU == 0 {
		o.MULPDU = 1444
	}
	ab, ba := newQueue(), newQueue()
	return newLLP(o, 1, ab, ba), newLLP(o, 2, ba, ab)
}

func newLLP(o Options, stream uint64, out, in *queue) *LLP {
	return &LLP{Options: o, out: out, in: in, rnd: rand.New(rand.NewPCG(o.Seed, stream))}
}

var _ ddp.LLP = (*LLP)(nil)

// MULPDU implements ddp.LLP.
func (l *LLP) MULPDU() int { return l.Options.MULPDU }

// Append implements ddp.LLP.
func (l *LLP) Append(hdr []byte, sgl [][]byte) error {
	seg := append([]byte(nil), hdr...)
	for _, p := range sgl {
		seg = append(seg, p...)
	}
	l.batch = append(l.batch, segment{l.number(), seg})
	return nil
}

func (l *LLP) number() uint16 {
	l.next++
	return l.next - 1
}

// Full implements ddp.LLP.
func (l *LLP) Full() bool { return len(l.batch) >= max(16, l.Window) }

// TryFlush implements ddp.LLP.
func (l *LLP) TryFlush() (bool, error) {
	l.shuffle()
	ok, err := l.out.put(l.batch, false)
	if ok {
		l.emptyBatch()
	}
	return ok, err
}

// Flush implements ddp.LLP.
func (l *LLP) Flush() error {
	l.shuffle()
	_, err := l.out.put(l.batch, true)
	l.emptyBatch()
	return err
}

// emptyBatch keeps the batch's room and nothing of its segments, so that tests
// which look at the heap see the engine's memory and not ours.
func (l *LLP) emptyBatch() {
	clear(l.batch)
	l.batch = l.batch[:0]
}

// shuffle puts the batch into a random order in which no segment is more than
// Window ahead of its turn.
func (l *LLP) shuffle() {
	if !l.Shuffle || l.Window == 0 {
		return
	}
	for b := l.batch; len(b) > 0; b = b[min(len(b), l.Window):] {
		n := min(len(b), l.Window)
		l.rnd.Shuffle(n, func(i, j int) { b[i], b[j] = b[j], b[i] })
	}
}

// Detach implements ddp.LLP; Append has copied everything.
func (l *LLP) Detach() {}

// Receive implements ddp.LLP.
func (l *LLP) Receive(s ddp.Sink) error {
	var order *ddp.Reorder
	if l.Window > 0 {
		order = ddp.NewReorder(s, 0, l.Window)
	}
	for {
		segs, err := l.in.take()
		if err == io.EOF && order != nil && order.Held() > 0 {
			err = io.ErrUnexpectedEOF // an earlier segment is missing
		}
		if err != nil {
			return err
		}
		for _, seg := range segs {
			if order != nil {
				err = order.Segment(seg.n, seg.data)
			} else {
				err = l.deliver(s, seg.data)
			}
			if err != nil {
				return err
			}
		}
		s.BatchEnd()
	}
}

func (l *LLP) deliver(s ddp.Sink, seg []byte) error {
	if !l.Direct {
		return s.Segment(seg)
	}
	n, ok, err := s.Direct(seg[:min(len(seg), ddp.MaxHeaderLen)], len(seg))
	if err != nil || !ok {
		if err == nil {
			err = s.Segment(seg)
		}
		return err
	}
	for p := seg[n:]; len(p) > 0; {
		buf, err := s.DirectBuffer()
		if err != nil {
			return err
		}
		k := copy(buf, p[:min(len(p), 100)])
		p = p[k:]
		if err := s.DirectDone(k); err != nil {
			return err
		}
	}
	return nil
}

// Drain implements ddp.LLP.
func (l *LLP) Drain(d time.Duration) {
	t := time.AfterFunc(d, l.in.close)
	defer t.Stop()
	for {
		if _, err := l.in.take(); err != nil {
			return
		}
	}
}

// CloseWrite implements ddp.LLP.
func (l *LLP) CloseWrite() error {
	l.out.end()
	return nil
}

// Close implements ddp.LLP.
func (l *LLP) Close() error {
	l.out.close()
	l.in.close()
	return nil
}

// Stall makes the peer's direction towards l full (true) or free again: what
// the peer sends waits until then.
func (l *LLP) Stall(on bool) { l.in.stall(on) }

// Send sends raw segments to the peer, whatever they are. It fails with ddp.ErrClosed
// after the end.
func (l *LLP) Send(segs ...[]byte) error {
	batch := make([]segment, len(segs))
	for i, seg := range segs {
		batch[i] = segment{l.number(), seg}
	}
	_, err := l.out.put(batch, true)
	return err
}

// SendNumbered sends a raw segment under number n, whatever has been sent
// before: the first in the sender's order has number 0. It is for an LLP with a
// Window, and does not go together with Send. It fails as Send does.
func (l *LLP) SendNumbered(n uint16, seg []byte) error {
	_, err := l.out.put([]segment{{n, seg}}, true)
	return err
}

// Recv takes the next segments that the peer has sent, io.EOF at its end. What
// was shuffled comes in the sender's order.
func (l *LLP) Recv() ([][]byte, error) {
	batch, err := l.in.take()
	slices.SortStableFunc(batch, func(a, b segment) int { return int(int16(a.n - b.n)) })
	segs := make([][]byte, len(batch))
	for i, seg := range batch {
		segs[i] = seg.data
	}
	return segs, err
}

// queue is one direction.
type queue struct {
	mu      sync.Mutex // guards the fields below it
	cond    sync.Cond
	segs    []segment
	stalled bool
	ended   bool // by the sender, gracefully
	closed  bool
}

func newQueue() *queue {
	q := &queue{}
	q.cond.L = &q.mu
	return q
}

func (q *queue) put(segs []segment, wait bool) (bool, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.stalled && wait && !q.closed {
		q.cond.Wait()
	}
	switch {
	case q.closed || q.ended:
		return false, ddp.ErrClosed
	case q.stalled:
		return len(segs) == 0, nil
	}
	q.segs = append(q.segs, segs...)
	q.cond.Broadcast()
	return true, nil
}

func (q *queue) take() ([]segment, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.segs) == 0 && !q.ended && !q.closed {
		q.cond.Wait()
	}
	if len(q.segs) > 0 {
		segs := q.segs
		q.segs = nil
		return segs, nil
	}
	if q.ended {
		return nil, io.EOF
	}
	return nil, ddp.ErrClosed
}

func (q *queue) stall(on bool) {
	q.mu.Lock()
	q.stalled = on
	q.cond.Broadcast()
	q.mu.Unlock()
}

func (q *queue) end() {
	q.mu.Lock()
	q.ended = true
	q.cond.Broadcast()
	q.mu.Unlock()
}

func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	q.cond.Broadcast()
	q.mu.Unlock()
}
