package mpa

import "time"

const (
	// MaxPrivateData is the most private data of a start-up frame in bytes
	// (RFC 5044 section 7.1.1). The enhanced connection data (4 bytes) and the
	// IronWarp hello (16 bytes), when they are sent, count towards it.
	MaxPrivateData = 512

	// MaxULPDU is the longest ULPDU in bytes that is sent, and the largest MULPDU
	// (RFC 5044 section 3). A received one may be as long as its 16-bit length
	// field can say.
	MaxULPDU = 64768

	// MaxLargeFPDU is the longest ULPDU that is offered between two IronWarps:
	// the longest that needs no padding.
	MaxLargeFPDU = 64766

	// minMULPDU is the floor of MULPDU, whatever the EMSS (RFC 5044 section 4.5).
	minMULPDU = 128

	// defaultEMSS is used if the connection does not report one: an Ethernet frame of
	// 1500 bytes less IPv6, TCP and its timestamps.
	defaultEMSS = 1428

	// defaultStartupTimeout bounds the exchange of the start-up frames
	// (RFC 5044 section 7.1.2 rule 10).
	defaultStartupTimeout = 10 * time.Second

	// pieceLen is how many bytes a read that completes no FPDU has to bring to be
	// worth the system call: less than the smallest TCP segment that RFC 5044 section
	// 4.5 plans for.
	pieceLen = 64

	// turnSegments is the number of segments after which a receiving connection lets
	// others have the processor, though more is there already: some 200 microseconds
	// of the shortest segments. Otherwise it would run until Go preempts it after 10
	// milliseconds, and a few flooding peers would leave the others one turn in a
	// tenth of a second. Bulk data seldom reaches the number, and it should not: a
	// goroutine that moves to another processor is slower.
	turnSegments = 2048

	// defaultHoldTimeout is how long a responder with something to send waits
	// for the initiator's first FPDU, without which it must not send (rule 4).
	// Then it fails rather than wait for ever.
	defaultHoldTimeout = 60 * time.Second

	// batchFPDUs and batchBytes bound a batch. 64 FPDUs of 1464 bytes
	// in one system call run seven times as fast as one in each, 256 some ten
	// per cent faster still; their slices (two each) stay below the 1024 that one
	// call takes. Batches of 1 MiB cost 5 to 10 per cent less CPU than half of it.
	batchFPDUs = 256
	batchBytes = 1 << 20

	// firstBatchBytes bounds the first batch after a pause, so that the peer can
	// check and place it, and perhaps answer, while we frame the rest. Between two
	// processes 4 KiB RDMA Reads at depth 32 gain a third; any size from 20 to 48
	// KiB does.
	firstBatchBytes = 32 << 10

	// copyMax is the longest payload in bytes that is copied behind its header.
	// Up to about this size an iovec of its own costs the kernel more.
	copyMax = 256

	// arenaSize holds the headers, trailers and short payloads of a full batch.
	arenaSize = 24 << 10

	// arenaSpare is what one FPDU may take of the arena: header, short payload,
	// padding and CRC. A batch with less room left is full.
	arenaSpare = 2 + maxHeader + copyMax + 3 + crcLen
	// maxHeader is the longest header in bytes that is expected of DDP and RDMAP.
	// A longer one works and costs an allocation.
	maxHeader = 128

	// readBuffer is the size in bytes of the buffer for one read. It has to hold
	// the longest FPDU with markers (66,064 bytes).
	readBuffer = 256 << 10

	// stashMax is the longest part of an FPDU in bytes that a waiting connection
	// keeps in a small buffer of its own, so as to give the big one back: an
	// FPDU of an Ethernet frame.
	stashMax = 1536

	// detachSize is the size in bytes of the copy of a batch that the socket did
	// not take: a full one with its headers and one large FPDU above the limit.
	detachSize = batchBytes + 96<<10

	// drainBuffer is the size in bytes of the buffer for what is thrown away.
	drainBuffer = 32 << 10

	// poolKeep is the number of free buffers of each kind that a Pool keeps, and
	// poolKeepCopies that of detached batches, which are larger and rarer.
	poolKeep       = 64
	poolKeepCopies = 8

	// polledLowWater is for how many bytes Receive is woken while others poll, so that what takes long to receive is not left
	// to them alone. The kernel never makes a receive buffer larger for it (its default is twice as large).
	polledLowWater = 32 << 10

	// refreshEvery is the number of batches between two looks at the EMSS.
	refreshEvery = 64
)
