package verbs

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/ironwarp/ironwarp/rdmap"
)

// WCOp is the kind of operation that a completion reports.
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
	Err         error  // nil: success. ErrFlushed in the chain: the stream ended first, but the operation may have been executed
	shared      bool   // counts against the QP's share of its SRQ
}

// ErrFlushed matches the error of a work request that was outstanding when its stream
// ended.
var ErrFlushed = errors.New("verbs: flushed")

// ErrUnsupportedByPeer matches the reason of a stream that the peer terminated
// because it does not know Atomics or Immediate Data (RFC 7306), and the error
// of each work request outstanding then. A stream's start-up does not show it
// beforehand; RFC 7306 section 1 lets a ULP agree on it with its peer or try: a
// FetchAdd of 0 changes nothing. An Immediate Data that had been sent when the peer
// refused it may have completed without error, so QP.Err or EventTerminated is
// authoritative.
var ErrUnsupportedByPeer = rdmap.ErrUnsupportedByPeer

// ErrCutOff matches the reason of a stream whose peer held up its graceful close for ten
// seconds.
var ErrCutOff = rdmap.ErrCutOff

// TerminateError is in the reason of a stream that the peer ended with a Terminate
// (RFC 5040 section 4.8).
type TerminateError = rdmap.TerminateError

// urgent reports whether to notify a consumer that waits for solicited completions only.
func (wc *WC) urgent() bool { return wc.Solicited || wc.Err != nil }

// CQHandler takes completions as they come. It runs on goroutines of the
// engine, never inside a Post call unless the queue is made InPost, and never twice at once for one CQ. It may
// post and flush; it must not block for long, since its stream waits. The slice is valid
// only during the call.
type CQHandler interface {
	Completions(cq *CQ, wcs []WC)
}

// CQ is a completion queue. It delivers to its handler, or is polled if it has none.
type CQ struct {
	ulp     *ULP
	depth   int
	handler CQHandler
	events  bool // SolicitedOnly
	inPost  bool
	charge  charge
	ch      chan struct{} // Wait should look again
	wake    atomic.Bool   // completions were pushed of which the consumer is to be notified

	mu      sync.Mutex // guards the fields below it
	ring    []WC
	head, n int
	urgent  int  // completions in the ring that are solicited or errors
	lost    bool // a completion was lost, and nobody notified yet
	armed   armed
	pushed  uint64    // completions entered so far
	handled uint64    // those of them that the consumer has finished with
	settled sync.Cond // handled has grown; for waiters
	waiters int
	users   map[*QP]cqUse
	live    []*QP // those of them that have, or had, a stream
	turn    int   // the one of these that Progress looked at last
	polled  bool  // as Polled was told
	strict  bool  // entries are reserved for each stream (RFC 5042 section 6.4.3.2)
	keeps   int   // entries that are kept for the streams
	beyond  int   // entries in use beyond that, including by ended streams; of a strict queue
	closed  bool

	running atomic.Uint32 // dispatch: 0 idle, 1 running, 2 running and to run again
	batch   []WC          // the running dispatch's
	runFn   func()        // run; a go statement with a method would allocate
}

// CQOption modifies a completion queue.
type CQOption uint8

// SolicitedOnly makes a queue call its handler only for completions that are
// solicited (RFC 5040 section 4.3) or errors, and at the end of each stream of
// the queue. The handler then gets all earlier completions too.
const SolicitedOnly CQOption = 1

// InPost makes a queue call its handler also inside the Post call whose work request is done by the time it returns: that
// saves a wake-up, and what a peer answers to it comes later. The handler posts nothing then, and the caller holds no lock that
// it takes.
const InPost CQOption = 2

// CreateCQ makes a completion queue for depth completions, which is charged to the ULP.
// Size it for all that its queue pairs can have outstanding and unpolled: an overflow
// ends them with ErrCQOverflow. handler may be nil. It fails with a *QuotaError, with
// ErrClosed when the ULP is closed, and if depth or an option is invalid.
func (u *ULP) CreateCQ(depth int, handler CQHandler, opts ...CQOption) (*CQ, error) {
	if depth < 1 || depth > maxCQDepth {
		return nil, fmt.Errorf("verbs: create a completion queue of depth %d: 1 to %d are possible", depth, maxCQDepth)
	}
	cq := &CQ{ulp: u, depth: depth, handler: handler, charge: charge{ulp: &u.acct}, ch: make(chan struct{}, 1), users: make(map[*QP]cqUse)}
	for _, o := range opts {
		switch {
		case o != SolicitedOnly && o != InPost:
			return nil, fmt.Errorf("verbs: create a completion queue: unknown option %d", o)
		case handler == nil:
			return nil, errors.New("verbs: create a completion queue: SolicitedOnly and InPost are for a handler; a queue that is polled has Arm")
		}
		cq.events = cq.events || o == SolicitedOnly
		cq.inPost = cq.inPost || o == InPost
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

// push enters a completion without notifying anybody yet.
func (cq *CQ) push(wc WC) {
	cq.mu.Lock()
	if cq.strict {
		k := wc.QP.keptIn(cq)
		if k.n >= k.most {
			if cq.keeps+cq.beyond >= cq.depth {
				cq.lostAndUnlock(&wc)
				return
			}
			cq.beyond++
		}
		k.n++
	}
	if cq.n == len(cq.ring) {
		if cq.n >= cq.depth {
			cq.lostAndUnlock(&wc)
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

// lostAndUnlock drops a completion for which there is no room, and unlocks.
func (cq *CQ) lostAndUnlock(wc *WC) {
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

// handledLocked records that the consumer has finished with n completions.
func (cq *CQ) handledLocked(n int) {
	cq.handled += uint64(n)
	if n > 0 && cq.waiters > 0 {
		cq.settled.Broadcast()
	}
}
