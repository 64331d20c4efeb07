package assoc

import (
	"context"
	"time"
)

// Association is an established SCTP association, whoever carries it. Its methods may
// be called from several goroutines; only Wait and Shutdown block.
type Association interface {
	// TrySend queues messages in this order, unordered and of one chunk each, as
	// long as there is room, and copies them. It accepts no more than 32,767 that
	// the peer has not acknowledged (RFC 5043 section 10).
	TrySend(ms []Outgoing) (n int, err error)
	// SendNow queues one message whether there is room or not, within reason.
	SendNow(m Outgoing) error
	// Wait waits until there is room.
	Wait(ctx context.Context) error
	// Release gives bytes of held messages back to the receive window.
	Release(n int)
	// MaxMessage is the longest message in bytes that needs no fragmentation, as of
	// now: it follows the path's MTU.
	MaxMessage() int
	// Streams is how many streams there are in each direction.
	Streams() (out, in int)
	// Outstanding is how many messages of a stream are not acknowledged.
	Outstanding(stream uint16) int
	// Stats are counts and gauges of the association.
	Stats() Stats

	// Shutdown ends the association gracefully (RFC 9260 section 9.2).
	Shutdown(ctx context.Context) error
	// Abort ends the association at once (RFC 9260 section 9.1). It is idempotent.
	Abort(reason string)
	// Done is closed when the association is over.
	Done() <-chan struct{}
	// Err is why the association is over, if it is.
	Err() error

	// Outq is the number of bytes sent or queued which the peer has not
	// acknowledged.
	Outq() (int, error)
	// Bytes is how much user data was sent and received so far.
	Bytes() uint64
	// Kick sends at once what waits for a retransmission timer, since the path is
	// back, and tells whether some of it was sent in vain before.
	Kick() (stuck bool)
	// Hurry bounds the retransmission timeout while the path is known to be away;
	// 0 ends that.
	Hurry(rtoMax time.Duration)
}
