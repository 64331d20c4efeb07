package verbs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// WCOp tells what a completion ends.
type WCOp uint8

// The kinds of completions.
const (
	WCSend WCOp = iota + 1
	WCWrite
	WCRead
	WCAtomic
	WCImmediate // an Immediate Data that we sent
	WCRecv
	WCRecvImm // a receive consumed by Immediate Data (RFC 7306 section 6)
)

func (o WCOp) String() string {
	if o < WCSend || o > WCRecvImm {
		return fmt.Sprintf("WCOp(%d)", uint8(o))
	}
	return [...]string{"send", "write", "read", "atomic", "immediate", "receive", "receive immediate"}[o-1]
}

// WC is a work completion.
type WC struct {
	ID          uint64 // of the work request
	QP          *QP
	Op          WCOp
	Solicited   bool
	Len         uint32 // bytes received or read
	Invalidated uint32 // STag that the peer's Send invalidated, 0: none
	Imm         uint64 // WCRecvImm: the 8 bytes; WCAtomic: the original value
	Err         error  // nil: success. ErrFlushed in the chain: the stream ended first
}

// ErrFlushed matches the error of a work request that the end of its stream
// caught.
var ErrFlushed = errors.New("verbs: flushed")

// CQHandler takes completions as they come. It runs on goroutines of the
// engine, never inside a Post call and never twice at once for one CQ. It may
// post and flush; it must not block for long, it holds up its stream. The slice
// is valid only during the call.
type CQHandler interface {
	Completions(cq *CQ, wcs []WC)
}

// CQ is a completion queue. One with a handler delivers to it; another is
// polled.
type CQ struct {
	ulp     *ULP
	depth   int
	handler CQHandler
	charge  charge
	ch      chan struct{} // a completion may be there

	mu      sync.Mutex
	ring    []WC
	head, n int
	pushed  uint64    // completions entered so far
	handled uint64    // those of them that the consumer has done with
	settled sync.Cond // handled has grown; for waiters
	waiters int
	users   int // queue pairs
	closed  bool

	running atomic.Uint32 // dispatch: 0 idle, 1 running, 2 running and to be run again
	batch   []WC          // the running dispatch's
	runFn   func()        // run; a go statement with a method would allocate
}

// CreateCQ makes a completion queue for depth completions. Size it for all that
// its queue pairs can have outstanding and unpolled: an overflow ends them.
// handler may be nil.
func (u *ULP) CreateCQ(depth int, handler CQHandler) (*CQ, error) {
	if depth < 1 || depth > maxCQDepth {
		return nil, fmt.Errorf("verbs: create a completion queue of depth %d: 1 to %d are possible", depth, maxCQDepth)
	}
	cq := &CQ{ulp: u, depth: depth, handler: handler, charge: charge{ulp: &u.acct}, ch: make(chan struct{}, 1)}
	cq.runFn = func() { cq.run(false) }
	cq.settled.L = &cq.mu
	cq.charge.n[resCQEntries] = int64(depth)
	if err := u.dev.prm.take(&cq.charge); err != nil {
		return nil, err
	}
	return cq, nil
}

// Destroy frees the queue. It fails with ErrInUse while queue pairs use it.
func (cq *CQ) Destroy() error {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	switch {
	case cq.closed:
		return nil
	case cq.users > 0:
		return fmt.Errorf("verbs: destroy a completion queue that %d queue pairs use: %w", cq.users, ErrInUse)
	}
	cq.closed = true
	cq.ulp.dev.prm.give(&cq.charge)
	return nil
}

func (cq *CQ) enter() error {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	if cq.closed {
		return fmt.Errorf("verbs: use a destroyed completion queue: %w", ErrClosed)
	}
	cq.users++
	return nil
}

func (cq *CQ) leave() {
	cq.mu.Lock()
	cq.users--
	cq.mu.Unlock()
}

