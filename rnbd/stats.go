package rnbd

import (
	"sync/atomic"
	"syscall"

	"github.com/ironwarp/ironwarp/block"
)

// Stats counts completed I/O of a disk or an export.
type Stats struct {
	Reads, Writes, Flushes, Trims, Zeroes uint64 // with or without an error
	ReadBytes, WriteBytes                 uint64 // of reads and writes without one
	Errors                                uint64
}

type counters struct {
	ops                           [block.NumOps]atomic.Uint64
	readBytes, writeBytes, errors atomic.Uint64
}

// count counts a completed operation.
func (c *counters) count(op block.Op, n uint64, errno syscall.Errno) {
	c.ops[op].Add(1)
	switch {
	case errno != 0:
		c.errors.Add(1)
	case op == block.OpRead:
		c.readBytes.Add(n)
	case op == block.OpWrite:
		c.writeBytes.Add(n)
	}
}

func (c *counters) snapshot() Stats {
	return Stats{
		Reads: c.ops[block.OpRead].Load(), Writes: c.ops[block.OpWrite].Load(), Flushes: c.ops[block.OpFlush].Load(),
		Trims: c.ops[block.OpTrim].Load(), Zeroes: c.ops[block.OpWriteZeroes].Load(),
		ReadBytes: c.readBytes.Load(), WriteBytes: c.writeBytes.Load(), Errors: c.errors.Load(),
	}
}
