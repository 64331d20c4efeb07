package block

import (
	"context"
	"errors"
)

// ErrBusy is what TryGet returns when Get would wait.
var ErrBusy = errors.New("block: the device has no free I/O now")

// Device is a disk with buffers of its own, which a front end, such as an NBD server,
// offers to its clients. Goroutines of several clients call its methods at once.
type Device interface {
	// Geometry is called once for each client. Only a Resizer's Size changes afterwards.
	Geometry() Geometry

	// Get returns an I/O with buffers of op.BufferLen(n) bytes. It may wait until resources are free or ctx ends. The
	// front end has checked the range, the alignment and the flags against the
	// Geometry. An error in whose chain is a syscall.Errno is that request's
	// result; any other counts as EIO. Neither ends the client's connection.
	Get(ctx context.Context, op Op, off uint64, n uint32, fl Flags) (IO, error)

	// TryGet is Get that never waits: it returns ErrBusy instead. A front end
	// tries this first, since replies that it has not sent yet hold I/Os.
	TryGet(op Op, off uint64, n uint32, fl Flags) (IO, error)

	// Kick starts what was submitted with more. A front end calls it before it
	// waits for anything. It does not block.
	Kick()

	// OnBatchEnd registers f to be called after each batch of completions (a
	// batch may be a single one), on the goroutine that made them: a front end
	// sends the batch's replies there in one system call. f does not block.
	// A completion made inside Submit needs no batch end; neither does one made
	// inside Kick, unless its I/O is another client's: Kick may start those of all
	// clients.
	// After cancel has returned f is not called any more; cancel is not called from f.
	OnBatchEnd(f func()) (cancel func())
}

// Resizer is a Device that may grow while it is in use. It never shrinks.
type Resizer interface {
	Device
	// OnResize registers f to be called with the size in bytes whenever that has grown:
	// Geometry has it by then, and I/O may use it. f does not block, since I/O may wait for
	// it: a front end that has to tell a kernel does so on another goroutine. After cancel
	// has returned f is not called any more; cancel is not called from f.
	OnResize(f func(size uint64)) (cancel func())
}

// MultiUser is a Device that keeps its users apart.
type MultiUser interface {
	Device
	// NewUser returns the device for one more user; a front end asks for each of its
	// clients.
	NewUser() User
}

// User is a MultiUser device as one user has it, whose I/O can be given up.
type User interface {
	Device
	// Abandon ends the I/O that the user has submitted and the device has not begun.
	// I/O that it has begun completes once it can have no effect any more. The user
	// submits no more. Abandon may complete I/Os, as Submit may.
	Abandon()
}

// IO is one operation, owned by the front end from Get to Release.
type IO interface {
	// Buffers are Op.BufferLen bytes in all; those of OpStatus are one. The payload
	// of a write is received straight into them before Submit, the reply of a read is
	// sent straight from them after Complete. The slice and the buffers are the front
	// end's until Release.
	Buffers() [][]byte

	// Submit starts the operation. done.Complete is called exactly once,
	// whatever happens to the device, on any goroutine, possibly inside Submit.
	// more announces that another request follows at once: the device may hold this
	// one back until Device.Kick. A Submit without more starts at least its own. An
	// operation that has completed may be submitted again.
	Submit(done Completion, more bool)

	// Release gives the I/O back. It is called once, after Complete (or without
	// Submit, when the payload never came), from any goroutine, also from
	// inside Complete, and does not block.
	Release()
}

// Target takes the data of a read in place of the device's buffers.
type Target interface {
	// Place takes b, whose place in the read is at byte at: more than once, and in any
	// order, if the read takes more than one way. It returns false if it has not kept b,
	// which goes to the IO's buffers then. It is called by goroutines that receive for
	// others, too: it does not wait for anybody, and does not call the device.
	Place(at uint64, b []byte) bool
}

// TargetIO is an IO of a device that can leave its buffers out.
type TargetIO interface {
	IO
	// SubmitTo is Submit of a read whose data goes to a target. All of a read that succeeds
	// was passed to Place. Nothing is after Complete has been called.
	SubmitTo(to Target, done Completion, more bool)
}
