package rtrs

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"
)

// controls are the permits of control requests: one of their own, so that a client can
// open and close things while all others are in use, and others that the pool can spare,
// so that many requests go at once. All are of one connection: the server receives the
// requests in the order in which they are sent, a CLOSE never before its OPEN.
type controls struct {
	cl *Client

	mu       sync.Mutex // guards the fields below it; taken before the pool's
	own      *Permit    // nil while it is in use
	borrowed int
	waiters  []chan *Permit // of capacity 1, in the order of their calls
}

// get returns a permit for a request by a path. It waits until one is free, and fails with
// ctx's error.
func (c *controls) get(ctx context.Context, path *clientPath) (*Permit, error) {
	c.mu.Lock()
	if p := c.freeLocked(path); p != nil {
		c.mu.Unlock()
		return p, nil
	}
	w := make(chan *Permit, 1)
	c.waiters = append(c.waiters, w)
	c.mu.Unlock()
	select {
	case p := <-w:
		return p, nil
	case <-ctx.Done():
	}
	c.mu.Lock()
	i := slices.Index(c.waiters, w)
	if i >= 0 {
		c.waiters = slices.Delete(c.waiters, i, i+1)
	}
	c.mu.Unlock()
	if i < 0 {
		c.put(<-w)
	}
	return nil, ctx.Err()
}

func (c *controls) freeLocked(path *clientPath) (p *Permit) {
	p, c.own = c.own, nil
	switch {
	case p != nil:
		c.cl.pool.lend(1)
	case c.borrowed < maxBorrowed:
		conns := c.cl.cfg.Conns
		if p = c.cl.pool.borrow(func(p *Permit) bool { return p.id%conns == c.cl.depth%conns && path.hasRoom(p) }); p != nil {
			c.borrowed++
		}
	}
	return p
}

// hasRoom reports whether a path can take p's request. The chunk of one that has gone on by
// another path is the server's until it answers, and the permit may long be another's.
func (t *clientPath) hasRoom(p *Permit) bool { return !t.path.chunks[p.id].busy.Load() }

// put returns a permit: to who waits longest, or to where it is from.
func (c *controls) put(p *Permit) {
	c.cl.mu.Lock()
	path := c.cl.ctlPath
	c.cl.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	p.control = false
	switch {
	case len(c.waiters) > 0 && (path == nil || p.id == c.cl.depth || path.hasRoom(p)):
		c.waiters[0] <- p
		c.waiters = c.waiters[1:]
	case p.id == c.cl.depth:
		p.moveTo(nil)
		c.own = p
		if c.cl.pool.lend(-1) {
			c.cl.freeMemoryOnce()
		}
	default:
		c.borrowed--
		c.cl.Put(p)
	}
}

// controlRequest is a control request in flight, and who waits for its answer.
type controlRequest struct {
	of     *controls
	result chan syscall.Errno // capacity 1

	mu     sync.Mutex // guards the fields below it
	answer []byte     // nil if nobody waits any more
}

// Complete implements Completion. The answer is copied here, while the permit's memory is
// there for certain.
func (r *controlRequest) Complete(p *Permit, errno syscall.Errno) {
	r.mu.Lock()
	if errno == 0 {
		copy(r.answer, p.Buffer())
	}
	r.mu.Unlock()
	r.of.put(p) // whoever has the answer finds the queue as it was
	r.result <- errno
}

// Control sends one request with the given user header, and copies its answer, len(answer)
// bytes, from the server. Many go at once if the queue has room, and one at least if it has
// none. It waits for a path, but the request is not resent when the path is lost, or avoided
// while there is another (ErrPathLost); if there is another, it is not carried out later either.
// It fails with the server's errno as a syscall.Errno.
func (cl *Client) Control(ctx context.Context, header, answer []byte) error {
	if len(answer) > cl.maxIO || len(header) > MaxHeader {
		return fmt.Errorf("rtrs: control request with %d bytes of header and %d of answer: %w", len(header), len(answer), syscall.EINVAL)
	}
	path, err := cl.controlPath(ctx)
	if err != nil {
		return err
	}
	p, err := cl.controls.get(ctx, path)
	if err != nil {
		return err
	}
	if path, err = cl.controlPath(ctx); err != nil {
		cl.controls.put(p)
		return err
	}
	r := &controlRequest{of: cl.controls, result: make(chan syscall.Errno, 1), answer: answer}
	p.dir, p.n, p.hlen, p.done = Read, uint32(len(answer)), copy(p.hdr[:], header), r
	p.control = true
	p.turn++
	if !path.post(p, false) {
		cl.controls.put(p)
		if !path.isDown() { // it has no room yet
			select {
			case <-time.After(challengeTick):
			case <-ctx.Done():
			}
		}
		return ErrPathLost
	}
	select {
	case errno := <-r.result:
		return controlError(errno)
	case <-ctx.Done():
	}
	r.mu.Lock()
	r.answer = nil
	r.mu.Unlock()
	select {
	case errno := <-r.result:
		return controlError(errno)
	default:
		return ctx.Err()
	}
}

// voidControl ends a control request of a path that is lost, or waits for its security association. If
// there is another path, it first sends the slot's next number there, with nothing to do: then a
// server that gets the request late does not carry it out. By the path of control requests it
// comes before those that follow. If it is lost with that, and there is no other, the request is
// lost as well, with the path that may still hold it back.
func (cl *Client) voidControl(p *Permit, t *clientPath) {
	if !p.unsettled {
		p.dir, p.n, p.hlen, p.done, p.unsettled, p.holder = Write, 0, 0, voiding{p.done}, true, t
		p.turn++
	}
	cl.mu.Lock()
	by := cl.ctlPath
	cl.mu.Unlock()
	if by != nil && by != p.holder && !by.avoided.Load() && by.post(p, false) {
		return
	}
	p.holder.fail(errHeldBack)
	p.state.Store(permitIdle)
	p.finish(syscall.ENOTCONN)
}

// voiding is the Completion of a control request that is made void.
type voiding struct{ request Completion }

// Complete implements Completion.
func (v voiding) Complete(p *Permit, _ syscall.Errno) {
	p.unsettled, p.holder = false, nil
	v.request.Complete(p, syscall.ENOTCONN)
}

func controlError(errno syscall.Errno) error {
	switch errno {
	case 0:
		return nil
	case syscall.ENOTCONN:
		return ErrPathLost
	}
	return errno
}

// HasPath reports whether there is a path for control requests.
func (cl *Client) HasPath() bool {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	return cl.ctlPath != nil
}

// controlPath waits for a path.
func (cl *Client) controlPath(ctx context.Context) (*clientPath, error) {
	for {
		cl.mu.Lock()
		path, up, closing := cl.ctlPath, cl.ctlUp, cl.closing
		cl.mu.Unlock()
		switch {
		case closing:
			return nil, ErrClosed
		case path != nil:
			return path, nil
		}
		select {
		case <-up:
		case <-ctx.Done():
			return nil, fmt.Errorf("rtrs: no path to the server: %w", ctx.Err())
		}
	}
}
