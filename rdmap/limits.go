package rdmap

import "time"

const (
	// MaxSGE is the number of scatter/gather elements of one work request.
	// Four cover the longest list a service here uses (data, user header,
	// message) with one to spare.
	MaxSGE = 4

	// MaxMessageLen is the longest RDMAP message in bytes: message offsets and
	// read sizes are 32 bits wide (RFC 5041 section 4.3, RFC 5040 section 4.4).
	MaxMessageLen = 1<<32 - 1

	// maxInlineRounds bounds how many batches a poster's own goroutine writes
	// before the stream's sending goroutine takes over, so that one post never
	// pays for everybody's traffic.
	maxInlineRounds = 2

	// maxEngineRounds is the same for the receiving goroutine, which meanwhile
	// receives nothing. It is more, since what it sends are mostly answers.
	maxEngineRounds = 16

	// maxTerminateLen bounds a received Terminate message in bytes: control,
	// segment length, the longest DDP header and a Read Request header, with
	// room for a peer that quotes more than it should.
	maxTerminateLen = 128

	// teardownTime bounds how long an ended stream waits for the peer to take
	// our last bytes (a Terminate, or what a graceful close still had to send)
	// and to close its side.
	teardownTime = 2 * time.Second

	// initialRing is the starting size of the send ring; it doubles up to the
	// configured maximum, so that an idle stream stays small.
	initialRing = 8
)
