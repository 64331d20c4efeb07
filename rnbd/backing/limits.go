package backing

import "time"

const (
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

	// maxRawIO is the largest transfer in bytes that is made without telling the
	// Go scheduler. A copy from the page cache of this size takes a few
	// microseconds, less than the scheduler's bookkeeping is worth.
	maxRawIO = 16 << 10

	// maxInlineIO is the largest operation in bytes that a Queue runs on the
	// caller's goroutine. Above it the copy takes longer than waking a worker,
	// and the caller had better go on receiving.
	maxInlineIO = 128 << 10

	// A write is slow when it took longer than slowWrite and slowWritePerKiB for
	// each KiB together: then it did not just fill the page cache.
	slowWrite       = 200 * time.Microsecond
	slowWritePerKiB = 2 * time.Microsecond

	// After a slow write minStreak writes in a row have to be quick before
	// writes count as fast again; each further slow write doubles that, to
	// maxStreak. forgiveStreak quick writes in a row forget the past.
	minStreak     = 16
	maxStreak     = 2048
	forgiveStreak = 8192

	// DefaultWorkers is the number of operations that a Queue has at the storage
	// at once when QueueConfig.Workers is 0: enough to keep a fast disk busy,
	// and each costs a thread while it waits.
	DefaultWorkers = 16
)
