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
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/rtrs"
)

// Disk is a remote disk, a block.Device.
type Disk struct {
	c      *Client
	name   string
	access uint8
	id     uint32 // at the server, the same on each path

	// Set by the first opening and constant thereafter.
	opened   bool // guarded by mu
	geometry block.Geometry

	share    *rtrs.Share // of the session's permits
	anyone   *diskUser   // whoever uses the disk without being told apart
	closing  atomic.Bool // for good: none of its I/O begins any more
	failed   atomic.Bool // I/O fails with EIO
	waiting  atomic.Bool // I/O waits until the server can open the disk
	counters counters
	writes   unflushed
	flying   atomic.Int64 // I/Os that are submitted

	keep func(Claim) error

	opening chan struct{} // capacity 1: serialises openings

	mu    sync.Mutex
	claim Claim
	err   error         // why it has failed, or waits
	since time.Time     // in this state
	tried time.Time     // to open it again
	ended chan struct{} // closed when it does not wait any more; nil: it does not
}

var _ block.MultiUser = (*Disk)(nil)

// DiskInfo is a disk's state for people.
type DiskInfo struct {
	Export   string
	Size     uint64 // bytes
	ReadOnly bool
	Err      error     // nil: it works, or waits
	Waits    error     // why its I/O waits for the server, beside the path; nil: it does not
	Since    time.Time // in this state
	Stats    Stats
	Session  rtrs.ClientInfo
}

// Info returns the disk's state.
func (d *Disk) Info() DiskInfo {
	i := DiskInfo{Export: d.name, Stats: d.counters.snapshot(), Session: d.c.rt.Info()}
	d.mu.Lock()
	defer d.mu.Unlock()
	i.Size, i.ReadOnly, i.Err, i.Since = d.geometry.Size, d.geometry.ReadOnly, d.err, d.since
	if d.waiting.Load() {
		i.Err, i.Waits = nil, d.err
	}
	return i
}

// Export returns the name of the export.
func (d *Disk) Export() string { return d.name }

// Geometry implements block.Device.
func (d *Disk) Geometry() block.Geometry { return d.geometry }

