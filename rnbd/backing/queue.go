package backing

import (
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Op is an operation of a Queue.
type Op uint8

// The operations.
const (
	OpRead        Op = iota // fill buf from off
	OpWrite                 // write buf at off
	OpFlush                 // make completed writes durable
	OpDiscard               // Store.Discard of n bytes at off
	OpWriteZeroes           // Store.WriteZeroes of n bytes at off
)

// Flags of an operation.
type Flags uint8

const (
	// FUA: durable before it completes (OpWrite, OpDiscard, OpWriteZeroes).
	FUA Flags = 1 << iota
	// NoUnmap: OpWriteZeroes leaves the range its space.
	NoUnmap
)

// Completion is told the result of an operation.
type Completion interface {
	// Complete is called exactly once, with 0 or the error. It does not block.
	Complete(errno syscall.Errno)
}

// QueueConfig configures a Queue.
type QueueConfig struct {
	// Workers bounds how many operations sleep in the storage at once; 0 means
	// DefaultWorkers. Workers start on demand and stay until Close.
	Workers int
	// AfterBatch, if set, is called by a worker after each completion that it
	// made: send the reply there. Operations that come to a worker are so slow or
	// so large that to hold a reply back for the next is not worth it. Completions
	// made inside Do have no batch end. It does not block.
	AfterBatch func()
}

// Queue runs operations on a Store: at once on the caller's goroutine when that
// is quick, otherwise on a worker. Operations run in parallel and in no
// order. Its length is bounded by what its callers have outstanding.
type Queue struct {
	store      *Store
	afterBatch func()
	maxWorkers int

	mu      sync.Mutex
	work    sync.Cond
	jobs    []job // ring
	head    int
	count   int
	workers int
	idle    int
	closed  bool
	wg      sync.WaitGroup
}

type job struct {
	op   Op
	fl   Flags
	buf  []byte
	off  int64
	n    int64
	done Completion
}

// NewQueue returns a Queue on st. Close it before st.
func NewQueue(st *Store, cfg QueueConfig) *Queue {
	q := &Queue{store: st, afterBatch: cfg.AfterBatch, maxWorkers: cfg.Workers, jobs: make([]job, 64)}
	if q.maxWorkers <= 0 {
		q.maxWorkers = DefaultWorkers
	}
	q.work.L = &q.mu
	return q
}

// Store returns the queue's store.
func (q *Queue) Store() *Store { return q.store }

// Do runs one operation and calls done.Complete, inline or later on a worker;
// it reports which. It never sleeps in the storage. buf is that of a read or a
// write (len(buf) bytes), n the length in bytes of OpDiscard and
// OpWriteZeroes. buf is the queue's until Complete. After Close the result is
// ESHUTDOWN. Do does not allocate in steady state.
func (q *Queue) Do(op Op, buf []byte, off, n int64, fl Flags, done Completion) (inline bool) {
	if op <= OpWrite && len(buf) <= maxInlineIO {
		switch {
		case op == OpRead:
			if ok, errno := q.store.tryRead(buf, off); ok {
				done.Complete(errno)
				return true
			}
		case fl&FUA == 0 && q.store.writes.fast():
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

func (q *Queue) push(j job) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	if q.count == len(q.jobs) {
		ring := make([]job, 2*len(q.jobs))
		n := copy(ring, q.jobs[q.head:])
		copy(ring[n:], q.jobs[:q.head])
		q.jobs, q.head = ring, 0
	}
	q.jobs[(q.head+q.count)&(len(q.jobs)-1)] = j
	q.count++
	switch {
	case q.idle >= q.count:
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

// pop waits for a job; not ok means that the queue was closed.
func (q *Queue) pop() (j job, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.count == 0 {
		if q.closed {
			return job{}, false
		}
		q.idle++
		q.work.Wait()
		q.idle--
	}
	j = q.jobs[q.head]
	q.jobs[q.head] = job{}
	q.head = (q.head + 1) & (len(q.jobs) - 1)
	q.count--
	return j, true
}

func (q *Queue) worker() {
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
	fua := j.fl&FUA != 0
	switch j.op {
	case OpRead:
		return s.read(j.buf, j.off)
	case OpWrite:
		return s.write(j.buf, j.off, fua)
	case OpFlush:
		return s.flush()
	case OpDiscard:
		return s.doDiscard(j.off, j.n, fua)
	case OpWriteZeroes:
		return s.writeZeroes(j.off, j.n, fua, j.fl&NoUnmap != 0)
	}
	return unix.EINVAL
}

// Close finishes the operations that were handed over, refuses further ones
// with ESHUTDOWN and ends the workers. It does not close the Store. It is
// idempotent.
func (q *Queue) Close() error {
	q.mu.Lock()
	q.closed = true
	q.work.Broadcast()
	q.mu.Unlock()
	q.wg.Wait()
	return nil
}
