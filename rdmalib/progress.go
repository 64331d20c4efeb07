package rdmalib

import (
	"slices"
	"sync/atomic"
)

// Progress receives, in the calling thread, what has come on streams of a completion queue, and returns on how many. The C
// library calls it for a program that polls, when it sees that something has come: the program need not wait for a thread of
// the engine's then, for which there may be no processor.
func (e *Engine) Progress(h uint32) int {
	c := e.cqs.get(h)
	if c == nil {
		return 0
	}
	return c.cq.Progress()
}

// lookAfter has who polls the completion queues of q look at its stream's socket, until the result is called.
func (q *qp) lookAfter() (forget func()) {
	raw, ok := q.v.Socket()
	if !ok {
		return func() {}
	}
	var mark int32
	if raw.Control(func(fd uintptr) { mark = int32(fd) + 1 }) != nil {
		return func() {}
	}
	q.scq.replaceSocket(0, mark)
	if q.rcq != q.scq {
		q.rcq.replaceSocket(0, mark)
	}
	return func() {
		q.scq.replaceSocket(mark, 0)
		if q.rcq != q.scq {
			q.rcq.replaceSocket(mark, 0)
		}
	}
}

// replaceSocket puts one mark of Ring.Sockets in the place of another, if there is that. The library may look at a descriptor that
// is another file's by then: it does not read from it.
func (c *cq) replaceSocket(old, mark int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ring == nil {
		return
	}
	if i := slices.Index(c.ring.Sockets[:], old); i >= 0 {
		atomic.StoreInt32(&c.ring.Sockets[i], mark)
	}
}
