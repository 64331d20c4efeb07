package backing

import "time"

const (
	// sector is the unit in bytes of a disk's size.
	sector = 512

	// maxSyscallIO is what one read or write system call transfers at most, in
	// bytes; the kernel's own limit is just below 2 GiB.
	maxSyscallIO = 1 << 30

	// zeroChunk is how many bytes of zeroes one write takes where the storage
	// cannot zero a range itself: large enough that the system call does not
	// matter, small enough to stay in the processor's cache.
	zeroChunk = 256 << 10

	// zeroRangeMax is how many bytes one call discards or zeroes at most, so that
	// Close does not wait for a single call of hours on a slow device.
	zeroRangeMax = 1 << 30

	// readAheadPiece is how many bytes the kernel is asked to read ahead at a time: its
	// default limit of one such call. maxReadAhead is how many one hint is good for, as
	// much as the page cache of a small machine can spare.
	readAheadPiece = 128 << 10
	maxReadAhead   = 64 << 20

	// maxRawIO is the largest transfer in bytes that bypasses the Go scheduler. A copy
	// of this size from the page cache takes a few microseconds, too little to be worth
	// the scheduler's bookkeeping.
	maxRawIO = 16 << 10

	// maxInlineIO is the largest operation in bytes that a queue runs on the
	// caller's goroutine: the largest request of a block session by default. The copy takes
	// some ten microseconds, and a worker costs two switches of threads.
	maxInlineIO = 256 << 10

	// lockTime is how long a device may be locked by another program before it counts
	// as in use: udev needs some milliseconds, on a busy host more. It is shorter than the
	// two seconds after which a daemon takes storage that does not answer for hung.
	lockTime = time.Second

	// maxSyncs is how many flushes and FUA writes a Store does at once: what a queue
	// has at the storage.
	maxSyncs = maxWorkers

	// Descriptors is how many file descriptors a Store has: those for flushes, that of
	// the disk, and that of the file below a loop device.
	Descriptors = maxSyncs + 2

	// Writes are slow when they hold their caller up for slowWrite on average,
	// plus writePerKiB for each KiB: then they do not just fill the page cache.
	// delayWeight is the number of writes that the average looks back on, and one
	// write counts as maxWriteTime at most: a single wait for the storage of that
	// length makes writes slow at once, a time slice of 4 ms lost to another
	// process does not, and 300 quick ones always make them fast again.
	slowWrite    = 100 * time.Microsecond
	writePerKiB  = 2 * time.Microsecond
	maxWriteTime = 10 * time.Millisecond
	delayWeight  = 64

	// maxWorkers is the number of operations that a queue has at the storage at
	// once: enough to keep a fast disk busy, and each costs a thread while it waits.
	maxWorkers = 16
)
