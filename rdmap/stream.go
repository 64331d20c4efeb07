package rdmap

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/internal/fifo"
)

// State is the state of a Stream.
//
//	Streaming ──Close, or the peer's FIN──▶ Closing ──both FINs──▶ Closed
//	    │                                      │
//	    └──fault, the peer's Terminate, Abort──┴──▶ Terminating ──▶ Closed
//
// An LLP failure leads from any state to Closed. A fault in Closing after our
// FIN can't be reported to the peer any more.
type State uint8

// The states.
const (
	Streaming   State = iota // messages flow
	Closing                  // no more posts; what is queued is sent, then the LLP's graceful end (RFC 5041 section 6.2.1)
	Terminating              // a Terminate is due, sent or received (RFC 5040 section 6.2.1)
	Closed
)

func (s State) String() string {
	return [...]string{"streaming", "closing", "terminating", "closed"}[s]
}

// Config is what a Stream is made from.
type Config struct {
	LLP     ddp.LLP
	Upper   Upper
	MaxSend int // operations queued or outstanding at once
	MaxSGE  int // pieces of memory of an operation; at least 4
	IRD     int // most Reads and Atomics of the peer outstanding at once (RFC 5040 section 6.1)
	ORD     int // Reads and Atomics that we may have outstanding at the peer
	Ready   Ready
	Stage   *StagePool // nil: the stream allocates what it needs
}

// Ready is the zero-length message that an initiator sends before anything
// else, so that the responder may send (RFC 6581 section 9.2). The consumer of
// the stream does not see it.
type Ready uint8

// The ready-to-receive messages.
const (
	ReadyNone  Ready = iota
	ReadyWrite       // an RDMA Write
	ReadyRead        // an RDMA Read
	ReadySend        // a Send, which takes a receive of the peer
)

// op is the message as an operation outside the send queue.
func (r Ready) op() *Op {
	switch r {
	case ReadyWrite:
		return &Op{Kind: OpWrite}
	case ReadyRead:
		return &Op{Kind: OpReadRequest}
	case ReadySend:
		return &Op{Kind: OpSend}
	}
	return nil
}

// Stream is an RDMAP Stream. Posting is safe from any goroutine; one goroutine
// runs Run.
type Stream struct {
	llp      ddp.LLP
	up       Upper
	even     bool // the LLP is a ddp.EvenSegments
	ird, ord int
	driverFn func()
	ready    *Op           // the ready-to-receive message, or nil
	termDone chan struct{} // closed when the Terminate has been sent or never will be

	mu       sync.Mutex // guards the fields below it
	idle     sync.Cond  // busy has become false
	state    State
	err      error // why the stream ends, the first reason
	sendLost bool  // err is that sending failed
	sq       sendRing
	flushed  uint64                  // operations before it have left
	reads    fifo.Queue[outstanding] // our Reads and Atomics at the peer, in order
	answers  uint32                  // Op.answer of the last Read or Atomic
	readyDue bool                    // it has not been begun
	irrq     fifo.Queue[response]    // the peer's Reads and Atomics, in order
	term     *Terminate              // to be sent before anything else
	termSent bool                    // handed to the sender
	termOver bool                    // termDone is closed
	busy     bool                    // somebody sends; the fields of tx are that goroutine's
	finSent  bool
	peerFin  bool // the peer ended the stream gracefully before we did
	extended bool // we have sent an operation of RFC 7306
	killer   *time.Timer
	placed   uint64 // bytes of Read Responses
	closing  closing

	stop atomic.Bool // a fault has been found: nothing but the Terminate is sent, and nothing received, any more

	tx sender
	rx receiver

	written atomic.Uint64 // bytes of the peer's Writes placed
	served  atomic.Uint64 // bytes of Read Responses sent
	stalls  atomic.Uint64
}

