package rnbd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/rtrs"
)

// Disk is a remote disk, a block.Device.
type Disk struct {
	c      *Client
	name   string
	access uint8
	id     uint32 // at the server, the same on each path

	geometry block.Geometry // set by the first opening, then constant; its Size is in size
	size     atomic.Uint64  // bytes; it never shrinks
	resized  resizeHooks

	share    *rtrs.Share   // its share of the session's permits
	anyone   *diskUser     // stands for users without a NewUser
	closing  atomic.Bool   // for good: no I/O begins any more
	failed   atomic.Uint32 // errno with which I/O fails; 0: it does not
	waiting  atomic.Bool   // I/O waits until the server can open the disk
	shared   atomic.Bool   // other clients may have it open for writing, or had it
	inDoubt  atomic.Int64  // writes that failed since the last opening, as they may have been carried out
	counters counters
	writes   unflushed
	inFlight atomic.Int64 // submitted I/Os
	order    *writeOrder  // orders overlapping submitted writes

	keep func(Claim) error

	opening chan struct{} // capacity 1: serialises openings

	mu     sync.Mutex // guards the fields below it; taken before the Client's
	opened bool
	claim  Claim
	err    error         // why it failed or waits
	since  time.Time     // in this state
	tried  time.Time     // last attempt to open it again
	ended  chan struct{} // closed when it stops waiting; nil if it does not wait
}

var (
	_ block.MultiUser = (*Disk)(nil)
	_ block.Resizer   = (*Disk)(nil)
)

// DiskInfo is a disk's state for people.
type DiskInfo struct {
	Export   string
	Size     uint64 // bytes
	ReadOnly bool
	Err      error     // nil if it works or waits
	Waits    error     // why its I/O waits for the server although there is a path; nil if it does not
	Since    time.Time // in this state
	Stats    Stats
	Session  rtrs.ClientInfo
}

// Info returns the disk's state.
func (d *Disk) Info() DiskInfo {
	i := DiskInfo{Export: d.name, Stats: d.counters.snapshot(), Session: d.c.rt.Info()}
	d.mu.Lock()
	defer d.mu.Unlock()
	i.Size, i.ReadOnly, i.Err, i.Since = d.size.Load(), d.geometry.ReadOnly, d.err, d.since
	if d.waiting.Load() {
		i.Err, i.Waits = nil, d.err
	}
	return i
}

// Export returns the name of the export.
func (d *Disk) Export() string { return d.name }

// Geometry implements block.Device.
func (d *Disk) Geometry() block.Geometry {
	g := d.geometry
	g.Size = d.size.Load()
	return g
}

// diskUser is one user of a disk, a block.User.
type diskUser struct {
	*Disk
	gone atomic.Bool
}

// NewUser implements block.MultiUser.
func (d *Disk) NewUser() block.User { return &diskUser{Disk: d} }

// Get implements block.Device.
func (u *diskUser) Get(ctx context.Context, op block.Op, off uint64, n uint32, fl block.Flags) (block.IO, error) {
	return u.get(ctx, u, op, off, n, fl)
}

// TryGet implements block.Device.
func (u *diskUser) TryGet(op block.Op, off uint64, n uint32, fl block.Flags) (block.IO, error) {
	return u.tryGet(u, op, off, n, fl)
}

// Abandon implements block.User.
func (u *diskUser) Abandon() {
	u.gone.Store(true)
	u.c.rt.DropParked(func(p *rtrs.Permit) syscall.Errno {
		if p.User == u {
			return syscall.ECANCELED
		}
		return 0
	})
	u.dropHeld(func(io *diskIO) bool { return io.permits[0].User == u }, syscall.ECANCELED)
}

// dropHeld ends writes that have not been sent, since they overlap others.
func (d *Disk) dropHeld(which func(*diskIO) bool, errno syscall.Errno) {
	for _, io := range d.order.dropHeld(which) {
		io.finish(errno)
	}
}

// failHeld implements rtrs.ClientConfig.OnNoPath.
func (c *Client) failHeld() {
	for _, d := range c.Disks() {
		d.failHeld()
		d.c.rt.EndBatch()
	}
}

// failHeld has what waits for writes that have failed without a path fail as they have, unless
// there is one again.
func (d *Disk) failHeld() {
	d.dropHeld(func(*diskIO) bool {
		select {
		case <-d.c.rt.NoPath():
			return true
		default:
			return false
		}
	}, syscall.EIO)
}

