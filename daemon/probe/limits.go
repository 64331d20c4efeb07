package probe

import "time"

const (
	// RegionSize in bytes of what a client may read and write: the largest
	// operation of the benchmark, 1 MiB.
	RegionSize = 1 << 20
	// MaxMessage in bytes of a Send: with the window 4 MiB of receives.
	MaxMessage = 64 << 10
	// window is how many messages may be under way; it covers the
	// bandwidth-delay product of 10 Gbit/s and 3 ms with the largest messages.
	window = 64
	// ackEvery is the number of counted messages after which a count is sent.
	ackEvery = window / 4
	// depth of Reads outstanding at a time.
	depth = 32

	// MaxClients and MaxClientsPeer at the same time: each costs 5 MiB. Of the second half of
	// all a peer has one at most.
	MaxClients     = 16
	MaxClientsPeer = 4 // of one peer
	// keptMemory is how many clients' memory is kept for the next ones: as much as one
	// peer may have.
	keptMemory = MaxClientsPeer
	// maxAge of a client's stream. A benchmark takes seconds.
	maxAge = 10 * time.Minute
	// partTime bounds the end of a client's stream, on which nothing is under way any more.
	partTime = 2 * time.Second
	// answerTimeout bounds sending the reply.
	answerTimeout = 10 * time.Second

	// MaxCount of round trips in one ping.
	MaxCount = 10_000_000
	// MaxInterval between two.
	MaxInterval = time.Hour
)
