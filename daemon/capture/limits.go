package capture

const (
	// Most is how many captures run at a time: more than people who look for a fault together need, and each costs every
	// stream a copy of what it captures.
	Most = 4
	// blockLen is the room of a block for bytes: the longest FPDU, of 64,768 bytes and markers, fits several times.
	blockLen = 256 << 10
	// blockRecords bounds what the records of a block take beside the bytes: with most segments short, 200 KiB.
	blockRecords = 2048
	// ringBlocks is how many blocks wait for the writer: 16 MiB and their records, which is 100 ms of a fast stream.
	ringBlocks = 64
	// endedKept is how many streams that have ended the writer remembers, since records of a stream may follow its end.
	endedKept = 1024
	// streamsKept is how many streams and associations the writer knows at a time. Beyond that it forgets all, and what
	// those that go on have begun with is repeated.
	streamsKept = 64 << 10
	// ackEvery in bytes is less than the window of the synthetic packets, so that no stream seems to be stalled by it.
	ackEvery = 512 << 20
)
