package assoc

import (
	"context"
	"time"
)

// Association is an established SCTP association, whoever carries it. Its methods may
// be called from several goroutines; only Wait and Shutdown block. Where one fails for
// a reason of SCTP, the error is an *Error about one of those that this package has.
type Association interface {
	// TrySend queues messages, in this order, unordered and of one chunk each, as long
	// as there is room, and returns how many. Their bytes are copied: the memory may be
	// used again. It accepts no more than 32,767 that the peer has not acknowledged
	// (RFC 5043 section 10). The error is about the first message that was not queued,
	// nil if there was only no room for it: ErrTooLong, after which MaxMessage says what
	// is not too long, ErrEmpty, ErrStream, ErrShutdown, or why the association is over.
	TrySend(ms []Outgoing) (n int, err error)
	// SendNow queues one message even if there is no room, up to 1 MiB beyond: for the
	// few that must not wait. It fails with ErrNoRoom beyond that, and as TrySend does.
	SendNow(m Outgoing) error
	// Wait waits until there is room for a message, ctx is over or the association. It
	// fails with ctx's error.
	Wait(ctx context.Context) error
	// Release gives n bytes back to the receive window that Receiver.Message has said to
	// hold.
	Release(n int)
	// MaxMessage is the size in bytes of the longest message that may be sent, as of now:
	// it follows the path's MTU, and EventMTU reports a change where the carrier knows.
	MaxMessage() int
	// Streams is how many streams may be sent on and how many the peer may send on.
	Streams() (out, in int)
	// Outstanding is the number of messages on a stream that are queued or that the peer
	// has not acknowledged cumulatively; of the kernel it may be more than the truth, but
	// it is exact when nothing is outstanding.
	Outstanding(stream uint16) int
	// Stats are counts and gauges of the association, as of now.
	Stats() Stats

	// Shutdown ends the association in order: what was queued is delivered, then both
	// ends close (RFC 9260 section 9.2). It waits for that until ctx is over; then the
	// association is aborted, and ctx's error returned. It fails as well when the
	// association ends otherwise.
	Shutdown(ctx context.Context) error
	// Abort ends the association at once (RFC 9260 section 9.1). The peer is told why
	// where the carrier can: the Upper Layer Abort Reason of section 3.3.10.12, of which
	// 256 bytes are sent. It does nothing if the association is over.
	Abort(reason string)
	// Done is closed when the association is over, and its Receiver knows.
	Done() <-chan struct{}
	// Err is why the association is over: nil while it lives and after a shutdown that
	// this end began, ErrShutdown after one that the peer began, an *AbortError,
	// ErrPeerUnreachable, ErrRestarted.
	Err() error

	// Outq is the number of bytes of messages which the peer has not acknowledged, sent
	// or queued. It fails when the association is over.
	Outq() (int, error)
	// Bytes is how many bytes of messages have come and were acknowledged, or given to the
	// kernel, so far.
	Bytes() uint64
	// Kick sends at once what waits for a retransmission timer or an answer: the path is
	// known to be back. The congestion window stays as it is. It tells whether some of it
	// was sent in vain before, by a timer or by Kick.
	Kick() (stuck bool)
	// Hurry bounds the retransmission timeout as long as the path is known to be away:
	// silence is no sign of congestion then. 0 ends that.
	Hurry(rtoMax time.Duration)
}
