package rnbd

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/rtrs"
)

// An open disk that its server cannot reopen yet waits, as it does for a path: I/O in
// flight and newly submitted is held back, and no I/O is handed out until the server
// opens the disk or refuses it for good. The disk keeps retrying.

// isTemporary reports whether the next attempt to open the disk may succeed by itself:
// its storage is not there yet, or I/O of an earlier session has not ended.
func isTemporary(err error) bool {
	return errors.Is(err, ErrNotReady) || errors.Is(err, syscall.EBUSY)
}

func (d *Disk) beginWaitLocked() {
	if d.ended != nil {
		return
	}
	ended := make(chan struct{})
	d.ended = ended
	d.share.Suspend()
	d.waiting.Store(true)
	d.failed.Store(0)
	d.c.background(func() { d.retryOpen(ended) })
}

// endWaitLocked ends the wait. It reports whether held-back I/O must be resumed, which
// fails if the disk has failed.
func (d *Disk) endWaitLocked() (resume bool) {
	if d.ended == nil {
		return false
	}
	close(d.ended)
	d.ended = nil
	d.waiting.Store(false)
	return true
}

// retryOpen retries to open the disk until the wait ends.
func (d *Disk) retryOpen(ended <-chan struct{}) {
	for pause := reopenMin; ; pause = min(2*pause, reopenInterval) {
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ended:
			t.Stop()
			return
		case <-d.c.ctx.Done():
			t.Stop()
			return
		}
		// A new path opens it anyway. An acknowledgement of the previous life must not
		// arrive after the next has begun.
		if d.c.rt.HasPath() && d.share.InFlight() == 0 {
			_ = d.reopen(d.c.ctx, d.c.rt, d.waiting.Load)
		}
	}
}

// waitUntilOpen waits until the disk stops waiting.
func (d *Disk) waitUntilOpen(ctx context.Context) error {
	d.mu.Lock()
	ended := d.ended
	d.mu.Unlock()
	if ended == nil {
		return nil
	}
	select {
	case <-ended:
		return nil
	case <-d.c.rt.NoPath():
		return ioError(rtrs.ErrNoPath)
	case <-d.c.ctx.Done():
		return ioError(rtrs.ErrClosed)
	case <-ctx.Done():
		return ctx.Err()
	}
}
