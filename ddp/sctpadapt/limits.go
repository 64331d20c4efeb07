package sctpadapt

import "time"

const (
	// MaxPrivateData is the most private data of a session control message in bytes
	// (RFC 5043 section 5.2.3); the 4 bytes of IRD and ORD count towards it
	// (RFC 6581 section 7).
	MaxPrivateData = 512

	// sackRoom is what is left free in a packet with the longest segment, so that a
	// SACK may go along (RFC 5043 section 9), in bytes.
	sackRoom = 16

	// minMULPDU is the least size of a segment that an association has to carry, in
	// bytes (RFC 5043 section 9).
	minMULPDU = 516

	// DefaultPending bounds the Initiates of a peer that wait for Mux.Accept or for
	// an answer (RFC 5043 section 6.4). Each costs its private data.
	DefaultPending = 64

	// batchSegments and batchBytes bound a batch: what two UDP_SEGMENT sends
	// carry.
	batchSegments = 128
	batchBytes    = 128 << 10

	// arenaSize holds the headers of a full batch, in bytes.
	arenaSize = 8 << 10

	// share is how much of the receive window one stream of several may keep, in
	// bytes, when its user does not take what comes. What it gets beyond is held
	// without being charged, so that the other streams go on.
	share = 64 << 10
	// maxExcess bounds in bytes what all streams of an association hold beyond their
	// shares.
	maxExcess = 8 << 20
	// stallTick is how long a user takes nothing before its stream counts as stalled:
	// longer than a busy processor makes a goroutine wait. Meanwhile the other streams
	// may find the receive window closed.
	stallTick = 100 * time.Millisecond
	// stallTicks is how many ticks a stream may stall once maxExcess is reached. Then
	// it is terminated.
	stallTicks = 20

	// leastLent is the length in bytes of the shortest chunk that is not copied into a
	// stream's queue, if it need not be.
	leastLent = 256
	// keepBuffer is the size in bytes of the largest queue that is kept for use by other
	// streams.
	keepBuffer = 8 << 20

	// defaultTimeout bounds how long an Initiate waits for its answer.
	defaultTimeout = 30 * time.Second
)
