package rtrs

import (
	"context"
	"fmt"
	"sync"
	"syscall"
)

// control is the permit reserved for control requests.
type control struct {
	permit *Permit
	free   chan struct{}      // capacity 1: a token, the right to use permit
	result chan syscall.Errno // capacity 1

	mu        sync.Mutex // guards the fields below it
	abandoned bool
}

func newControl(p *Permit) *control {
	c := &control{permit: p, free: make(chan struct{}, 1), result: make(chan syscall.Errno, 1)}
	c.free <- struct{}{}
	return c
}

// Complete implements Completion.
func (c *control) Complete(_ *Permit, errno syscall.Errno) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.abandoned {
		c.abandoned = false
		c.free <- struct{}{}
		return
	}
	c.result <- errno
}

// Control sends one request with the given user header, outside the queue depth, and
// copies its answer, len(answer) bytes, from the server. It waits for a path, but the
// request is not resent when the path is lost (ErrPathLost). It fails with the server's
// errno as a syscall.Errno.
func (cl *Client) Control(ctx context.Context, header, answer []byte) error {
	if len(answer) > cl.maxIO || len(header) > MaxHeader {
		return fmt.Errorf("rtrs: control request with %d bytes of header and %d of answer: %w", len(header), len(answer), syscall.EINVAL)
	}
	c := cl.control
	select {
	case <-c.free:
	case <-ctx.Done():
		return ctx.Err()
	}
	path, err := cl.controlPath(ctx)
	if err != nil {
		c.free <- struct{}{}
		return err
	}
	p := c.permit
	p.dir, p.n, p.hlen, p.done = Read, uint32(len(answer)), copy(p.hdr[:MaxHeader], header), c
	if !path.post(p, false) {
		c.free <- struct{}{}
		return ErrPathLost
	}
	var errno syscall.Errno
	select {
	case errno = <-c.result:
	case <-ctx.Done():
		c.mu.Lock()
		select {
		case errno = <-c.result:
			c.mu.Unlock()
		default:
			c.abandoned = true
			c.mu.Unlock()
			return ctx.Err()
		}
	}
	copy(answer, p.buf)
	c.free <- struct{}{}
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
