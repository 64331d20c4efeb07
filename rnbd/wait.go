package rnbd

import (
	"context"
	"errors"
	"syscall"
	"time"
)

// An open disk whose server cannot open it again yet waits, as it does for a path: what
// was under way and what is submitted is held back and no I/O is given out, until the
// server opens it, or refuses it for good. The disk asks again and again.

// comesYet reports whether the next attempt to open the disk may succeed without anybody's
// help: its storage is not there yet, or I/O of an earlier session has not ended.
func comesYet(err error) bool {
	return errors.Is(err, ErrNotReady) || errors.Is(err, syscall.EBUSY)
}

func (d *Disk) waitLocked() {
	if d.ended != nil {
		return
	}
	ended := make(chan struct{})
	d.ended = ended
	d.share.Suspend()
	d.waiting.Store(true)
	d.failed.Store(false)
	d.c.background(func() { d.askAgain(ended) })
}

// waitNoMoreLocked ends the waiting. It reports whether what was held back is to be
// resumed, which fails if the disk has.
func (d *Disk) waitNoMoreLocked() (resume bool) {
	if d.ended == nil {
		return false
	}
	close(d.ended)
	d.ended = nil
	d.waiting.Store(false)
	return true
}

// askAgain opens the disk now and then until it waits no more.
func (d *Disk) askAgain(ended <-chan struct{}) {
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
		// A path that comes up has it opened without being asked. An acknowledgement of
		// the life before must not come after the next has begun.
		if d.c.rt.HasPath() && d.share.Flying() == 0 {
			_ = d.reopen(d.c.ctx, d.c.rt, d.waiting.Load)
		}
	}
}

// wait waits until the disk waits no more.
func (d *Disk) wait(ctx context.Context) error {
	d.mu.Lock()
	ended := d.ended
	d.mu.Unlock()
	if ended == nil {
		return nil
	}
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