// push enters a completion without telling anybody yet.
func (cq *CQ) push(wc WC) {
	cq.mu.Lock()
	if cq.n == len(cq.ring) {
		if cq.n >= cq.depth {
			cq.mu.Unlock()
			wc.QP.overflowed()
			return
		}
		ring := make([]WC, min(cq.depth, max(initialCQ, 2*len(cq.ring))))
		k := copy(ring, cq.ring[cq.head:])
		copy(ring[k:], cq.ring[:cq.head])
		cq.ring, cq.head = ring, 0
	}
	i := cq.head + cq.n
	if i >= len(cq.ring) {
		i -= len(cq.ring)
	}
	cq.ring[i] = wc
	cq.n++
	cq.pushed++
	cq.mu.Unlock()
}

// Poll takes up to len(wcs) completions without waiting and returns how many.
func (cq *CQ) Poll(wcs []WC) int {
	cq.mu.Lock()
	n := cq.pollLocked(wcs)
	cq.handledLocked(n)
	cq.mu.Unlock()
	return n
}

func (cq *CQ) pollLocked(wcs []WC) int {
	n := min(len(wcs), cq.n)
	for i := range n {
		p := &cq.ring[cq.head]
		wcs[i] = *p
		p.QP, p.Err = nil, nil
		if cq.head++; cq.head == len(cq.ring) {
			cq.head = 0
		}
	}
	cq.n -= n
	return n
}

// handledLocked records that the consumer has done with n completions.
func (cq *CQ) handledLocked(n int) {
	cq.handled += uint64(n)
	if n > 0 && cq.waiters > 0 {
		cq.settled.Broadcast()
	}
}

// settle waits until the handler, if there is one, has returned from every
// completion that has been pushed and announced.
func (cq *CQ) settle() {
	if cq.handler == nil {
		return
	}
	cq.mu.Lock()
	cq.waiters++
	for pushed := cq.pushed; cq.handled < pushed; {
		cq.settled.Wait()
	}
	cq.waiters--
	cq.mu.Unlock()
}

// Wait blocks until a completion may be there or ctx ends. It is for one
// consumer of a queue without a handler; poll after it, and before it too.
func (cq *CQ) Wait(ctx context.Context) error {
	select {
	case <-cq.ch:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// notify tells the consumer of what was pushed. engine: the caller is a
// goroutine of the engine that may run the handler.
func (cq *CQ) notify(engine bool) {
	if cq.handler == nil {
		select {
		case cq.ch <- struct{}{}:
		default:
		}
		return
	}
	for {
		switch r := cq.running.Load(); r {
		case 0:
			if !cq.running.CompareAndSwap(0, 1) {
				continue
			}
			if engine {
				cq.run(true)
			} else {
				go cq.runFn()
			}
			return
		case 1:
			if cq.running.CompareAndSwap(1, 2) {
				return
			}
		default:
			return
		}
	}
}

// run feeds the handler until the queue is empty. A borrowed goroutine has a
// stream to serve: if it takes long, one of the queue's own goes on.
func (cq *CQ) run(borrowed bool) {
	if cq.batch == nil {
		cq.batch = make([]WC, handlerBatch)
	}
	handled := 0 // completions of the last batch
	for round := 0; ; round++ {
		if borrowed && round == maxBorrowedRounds {
			cq.next(nil, handled)
			go cq.runFn()
			return
		}
		n := cq.next(cq.batch, handled)
		if handled = n; n > 0 {
			cq.handler.Completions(cq, cq.batch[:n])
			clear(cq.batch[:n])
			continue
		}
		if cq.running.CompareAndSwap(1, 0) {
			return
		}
		cq.running.Store(1)
	}
}

// next records that the handler has returned from handled completions and takes
// a batch of the following ones.
func (cq *CQ) next(batch []WC, handled int) int {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	cq.handledLocked(handled)
	return cq.pollLocked(batch)
}
