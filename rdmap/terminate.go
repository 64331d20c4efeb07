package rdmap

import (
	"errors"
	"time"

	"github.com/ironwarp/ironwarp/ddp"
)

// Terminate ends the stream because the peer broke a rule, and reports to it which
// (RFC 5040 section 6.2.1). Only the first fault counts (section 7.1 rule 4).
func (s *Stream) Terminate(fault *ddp.Error) {
	s.mu.Lock()
	s.terminateLocked(fault, fault)
	s.kickAndUnlock(true)
}

// terminateLocked ends the stream for reason; the peer is sent fault.
func (s *Stream) terminateLocked(fault *ddp.Error, reason error) {
	first := s.err == nil && s.state != Closed
	s.failLocked(reason)
	if first {
		s.term = terminateFor(fault)
		s.stop.Store(true)
		s.armKillerLocked()
	}
}

// Refuse ends an LLP that never became a Stream with a Terminate that names
// fault, for start-up that fails after the peer has entered full operation (RFC
// 6581 section 9.1). It takes two seconds at most.
func Refuse(llp ddp.LLP, fault *ddp.Error) {
	killer := time.AfterFunc(teardownTime, func() { llp.Close() })
	defer killer.Stop()
	hdr := ddp.AppendUntagged(nil, true, Control(OpTerminate), 0, QNTerminate, 1, 0)
	if llp.Append(terminateFor(fault).Append(hdr), nil) == nil && llp.Flush() == nil {
		llp.CloseWrite()
		llp.Drain(teardownTime)
	}
	llp.Close()
}

// termOverLocked records that the Terminate has been sent or never will be.
func (s *Stream) termOverLocked() {
	if !s.termOver {
		s.termOver = true
		close(s.termDone)
	}
}

// terminateFor makes the Terminate message for a fault (RFC 5040 section 4.8).
func terminateFor(fault *ddp.Error) *Terminate {
	t := &Terminate{Layer: fault.Layer, Type: fault.Type, Code: fault.Code, RDMAP: fault.Upper}
	if fault.Header != nil {
		t.DDP, t.SegLen = fault.Header, uint16(min(fault.SegLen, 0xffff))
	}
	return t
}

// cutShort reports whether to leave the message in progress unfinished because the
// stream is ending and the Terminate is more important.
func (s *Stream) cutShort() bool {
	t := &s.tx
	if !t.active || t.term || !s.stop.Load() {
		return false
	}
	return t.op == nil || t.op.Kind == OpWrite || t.op.Len-t.off > termBehind
}

func (s *Stream) segmentTerminate() error {
	t := &s.tx
	t.active = false
	hdr := ddp.AppendUntagged(t.hdr[:0], true, Control(OpTerminate), 0, QNTerminate, 1, 0)
	t.term = false
	return s.llp.Append(s.term.Append(hdr), nil) // unlocked: once set it stays
}

// terminated takes the peer's Terminate, which is never answered by one: a fault in it
// is only reported locally (RFC 5040 sections 5.4 and 7.1).
func (s *Stream) terminated(u ddp.Untagged) error {
	p := u.Payload()
	e := &TerminateError{}
	err := s.rx.q[QNTerminate].Accept(u)
	switch {
	case errors.As(err, &e.Fault):
	case !u.Last():
		e.Fault = ddp.Faultf(ddp.LayerDDP, ddp.TypeUntagged, ddp.CodeUntaggedTooLong, u, "a Terminate in more than one segment")
	case len(p) < terminateControlLen:
		e.Fault = ddp.Faultf(ddp.LayerRDMA, TypeRemoteOperation, CodeUnspecified, u, "a Terminate of %d bytes", len(p))
	}
	// If it announces more than it quotes, as siw's does for a Send with
	// Invalidate, its code is still good.
	e.Terminate, _ = ParseTerminate(append([]byte(nil), p[:min(len(p), maxTerminateLen)]...))
	e.Unsupported = s.lacksExtensions(e.Terminate)
	return e
}

// lacksExtensions reports whether t means that the peer does not know an operation
// of RFC 7306 that we have sent: an unexpected opcode, in a header that it
// quotes or, if it quotes none, presumably. siw, which writes the two
// halves of the first octet in the wrong order, quotes none.
func (s *Stream) lacksExtensions(t Terminate) bool {
	opcode := t.Layer == ddp.LayerRDMA && t.Type == TypeRemoteOperation && t.Code == CodeUnexpectedOpcode
	swapped := uint8(t.Layer) == TypeRemoteOperation && t.Type == uint8(ddp.LayerRDMA) && t.Code == CodeUnexpectedOpcode
	if t.DDP != nil {
		_, op := ParseControl(t.DDP[1])
		return opcode && !ddp.IsTagged(t.DDP) && op.extension()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.extended && (opcode || swapped)
}