// outstanding is a Read or Atomic that waits for its response. A Read's sink
// STag is made for that one Read, so the response can reach nothing else.
type outstanding struct {
	op  *Op
	got uint32 // bytes of a Read Response placed
}

// response is what we owe the peer: a Read Response or an Atomic Response.
type response struct {
	atomic bool
	read   ReadRequest
	resp   AtomicResponse
	header [ddp.UntaggedHeaderLen]byte // of the Read Request, for a Terminate to quote
}

// New makes a Stream in the state Streaming. Nothing is received until Run.
func New(cfg Config) *Stream {
	s := &Stream{llp: cfg.LLP, up: cfg.Upper, ird: cfg.IRD, ord: cfg.ORD, answers: rand.Uint32(), termDone: make(chan struct{})}
	_, s.even = cfg.LLP.(ddp.EvenSegments)
	s.sq.max, s.sq.sges = max(1, cfg.MaxSend), cfg.MaxSGE
	s.ready = cfg.Ready.op()
	s.readyDue = s.ready != nil
	s.idle.L = &s.mu
	s.driverFn = s.driver
	s.tx.init(max(inlineSGE, cfg.MaxSGE))
	c, ok := cfg.LLP.(interface{ CRC() bool })
	s.tx.stage = stage{pool: cfg.Stage, on: ok && c.CRC()}
	s.rx.init()
	return s
}

// State is the stream's state.
func (s *Stream) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// ORD is how many Reads and Atomics may be outstanding at the peer.
func (s *Stream) ORD() int { return s.ord }

// Moved is how many bytes the peer has moved without work requests of ours: in with
// its RDMA Writes, out with its RDMA Reads.
func (s *Stream) Moved() (in, out uint64) { return s.written.Load(), s.served.Load() }

// Run receives until the stream ends, winds it up and reports it to the Upper.
// It is called once and returns when nothing of the stream is left.
func (s *Stream) Run() {
	if s.ready != nil {
		s.Flush()
	}
	s.finish(s.llp.Receive((*sink)(s)))
}

// Reserve takes a free element of the send queue to be filled in; Commit must
// follow without delay, since the stream's lock is held in between. It fails with
// ErrQueueFull, and with ErrClosed if the stream is ending; then the lock is not
// held.
func (s *Stream) Reserve() (*Op, error) {
	s.mu.Lock()
	if s.state != Streaming {
		err := s.err
		s.mu.Unlock()
		if err == nil {
			err = ErrClosed
		}
		return nil, fmt.Errorf("rdmap: post on a stream that is no longer open: %w", err)
	}
	op := s.sq.reserve()
	if op == nil {
		s.mu.Unlock()
		return nil, ErrQueueFull
	}
	return op, nil
}

// Cancel gives back what Reserve took.
func (s *Stream) Cancel() { s.mu.Unlock() } // unlocked: Reserve has taken the lock

// Commit queues the reserved operation. Unless more is set the stream starts
// sending it, in the calling goroutine if nobody else sends; it never blocks
// on the LLP.
//
// unlocked: Reserve has taken the lock.
func (s *Stream) Commit(more bool) {
	s.sq.tail++
	if more {
		s.mu.Unlock()
		return
	}
	s.kickAndUnlock(false)
}

// Holds reports whether p is a Ref of an operation that has not been reported yet.
func (s *Stream) Holds(p Pin) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := s.sq.head; i < s.sq.tail; i++ {
		if op := s.sq.at(i); slices.Contains(op.Ref, p) {
			return true
		}
	}
	return false
}

// Flush starts sending operations that were committed with more.
func (s *Stream) Flush() {
	s.mu.Lock()
	s.kickAndUnlock(false)
}

// kickAndUnlock unlocks, and starts the sender if it has work and nobody sends.
func (s *Stream) kickAndUnlock(engine bool) {
	if s.busy || !s.workLocked() {
		s.mu.Unlock()
		return
	}
	s.busy = true
	s.mu.Unlock()
	s.drive(engine)
}

