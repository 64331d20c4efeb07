package sctpadapt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/ddp/enhanced"
	"github.com/ironwarp/ironwarp/ddp/tap"
	"github.com/ironwarp/ironwarp/transport/assoc"
)

// state is a session's state at this end.
type state uint8

const (
	stateInitiated state = iota // our Initiate is not answered
	statePending                // the peer's Initiate is not answered
	stateOpen
	stateClosed // closed here; what the peer still sends is dropped
)

// Stream is a DDP Stream Session in use (RFC 5043 section 6). It implements
// ddp.LLP, whose rules on concurrency it follows: one goroutine at a time sends,
// one receives, any may CloseWrite and Close.
//
//	Initiate sent --> initiated --Accept--> open ------------------------> closed
//	                      `------Reject, Terminate, Close-----------------^
//	Initiate received --> pending --Accept--> open ----------------------> closed
//	                      `------Reject, Terminate, Close-----------------^
//
// An end that has no more to send says so with a Terminate, its last chunk. Once
// both ends have, and all chunks up to the peer's Terminate are here, the streams
// are free again.
type Stream struct {
	mux   *Mux
	id    uint16
	asked *enhanced.Data // of the Initiate, nil without

	// Set by Initiate and before answered is closed, or by Request.Accept.
	agreed      enhanced.Agreed
	peer        *enhanced.Data // of the Accept
	privateData []byte
	refusal     error
	answered    chan struct{}
	taken       atomic.Bool // the request is answered

	tx sending

	tap tap.Stream // what it is shown as, once its Mux has a Link

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	signal chan struct{} // there is something in the queue, or an end

	// Of the goroutine that delivers the association's messages.
	touched bool

	mu    sync.Mutex // guards the fields below it; taken before the sending half's and the Mux's
	st    state
	queue *queue
	stall
	err      error  // the end, once the queue is empty
	heard    bool   // the peer has received our first message, as what it sent shows
	chunks   uint16 // the session's from the peer so far
	endKnown bool   // the peer's Terminate is here
	endSSN   uint16

	order *ddp.Reorder // of Receive
	over  error        // of Receive, sticky
}

var _ ddp.LLP = (*Stream)(nil)

func newStream(m *Mux, id uint16, st state) *Stream {
	s := &Stream{mux: m, id: id, st: st, answered: make(chan struct{}), signal: make(chan struct{}, 1)}
	s.tap.Number, s.tap.Initiator = id, st == stateInitiated
	s.ctx, s.cancel = context.WithCancel(context.Background())
	if st == statePending {
		s.chunks = 1 // the Initiate
	}
	return s
}

// ID is the number of the SCTP streams.
func (s *Stream) ID() uint16 { return s.id }

// PrivateData is the peer's private data, as its ULP gave it.
func (s *Stream) PrivateData() []byte { return s.privateData }

// IRD is how many RDMA Reads of the peer we must accept at a time, enhanced.DepthULP
// if the ULPs agree on it themselves.
func (s *Stream) IRD() uint16 { return s.agreed.IRD }

// ORD is how many RDMA Reads we may have outstanding, enhanced.DepthULP if the ULPs
// agree on it themselves.
func (s *Stream) ORD() uint16 { return s.agreed.ORD }

// RTR is the set of ready-to-receive indications that were agreed on, 0 outside
// the peer-to-peer model (RFC 6581 section 9.2).
func (s *Stream) RTR() enhanced.RTR { return s.agreed.RTR }

// PeerEnhanced is the enhanced connection data that the peer sent, nil if it sent
// none.
func (s *Stream) PeerEnhanced() *enhanced.Data {
	if s.peer != nil {
		return s.peer
	}
	return s.asked
}

// answer takes an Accept or Reject of our Initiate.
func (s *Stream) answer(msg *assoc.Message, c *Control) {
	s.mu.Lock()
	s.chunks++
	st := s.st
	legal := st == stateInitiated && c.SSN == 0 && (c.Function.enhanced() == (s.asked != nil) || c.Function == FunctionReject)
	if legal {
		switch c.Function {
		case FunctionAccept, FunctionEnhancedAccept:
			s.st = stateOpen
		default:
			s.st = stateClosed
		}
	}
	s.heard = true
	s.mu.Unlock()
	switch {
	case st == stateClosed: // given up meanwhile; a Terminate is on its way
		s.tidy(c.Function == FunctionReject || c.Function == FunctionEnhancedReject)
		return
	case !legal:
		s.mux.illegal(s, msg, fmt.Sprintf("an unexpected %v with number %d", c.Function, c.SSN))
		return
	}
	s.peer, s.privateData = c.Enhanced, slices.Clone(c.PrivateData)
	s.tap.SetReply(slices.Clone(msg.Payload))
	if c.Function == FunctionReject || c.Function == FunctionEnhancedReject {
		s.refusal = &RejectedError{PrivateData: s.privateData, Enhanced: c.Enhanced}
		s.forget()
	} else if s.asked != nil {
		if f := s.agreed.Take(s.asked, c.Enhanced); f != nil {
			s.refusal = &NegotiationError{Err: f, Stream: s}
		}
	}
	close(s.answered)
}

