package rtrs

import "time"

// Defaults and bounds, each with its reason.
const (
	// DefaultQueueDepth is how many I/Os a client may have in flight: Linux's 512 is for
	// 100 Gbit/s; 128 saturates a userspace path.
	DefaultQueueDepth = 128
	// DefaultMaxIO is the data of one request in bytes. The layer above splits larger
	// I/O. 256 KiB amortise the cost of a request (below 1 % of the time its bytes take),
	// and with 128 chunks limit a session to 33 MiB of memory, of which only used pages
	// are allocated.
	DefaultMaxIO = 256 << 10
	// MinMaxIO and MaxMaxIO bound what may be configured and what a server may
	// announce. The upper bound leaves 8 bits of the immediate for chunk ids.
	MinMaxIO = 4 << 10
	MaxMaxIO = 1<<20 - chunkHeader
	// MaxQueueDepth keeps offsets of at least 19 bits (chunks of 260 KiB) in a
	// request's immediate.
	MaxQueueDepth = 511

	// controlChunks are chunks beyond the queue depth: one, so that a client can open and
	// close things while all others are in use.
	controlChunks = 1

	// maxBorrowed is how many permits of the pool control requests may have at a time: a
	// server writes down what it opens, once for all that it was asked to open meanwhile.
	maxBorrowed = 64

	// chunkHeader is the space of a chunk beyond its data: one page, as with Linux, so
	// that data stays page-aligned.
	chunkHeader = 4096
	// MaxHeader is the longest user header in bytes. A client keeps one of this
	// size for each permit.
	MaxHeader = 512 - readMsgLen

	// DefaultConns is how many connections a path has. Each has one receive goroutine,
	// which is what makes a path parallel; more connections mean smaller batches.
	DefaultConns = 2
	// MaxPaths bounds the paths of a session, each of which has chunks of its own.
	MaxPaths = 8
	// MaxConns bounds the connections that a client may request: each has receive slots
	// for the whole queue depth.
	MaxConns = 32

	// HeartbeatInterval and HeartbeatMissed are those of Linux's RTRS: a peer that is
	// silent for 30 s is gone.
	HeartbeatInterval = 5 * time.Second
	HeartbeatMissed   = 5
	// hbSlack is the number of receive slots for heartbeats and their answers: each side
	// has at most one of either outstanding.
	hbSlack = 8

	// sendAtOnce is the size in bytes from which an I/O does not wait to share a system
	// call with others: its own bytes outweigh the call.
	sendAtOnce = 64 << 10

	// timedEvery is how many requests of a permit there are for each one that is timed, where
	// only people want to know: reading the clock twice is 1 % of a small one.
	timedEvery = 16

	// setupTimeout bounds the time from a path's first connection to its INFO_REQ at the
	// server, and each step of it at the client. A slow IKE negotiation precedes that and
	// does not count.
	setupTimeout = 20 * time.Second
	// dialTimeout bounds one attempt to open one connection, key exchange
	// included.
	dialTimeout = 60 * time.Second
	// predecessorWait is how long a server lets a new session wait for the requests of its
	// predecessor before it answers EBUSY (the client retries).
	predecessorWait = 2 * time.Second
	// maxDying bounds the incarnations of a path that still have requests at the handler
	// when the next one comes, as each holds the memory of a path.
	maxDying = 2
	// DefaultLinger is how long a session without a path waits for its client: longer than
	// most outages that break connections, and than a few attempts to come back.
	DefaultLinger = 15 * time.Second
	// challengeWait is how long a challenged session whose peer wants to open another of
	// the same name may be silent: long enough for a loss or two. It is checked every
	// challengeTick.
	challengeWait = 3 * time.Second
	challengeTick = 20 * time.Millisecond
	// avoidAfter is how long a path's security association may be away before its I/O goes
	// by others. It is looked at every avoidTick.
	avoidAfter = 2 * time.Second
	avoidTick  = 250 * time.Millisecond
	// shutdownTimeout is how long a closing client waits for a server that accepts
	// nothing of what is posted, or does not close its end. Nobody waits for the answers
	// any more, so it need not survive outages as a stream of data does.
	shutdownTimeout = 2 * time.Second
	// closeWait is how long Server.Close waits for requests at their handlers.
	closeWait = 10 * time.Second

	// Reconnecting starts quickly, because most losses are short, and slows down to a
	// rate that neither floods a dead host nor annoys a waiting user.
	reconnectMin = 50 * time.Millisecond
	reconnectMax = 5 * time.Second

	// DefaultMaxSessions and DefaultMaxSessionsPerPeer bound a server's memory: 33 MiB of
	// address space per session, see SessionMemory.
	DefaultMaxSessions        = 256
	DefaultMaxSessionsPerPeer = 32
	// maxPending bounds the connection requests handled concurrently, each of which has a
	// goroutine, beside the first of each peer.
	maxPending = 64
	// maxPendingPeer is one peer's share of them, so that it cannot lock out others.
	maxPendingPeer = maxPending / 2
)