// OnBatchEnd implements block.Device.
func (d *Disk) OnBatchEnd(f func()) (cancel func()) { return d.c.rt.OnBatchEnd(f) }

func (d *Disk) hasFailed() bool { return d.failed.Load() != 0 }

// errno is what I/O of a failed disk fails with.
func (d *Disk) errno() syscall.Errno { return syscall.Errno(d.failed.Load()) }

func (d *Disk) isClosing() bool { return d.closing.Load() }

// beginClose ends the disk's I/O for good. It reports whether this call did.
func (d *Disk) beginClose() bool {
	resume := false
	defer func() {
		if resume {
			d.share.Resume()
		}
	}()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closing.CompareAndSwap(false, true) {
		return false
	}
	d.failed.CompareAndSwap(0, uint32(syscall.EIO))
	if d.err == nil || d.waiting.Load() {
		d.err, d.since = &OpenError{Export: d.name, Err: ErrClosed}, time.Now()
	}
	resume = d.endWaitLocked()
	return true
}

// Close closes the disk. I/O that has not been sent fails and is never carried out. I/O
// that has been sent has ended when Close returns without an error, unless there is no path:
// then it ends at the server, and what the next Disk of the export writes to the same bytes
// waits for that. After some seconds Close leaves the rest to the background and fails with
// an error that says so. It is idempotent.
func (d *Disk) Close() error {
	if !d.beginClose() {
		return nil
	}
	d.c.rt.DropParked(func(p *rtrs.Permit) syscall.Errno {
		if d.dropsParked(p) {
			return syscall.ESHUTDOWN
		}
		return 0
	})
	if !d.c.rt.HasPath() {
		d.c.releaseLater(d)
		return nil
	}
	ctx, cancel := context.WithTimeout(d.c.ctx, controlTimeout)
	defer cancel()
	err := d.release(ctx)
	if err != nil && ctx.Err() != nil {
		d.c.releaseLater(d)
		return fmt.Errorf("close %q: its I/O has not ended at the server within %v; the server closes it when it has: %w", d.name, controlTimeout, err)
	}
	d.c.forgetDisk(d)
	return err
}

// release makes the server close the device, and waits for the end of its I/O there.
func (d *Disk) release(ctx context.Context) error {
	req := numMsg{N: d.id}
	for pause := closeTick; ; pause = min(2*pause, closeTickMax) {
		err := d.c.rt.Control(ctx, req.Append(nil, msgClose), nil)
		switch {
		case err == nil, errors.Is(err, rtrs.ErrClosed):
			return nil
		case !errors.Is(err, syscall.EBUSY) && !errors.Is(err, rtrs.ErrPathLost): // the server may keep the device over a lost path
			return err
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return err
		}
	}
}

// onResend implements rtrs.ClientConfig.OnResend.
func onResend(p *rtrs.Permit) syscall.Errno {
	switch u, _ := p.User.(*diskUser); {
	case u == nil:
		return syscall.EIO
	case u.isDetached():
		return syscall.ESHUTDOWN
	case u.gone.Load():
		return syscall.ECANCELED
	case u.hasFailed():
		return u.errno()
	case p.InDoubt() && u.endsInDoubt(p):
		return syscall.EIO
	}
	return 0
}

// kindOf implements rtrs.ClientConfig.KindOf.
func kindOf(p *rtrs.Permit) string {
	var m ioMsg
	if !m.Parse(p.Header()) {
		return "control"
	}
	op, _, _ := operation(m.RW)
	return op.String()
}

// endsInDoubt reports whether a write that the server may have carried out in a session
// that it has forgotten must not be sent again: with several writers it could undo what
// another has written since.
func (d *Disk) endsInDoubt(p *rtrs.Permit) bool {
	var m ioMsg
	if !m.Parse(p.Header()) {
		return true
	}
	op, _, _ := operation(m.RW)
	if !op.Writes() || !d.hasOtherWriters() {
		return false
	}
	if d.inDoubt.Add(1) == 1 {
		d.c.log.Error("writes to a remote disk fail: the server has forgotten the session that they were sent in, and other hosts may have written since; see what the file system says, or write again", "export", d.name)
	}
	return true
}
