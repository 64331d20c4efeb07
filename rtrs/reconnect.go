package rtrs

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"syscall"
	"time"
)

// first establishes the session's first path.
func (cl *Client) first(ctx context.Context) (*clientPath, error) {
	backoff := reconnectMin
	var before error // why the last attempt failed
	for {
		var errs []error
		retry := false
		for _, pc := range cl.cfg.Paths {
			path, err := cl.establish(ctx, pc)
			if err == nil {
				return path, nil
			}
			errs = append(errs, err)
			var refused *RefusedError
			retry = retry || errors.As(err, &refused) && refused.Temporary()
		}
		err := errors.Join(errs...)
		if ctx.Err() != nil && before != nil {
			return nil, errors.Join(before, ctx.Err()) // the timeout alone says less
		}
		before = err
		if !retry {
			return nil, err
		}
		if !sleep(ctx, backoff) {
			return nil, err
		}
		backoff = min(2*backoff, reconnectMax)
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// run keeps a path up until the client is closed.
func (cl *Client) run(ctx context.Context, path *clientPath) {
	defer close(cl.done)
	backoff := reconnectMin
	for next := 0; ; {
		if path != nil {
			up := time.Now()
			path.watch(ctx)
			closed := ctx.Err() != nil
			path.fail(ErrClosed)
			path.shutdown(closed)
			cl.collect(path)
			if closed {
				break
			}
			cl.log.Warn("path lost", "session", cl.cfg.Name, "remote", cl.remoteAddr(), "error", path.err)
			if path.useful.Load() || time.Since(up) > reconnectMax {
				backoff = reconnectMin
			}
		}
		if !sleep(ctx, backoff) {
			break
		}
		backoff = min(2*backoff, reconnectMax)
		var err error
		path, err = cl.establish(ctx, cl.cfg.Paths[next%len(cl.cfg.Paths)])
		if err != nil {
			next++
			cl.noteFailure(err)
			continue
		}
		cl.log.Info("path up again", "session", cl.cfg.Name, "remote", cl.remoteAddr(), "incarnation", path.inc)
	}
	cl.finishParked()
}

// pathDown takes the path out of use. It is called once for each path.
func (cl *Client) pathDown(t *clientPath, err error) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	cl.path.CompareAndSwap(t, nil)
	if cl.ctlPath == t {
		cl.ctlPath, cl.ctlUp = nil, make(chan struct{})
	}
	if cl.state == Connected && !cl.closing {
		cl.state, cl.since = Reconnecting, time.Now()
	}
	if cl.current == t {
		cl.lastErr = err
	}
}

// collect parks the I/O that was in flight on t, which has been shut down.
func (cl *Client) collect(t *clientPath) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.current == t {
		cl.current = nil
	}
	for _, p := range cl.permits {
		was, now := p.state.Load(), uint64(permitParked)
		if was&0xff != permitFlying {
			continue
		}
		_, isControl := p.done.(*controlRequest)
		if isControl {
			now = permitIdle
		}
		if !p.state.CompareAndSwap(was, now) {
			continue
		}
		p.closeWindow()
		if isControl {
			p.finish(syscall.ENOTCONN)
			continue
		}
		cl.parked = append(cl.parked, p)
	}
	cl.orderLocked()
}

// resume sends the parked I/O in the order of its posting, then opens t for new I/O.
func (cl *Client) resume(t *clientPath) error {
	for {
		cl.mu.Lock()
		if len(cl.parked) == 0 || cl.closing {
			select {
			case <-t.failed:
				cl.mu.Unlock()
				return t.err
			default:
			}
			cl.path.Store(t)
			cl.state, cl.since, cl.lastErr = Connected, time.Now(), nil
			if cl.wasUp {
				cl.reconnects++
			}
			cl.wasUp = true
			cl.mu.Unlock()
			t.flush()
			return nil
		}
		p := cl.unparkLocked()
		cl.mu.Unlock()
		if cl.endRefused(p) || cl.suspend(p) {
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

// endRefused ends an I/O that OnResend refuses.
func (cl *Client) endRefused(p *Permit) bool {
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

// suspend holds back a parked I/O if its share is suspended. Its execution on the
// previous path is over.
func (cl *Client) suspend(p *Permit) bool {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if !p.waits() || cl.closing {
		return false
	}
	p.sent = false
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

func (cl *Client) noteFailure(err error) {
	cl.mu.Lock()
	changed := cl.lastErr == nil || cl.lastErr.Error() != err.Error()
	cl.lastErr = err
	cl.mu.Unlock()
	if changed {
		cl.log.Warn("cannot reach the server, trying again", "session", cl.cfg.Name, "error", err)
	}
}

func (cl *Client) remoteAddr() netip.AddrPort {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	return cl.remote
}
