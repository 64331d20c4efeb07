package block

import "syscall"

// Op is what an I/O does to the disk.
type Op uint8

// The operations. Those after OpWrite have no data of the disk.
const (
	OpRead Op = iota
	OpWrite
	OpFlush       // makes all completed writes durable; offset and length are 0
	OpTrim        // the range's content is no longer needed: discard, SCSI's UNMAP
	OpWriteZeroes // the range reads as zeroes afterwards
	OpCache       // a hint that the range is going to be read
	OpStatus      // which parts of the range are holes; the answer is of StatusLen bytes

	NumOps = iota
)

// String returns the operation's name in lower case.
func (o Op) String() string {
	switch o {
	case OpRead:
		return "read"
	case OpWrite:
		return "write"
	case OpFlush:
		return "flush"
	case OpTrim:
		return "trim"
	case OpWriteZeroes:
		return "write zeroes"
	case OpCache:
		return "cache"
	case OpStatus:
		return "block status"
	}
	return "unknown operation"
}

// HasData reports whether the operation moves data of the disk.
func (o Op) HasData() bool { return o <= OpWrite }

// Answers reports whether the operation fills its buffers.
func (o Op) Answers() bool { return o == OpRead || o == OpStatus }

// BufferLen is the length in bytes of the buffers of an operation on n bytes.
func (o Op) BufferLen(n uint32) uint32 {
	switch {
	case o.HasData():
		return n
	case o == OpStatus:
		return StatusLen
	}
	return 0
}

// Writes reports whether the operation changes the disk.
func (o Op) Writes() bool { return o == OpWrite || o == OpTrim || o == OpWriteZeroes }

// Flags qualify an operation.
type Flags uint8

// The flags of an operation.
const (
	// FUA, force unit access: the operation's effect is durable before it completes
	// (OpWrite, OpTrim, OpWriteZeroes; only if Geometry.CanFUA).
	FUA Flags = 1 << iota
	// NoUnmap: OpWriteZeroes leaves the range allocated.
	NoUnmap
	// FastZero: OpWriteZeroes fails with EOPNOTSUPP at once unless it is
	// faster than writing zeroes (only if Geometry.CanFastZero).
	FastZero
)

// Completion gets the result of an I/O.
type Completion interface {
	// Complete reports the result, 0 for success. It is called once, and does not block.
	Complete(errno syscall.Errno)
}
