package verbs

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/ironwarp/ironwarp/rdmap"
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
	WCBind
	WCRegister
	WCInvalidate // of an OpInvalidateLocal
)

func (o WCOp) String() string {
	if o < WCSend || o > WCInvalidate {
		return fmt.Sprintf("WCOp(%d)", uint8(o))
	}
	return [...]string{"send", "write", "read", "atomic", "immediate", "receive", "receive immediate",
		"bind", "register", "local invalidate"}[o-1]
}

// WC is a work completion.
type WC struct {
	ID          uint64 // of the work request
	QP          *QP
	Op          WCOp
	Solicited   bool   // WCRecv, WCRecvImm: the peer asked for an event (RFC 5040 section 4.3)
	Len         uint32 // bytes received or read
	Invalidated uint32 // STag that the peer's Send invalidated, 0: none
	Imm         uint64 // WCRecvImm: the 8 bytes; WCAtomic: the original value
	Err         error  // nil: success. ErrFlushed in the chain: the stream ended first, the operation may have been carried out all the same
	shared      bool   // counts against the QP's share of its SRQ
}

// ErrFlushed matches the error of a work request that the end of its stream
// caught.
var ErrFlushed = errors.New("verbs: flushed")

// ErrUnsupportedByPeer matches the reason of a stream that the peer terminated
// because it does not know Atomics or Immediate Data (RFC 7306), and so the error
// of each work request that this caught. Nothing in a stream's start-up tells
// beforehand; RFC 7306 section 1 has a ULP agree on it with its peer or try: a
// FetchAdd of 0 changes nothing. An Immediate Data that had left when the peer
// refused it may have completed without error, so QP.Err or EventTerminated has
// the last word.
var ErrUnsupportedByPeer = rdmap.ErrUnsupportedByPeer

// ErrCutOff matches the reason of a stream whose peer held up its graceful close for ten
// seconds.
var ErrCutOff = rdmap.ErrCutOff

// TerminateError is in the reason of a stream that the peer has ended by a Terminate
// (RFC 5040 section 4.8).
type TerminateError = rdmap.TerminateError

// urgent reports that a consumer who waits for solicited completions only is to
// be told.
func (wc *WC) urgent() bool { return wc.Solicited || wc.Err != nil }

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
	events  bool // SolicitedOnly
	charge  charge
	ch      chan struct{} // Wait should look again
	wake    atomic.Bool   // completions were pushed that the consumer is to be told of

	mu      sync.Mutex // guards the fields below it
	ring    []WC
	head, n int
	urgent  int  // completions in the ring that are solicited or errors
	lost    bool // a completion found no room, and nobody was told
	armed   armed
	pushed  uint64    // completions entered so far
	handled uint64    // those of them that the consumer has done with
	settled sync.Cond // handled has grown; for waiters
	waiters int
	users   map[*QP]cqUse
	strict  bool // each stream finds room for what is kept for it (RFC 5042 section 6.4.3.2)
	keeps   int  // entries that are kept for the streams
	beyond  int  // entries in use beyond that, also by streams that are over; of a strict queue
	closed  bool

	running atomic.Uint32 // dispatch: 0 idle, 1 running, 2 running and to be run again
	batch   []WC          // the running dispatch's
	runFn   func()        // run; a go statement with a method would allocate
}

// CQOption modifies a completion queue.
type CQOption uint8

// SolicitedOnly has the handler of a queue called only for completions that are
// solicited (RFC 5040 section 4.3) or errors, and at the end of each stream of
// the queue. It is then given all that came before them too.
const SolicitedOnly CQOption = 1

// CreateCQ makes a completion queue for depth completions, which is charged to the ULP.
// Size it for all that its queue pairs can have outstanding and unpolled: an overflow
// ends them with ErrCQOverflow. handler may be nil. It fails with a *QuotaError, with
// ErrClosed when the ULP is closed, and where depth or an option is impossible.
func (u *ULP) CreateCQ(depth int, handler CQHandler, opts ...CQOption) (*CQ, error) {
	if depth < 1 || depth > maxCQDepth {
		return nil, fmt.Errorf("verbs: create a completion queue of depth %d: 1 to %d are possible", depth, maxCQDepth)
	}
	cq := &CQ{ulp: u, depth: depth, handler: handler, charge: charge{ulp: &u.acct}, ch: make(chan struct{}, 1), users: make(map[*QP]cqUse)}
	for _, o := range opts {
		switch {
		case o != SolicitedOnly:
			return nil, fmt.Errorf("verbs: create a completion queue: unknown option %d", o)
		case handler == nil:
			return nil, errors.New("verbs: create a completion queue: SolicitedOnly is for a handler; a queue that is polled has Arm")
		}
		cq.events = true
	}
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
	case len(cq.users) > 0:
		return fmt.Errorf("verbs: destroy a completion queue that %d queue pairs use: %w", len(cq.users), ErrInUse)
	}
	cq.closed = true
	cq.ulp.dev.prm.give(&cq.charge)
	return nil
}

// push enters a completion without telling anybody yet.
func (cq *CQ) push(wc WC) {
	cq.mu.Lock()
	if cq.strict {
		k := wc.QP.keptIn(cq)
		if k.n >= k.most {
			if cq.keeps+cq.beyond >= cq.depth {
				cq.lostLocked(&wc)
				return
			}
			cq.beyond++
		}
		k.n++
	}
	if cq.n == len(cq.ring) {
		if cq.n >= cq.depth {
			cq.lostLocked(&wc)
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
	tell := wc.urgent()
	if tell {
		cq.urgent++
	}
	if (tell || !cq.events && cq.armed != armedSolicited) && !cq.wake.Load() {
		cq.wake.Store(true)
	}
	cq.mu.Unlock()
}

// lostLocked gives up a completion for which there is no room, and the lock.
func (cq *CQ) lostLocked(wc *WC) {
	cq.lost = true
	cq.mu.Unlock()
	if wc.shared {
		wc.QP.cfg.SRQ.polled(wc.QP)
	}
	cq.wake.Store(true)
	wc.QP.overflowed(cq)
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
		if p.urgent() {
			cq.urgent--
		}
		if p.shared {
			p.QP.cfg.SRQ.polled(p.QP)
			wcs[i].shared = false
		}
		if cq.strict {
			k := p.QP.keptIn(cq)
			if k.n > k.most {
				cq.beyond--
			}
			k.n--
		}
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
