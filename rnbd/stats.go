package rnbd

import (
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/block"
)

// Stats counts completed I/O of a disk or an export.
type Stats struct {
	Reads, Writes, Flushes, Trims, Zeroes uint64 // with or without an error
	ReadBytes, WriteBytes                 uint64 // of reads and writes without one
	Errors                                uint64
	// Latency is what those took that had no error: of a disk from their posting to their end, sent again or not, of an export
	// at the storage.
	Latency block.LatencyCounts
}

type counters struct {
	ops                           [block.NumOps]atomic.Uint64
	readBytes, writeBytes, errors atomic.Uint64
	latency                       block.Latency
}

// took counts an operation that has begun then, and completes now.
func (c *counters) took(op block.Op, n uint64, errno syscall.Errno, began time.Time) {
	c.count(op, n, errno)
	if errno == 0 {
		c.latency.Observe(op, time.Since(began))
	}
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
		ReadBytes: c.readBytes.Load(), WriteBytes: c.writeBytes.Load(), Errors: c.errors.Load(), Latency: c.latency.Counts(),
	}
}