// reopen opens the disk at the server, the first time or again, and notes the
// result. needed reports whether it still has to be; nil: it does.
func (d *Disk) reopen(ctx context.Context, rt *rtrs.Client, needed func() bool) error {
	select {
	case d.opening <- struct{}{}:
		defer func() { <-d.opening }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if needed != nil && !needed() {
		return nil
	}
	d.mu.Lock()
	claim, err := d.claimLocked(), d.err
	d.mu.Unlock()
	if errors.Is(err, ErrWritesLost) {
		return err // for good
	}
	rsp, err := open(ctx, rt, d.name, d.access, d.id, claim)
	if errors.Is(err, rtrs.ErrPathLost) || ctx.Err() != nil {
		return err // nothing was learnt
	}
	if err == nil {
		if err = d.adopt(rt, claim, &rsp); err != nil {
			// Nothing may be done to that other disk, also if it cannot be closed.
			if cerr := d.release(ctx); cerr != nil && ctx.Err() != nil {
				return cerr
			}
		}
	}
	return d.note(err)
}

// note notes the result of an opening, and lets I/O begin, wait or fail accordingly.
func (d *Disk) note(err error) error {
	resume := false
	defer func() {
		if resume {
			d.share.Resume()
		}
	}()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closing.Load() && checks.On(checks.DetachedDisk) {
		// CLOSE may have come before OPEN.
		if err == nil {
			d.c.letGo(d)
		}
		return &OpenError{Export: d.name, Err: ErrClosed}
	}
	d.tried = time.Now()
	waits := d.opened && comesYet(err) && checks.On(checks.ReadyFirst)
	was, waited := d.err != nil, d.waiting.Load()
	switch {
	case waits && !waited:
		d.since = d.tried
		d.c.log.Warn("a remote disk is not open yet at the server; its I/O waits", "export", d.name, "error", err)
	case err != nil && !waits && (!was || waited) && d.opened:
		d.since = d.tried
		d.c.log.Error("a remote disk is lost; its I/O fails until it can be opened again", "export", d.name, "error", err)
	case err == nil && (was || !d.opened):
		d.since = d.tried
		d.c.log.Info("remote disk open", "export", d.name, "bytes", d.geometry.Size, "read_only", d.geometry.ReadOnly)
	}
	d.opened = d.opened || err == nil
	d.err = err
	if waits {
		d.waitLocked()
		return err
	}
	d.failed.Store(err != nil)
	resume = d.waitNoMoreLocked()
	return err
}

// adopt takes over what the server says of the device. The size that clients have seen
// stays under them: a disk that has grown is used as far as that. asked is the claim of
// the OPEN.
func (d *Disk) adopt(rt *rtrs.Client, asked Claim, rsp *openRsp) error {
	if err := d.compare(asked, rsp); err != nil {
		return &OpenError{Export: d.name, Err: err}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	g := block.Geometry{
		Size: rsp.Sectors * SectorSize, MinBlock: SectorSize, PreferredBlock: max(uint32(rsp.Physical), 4096),
		MaxIO:    uint32(min(maxDiskIO, rt.MostPermits()*rt.MaxIO())),
		ReadOnly: rsp.Flags&flagReadOnly != 0 || d.access == accessRO, Rotational: rsp.Rotational,
		CanFlush: true, CanFUA: rsp.CachePolicy&cacheFUA != 0, MultiConn: true,
	}
	g.MaxIO -= g.MaxIO % SectorSize
	g.CanTrim = rsp.MaxDiscard > 0 && !g.ReadOnly
	g.CanWriteZeroes = rsp.MaxZeroes > 0 && !g.ReadOnly
	switch {
	case !d.opened:
		d.geometry = g
	case g.Size < d.geometry.Size:
		return &OpenError{Export: d.name, Err: fmt.Errorf("%w from %d to %d bytes since it was attached; attach it again", ErrShrunk, d.geometry.Size, g.Size)}
	case g.ReadOnly && !d.geometry.ReadOnly:
		return &OpenError{Export: d.name, Err: fmt.Errorf("%w since the server came back; attach it again", ErrReadOnly)}
	}
	claim := Claim{Attachment: d.claim.Attachment, Disk: rsp.Identity.Disk, Life: rsp.Identity.Life}
	if d.keep != nil && (!d.opened || claim != d.claim) {
		if err := d.keep(claim); err != nil {
			return &OpenError{Export: d.name, Err: err}
		}
	}
	d.claim = claim
	return nil
}

// revive tries to open a disk that has failed, now and then.
func (d *Disk) revive(ctx context.Context) {
	d.mu.Lock()
	// An acknowledgement of the life before must not come after the next has begun.
	due := d.failed.Load() && !d.closing.Load() && d.flying.Load() == 0 && time.Since(d.tried) >= reopenInterval
	if due {
		d.tried = time.Now()
	}
	d.mu.Unlock()
	if due {
		d.reopen(ctx, d.c.rt, d.failed.Load)
	}
}

// lose notes that the server does not know the device any more: the export was
// removed. errno of an I/O.
func (d *Disk) lose() {
	if d.failed.Load() {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err == nil {
		d.err, d.since = &OpenError{Export: d.name, Err: ErrNotFound}, time.Now()
		d.failed.Store(true)
	}
}

// await notes that the server opens the export's storage again, which an I/O was told.
func (d *Disk) await() {
	if d.failed.Load() || d.waiting.Load() {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err == nil && !d.closing.Load() {
		d.err, d.since = &OpenError{Export: d.name, Detail: "it is being opened again", Err: ErrNotReady}, time.Now()
		d.waitLocked()
	}
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
}

// OnBatchEnd implements block.Device.
func (d *Disk) OnBatchEnd(f func()) (cancel func()) { return d.c.rt.OnBatchEnd(f) }

func (d *Disk) isClosing() bool { return d.closing.Load() }

// shut ends the disk's I/O for good. It reports whether it was the first to.
func (d *Disk) shut() bool {
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
	d.failed.Store(true)
	if d.err == nil || d.waiting.Load() {
		d.err, d.since = &OpenError{Export: d.name, Err: ErrClosed}, time.Now()
	}
	resume = d.waitNoMoreLocked()
	return true
}

// Close ends the disk. I/O that has not been sent fails and is never carried out; what
// has been sent has ended when Close returns without an error, or ends before the
// session comes back from the loss of its path. After some seconds Close leaves the
// rest to be done in the background and says so. It is idempotent.
func (d *Disk) Close() error {
	if !d.shut() {
		return nil
	}
	d.c.rt.DropParked(func(p *rtrs.Permit) syscall.Errno {
		if u, _ := p.User.(*diskUser); u != nil && u.Disk == d && checks.On(checks.DetachedDisk) {
			return syscall.ESHUTDOWN
		}
		return 0
	})
	ctx, cancel := context.WithTimeout(d.c.ctx, controlTimeout)
	defer cancel()
	err := d.release(ctx)
	if err != nil && ctx.Err() != nil {
		d.c.letGo(d)
		return fmt.Errorf("close %q: its I/O has not ended at the server within %v; the server closes it when it has: %w", d.name, controlTimeout, err)
	}
	d.c.forget(d)
	return err
}

// release has the server close the device, and waits for the end of its I/O there.
func (d *Disk) release(ctx context.Context) error {
	req := numMsg{N: d.id}
	for pause := closeTick; ; pause = min(2*pause, closeTickMax) {
		if !d.c.rt.HasPath() {
			return nil // the server forgets it with the path
		}
		err := d.c.rt.Control(ctx, req.Append(nil, msgClose), nil)
		switch {
		case err == nil, errors.Is(err, rtrs.ErrPathLost), errors.Is(err, rtrs.ErrClosed):
			return nil
		case !errors.Is(err, syscall.EBUSY):
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
	case u.closing.Load() && checks.On(checks.DetachedDisk):
		return syscall.ESHUTDOWN
	case u.gone.Load():
		return syscall.ECANCELED
	case u.failed.Load():
		return syscall.EIO
	}
	return 0
}
