package rtrs

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"syscall"
	"time"
)

// waitForFirstPath waits until a path is up, until all have failed for good, or until ctx ends.
func (cl *Client) waitForFirstPath(ctx context.Context) error {
	for {
		up, wait, err := cl.connectOutcome()
		switch {
		case up:
			return nil
		case !wait:
			return err
		}
		select {
		case <-cl.news:
			continue
		case <-ctx.Done():
		}
		if up, _, err = cl.connectOutcome(); up {
			return nil
		} else if err != nil {
			return errors.Join(err, ctx.Err()) // the timeout alone says less
		}
		cl.cancel()
		cl.running.Wait()
		_, _, err = cl.connectOutcome()
		return cmp.Or(err, ctx.Err())
	}
}

// connectOutcome reports whether a path is up, and if not, with what all have failed, and whether
// to wait for one that has not been tried yet, or may be tried again.
func (cl *Client) connectOutcome() (up, wait bool, err error) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.state == Connected {
		cl.began = true
		return true, false, nil
	}
	var errs []error
	for _, t := range cl.paths {
		var refused *RefusedError
		wait = wait || t.failures == 0 || errors.As(t.lastErr, &refused) && refused.Temporary()
		errs = append(errs, t.lastErr)
	}
	return false, wait, errors.Join(errs...)
}

// notifyConnect has Connect look at the paths again.
func (cl *Client) notifyConnect() {
	select {
	case cl.news <- struct{}{}:
	default:
	}
}

// run keeps the path up until it is removed or the client is closed. The first attempt ends
// by the deadline of ctx.
func (t *Path) run(ctx context.Context) {
	defer close(t.done)
	cl := t.cl
	backoff := time.Duration(0)
	due, cancel := t.ctx, context.CancelFunc(func() {})
	if deadline, ok := ctx.Deadline(); ok {
		due, cancel = context.WithDeadline(t.ctx, deadline)
	}
	defer cancel()
	for t.waitForAttempt(backoff) {
		backoff = max(reconnectMin, min(2*backoff, reconnectMax))
		up, err := t.establish(due)
		due = t.ctx
		if err != nil {
			t.noteFailure(err)
			continue
		}
		cl.log.Info("path up", "session", cl.cfg.Name, "path", t.cfg.Name, "incarnation", up.inc)
		began := time.Now()
		up.watch()
		ended := t.ctx.Err() != nil || t.isOff()
		up.fail(ErrClosed)
		up.end(ended)
		if !ended {
			cl.log.Warn("path lost", "session", cl.cfg.Name, "path", t.cfg.Name, "error", up.err)
		}
		if up.useful.Load() || time.Since(began) > reconnectMax {
			backoff = reconnectMin
		}
	}
}

// waitForAttempt waits for the time of the next attempt, and as long as the path is disconnected, or
// has been given up. It returns false if the path is to end.
func (t *Path) waitForAttempt(d time.Duration) bool {
	due := time.After(d)
	for {
		again, rests := t.attemptDue()
		switch {
		case again:
			return true
		case rests:
			due = nil
		}
		select {
		case <-due:
			return true
		case <-t.poke:
		case <-t.ctx.Done():
			return false
		}
	}
}

// attemptDue reports whether an attempt is wanted at once, or none for now.
func (t *Path) attemptDue() (again, rests bool) {
	cl := t.cl
	cl.mu.Lock()
	defer cl.mu.Unlock()
	switch {
	case t.again:
		t.again, t.tries = false, 0
		t.setStateLocked(PathConnecting)
		return true, false
	case t.off:
		t.setStateLocked(PathDisconnected)
		return false, true
	case cl.attempts > 0 && t.tries >= cl.attempts:
		if t.state != PathGivenUp {
			cl.log.Warn("path given up until somebody reconnects it", "session", cl.cfg.Name, "path", t.cfg.Name, "attempts", t.tries, "error", t.lastErr)
		}
		t.setStateLocked(PathGivenUp)
		return false, true
	}
	return false, false
}

func (t *Path) setStateLocked(s PathState) {
	if t.state != s {
		t.state, t.since = s, time.Now()
	}
}

// SetReconnectAttempts changes ClientConfig.ReconnectAttempts. A path that has been given up
// is tried again.
func (cl *Client) SetReconnectAttempts(n int) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	cl.attempts = n
	for _, t := range cl.paths {
		if t.state == PathGivenUp {
			t.again = true
			t.wake()
		}
	}
}

// pathDown takes the path out of use. It is called once for each incarnation.
func (cl *Client) pathDown(t *clientPath, err error) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	close(t.failed)
	up := slices.DeleteFunc(slices.Clone(*cl.up.Load()), func(o *clientPath) bool { return o == t })
	cl.up.Store(&up)
	if cl.ctlPath == t {
		if cl.ctlPath = nil; len(up) > 0 {
			cl.ctlPath = up[0]
		} else if !cl.closing {
			cl.ctlUp = make(chan struct{})
		}
	}
	now := time.Now()
	if cl.state == Connected && len(up) == 0 && !cl.closing {
		cl.state, cl.since = Reconnecting, now
	}
	if t.path.current == t {
		t.path.lastErr = err
		if t.path.state == PathConnected {
			t.path.state, t.path.since = PathReconnecting, now
		}
	}
	cl.noteOutageLocked()
}

// end ends an incarnation: its I/O goes on by other paths, its connections end, and its
// chunks are free.
func (t *clientPath) end(graceful bool) {
	if graceful && t.cl.ctx.Err() != nil {
		for _, c := range t.conns { // the server loses the path with the first that ends
			if c.qp != nil {
				c.postImm(makeImm(immBye, 0), false)
			}
		}
	}
	t.shut()
	t.cl.failOver(t)
	t.shutdown(graceful)
	t.path.freeChunks()
	t.cl.mu.Lock()
	if t.path.current == t {
		t.path.current = nil
	}
	t.cl.mu.Unlock()
	t.cl.startParked()
}