// segment takes a DDP Segment Chunk.
func (s *Stream) segment(msg *assoc.Message) (held bool) {
	s.mu.Lock()
	s.chunks++
	s.heard = true
	switch s.st {
	case stateClosed:
		s.mu.Unlock()
		s.tidy(false)
		return false
	case statePending: // the active side has to wait for the Accept
		s.mu.Unlock()
		return s.mux.illegal(s, msg, "a segment before the session was accepted")
	}
	held = s.putLocked(msg, 0)
	s.mu.Unlock()
	return held
}

// terminated takes a Terminate.
func (s *Stream) terminated(msg *assoc.Message, ssn uint16) (held bool) {
	s.mu.Lock()
	s.chunks++
	s.heard = true
	twice := s.endKnown
	s.endKnown, s.endSSN = true, ssn
	st := s.st
	switch {
	case twice:
		s.mu.Unlock()
		return s.mux.illegal(s, msg, "a second Terminate")
	case st == stateOpen, st == stateInitiated && ssn != 0: // in turn
		held = s.putLocked(msg, recordEnd)
	default:
		s.st = stateClosed
	}
	s.mu.Unlock()
	switch st {
	case stateInitiated:
		if ssn == 0 { // RFC 5043 section 6.4
			s.refusal = fmt.Errorf("sctpadapt: initiate a session on stream %d: %w", s.id, ErrTerminated)
			s.forget()
			close(s.answered)
		}
	case statePending: // the peer has given up; the request will find out
		s.forget()
	default:
		s.tidy(false)
	}
	return held
}

// closedHere reports whether this end wants nothing more of the session.
func (s *Stream) closedHere() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.st == stateClosed || s.tx.isEnded() && s.endKnown
}

// tidy frees the streams when the session is over on both sides.
func (s *Stream) tidy(rejected bool) {
	s.mu.Lock()
	whole := rejected || s.endKnown && s.chunks == s.endSSN+1
	s.mu.Unlock()
	if whole && s.tx.isEnded() {
		s.mux.mu.Lock()
		s.mux.removeLocked(s)
		s.mux.mu.Unlock()
	}
}

// forget frees the streams at once: the session is over by the exchange that
// began it.
func (s *Stream) forget() {
	s.tx.end()
	s.mux.mu.Lock()
	s.mux.removeLocked(s)
	s.mux.mu.Unlock()
	s.end(ddp.ErrClosed)
	s.drop()
}

// fail terminates the session for a fault of the peer. Receive returns err.
func (s *Stream) fail(err error) {
	s.mu.Lock()
	st := s.st
	s.st = stateClosed
	s.mu.Unlock()
	s.sendTerminate()
	if st == stateInitiated {
		s.refusal = err
		close(s.answered)
	}
	s.end(err)
	s.tidy(false)
}

// end makes Receive return err when the queue is empty, and sending fail.
func (s *Stream) end(err error) {
	s.mu.Lock()
	if s.err == nil {
		s.err = err
	}
	s.mu.Unlock()
	s.tx.fail(err)
	s.cancel()
	s.wake()
}

func (s *Stream) wake() {
	select {
	case s.signal <- struct{}{}:
	default:
	}
}

// CloseWrite ends the sending direction by a Terminate. What was not flushed is
// lost. It fails when the association is over.
func (s *Stream) CloseWrite() error {
	err := s.sendTerminate()
	s.tidy(false)
	return err
}

// Close terminates the session, unless that was done, and unblocks everything.
// It is idempotent.
func (s *Stream) Close() error {
	s.mu.Lock()
	s.st = stateClosed
	s.err = ddp.ErrClosed
	s.mu.Unlock()
	err := s.sendTerminate()
	s.end(ddp.ErrClosed)
	s.drop()
	s.tidy(false)
	if errors.Is(err, ddp.ErrClosed) {
		return nil
	}
	return err
}
