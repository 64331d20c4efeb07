package gsi

import "time"

const (
	// Size is the length of a message in bytes: a GRH of 40 and a MAD of 256.
	Size = 40 + 256

	// receives are posted at a time. Completions are announced up to 64 at once, and each is posted again
	// when it has been announced, so a sender finds one whatever its speed.
	receives = 128
	// sends may be under way at a time: 19 KiB.
	sends = 64
	// startTime bounds the answer to a stream's request.
	startTime = 10 * time.Second
	// closeTime bounds how long the end of a link waits for what has been sent to arrive.
	closeTime = 2 * time.Second
)
