package verbs

import (
	"slices"
	"sync"
	"syscall"
)

// Progress receives, in the calling goroutine, what has come on streams of the queue, so that who polls need not wait until
// the engine's goroutines have been woken for it:
//
//	for cq.Poll(wcs) == 0 {
//		cq.Progress()
//	}
//
// It waits for nothing, and looks at up to four streams, the next call at the next ones; from each it takes at most 256 KiB. It
// reports on how many something had come. Streams on which the engine is receiving are left to it, and so are those over
// SCTP, whose associations have a receiver of their own. Handlers of completion queues may run within, of this one and of
// others that the streams use. It is safe for concurrent use, and for a call from a handler.
//
// It saves the wake-up and no more: without it everything comes, too. A goroutine that spins keeps a processor busy, and the engine
// is still woken unless it has no other processor (GOMAXPROCS=1), or Polled says that it need not be. A sleeping consumer is better
// served by Wait.
func (cq *CQ) Progress() (n int) {
	var some [progressStreams]*QP
	cq.mu.Lock()
	k := min(len(cq.live), len(some))
	for i := range k {
		if cq.turn++; cq.turn >= len(cq.live) {
			cq.turn = 0
		}
		some[i] = cq.live[cq.turn]
	}
	cq.mu.Unlock()
	for _, qp := range some[:k] {
		if qp.stream.Load().Progress() {
			n++
		}
	}
	return n
}

// Polled tells that Progress will be called for this queue without a pause, or with false, that it will not be any more. Meanwhile
// the engine is not woken for less than 32 KiB that come on a stream over TCP, which saves most of what a short message costs where
// the engine and those who poll share processors. Who stops to call Progress and does not say so has its streams stand still: peers
// get no answers then. It reports whether something waited on one of the streams by then.
func (cq *CQ) Polled(on bool) (waited bool) {
	cq.mu.Lock()
	var live []*QP
	if cq.polled != on {
		cq.polled = on
		live = slices.Clone(cq.live)
	}
	cq.mu.Unlock()
	for _, qp := range live {
		waited = qp.pollers.change(qp, on) || waited
	}
	return waited
}

// pollers counts the completion queues of a queue pair that are polled.
type pollers struct {
	mu sync.Mutex // guards the fields below it; held while the stream is told
	n  int
}

func (p *pollers) change(qp *QP, more bool) (waited bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if more {
		p.n++
	} else {
		p.n--
	}
	return qp.stream.Load().Polled(p.n > 0)
}

// Socket is the stream's socket, for who asks the system whether anything has come before calling Progress. It reports false for
// a stream for which Progress does nothing. The socket is not to be read from or written to.
func (qp *QP) Socket() (syscall.RawConn, bool) {
	stream := qp.stream.Load()
	c, ok := qp.link().(syscall.Conn)
	if stream == nil || !ok || !stream.Progresses() {
		return nil, false
	}
	raw, err := c.SyscallConn()
	return raw, err == nil
}

// enliven adds a queue pair whose stream begins to those that its completion queues look at.
func (qp *QP) enliven() {
	qp.cfg.SendCQ.lookAt(qp)
	if qp.cfg.RecvCQ != qp.cfg.SendCQ {
		qp.cfg.RecvCQ.lookAt(qp)
	}
}

func (cq *CQ) lookAt(qp *QP) {
	cq.mu.Lock()
	cq.live = append(cq.live, qp)
	polled := cq.polled
	cq.mu.Unlock()
	if polled {
		qp.pollers.change(qp, true)
	}
}
