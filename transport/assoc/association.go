package assoc

import (
	"context"
	"time"
)

// Association is an established SCTP association over any carrier. Its methods may be
// called from several goroutines; only Wait and Shutdown block. Errors that SCTP itself
// causes are an *Error that wraps one of this package's errors.
type Association interface {
	// TrySend queues messages in the given order, unordered and of one chunk each, while
	// there is room, and returns how many it queued. It copies their bytes. It accepts no
	// more than 32,767 that the peer has not acknowledged (RFC 5043 section 10). The
	// error concerns the first message that was not queued, and is nil if there was just
	// no room for it: ErrTooLong (MaxMessage returns the new limit), ErrEmpty, ErrStream,
	// ErrShutdown, or why the association ended.
	TrySend(ms []Outgoing) (n int, err error)
	// SendNow queues one message even if there is no room, up to 1 MiB more: for the few
	// that must not wait. Beyond that it fails with ErrNoRoom, otherwise as TrySend does.
	SendNow(m Outgoing) error
	// Wait waits for room for a message, for the end of the association, or for ctx. It
	// fails with ctx's error.
	Wait(ctx context.Context) error
	// Release returns n bytes that Receiver.Message held to the receive window.
	Release(n int)
	// MaxMessage returns the current limit on a message's length in bytes. It follows the
	// path's MTU; EventMTU reports a change if the carrier notices it.
	MaxMessage() int
	// Streams returns the number of outbound and inbound streams.
	Streams() (out, in int)
	// Outstanding returns the number of messages on a stream that are queued or not
	// acknowledged cumulatively. The kernel's may be too high, but it is exact when
	// nothing is outstanding.
	Outstanding(stream uint16) int
	// Stats returns the association's current counts and gauges.
	Stats() Stats

	// Shutdown delivers what was queued, then both ends close (RFC 9260 section 9.2). It
	// waits until ctx is done, then aborts the association and fails with ctx's error. It
	// also fails if the association ends in any other way.
	Shutdown(ctx context.Context) error
	// Abort ends the association at once (RFC 9260 section 9.1). If the carrier can, it
	// sends the peer the reason: up to 256 bytes of Upper Layer Abort Reason (section
	// 3.3.10.12). It does nothing if the association has ended.
	Abort(reason string)
	// Done is closed after the association has ended and its Receiver was notified.
	Done() <-chan struct{}
	// Err returns why the association ended: nil while it is alive and after a shutdown
	// that this end began, ErrShutdown after one that the peer began, an *AbortError,
	// ErrPeerUnreachable or ErrRestarted.
	Err() error

	// Outq returns the number of message bytes, sent or queued, that the peer has not
	// acknowledged. It fails once the association has ended.
	Outq() (int, error)
	// Bytes returns the number of message bytes received, and acknowledged or given to
	// the kernel, so far.
	Bytes() uint64
	// Kick sends at once what waits for a retransmission timer or an answer, because the
	// path is known to be back. The congestion window stays as it is. stuck reports
	// whether some of it had already been retransmitted without an answer, by a timer or
	// by Kick.
	Kick() (stuck bool)
	// LimitRTO bounds the retransmission timeout while the path is known to be down:
	// silence is no sign of congestion then. 0 lifts the bound.
	LimitRTO(rtoMax time.Duration)
}
