package rnbd

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/rtrs"
)

// reopen opens the disk at the server, for the first time or again, and records the
// result. It does nothing if needed is not nil and returns false.
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
	if isForGood(err) {
		return err
	}
	rsp, err := openDevice(ctx, rt, d.name, d.access, d.id, claim)
	if errors.Is(err, rtrs.ErrPathLost) || ctx.Err() != nil {
		return err // nothing was learned
	}
	if errors.Is(err, ErrFenced) {
		d.adoptFencedGeometry(rt, &rsp)
	}
	if err == nil {
		if err = d.adoptAnswer(rt, claim, &rsp); err != nil {
			// No I/O may reach that other disk, even if it cannot be closed.
			if cerr := d.release(ctx); cerr != nil && ctx.Err() != nil {
				return cerr
			}
		}
	}
	return d.noteOpening(err)
}

// noteOpening records the result of an opening, and lets I/O begin, wait or fail accordingly.
func (d *Disk) noteOpening(err error) error {
	resume := false
	defer func() {
		if resume {
			d.share.Resume()
		}
	}()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.isDetached() {
		// CLOSE may have come before OPEN.
		if err == nil {
			d.c.releaseLater(d)
		}
		return &OpenError{Export: d.name, Err: ErrClosed}
	}
	d.tried = time.Now()
	waits := d.mayWaitLocked(err)
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
		d.c.log.Info("remote disk open", "export", d.name, "bytes", d.size.Load(), "read_only", d.geometry.ReadOnly)
	}
	d.opened = d.opened || err == nil
	d.err = err
	if waits {
		d.beginWaitLocked()
		return err
	}
	d.failed.Store(uint32(errnoOfFailure(err)))
	resume = d.endWaitLocked()
	return err
}

// adoptAnswer takes over the server's answer. asked is the claim of the OPEN.
func (d *Disk) adoptAnswer(rt *rtrs.Client, asked Claim, rsp *openRsp) error {
	if err := d.checkWriteVerifier(asked, rsp); err != nil {
		return &OpenError{Export: d.name, Err: err}
	}
	claim, keep, err := d.checkGeometry(rt, rsp)
	if err == nil && keep {
		err = d.keep(claim) // without the lock: others may ask for the disk's state meanwhile
	}
	if err != nil {
		return &OpenError{Export: d.name, Err: err}
	}
	if rsp.Flags&flagShared != 0 {
		d.shared.Store(true)
	}
	d.inDoubt.Store(0)
	d.mu.Lock()
	d.claim = claim
	d.mu.Unlock()
	d.grow(rsp.Sectors * SectorSize)
	return nil
}

// checkGeometry compares the server's answer with the geometry that clients have seen, or sets
// that. It returns the claim on the device, and whether the claim must be stored.
func (d *Disk) checkGeometry(rt *rtrs.Client, rsp *openRsp) (claim Claim, keep bool, err error) {
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
	g.CanFastZero, g.CanCache, g.CanStatus = g.CanWriteZeroes, true, true
	switch {
	case !d.opened:
		d.geometry = g
	case g.Size < d.size.Load():
		return claim, false, fmt.Errorf("%w from %d to %d bytes since it was attached; attach it again", ErrShrunk, d.size.Load(), g.Size)
	case g.ReadOnly && !d.geometry.ReadOnly:
		return claim, false, fmt.Errorf("%w since the server came back; attach it again", ErrReadOnly)
	}
	claim = Claim{Attachment: d.claim.Attachment, Disk: rsp.Identity.Disk, Life: rsp.Identity.Life, Writer: rsp.Flags&flagWriter != 0}
	return claim, d.keep != nil && (!d.opened || claim != d.claim), nil
}

// reopenFailed tries from time to time to reopen a failed disk.
func (d *Disk) reopenFailed(ctx context.Context) {
	d.mu.Lock()
	// An acknowledgement of the previous life must not arrive after the next has begun.
	due := d.hasFailed() && !d.closing.Load() && d.inFlight.Load() == 0 && time.Since(d.tried) >= reopenInterval
	if due {
		d.tried = time.Now()
	}
	d.mu.Unlock()
	if !due {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	noPath := d.c.rt.NoPath()
	d.c.background(func() {
		select {
		case <-noPath:
			cancel() // nobody waits for a path
		case <-ctx.Done():
		}
	})
	d.reopen(ctx, d.c.rt, d.hasFailed)
}

// noteLost handles ENODEV of an I/O: the server does not know the device any more,
// because the export was removed.
func (d *Disk) noteLost() {
	if d.hasFailed() {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err == nil {
		d.err, d.since = &OpenError{Export: d.name, Err: ErrNotFound}, time.Now()
		d.failed.Store(uint32(syscall.EIO))
	}
}

// noteFenced handles errFenced of an I/O: the server has made the attachment's token void,
// for good.
func (d *Disk) noteFenced() {
	if d.errno() == errFenced {
		return
	}
	d.c.background(func() { // what waits is completed, which is not for a completion to do
		d.mu.Lock()
		known := isForGood(d.err)
		had := d.claim.Writer // otherwise it is a write to a disk that is only to be read
		d.mu.Unlock()
		if had && !known {
			_ = d.noteOpening(&OpenError{Export: d.name, Detail: "just now", Err: ErrFenced})
		}
	})
}

// adoptFencedGeometry takes over the geometry of a disk that was fenced before it was opened:
// its I/O fails, as that of a disk that has been open.
func (d *Disk) adoptFencedGeometry(rt *rtrs.Client, rsp *openRsp) {
	if _, _, err := d.checkGeometry(rt, rsp); err == nil {
		d.grow(rsp.Sectors * SectorSize)
	}
}

// noteReopening handles errReplaced of an I/O: the server is opening the export's storage
// again.
func (d *Disk) noteReopening() {
	if d.hasFailed() || d.waiting.Load() {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err == nil && !d.closing.Load() {
		d.err, d.since = &OpenError{Export: d.name, Detail: "it is being opened again", Err: ErrNotReady}, time.Now()
		d.beginWaitLocked()
	}
}
