package sctpadapt

import (
	"errors"
	"fmt"
	"io"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/ddp/enhanced"
)

var (
	// ErrNoStream is returned by Initiate when all pairs of streams of the
	// association are in use, or chunks of their last session are still on the way
	// (RFC 5043 section 6.6).
	ErrNoStream = errors.New("no pair of SCTP streams is free: close a session, or set up another association")

	// ErrMuxClosed is returned after the association is over.
	ErrMuxClosed = errors.New("the association is over")

	// ErrTooLong is returned for a segment that is longer than MULPDU (RFC 5043
	// section 9).
	ErrTooLong = errors.New("sctpadapt: the segment is longer than MULPDU")

	// ErrTerminated means that the peer has terminated a session instead of
	// answering its Initiate: too many Initiates wait there (RFC 5043 section 6.4),
	// or it could not make sense of this one.
	ErrTerminated = errors.New("the peer has terminated the session instead of answering the Initiate; it may have too many that wait")

	errAnswered = errors.New("the request has been answered already")
)

// RejectedError is returned by Initiate when the peer's ULP refused (RFC 5043
// section 6.3).
type RejectedError struct {
	PrivateData []byte         // the peer's
	Enhanced    *enhanced.Data // what the peer would accept, nil if it did not say
}

func (e *RejectedError) Error() string {
	return fmt.Sprintf("the peer rejected the session (%d bytes of private data)", len(e.PrivateData))
}

// SessionError means that a chunk conforms to no legal sequence; the session is
// terminated for it (RFC 5043 section 6.1), and the association goes on.
type SessionError struct {
	Stream uint16
	Text   string
	Err    error // the cause, may be nil
}

func (e *SessionError) Error() string {
	s := fmt.Sprintf("sctpadapt: stream %d: %s", e.Stream, e.Text)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the cause.
func (e *SessionError) Unwrap() error { return e.Err }

// ErrConnectionLost matches the end of a stream whose association has ended
// under it: a fault of the LLP layer with the code that RFC 5044 section 8 has
// for a lost connection; RFC 5043 has none of its own (RFC 6581 section 8).
var ErrConnectionLost error = &ddp.Error{Layer: ddp.LayerLLP, Type: 0, Code: codeConnectionLost}

const codeConnectionLost = 0x01

// lost is the error of streams whose association has ended. It matches
// ErrConnectionLost and the cause. The fault has the cause's text as well, since it
// may be passed on alone.
func lost(cause error) error {
	if cause == nil {
		cause = io.ErrUnexpectedEOF
	}
	text := "the SCTP association is over: " + cause.Error()
	return &lostError{&ddp.Error{Layer: ddp.LayerLLP, Type: 0, Code: codeConnectionLost, Text: text}, cause}
}

type lostError struct {
	fault *ddp.Error
	cause error
}

func (e *lostError) Error() string { return e.fault.Error() }

// Unwrap returns both errors.
func (e *lostError) Unwrap() []error { return []error{e.fault, e.cause} }

// NegotiationError is returned by Initiate when the peer accepted with depths
// that this side cannot meet (RFC 6581 section 9.1). The caller has to send Err
// in a Terminate message through Stream before closing it.
type NegotiationError struct {
	Err    *ddp.Error
	Stream *Stream
}

func (e *NegotiationError) Error() string { return "sctpadapt: session set-up: " + e.Err.Error() }

// Unwrap returns the *ddp.Error.
func (e *NegotiationError) Unwrap() error { return e.Err }
