package rnbd

import (
	"sync/atomic"
	"syscall"
)

// Stats counts completed I/O of a disk or an export.
type Stats struct {
	Reads, Writes, Flushes, Trims, Zeroes uint64 // with or without an error
	ReadBytes, WriteBytes                 uint64 // of reads and writes without one
	Errors                                uint64
}

type counters struct {
	ops                           [8]atomic.Uint64 // by operation
	readBytes, writeBytes, errors atomic.Uint64
}

// count notes the end of an operation, one of the op constants.
func (c *counters) count(op uint32, n uint64, errno syscall.Errno) {
	c.ops[op&7].Add(1)
	switch {
	case errno != 0:
		c.errors.Add(1)
	case op == opRead:
		c.readBytes.Add(n)
	case op == opWrite:
		c.writeBytes.Add(n)
	}
}

func (c *counters) snapshot() Stats {
	return Stats{
		Reads: c.ops[opRead].Load(), Writes: c.ops[opWrite].Load(), Flushes: c.ops[opFlush].Load(),
		Trims: c.ops[opDiscard].Load(), Zeroes: c.ops[opWriteZeroes].Load(),
		ReadBytes: c.readBytes.Load(), WriteBytes: c.writeBytes.Load(), Errors: c.errors.Load(),
	}
}
