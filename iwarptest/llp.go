// Package iwarptest is what tests of the stack share: an in-memory LLP, so that
// DDP and RDMAP run without sockets, and a peer that can send anything.
package iwarptest

import (
	"io"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/ddp"
)

// LLP is one end of an in-memory ddp.LLP. Segments arrive whole, in order and
// unaltered. It can be told to stop taking bytes, as a full socket does.
type LLP struct {
	mulpdu int
	direct bool
	out    *queue // to the peer
	in     *queue

	batch [][]byte
}

// Options of a Pair.
type Options struct {
	MULPDU int  // 0: 1,444 bytes
	Direct bool // offer payloads through ddp.Sink.Direct, as an LLP without CRC does
}

// Pair returns two connected ends.
func Pair(o Options) (a, b *LLP) {
	if o.MULPDU == 0 {
		o.MULPDU = 1444
	}
	ab, ba := newQueue(), newQueue()
	return &LLP{mulpdu: o.MULPDU, direct: o.Direct, out: ab, in: ba}, &LLP{mulpdu: o.MULPDU, direct: o.Direct, out: ba, in: ab}
}

var _ ddp.LLP = (*LLP)(nil)

// MULPDU implements ddp.LLP.
func (l *LLP) MULPDU() int { return l.mulpdu }

// Append implements ddp.LLP.
func (l *LLP) Append(hdr []byte, sgl [][]byte) error {
	seg := append([]byte(nil), hdr...)
	for _, p := range sgl {
		seg = append(seg, p...)
	}
	l.batch = append(l.batch, seg)
	return nil
}

// Full implements ddp.LLP.
func (l *LLP) Full() bool { return len(l.batch) >= 16 }

// TryFlush implements ddp.LLP.
func (l *LLP) TryFlush() (bool, error) {
	ok, err := l.out.put(l.batch, false)
	if ok {
		l.batch = l.batch[:0]
	}
	return ok, err
}

// Flush implements ddp.LLP.
func (l *LLP) Flush() error {
	_, err := l.out.put(l.batch, true)
	l.batch = l.batch[:0]
	return err
}

// Detach implements ddp.LLP; Append has copied everything.
func (l *LLP) Detach() {}

// Receive implements ddp.LLP.
func (l *LLP) Receive(s ddp.Sink) error {
	for {
		segs, err := l.in.take()
		if err != nil {
			return err
		}
		for _, seg := range segs {
			if err := l.deliver(s, seg); err != nil {
				return err
			}
		}
		s.BatchEnd()
	}
}

func (l *LLP) deliver(s ddp.Sink, seg []byte) error {
	if !l.direct {
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

// Send sends raw segments to the peer, whatever they are.
func (l *LLP) Send(segs ...[]byte) error {
	_, err := l.out.put(segs, true)
	return err
}

// Recv takes the next segments that the peer has sent, io.EOF at its end.
func (l *LLP) Recv() ([][]byte, error) { return l.in.take() }

// queue is one direction.
type queue struct {
	mu      sync.Mutex
	cond    sync.Cond
	segs    [][]byte
	stalled bool
	ended   bool // by the sender, gracefully
	closed  bool
}

func newQueue() *queue {
	q := &queue{}
	q.cond.L = &q.mu
	return q
}

func (q *queue) put(segs [][]byte, wait bool) (bool, error) {
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

func (q *queue) take() ([][]byte, error) {
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
