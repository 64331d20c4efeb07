package ddp

import (
	"errors"
	"time"
)

// LLP is what DDP stands on (RFC 5041 section 3): whole DDP segments over a
// reliable lower layer. mpa.Conn, the SCTP adaptation and the in-memory twin
// of iwarptest implement it.
//
// The sending half (Append, TryFlush, Flush) is used by one goroutine at a
// time under the caller's lock; the receiving half (Receive) by one goroutine.
// The halves do not share a lock.
type LLP interface {
	// MULPDU is the current maximum size in bytes of a DDP segment, header
	// included (RFC 5041 section 5, RFC 5044 section 4.5).
	MULPDU() int

	// Append frames one DDP segment, hdr followed by the payload slices, into
	// the pending batch. hdr is copied; the payload slices are referenced until
	// a flush has reported the batch done, but the sgl array itself is not
	// kept. A segment above 65,535 bytes or an unusable connection is an error.
	Append(hdr []byte, sgl [][]byte) error

	// Full reports that the batch should be flushed before the next Append.
	Full() bool

	// TryFlush writes as much of the pending batch as the lower layer takes
	// without blocking. done means that nothing of it is left, so payload
	// memory may be reused.
	TryFlush() (done bool, err error)

	// Flush writes the pending batch, blocking as long as it takes. Close
	// unblocks it.
	Flush() error

	// Detach copies what the pending batch still references, after a TryFlush
	// that was not done, so that payload memory may be released before the
	// batch has been sent.
	Detach()

	// Receive hands incoming segments to s until the stream ends and returns
	// why: io.EOF for a graceful end between segments, otherwise an error (a
	// *Error where the peer broke a rule of the LLP or s reported one). Segments
	// are handed over in the order in which the peer sent them; an LLP that gets
	// them in another order uses a Reorder.
	Receive(s Sink) error

	// Drain reads and discards what the peer still sends until it ends its
	// direction or d has passed. It follows Receive.
	Drain(d time.Duration)

	// CloseWrite ends the sending direction gracefully, after a flush (TCP FIN,
	// SCTP shutdown).
	CloseWrite() error

	// Close ends the stream at once and unblocks everything. Idempotent.
	Close() error
}

// EvenSegments is implemented by an LLP to which packets of one length are cheaper
// than those of several: messages are then cut into segments of about the same
// length, not into full ones and a rest.
type EvenSegments interface{ EvenSegments() }

// Outqueuer is implemented by an LLP that can count the bytes that it has taken and
// that the peer has not acknowledged. Streams that leave by the same queue are counted
// together.
type Outqueuer interface{ Outq() (int, error) }

// Progresser is implemented by an LLP on which others than the goroutine of Receive can receive while that waits.
type Progresser interface {
	// Progress hands to Receive's Sink what can be had without waiting, once, if nobody receives at the moment,
	// and reports whether anything had come. Sink's calls then come from the caller's goroutine, never beside
	// others. Receive reports a fault that it finds. It is safe for concurrent use, and for a call from the Sink.
	Progress() bool
	// Polled tells that somebody calls Progress again and again, and so soon that Receive need not be woken for little, or that
	// nobody does any more. It reports whether something waited when that was told.
	Polled(on bool) (waited bool)
}

// Sink takes received segments from an LLP. All calls come from the goroutine
// that runs LLP.Receive, or meanwhile from one in Progresser.Progress: one at a time.
type Sink interface {
	// Segment takes one whole segment whose integrity the LLP has verified. seg
	// is valid only during the call. An error ends Receive, which returns it.
	Segment(seg []byte) error

	// Direct asks where the payload of a segment goes, so that it can be read
	// directly into place. The segment has total bytes, of which head holds at
	// least the first MaxHeaderLen or all. The LLP calls it only when it has
	// verified the segment or need not. ok false: the LLP collects the whole
	// segment and calls Segment. ok true: hdrLen bytes of head were consumed; the
	// remaining total-hdrLen bytes are delivered through DirectBuffer and
	// DirectDone.
	Direct(head []byte, total int) (hdrLen int, ok bool, err error)

	// DirectBuffer acquires the memory for the next bytes of the current
	// direct segment. It is held until DirectDone, which must follow without
	// blocking in between: a revocation waits for it.
	DirectBuffer() ([]byte, error)

	// DirectDone reports that n bytes were placed at the start of the last
	// DirectBuffer and releases it. When the segment is complete it is
	// delivered from within this call.
	DirectDone(n int) error

	// BatchEnd is called when everything that one read of the lower layer
	// brought has been handed over, before the LLP may block: the time to
	// notify consumers.
	BatchEnd()
}

// PiecewiseSink is a Sink that is notified when the lower layer delivers in pieces so
// small that reading them is hardly worth the effort.
type PiecewiseSink interface {
	Sink
	// Piece reports that the lower layer was read once for a few bytes that
	// completed no segment. An error ends Receive.
	Piece() error
}

// MaxHeaderLen is the size in bytes of the longest DDP header together with
// the RDMAP fields that follow it and decide on placement (the untagged
// header, RFC 5041 section 4.3).
const MaxHeaderLen = 18

// ErrClosed is returned by an LLP after Close.
var ErrClosed = errors.New("ddp: stream closed")
