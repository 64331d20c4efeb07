package target

import (
	"time"

	"github.com/ironwarp/ironwarp/nvme"
)

const (
	// inCapsule is how many bytes of data a command capsule may have: what spares small writes a round trip. With
	// each of ioDepth receives that is half a MiB for a queue.
	inCapsule  = 4 << 10
	capsuleLen = nvme.CommandLen + inCapsule

	// adminDepth and ioDepth are how many commands a queue takes: what Linux' hosts ask for.
	adminDepth = 32
	ioDepth    = 128
	leastDepth = 2

	// maxQueues is how many I/O queues a controller has: one for each processor of a common host.
	maxQueues = 16

	// transferShift is MDTS: 256 pages of 4 KiB, as many as a host over RDMA registers at once.
	transferShift = 8
	maxTransfer   = 4096 << transferShift

	// queueMemory is how many bytes of memory the commands of a queue have for their data at a time; leastMemory is
	// what they have when all queues together have Config.Memory: one command of any length.
	queueMemory = 8 << 20
	leastMemory = maxTransfer

	// maxPiece is how many bytes Compare and Write Zeroes handle at a time, beside the memory of queues.
	maxPiece = 64 << 10

	// maxRange is how many bytes of a range are given up by one call of the storage, which so takes not long.
	maxRange = 512 << 20

	// maxReads is how many RDMA Reads of a host's memory may be under way on a connection.
	maxReads = 32

	// maxEvents is how many Asynchronous Event Requests a controller keeps, and maxErrors how many entries its log
	// of errors has.
	maxEvents = 4
	maxErrors = 16

	// maxNotices is how many notices of reservations a controller keeps: more say that many others have come.
	maxNotices = 64

	// maxNamespaces is how many namespaces a subsystem has: as many as one list of Identify names.
	maxNamespaces = nvme.MaxActive

	// maxRegistrants is how many hosts may be registered with a namespace.
	maxRegistrants = 256

	// maxSubsystems bounds the discovery log.
	maxSubsystems = 256

	// keepAliveUnit is the granularity of the keep alive timeout. What a host asks for is rounded up to it: so timers
	// that it sets again and again cost nothing to speak of.
	keepAliveUnit = time.Second
	// discoveryTime is how long a discovery controller lives whose host asks for no keep alive timeout.
	discoveryTime = 2 * time.Minute

	// acceptTime is how long the start-up of a connection takes, and replaceTime how long a host waits for the end of the
	// controller that it had.
	acceptTime  = 10 * time.Second
	replaceTime = 10 * time.Second

	// Defaults of Config.
	defaultControllers = 256
	defaultMemory      = 512 << 20
	defaultReadAge     = time.Minute
	defaultConnectTime = 15 * time.Second
	// defaultConnections is how many connections there may be without a controller; of one peer a quarter.
	defaultConnections = 128

	// maxHostQueue bounds the receive queue that a host may say it has.
	maxHostQueue = 4096
)
