package target_test

import (
	"sync"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/nvme/target"
)

// held is a medium whose writes wait while it is told so.
type held struct {
	target.Medium
	came chan struct{} // a write that waits
	mu   sync.Mutex    // guards the fields below it
	gate chan struct{} // nil: nothing waits
	all  int           // writes that have come
}

func newHeld() *held { return &held{came: make(chan struct{}, 1)} }

// on is held in front of a medium.
func (h *held) on(m target.Medium) target.Medium {
	h.Medium = m
	return h
}

func (h *held) hold() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gate = make(chan struct{})
}

func (h *held) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.gate)
	h.gate = nil
}

func (h *held) NewQueue(afterBatch func()) block.Queue {
	return &heldQueue{h.Medium.NewQueue(afterBatch), h, afterBatch}
}

type heldQueue struct {
	block.Queue
	h          *held
	afterBatch func()
}

func (q *heldQueue) Do(op block.Op, buf []byte, off, n int64, fl block.Flags, done block.Completion) bool {
	q.h.mu.Lock()
	gate := q.h.gate
	if op.Writes() {
		q.h.all++
	}
	q.h.mu.Unlock()
	if gate == nil || !op.Writes() {
		return q.Queue.Do(op, buf, off, n, fl, done)
	}
	select {
	case q.h.came <- struct{}{}:
	default:
	}
	go func() {
		<-gate
		if q.Queue.Do(op, buf, off, n, fl, done) {
			q.afterBatch()
		}
	}()
	return false
}
