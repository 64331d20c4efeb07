package rtrs

import (
	"context"
	"slices"
	"syscall"
	"time"
)

// NoPath says what becomes of I/O while a session has no path that can take it: while all
// are down, or wait for their security association. The zero value has it wait, however
// long that takes.
type NoPath struct {
	// Fail has I/O fail with ENOTCONN, what waits as well as what is submitted, and Get with
	// ErrNoPath, once there has been no path for After, and until there is one again.
	Fail  bool
	After time.Duration
}

// outage is a time without a path that can take I/O.
//
//	path ◀──▶ outage ──NoPath.After──▶ failing ──a path, or NoPath without Fail──▶
type outage struct {
	since time.Time
	end   context.CancelFunc
}

// SetNoPath changes what becomes of I/O without a path. It counts from when the session lost
// its last one.
func (cl *Client) SetNoPath(to NoPath) {
	cl.mu.Lock()
	cl.noPath = to
	close(cl.noPathSet)
	cl.noPathSet = make(chan struct{})
	if !to.Fail || cl.outage != nil && time.Since(cl.outage.since) < to.After {
		cl.setFailingLocked(false)
	}
	paths := slices.Clone(cl.paths)
	cl.mu.Unlock()
	for _, t := range paths {
		t.wake() // whether its security association is there, which matters now
	}
}

// mayFail reports whether I/O does not wait for a path for ever.
func (cl *Client) mayFail() bool {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	return cl.noPath.Fail
}

// NoPath returns a channel that is closed while I/O fails because there is no path.
func (cl *Client) NoPath() <-chan struct{} {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	return cl.failingCh
}

// noteOutageLocked notes whether there is a path that can take I/O. Control requests go by such a
// one, if there is.
func (cl *Client) noteOutageLocked() {
	up := *cl.up.Load()
	i := slices.IndexFunc(up, func(t *clientPath) bool { return !t.avoided.Load() })
	usable := i >= 0
	if usable && cl.ctlPath != nil && cl.ctlPath.avoided.Load() {
		cl.ctlPath = up[i]
	}
	switch {
	case usable && cl.outage != nil:
		cl.outage.end()
		cl.outage = nil
		cl.setFailingLocked(false)
	case !usable && cl.outage == nil && cl.state != Connecting && !cl.closing:
		ctx, end := context.WithCancel(cl.ctx)
		o := &outage{since: time.Now(), end: end}
		cl.outage = o
		cl.running.Go(func() { cl.failAfterOutage(ctx, o) })
	}
}

func (cl *Client) setFailingLocked(on bool) {
	if on == cl.failing {
		return
	}
	if cl.failing = on; on {
		close(cl.failingCh)
		cl.pool.refuse(ErrNoPath)
		return
	}
	cl.failingCh = make(chan struct{})
	cl.pool.refuse(nil)
}

// failAfterOutage has I/O fail when an outage has lasted for as long as it may.
func (cl *Client) failAfterOutage(ctx context.Context, o *outage) {
	for {
		cl.mu.Lock()
		np, changed := cl.noPath, cl.noPathSet
		cl.mu.Unlock()
		var due <-chan time.Time
		if np.Fail {
			t := time.NewTimer(time.Until(o.since.Add(np.After)))
			defer t.Stop()
			due = t.C
		}
		select {
		case <-due:
			cl.failAllIO(ctx, o)
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// failAllIO has all I/O fail, unless it may wait longer by now. A path that is up, and waits for its security association, is torn
// down: what it has not sent yet would be carried out at some time, when nobody expects it
// any more.
func (cl *Client) failAllIO(ctx context.Context, o *outage) {
	cl.mu.Lock()
	if ctx.Err() != nil || !cl.noPath.Fail || time.Since(o.since) < cl.noPath.After || cl.failing {
		cl.mu.Unlock()
		return
	}
	cl.setFailingLocked(true)
	up := *cl.up.Load()
	cl.mu.Unlock()
	cl.log.Warn("I/O fails: there has been no path", "session", cl.cfg.Name, "for", time.Since(o.since).Round(time.Millisecond))
	for _, t := range up {
		t.fail(errAway)
	}
	cl.failParked()
	if cl.cfg.OnNoPath != nil {
		cl.cfg.OnNoPath()
	}
}

// failParked ends what waits for a path, if that is not to wait any more.
func (cl *Client) failParked() {
	var failed []*Permit
	judge := func(p *Permit) bool {
		if !p.unsettled {
			failed = append(failed, p)
		}
		return !p.unsettled
	}
	cl.mu.Lock()
	if !cl.failing {
		cl.mu.Unlock()
		return
	}
	cl.parked = slices.DeleteFunc(cl.parked, judge)
	cl.suspended = slices.DeleteFunc(cl.suspended, judge)
	cl.mu.Unlock()
	for _, p := range failed {
		p.failWithoutPath()
	}
	if len(failed) > 0 {
		cl.EndBatch()
	}
}

// failWithoutPath ends an I/O that waits. A write that has been sent may be executed, now or
// later, by a server that has it: the permit is unsettled then.
func (p *Permit) failWithoutPath() {
	p.unsettled = p.dir == Write && p.tried
	p.state.Store(permitIdle)
	p.finish(syscall.ENOTCONN)
}

// OnSettled has f called when a write whose result is ENOTCONN is executed no more: after the
// server has said so, or the session is over. It returns false, and does not call f, where
// that is certain already. It is to be called from the completion, and f must not block.
func (p *Permit) OnSettled(f func()) bool {
	if p.unsettled {
		p.settled = f
	}
	return p.unsettled
}

// settlePermit finds out, when there is a path, that an unsettled permit's write is executed no
// more, and puts the permit back then. It sends the write's number again, with nothing to
// write: a server that has had it answers when its execution has ended, and one that has not
// does not execute it when it arrives late.
func (cl *Client) settlePermit(p *Permit) {
	p.n, p.hlen, p.done = 0, 0, settling{}
	p.moveTo(nil)
	cl.start(p, false)
}

// settling is the Completion of a permit that is being settled.
type settling struct{}

// Complete implements Completion.
func (settling) Complete(p *Permit, _ syscall.Errno) {
	f := p.settled
	p.unsettled, p.settled = false, nil
	if f != nil {
		f()
	}
	p.cl.Put(p)
}
