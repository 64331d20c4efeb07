package verbs

import "syscall"

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
// is still woken unless it has no other processor (GOMAXPROCS=1). A sleeping consumer is better served by Wait.
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
	cq.mu.Unlock()
}
