package nbd

import "time"

const (
	// maxPayload is the longest read or write in bytes that is served: what the
	// protocol lets a client assume that asked for no size constraints ("Size
	// constraints"). Longer ones fail with EINVAL; a write's payload is skipped.
	maxPayload = 32 << 20

	// minAdvertisedMax is the smallest maximum payload in bytes that is
	// advertised: the protocol says that it should be at least this. Requests
	// above the device's own maximum are taken apart.
	minAdvertisedMax = 1 << 20

	// maxWritePiece is the longest part in bytes of a write that is received, and then
	// given to the device, at a time: large enough for the cost of a part not to
	// matter, and what a client that does not send the rest makes the server keep.
	maxWritePiece = 1 << 20

	// maxRange is the longest range in bytes without data that the device gets at a
	// time, a multiple of any block size. What is longer, with extended headers, is
	// taken apart; a hint or a question about more is one about this much.
	maxRange = 1<<32 - 1<<16

	// minHole is the length in bytes from which a read of zeroes is answered by a hole:
	// to find out costs more than it saves for what is shorter.
	minHole = 4096

	// smallWrite is the longest write, in bytes, whose payload is received before an
	// I/O is obtained from the device. Copying it costs little.
	smallWrite = 16 << 10

	// clientTime is how long an I/O of the device waits for the client: for the rest
	// of a write's payload, or to read a reply. What has arrived by then is copied, and the
	// I/O released. A client that is running needs a few microseconds for its next
	// bytes; a copy of 1 MiB costs a tenth of a millisecond.
	clientTime = 10 * time.Millisecond

	// maxKept is how many bytes of replies are kept in memory for clients that don't
	// read them, over all clients of a server: twice what a session has in flight.
	maxKept = 64 << 20

	// maxLargeReads is how many reads above the device's maximum are put
	// together at a time, by all clients: each takes up to maxPayload of memory.
	maxLargeReads = 4

	// maxOptionData is the most data in bytes of an option that is parsed: an
	// export name of maxName, and a hundred information requests or queries for
	// metadata contexts of ordinary names. More is skipped and refused as too big.
	maxOptionData = 4 + maxName + 4 + 100*(4+64)

	// maxName is the protocol's limit of a string in bytes.
	maxName = 4096

	// receiveBuffer is the size in bytes of a client's receive buffer. A write
	// payload of 4 KiB costs little to copy out of it, so it takes a dozen
	// pipelined small writes in one read; large payloads bypass it.
	receiveBuffer = 64 << 10

	// maxBatch is how many bytes of replies are handed to the socket together. It
	// bounds how long a sent I/O waits for others before it is released.
	maxBatch = 512 << 10

	// sendBuffer is the size in bytes of the buffer of a client's Unix socket, of which the
	// kernel makes twice as much for its own part of it: a reply of 1 MiB goes in at once.
	// With the kernel's 208 KiB it takes five sends, each of which waits for the client.
	sendBuffer = 1 << 20

	// maxFlushRounds is how often a goroutine that completes I/Os sends what
	// others have completed meanwhile, before a goroutine of the connection
	// takes over.
	maxFlushRounds = 4

	// Defaults of Config.
	defaultHandshakeTimeout = 30 * time.Second // long enough for a person with a debugger
	defaultDrainTimeout     = 2 * time.Second  // a systemd stop stays prompt
	defaultMaxClients       = 128
	defaultMaxInFlight      = 256 // several times what kernels and QEMU send (128)
)
