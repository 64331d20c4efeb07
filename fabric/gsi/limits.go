package gsi

import "time"

const (
	// Size is the length of a message in bytes: a GRH of 40 and a MAD of 256.
	Size = 40 + 256

	// receives are posted at a time, 74 KiB: more than a peer that keeps to what it is let have under way can send before any is
	// looked at, which is two tables (2 * 64), reports (16) and the questions of a host's users (64). One that
	// sends more, faster than they are posted again, ends its stream (RFC 5040 section 7.1).
	receives = 256
	// sends may be under way at a time: 19 KiB.
	sends = 64
	// startTime bounds the answer to a stream's request.
	startTime = 10 * time.Second
	// closeTime bounds how long the end of a link waits for what has been sent to arrive.
	closeTime = 2 * time.Second
)