// Close ends the stream gracefully: no more posts, what is queued is sent, then
// the LLP is ended. It does not wait; Upper.Ended reports the end. A peer that for ten
// seconds takes nothing of what is queued, answers no request, or does not follow is
// cut off (ErrCutOff).
func (s *Stream) Close() {
	s.mu.Lock()
	if s.state != Streaming {
		s.mu.Unlock()
		return
	}
	s.closeLocked()
	s.kickAndUnlock(false)
}

// Abort ends the stream at once, without a Terminate.
func (s *Stream) Abort(err error) {
	s.mu.Lock()
	s.failLocked(err)
	s.mu.Unlock()
	s.llp.Close()
}

func (s *Stream) failLocked(err error) {
	if s.err == nil && s.state != Closed {
		s.err = err
	}
	if s.state < Terminating {
		s.state = Terminating
	}
}

// armKillerLocked bounds how long an end after a fault may take. A graceful close is
// already bounded.
func (s *Stream) armKillerLocked() {
	switch {
	case s.killer == nil:
		s.killer = time.AfterFunc(teardownTime, s.late)
	case s.closing.on && s.state == Terminating:
		s.closing.on, s.closing.due = false, time.Now().Add(teardownTime)
		s.killer.Reset(teardownTime)
	}
}

// peerEnded follows the peer's graceful end. What is queued and
// needs no answer is still sent, and then our own end (RFC 5041 section 6.2.1).
func (s *Stream) peerEnded() {
	s.mu.Lock()
	if s.state == Streaming {
		s.peerFin = true
		s.closeLocked()
	}
	for s.err == nil && !s.finSent {
		if s.busy {
			s.idle.Wait()
			continue
		}
		if !s.workLocked() {
			break
		}
		s.kickAndUnlock(true)
		s.mu.Lock()
	}
	s.mu.Unlock()
}

// finish winds the stream up after Receive has returned err.
func (s *Stream) finish(err error) {
	var fault *ddp.Error
	var terminated *TerminateError
	switch {
	case errors.As(err, &terminated):
		s.mu.Lock()
		s.failLocked(err)
		s.mu.Unlock()
	case errors.As(err, &fault):
		s.answerFault(fault)
	case errors.Is(err, io.EOF):
		s.peerEnded()
	}
	s.mu.Lock()
	if s.sendLost && (terminated != nil || errors.Is(err, io.EOF)) {
		s.err = nil // the peer's Terminate says more
	}
	s.armKillerLocked()
	sending := s.term != nil
	local := s.state == Closing && !s.peerFin && s.sq.head == s.sq.tail
	s.mu.Unlock()
	if sending {
		// The peer must be able to read the Terminate: a close with unread data
		// would reset the connection under it.
		<-s.termDone
		s.llp.CloseWrite()
		s.llp.Drain(teardownTime)
	}
	if errors.Is(err, io.EOF) {
		err = ErrPeerClosed
		if local {
			err = nil
		}
	}

	s.mu.Lock()
	if s.err == nil {
		s.err = err
	}
	s.state = Closed
	s.mu.Unlock()
	s.llp.CloseWrite()
	s.llp.Close()

	s.mu.Lock()
	for s.busy {
		s.idle.Wait()
	}
	s.killer.Stop()
	reason := s.err
	s.reads, s.irrq = fifo.Queue[outstanding]{}, fifo.Queue[response]{}
	for ; s.sq.head < s.sq.tail; s.sq.head++ {
		op := s.sq.at(s.sq.head)
		err := op.err
		if err == nil {
			err = flushError(reason)
		}
		s.up.SendDone(op, err)
		op.forget()
	}
	s.mu.Unlock()
	s.up.Completions(true)
	s.up.Ended(reason)
}

// flushError is the error of an operation outstanding at the end of the stream.
func flushError(reason error) error {
	if reason == nil {
		return ErrClosed
	}
	return reason
}
