package rdmap

import "time"

const (
	// inlineSGE is how many scatter/gather elements an element of a queue has room for
	// within itself. Four cover the longest list a service here uses (data, user header,
	// message) with one to spare.
	inlineSGE = 4

	// MaxMessageLen is the longest RDMAP message in bytes: message offsets and
	// read sizes are 32 bits wide (RFC 5041 section 4.3, RFC 5040 section 4.4).
	MaxMessageLen = 1<<32 - 1

	// maxInlineRounds bounds how many batches a poster's own goroutine writes
	// before the stream's sending goroutine takes over, so that one post never
	// does everybody's work.
	maxInlineRounds = 2

	// shortRest is up to how many bytes of a message go along with a batch that is full: a rest is not worth a system call
	// and the peer's wake-up. Of 64 KiB in the FPDUs of a segment of loopback some hundred bytes are left.
	// restSegments is below how many segments in the batch: an LLP that is full of segments has no room for another.
	shortRest    = 4 << 10
	restSegments = 32

	// tinySegment is the payload in bytes below which a segment that does not end
	// its message counts as a slow path. No honest peer's is that short: a MULPDU is
	// at least 128 (RFC 5044 section 4.5), of which the DDP header takes 18.
	tinySegment = 64

	// maxEngineRounds is the same for the receiving goroutine, which meanwhile
	// receives nothing. It is more, since what it sends are mostly answers.
	maxEngineRounds = 16

	// maxTerminateLen bounds a received Terminate message in bytes: control,
	// segment length, the longest DDP header and a Read Request header, with
	// room for a peer that quotes more than it should.
	maxTerminateLen = 128

	// teardownTime bounds how long a stream that ended by a fault waits for the peer to
	// take the Terminate and to close its side. The Upper learns of the end
	// only after that, so it is short: nothing but the Terminate can be lost.
	teardownTime = 2 * time.Second

	// closeTime is how long a graceful close waits while the peer takes nothing of
	// what is queued, answers nothing and does not follow. A packet lost four times is
	// retransmitted within that time on all transports: retransmission timeouts are
	// 1 s at first (RFC 9260 section 16; TCP's are less) and at most 3 s (package
	// transport).
	closeTime = 10 * time.Second
	// closeTick is how often that is checked.
	closeTick = time.Second
	// closeMost and slowestPath bound all of a graceful close, for a peer that takes a
	// byte now and then: a time for what the layers below already hold, a few MiB, plus
	// the time that the rest takes on the slowest path expected, in bytes a
	// second.
	closeMost   = 10 * time.Minute
	slowestPath = 8 << 10

	// termBehind is how much of a Send, in bytes, a Terminate lets go first: a
	// second or so of a slow link. A longer rest is dropped, as is that of a
	// Write or Read Response, since only the Terminate matters now. For a Send the
	// wait pays: soft-iWARP treats an untagged message within another one as a
	// fault and does not read it.
	termBehind = 64 << 10

	// stageLen is the size in bytes of a buffer for payloads that may change while
	// they are sent: the payload of the longest segment.
	stageLen = 64 << 10

	// maxStage bounds, to within one buffer, a batch's copies in bytes; 512 KiB
	// are half of what MPA writes at once.
	maxStage = 8

	// maxInlineKept is how much storage for inline data a slot of the send queue
	// keeps between uses, in bytes. Inline data is meant to be small; long data must not stay
	// with the queue.
	maxInlineKept = 4 << 10

	// initialRing is the starting size of the send ring; it doubles up to the
	// configured maximum, so that an idle stream stays small.
	initialRing = 2
)
