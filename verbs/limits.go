package verbs

import (
	"time"
)

const (
	// MaxSGE is the most scatter/gather elements of a work request, of queues that are made for
	// as many; as many as hardware has, for which programs are written.
	MaxSGE = 30

	// DefaultSGE is the number of those of other queues. An element of a queue has room for
	// as many within itself.
	DefaultSGE = 4

	// maxQueueDepth bounds one queue of a queue pair; a deeper one would only
	// hide a consumer that does not keep up.
	maxQueueDepth = 1 << 16

	// maxCQDepth bounds a completion queue: both queues of 32 busy queue pairs.
	maxCQDepth = 1 << 22

	// maxMRLen bounds one memory region in bytes: RDMAP lengths are 32 bits
	// wide (RFC 5040 section 4.4), so a larger one could not be read at once.
	maxMRLen = 1<<32 - 1

	// handlerBatch is how many completions a handler gets at once, as many as one
	// 256 KiB read of 4 KiB messages can bring.
	handlerBatch = 64

	// maxBorrowedRounds bounds how many batches a goroutine of a stream gives to
	// a handler before it goes back to its stream: some 1,000 completions.
	maxBorrowedRounds = 16

	// progressStreams is how many streams one CQ.Progress looks at, a system call each: a poll should take a
	// microsecond or two, whatever the queue serves.
	progressStreams = 4

	// initialCQ is the starting size of a completion queue's ring, which grows
	// to its depth as needed.
	initialCQ = 4

	// initialRecv is the starting size of a receive queue's ring, likewise.
	initialRecv = 4

	// maxReadDepth bounds IRD and ORD: 14 bits carry them in MPA's start-up
	// (RFC 6581 section 9), with one value reserved.
	maxReadDepth = 1<<14 - 2

	// eventDepth bounds the asynchronous event queue (RFC 5042 section 2.2.7).
	eventDepth = 1024
	// eventsPerPeer is how many entries one peer has before its events of one kind
	// are counted in one: a peer's 16 streams may come and go twice.
	eventsPerPeer = 64

	// defaultBacklog bounds connections that are past MPA's request and wait
	// for Accept.
	defaultBacklog = 128

	// guaranteedPart is the part of each resource that is divided evenly among
	// principals and reserved for them: one half. The other half is for those that
	// need more, so that few busy principals can use most of a device.
	guaranteedPart = 2

	// defaultFirstByte is how long a connection may take to its first byte, as long as it may to
	// MPA's request.
	defaultFirstByte = 10 * time.Second

	// defaultIdleBytes is more than heartbeats take within any sensible time, and
	// less than a stream that is used.
	defaultIdleBytes = 4 << 10
	// defaultIdleMark leaves a tenth for newcomers while idle streams go.
	defaultIdleMark = 90
	minIdleAfter    = time.Second
	// idleLook is how often the device checks which streams have moved data.
	idleLook = 10 * time.Second
	// reapPause is the least time between two checks of all streams, which take some
	// 100 ns for each stream.
	reapPause = 100 * time.Millisecond

	// maxInitiates bounds the sessions of ours on one SCTP association that wait for
	// the peer's answer, since peers have a limit (RFC 5043 section 6.4).
	maxInitiates = 32

	// lingerTime bounds how long an SCTP association without streams waits for the peer to
	// end its sessions as well, as it has if they were closed gracefully; and how long a
	// shutdown goes on in which the peer acknowledges nothing.
	lingerTime = 2 * time.Second
	// shutdownTime replaces it if streams were closed gracefully: they may be over here
	// before what they sent has arrived, and RDMAP gives a peer as long.
	shutdownTime = 10 * time.Second
	// shutdownMost bounds all of it, for a peer that acknowledges a byte now and then.
	shutdownMost = 10 * time.Minute

	// streamlessAssociation is how long a peer may at most keep an SCTP association on which
	// no stream is up, and at least half of that. A peer that vanished is charged for it as
	// long.
	streamlessAssociation = 30 * time.Second
)

// defaultLimits are a Device's limits when Config leaves them at 0. They are
// sized for a storage host: 10,000 streams, memory for their buffers.
var defaultLimits = Limits{
	Streams:      16384,
	HalfOpen:     1024,  // each costs a socket, a goroutine and some KiB for seconds
	Dials:        1024,  // likewise
	PDs:          16384, // one for each stream, as strict models need
	MRs:          1 << 20,
	MWs:          1 << 20, // as many as regions: a window is cheaper than one
	Bytes:        64 << 30,
	CQEntries:    1 << 24,
	QueueEntries: 1 << 24,
	SRQEntries:   1 << 20, // 64 for each stream; shared, so fewer than in queues of their own
	IRRQEntries:  1 << 20,
}
