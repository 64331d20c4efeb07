package rtrs

import "time"

// Defaults and bounds, each with its reason.
const (
	// DefaultQueueDepth is how many I/Os a client may have in flight: Linux'
	// 512 is for 100 Gbit/s; 128 saturates what a userspace path can carry.
	DefaultQueueDepth = 128
	// DefaultMaxIO is the data of one request in bytes. Larger I/O is split by
	// the layer above. 256 KiB amortise the cost of a request (below 1 % of the
	// time its bytes take), and with 128 chunks bound a session to 33 MiB of
	// memory, of which only what was ever used is backed by pages.
	DefaultMaxIO = 256 << 10
	// MinMaxIO and MaxMaxIO bound what may be configured and what a server may
	// announce. The upper bound leaves 8 bits of the immediate for chunk ids.
	MinMaxIO = 4 << 10
	MaxMaxIO = 1<<20 - chunkHeader
	// MaxQueueDepth keeps offsets of at least 19 bits (chunks of 260 KiB) in a
	// request's immediate.
	MaxQueueDepth = 511

	// controlChunks are chunks beyond the queue depth: one, with which a client
	// can open and close things while every other is in use.
	controlChunks = 1

	// chunkHeader is what a chunk has beyond its data: one page, as with Linux,
	// so that data stays page-aligned.
	chunkHeader = 4096
	// MaxHeader is the longest user header in bytes. A client keeps one of this
	// size for each permit.
	MaxHeader = 512 - readMsgLen

	// DefaultConns is how many connections a path has. One receive goroutine
	// per connection is what parallelises a path; more connections mean smaller
	// batches.
	DefaultConns = 2
	// MaxConns bounds what a client may ask of a server: each connection has
	// receive slots for the whole queue depth.
	MaxConns = 32

	// HeartbeatInterval and HeartbeatMissed are those of Linux' RTRS: a peer
	// that is silent for 30 s is gone.
	HeartbeatInterval = 5 * time.Second
	HeartbeatMissed   = 5
	// hbSlack is receive slots for heartbeats and their answers: each side has
	// at most one of either outstanding.
	hbSlack = 8

	// sendAtOnce is from how many bytes on an I/O does not wait for others to be
	// sent in one system call with it: its own outweighs the call.
	sendAtOnce = 64 << 10

	// setupTimeout bounds the time from a path's first connection to its
	// INFO_REQ at the server, and each step of it at the client. A slow IKE
	// negotiation comes before that and does not count.
	setupTimeout = 20 * time.Second
	// dialTimeout bounds one attempt to open one connection, key exchange
	// included.
	dialTimeout = 60 * time.Second
	// fenceWait is how long a server lets a new incarnation wait for the
	// requests of the old one before it says EBUSY (the client tries again).
	fenceWait = 2 * time.Second
	// challengeWait is how long a session may be silent, when asked, whose peer wants
	// to open another of the same name: long enough for a loss or two. In between
	// it is looked at every challengeTick.
	challengeWait = 3 * time.Second
	challengeTick = 20 * time.Millisecond
	// partTime is how long a client that closes its session waits for a server that takes
	// nothing of what is posted, or does not follow. Nobody waits for the answers any
	// more, so it need not outlive what a stream of data does.
	partTime = 2 * time.Second
	// closeWait is how long Server.Close waits for requests at their handlers.
	closeWait = 10 * time.Second

	// Reconnecting starts quickly, since most losses are short, and slows down
	// to a rate that neither floods a dead host nor annoys a waiting user.
	reconnectMin = 50 * time.Millisecond
	reconnectMax = 5 * time.Second

	// DefaultMaxSessions and DefaultMaxSessionsPerPeer bound a server's memory:
	// 33 MiB of address space a session.
	DefaultMaxSessions        = 256
	DefaultMaxSessionsPerPeer = 32
	// maxPending bounds connection requests being handled at once, each of which
	// has a goroutine.
	maxPending = 64
	// maxPendingPeer is the share of one peer, so that it cannot keep others out.
	maxPendingPeer = maxPending / 2
)
