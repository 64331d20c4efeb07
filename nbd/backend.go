package nbd

import (
	"context"
	"errors"
	"syscall"
)

// Op is what an I/O does to the disk.
type Op uint8

// The operations a Backend is asked for.
const (
	OpRead        Op = iota // read n bytes into IO.Buffers
	OpWrite                 // write the n bytes of IO.Buffers
	OpFlush                 // make all writes that were completed before durable; off and n are 0
	OpTrim                  // the range's content is no longer needed; no buffers
	OpWriteZeroes           // the range reads as zeroes afterwards; no buffers
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
	}
	return "unknown operation"
}

// Flags qualify an operation.
type Flags uint8

// The flags of an operation.
const (
	// FlagFUA: the operation's effect is durable before it completes
	// (OpWrite, OpTrim, OpWriteZeroes; only if Geometry.CanFUA).
	FlagFUA Flags = 1 << iota
	// FlagNoHole: OpWriteZeroes leaves the range allocated.
	FlagNoHole
	// FlagFastZero: OpWriteZeroes fails with EOPNOTSUPP at once unless it is
	// faster than writing zeroes (only if Geometry.CanFastZero).
	FlagFastZero
)

// Geometry describes a disk. It does not change while clients are connected.
type Geometry struct {
	Size           uint64 // bytes
	MinBlock       uint32 // alignment in bytes of every offset and length, a power of two from 1 to 65536; 0 means 1
	PreferredBlock uint32 // bytes, a power of two of at least 512 and MinBlock; 0 means 4096
	MaxIO          uint32 // the largest n in bytes of one read or write that Get is asked for, a multiple of MinBlock; trims and zeroes may be larger
	ReadOnly       bool
	Rotational     bool
	CanFlush       bool
	CanFUA         bool
	CanTrim        bool
	CanWriteZeroes bool
	CanFastZero    bool
	// MultiConn: a flush completed for one client covers the writes completed
	// for every other, and nobody reads stale data; so a client may open
	// several connections.
	MultiConn bool
}

// ErrBusy is what TryGet returns when Get would wait.
var ErrBusy = errors.New("nbd: the backend has no free I/O now")

// Backend is a disk: what an export of the server stands on. Its methods are
// called by several clients' goroutines at once.
type Backend interface {
	// Geometry is asked once for each client that negotiates.
	Geometry() Geometry

	// Get returns an I/O with buffers for n bytes (none for flush, trim and
	// write zeroes). It may wait until resources are free or ctx ends. The
	// server has checked the range, the alignment and the flags against the
	// Geometry. An error in whose chain is a syscall.Errno is that request's
	// result; any other counts as EIO. Neither ends the client's connection.
	Get(ctx context.Context, op Op, off uint64, n uint32, fl Flags) (IO, error)

	// TryGet is Get that never waits: it returns ErrBusy instead. The server
	// tries this first, since replies that it has not sent yet hold I/Os.
	TryGet(op Op, off uint64, n uint32, fl Flags) (IO, error)

	// Kick starts what was submitted with more. The server calls it before it
	// waits for anything. It does not block.
	Kick()

	// OnBatchEnd registers f to be called after each batch of completions (a
	// batch may be a single one), on the goroutine that made them: the server
	// sends the batch's replies there in one system call. f does not block.
	// A completion made inside Submit needs no batch end; neither does one made
	// inside Kick, unless its I/O is another client's: Kick may start those of all.
	// After cancel has returned f is not called any more; cancel is not called from f.
	OnBatchEnd(f func()) (cancel func())
}

// Divided is a Backend that tells its users apart.
type Divided interface {
	Backend
	// NewUser returns the backend for one more user; the server asks for each of its
	// clients.
	NewUser() User
}

// User is a Divided backend as one user has it, whose I/O can be given up.
type User interface {
	Backend
	// Abandon ends what the user has submitted and the backend has not begun to do.
	// What it has begun completes when it can have no effect any more. The user
	// submits no more. Abandon may complete I/Os, as Submit may.
	Abandon()
}

// IO is one operation, owned by the server from Get to Release.
type IO interface {
	// Buffers are n bytes in all. The payload of a write is received straight
	// into them before Submit, the reply of a read is sent straight from them
	// after Complete. The slice and the buffers are the server's until Release.
	Buffers() [][]byte

	// Submit starts the operation. done.Complete is called exactly once,
	// whatever happens to the backend, on any goroutine, possibly inside Submit.
	// more tells that another request follows at once: the backend may hold this
	// one back until Backend.Kick. A Submit without more starts at least its own.
	Submit(done Completion, more bool)

	// Release gives the I/O back. It is called once, after Complete (or without
	// Submit, when the payload never came), from any goroutine, also from
	// inside Complete, and does not block.
	Release()
}

// Completion is told the end of an I/O.
type Completion interface {
	// Complete reports the result, 0 for success. It does not block.
	Complete(errno syscall.Errno)
}
