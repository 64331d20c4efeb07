package sctpadapt

import (
	"fmt"
	"slices"

	"github.com/ironwarp/ironwarp/ddp/enhanced"
	"github.com/ironwarp/ironwarp/transport/assoc"
)

// control takes a DDP Stream Session Control message (RFC 5043 section 6). s is
// the stream's session, nil for none.
func (m *Mux) control(s *Stream, msg *assoc.Message) (held bool) {
	c, err := ParseControl(msg.Payload)
	if err != nil {
		return m.illegal(s, msg, err.Error())
	}
	switch c.Function {
	case FunctionInitiate, FunctionEnhancedInitiate:
		m.initiated(s, msg, &c)
	case FunctionAccept, FunctionReject, FunctionEnhancedAccept, FunctionEnhancedReject:
		if s == nil {
			return m.illegal(s, msg, fmt.Sprintf("an unexpected %v", c.Function))
		}
		s.answer(msg, &c)
	case FunctionTerminate:
		if s != nil { // an answer to one would never end
			return s.terminated(msg, c.SSN)
		}
	}
	return false
}

// initiated takes an Initiate.
func (m *Mux) initiated(s *Stream, msg *assoc.Message, c *Control) {
	if s != nil && !s.closedHere() {
		m.illegal(s, msg, fmt.Sprintf("an %v within a session", c.Function))
		return
	}
	if c.SSN != 0 { // section 6.1
		m.illegal(nil, msg, "an Initiate with a number other than 0")
		return
	}
	m.mu.Lock()
	if s != nil { // the peer has ended it, too, and may use the streams again
		m.removeLocked(s)
	}
	if m.ended != nil || m.pending >= m.maxPending || int(msg.Stream) >= m.pairs() {
		m.mu.Unlock()
		m.turnAway(msg.Stream) // section 6.4
		return
	}
	m.pending++
	s = m.addLocked(msg.Stream, statePending)
	s.tap.SetRequest(slices.Clone(msg.Payload))
	s.asked = c.Enhanced
	m.requests <- &Request{PrivateData: slices.Clone(c.PrivateData), Enhanced: c.Enhanced, s: s} // has room for maxPending
	m.mu.Unlock()
}

// Request is a session that the peer wants to start. It is answered by Accept,
// Reject or Close; until then the peer waits.
type Request struct {
	PrivateData []byte         // the peer's
	Enhanced    *enhanced.Data // its IRD, ORD and RTR, nil if it sent none

	s *Stream
}

// Stream is the number of the SCTP streams.
func (r *Request) Stream() uint16 { return r.s.id }

// take ensures that there is only one answer.
func (r *Request) take() error {
	if !r.s.taken.CompareAndSwap(false, true) {
		return fmt.Errorf("sctpadapt: stream %d: %w", r.s.id, errAnswered)
	}
	m := r.s.mux
	m.mu.Lock()
	m.pending--
	m.mu.Unlock()
	return nil
}

// Accept starts the session (RFC 5043 section 6.2). If it fails because the
// private data is too long, the request may be answered otherwise.
func (r *Request) Accept(o Session) (*Stream, error) {
	s := r.s
	n := o.depths()
	c := Control{Function: FunctionAccept, PrivateData: o.PrivateData}
	if s.asked != nil {
		c.Function = FunctionEnhancedAccept
		c.Enhanced = n.Answer(s.asked, o.PeerToPeer)
	}
	b, err := c.Append(nil)
	if err != nil {
		return nil, err
	}
	if err := r.take(); err != nil {
		return nil, err
	}
	s.agreed, s.privateData = n, r.PrivateData
	s.tap.SetReply(b)
	if err := s.sendFirst(b); err != nil {
		s.Close()
		return nil, fmt.Errorf("sctpadapt: accept the session on stream %d: %w", s.id, err)
	}
	return s, nil
}

// Reject refuses the session with the ULP's private data (RFC 5043 section
// 6.3). It fails with ErrPrivateData where that is too long, and when the session is
// answered or over.
func (r *Request) Reject(privateData []byte) error { return r.reject(privateData, nil) }

// RejectDepths is Reject for a peer that offers too few RDMA Reads: the answer
// names acceptable depths (RFC 6581 section 9.1). ird and ord are as in
// Session. It fails as Reject does.
func (r *Request) RejectDepths(privateData []byte, ird, ord uint16) error {
	return r.reject(privateData, &enhanced.Data{IRD: enhanced.Depth(ird), ORD: enhanced.Depth(ord)})
}

func (r *Request) reject(privateData []byte, e *enhanced.Data) error {
	s := r.s
	c := Control{Function: FunctionReject, PrivateData: privateData}
	if s.asked != nil {
		c.Function, c.Enhanced = FunctionEnhancedReject, e
		if e == nil {
			c.Enhanced = enhanced.Refuse(s.asked, 0)
		}
	}
	b, err := c.Append(nil)
	if err != nil {
		return err
	}
	if err := r.take(); err != nil {
		return err
	}
	if err = s.sendFirst(b); err != nil {
		err = fmt.Errorf("sctpadapt: reject the session on stream %d: %w", s.id, err)
	}
	s.forget()
	return err
}

// Close answers with a Terminate: the request could not be put to the ULP
// (RFC 5043 section 6.4). It is idempotent and does nothing to a request that
// was answered.
func (r *Request) Close() error {
	if r.take() != nil {
		return nil
	}
	return r.s.Close()
}
