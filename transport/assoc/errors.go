package assoc

import (
	"errors"
	"fmt"
	"net/netip"
)

var (
	// ErrPeerUnreachable reports that the peer has not answered for
	// Association.Max.Retrans retransmissions (RFC 9260 section 8.1), for
	// Params.DeadAfter, or for Max.Init.Retransmits during the handshake.
	ErrPeerUnreachable = errors.New("the peer does not answer")

	// ErrRestarted reports that the peer has set up the association anew, as it does
	// after a crash (RFC 9260 section 5.2.4.1). What was in flight is lost. In UDP the
	// new association comes from Accept; with the kernel's SCTP the peer dials again.
	ErrRestarted = errors.New("the peer has restarted the association")

	// ErrShutdown reports that one end has begun to shut down the association and no
	// message may be sent any more (RFC 9260 section 9.2). It is also the end of an
	// association that the peer has shut down in order.
	ErrShutdown = errors.New("the association is shut down")

	// ErrAdaptation reports that the peer gives another Adaptation Layer Indication than
	// Params.Adaptation, or none (RFC 5061 section 4.2.6).
	ErrAdaptation = errors.New("the peer does not offer the adaptation layer that is demanded")

	// ErrTooLong is returned for a message that does not fit a packet: messages are not
	// fragmented. MaxMessage returns the limit.
	ErrTooLong = errors.New("the message does not fit a packet: keep to MaxMessage")

	// ErrEmpty is returned for a message without a byte, which SCTP cannot carry
	// (RFC 9260 section 6.2).
	ErrEmpty = errors.New("a message needs at least one byte")

	// ErrStream is returned for a stream that was not negotiated.
	ErrStream = errors.New("there is no such stream: keep to Streams")

	// ErrNoRoom is returned by SendNow when too much is queued already.
	ErrNoRoom = errors.New("too much is queued")
)

// AdaptationError is ErrAdaptation with what was found.
type AdaptationError struct {
	Want, Peer uint32
	None       bool // the peer gives no indication at all
}

func (e *AdaptationError) Error() string {
	if e.None {
		return fmt.Sprintf("%v: it gives no Adaptation Layer Indication, %#08x is demanded", ErrAdaptation, e.Want)
	}
	return fmt.Sprintf("%v: it indicates %#08x, %#08x is demanded", ErrAdaptation, e.Peer, e.Want)
}

// Unwrap returns ErrAdaptation.
func (e *AdaptationError) Unwrap() error { return ErrAdaptation }

// Error names the step and the association that failed.
type Error struct {
	Op     string         // "dial", "send", "accept", ...
	Remote netip.AddrPort // the peer's address: that of UDP where SCTP is in it
	Err    error
}

func (e *Error) Error() string { return fmt.Sprintf("sctp: %s %s: %v", e.Op, e.Remote, e.Err) }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// AbortError is the end of an association by an ABORT (RFC 9260 section 9.1).
type AbortError struct {
	Local bool // sent by this end
	Cause Cause
}

func (e *AbortError) Error() string {
	who := "the peer"
	if e.Local {
		who = "this end"
	}
	if e.Cause.Code == 0 {
		return who + " has aborted the association, without a cause"
	}
	return fmt.Sprintf("%s has aborted the association: %v", who, e.Cause)
}

// Is matches an AbortError of the same origin and cause code, of any cause if
// the target has code 0.
func (e *AbortError) Is(target error) bool {
	t, ok := target.(*AbortError)
	return ok && t.Local == e.Local && (t.Cause.Code == 0 || t.Cause.Code == e.Cause.Code)
}
