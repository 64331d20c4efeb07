package backing

import (
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/internal/fifo"
)

// queue is a block.Queue: it runs an operation at once on the caller's goroutine when
// that is quick, otherwise on a worker. Its length is bounded by what its callers have
// outstanding.
type queue struct {
	store      *Store
	afterBatch func()
	maxWorkers int // that sleep in the storage at once; they start on demand and stay until Close

	mu      sync.Mutex // guards the fields below it
	work    sync.Cond
	jobs    fifo.Queue[job]
	workers int
	idle    int
	closed  bool
	wg      sync.WaitGroup
}

type job struct {
	op   block.Op
	fl   block.Flags
	buf  []byte
	off  int64
	n    int64
	done block.Completion
}

// NewQueue implements block.Storage. Close the queue before the Store. It calls
// afterBatch after each completion that a worker made: operations that need a worker are
// so slow or so large that holding a reply back for the next one is not worthwhile.
func (s *Store) NewQueue(afterBatch func()) block.Queue { return s.newQueue(maxWorkers, afterBatch) }

func (s *Store) newQueue(maxWorkers int, afterBatch func()) *queue {
	q := &queue{store: s, afterBatch: afterBatch, maxWorkers: maxWorkers}
	q.work.L = &q.mu
	return q
}

// Do implements block.Queue. It does not allocate in steady state.
func (q *queue) Do(op block.Op, buf []byte, off, n int64, fl block.Flags, done block.Completion) (inline bool) {
	if op.HasData() && len(buf) <= maxInlineIO {
		switch {
		case op == block.OpRead:
			if ok, errno := q.store.tryRead(buf, off); ok {
				done.Complete(errno)
				return true
			}
		case fl&block.FUA == 0 && q.store.writes.fast():
			done.Complete(q.store.write(buf, off, false))
			return true
		}
	}
	j := job{op: op, fl: fl, buf: buf, off: off, n: n, done: done}
	if !q.push(j) {
		done.Complete(unix.ESHUTDOWN)
		return true
	}
	return false
}

func (q *queue) push(j job) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	q.jobs.Push(j)
	switch {
	case q.idle >= q.jobs.Len():
		q.work.Signal()
	case q.workers < q.maxWorkers:
		q.workers++
		q.wg.Add(1)
		go q.worker()
	case q.idle > 0:
		q.work.Signal()
	}
	return true
}

// pop waits for a job; ok is false once the queue is closed.
func (q *queue) pop() (j job, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.jobs.Len() == 0 {
		if q.closed {
			return job{}, false
		}
		q.idle++
		q.work.Wait()
		q.idle--
	}
	return q.jobs.Pop(), true
}

func (q *queue) worker() {
	defer q.wg.Done()
	for {
		j, ok := q.pop()
		if !ok {
			return
		}
		j.done.Complete(q.store.run(&j))
		if q.afterBatch != nil {
			q.afterBatch()
		}
	}
}

func (s *Store) run(j *job) syscall.Errno {
	fua := j.fl&block.FUA != 0
	switch j.op {
	case block.OpRead:
		return s.read(j.buf, j.off)
	case block.OpWrite:
		return s.write(j.buf, j.off, fua)
	case block.OpFlush:
		return s.flush()
	case block.OpTrim:
		return s.doDiscard(j.off, j.n, fua)
	case block.OpWriteZeroes:
		return s.writeZeroes(j.off, j.n, j.fl)
	case block.OpCache:
		return s.readAhead(j.off, j.n)
	case block.OpStatus:
		return s.status(j.buf, j.off, j.n)
	}
	return unix.EINVAL
}

// Close implements block.Queue.
func (q *queue) Close() error {
	q.mu.Lock()
	q.closed = true
	q.work.Broadcast()
	q.mu.Unlock()
	q.wg.Wait()
	return nil
}