// failOver has the I/O that is in flight on t go on by other paths, in the order of its
// posting, or wait for one. It takes another path's memory then: t may still send from its
// own, or have the server write to it. Control requests end, unless t still takes others: by
// another path they could overtake one another.
func (cl *Client) failOver(t *clientPath) {
	var ended []*Permit
	cl.mu.Lock()
	for _, p := range cl.permits {
		switch {
		case p.state.CompareAndSwap(t.flying(permitFlying), permitMoved):
			t.path.moved.Add(1)
			cl.parked = append(cl.parked, p)
		case p.state.CompareAndSwap(t.flying(permitSettle), permitParked):
			if p.control {
				ended = append(ended, p)
			} else {
				cl.parked = append(cl.parked, p)
			}
		case cl.ctlPath != t && p.state.CompareAndSwap(t.flying(permitControl), permitIdle):
			ended = append(ended, p)
		}
	}
	cl.orderLocked()
	cl.mu.Unlock()
	for _, p := range ended {
		cl.voidControl(p, t)
	}
	cl.startParked()
}

// startParked sends what waits for a path, as far as paths can take it, or has it fail if it
// is to wait no more.
func (cl *Client) startParked() {
	cl.failParked()
	for {
		cl.mu.Lock()
		i := slices.IndexFunc(cl.parked, func(p *Permit) bool { return cl.choosePath(p) != nil })
		if i < 0 || cl.closing {
			cl.mu.Unlock()
			cl.Flush()
			return
		}
		p := cl.parked[i]
		cl.parked = slices.Delete(cl.parked, i, i+1)
		cl.mu.Unlock()
		if !cl.endForgotten(p) {
			cl.start(p, true)
		}
	}
}

// hasOther reports whether there is another path than t whose security association is
// there.
func (cl *Client) hasOther(t *clientPath) bool {
	return slices.ContainsFunc(*cl.up.Load(), func(o *clientPath) bool { return o != t && !o.avoided.Load() })
}

// resumeIO sends the parked I/O in the order of its posting, then opens t for new I/O.
func (cl *Client) resumeIO(t *clientPath) error {
	for {
		cl.mu.Lock()
		if len(cl.parked) == 0 || cl.closing {
			if t.isDown() {
				cl.mu.Unlock()
				return t.err
			}
			up := append(slices.Clone(*cl.up.Load()), t)
			cl.up.Store(&up)
			now := time.Now()
			if cl.state != Connected {
				cl.state, cl.since = Connected, now
			}
			p := t.path
			p.state, p.since, p.lastErr = PathConnected, now, nil
			if p.wasUp {
				p.reconnects++
			}
			p.wasUp, p.again, p.tries = true, false, 0
			cl.noteOutageLocked()
			for _, o := range up {
				o.path.wake() // it has another beside it now
			}
			cl.mu.Unlock()
			cl.notifyConnect()
			t.flush()
			return nil
		}
		p := cl.unparkLocked()
		cl.mu.Unlock()
		if cl.endForgotten(p) || cl.suspendIO(p) {
			continue
		}
		if !t.post(p, true) {
			cl.mu.Lock()
			cl.parked = slices.Insert(cl.parked, 0, p)
			cl.mu.Unlock()
			<-t.failed
			return t.err
		}
	}
}

// endForgotten ends an I/O that is from before the session was introduced to the server,
// and that OnResend refuses.
func (cl *Client) endForgotten(p *Permit) bool {
	return p.greeting != cl.greetings.Load() && !p.unsettled && cl.endRefused(p)
}

// endRefused ends an I/O that OnResend refuses.
func (cl *Client) endRefused(p *Permit) bool {
	if now := cl.greetings.Load(); p.greeting != now {
		p.greeting, p.inDoubt, p.sent = now, p.inDoubt || p.tried, false
		p.state.Store(permitParked)
	}
	if cl.cfg.OnResend == nil {
		return false
	}
	errno := cl.cfg.OnResend(p)
	if errno == 0 {
		return false
	}
	p.state.Store(permitIdle)
	p.finish(errno)
	cl.EndBatch()
	return true
}

// suspendIO holds back a parked I/O if its share is suspended.
func (cl *Client) suspendIO(p *Permit) bool {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if !p.isSuspended() || cl.closing {
		return false
	}
	cl.suspended = inOrder(cl.suspended, p)
	return true
}

// finishParked ends all I/O when the client is closed.
func (cl *Client) finishParked() {
	cl.mu.Lock()
	ps := slices.Concat(cl.parked, cl.suspended)
	cl.parked, cl.suspended = nil, nil
	cl.mu.Unlock()
	for _, p := range ps {
		p.state.Store(permitIdle)
		p.finish(syscall.ESHUTDOWN)
	}
	cl.EndBatch()
}

func (t *Path) noteFailure(err error) {
	cl := t.cl
	cl.mu.Lock()
	changed := cl.began && (t.lastErr == nil || t.lastErr.Error() != err.Error())
	if cl.began || t.lastErr == nil || !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
		t.lastErr = err
	}
	t.failures++
	if cl.began {
		t.tries++
	}
	cl.mu.Unlock()
	cl.notifyConnect()
	if changed && t.ctx.Err() == nil {
		t.cl.log.Warn("cannot reach the server, trying again", "session", t.cl.cfg.Name, "path", t.cfg.Name, "error", err)
	}
}
