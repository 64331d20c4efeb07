package gate

import (
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/block"
)

// queue is a block.Queue behind a gate.
type queue struct {
	s          *Storage
	below      block.Queue
	afterBatch func()
	closed     bool           // guarded by Storage.mu
	passing    sync.WaitGroup // jobs that have left the gate, and are on their way to the queue below
}

// NewQueue implements block.Storage.
func (s *Storage) NewQueue(afterBatch func()) block.Queue {
	return &queue{s: s, below: s.Storage.NewQueue(afterBatch), afterBatch: afterBatch}
}

// Do implements block.Queue.
func (q *queue) Do(op block.Op, buf []byte, off, n int64, fl block.Flags, done block.Completion) (inline bool) {
	s := q.s
	if !s.counts || !op.Writes() {
		if !s.guarded.Load() || !isCounted(op) {
			return q.below.Do(op, buf, off, n, fl, done)
		}
	} else {
		// It is counted before anybody is asked: whoever holds from now on waits for it.
		s.changing.Add(1)
		if !s.guarded.Load() {
			return q.below.Do(op, buf, off, n, fl, s.counted(done))
		}
		s.end()
	}
	return s.admit(job{q: q, op: op, fl: fl, buf: buf, off: off, n: n, done: done})
}

// admit hands a job on if it need not wait, and has it wait otherwise.
func (s *Storage) admit(j job) (inline bool) {
	d := directionOf(j.op)
	s.mu.Lock()
	if j.q.closed {
		s.mu.Unlock()
		return j.q.below.Do(j.op, j.buf, j.off, j.n, j.fl, j.done)
	}
	s.waiting[d].Push(j)
	if s.waiting[d].Len() > 1 || !s.mayPassLocked(d, time.Now()) {
		s.mu.Unlock()
		return false
	}
	s.popLocked(d)
	s.beginLocked(&j)
	s.mu.Unlock()
	return j.q.begin(&j)
}

// begin hands a job on to the queue below.
func (q *queue) begin(j *job) (inline bool) {
	defer q.passing.Done()
	return q.below.Do(j.op, j.buf, j.off, j.n, j.fl, j.done)
}

// Close implements block.Queue. What waits is handed on at once: it was accepted, and whoever closes the queue waits for it.
func (q *queue) Close() error {
	s := q.s
	s.mu.Lock()
	for s.holding {
		s.free.Wait()
	}
	s.letGoAndUnlock(func() (ready []job) {
		q.closed = true
		for d := range directions {
			for range s.waiting[d].Len() {
				if j := s.popLocked(d); j.q == q {
					ready = append(ready, j)
				} else {
					s.waiting[d].Push(j)
				}
			}
		}
		return append(ready, s.passLocked()...)
	})
	q.passing.Wait()
	return q.below.Close()
}
