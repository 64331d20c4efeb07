package nbd

import (
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/ironwarp/ironwarp/internal/sockio"
)

// receive reads requests and submits them until the client disconnects or
// nothing more can be understood.
func (c *conn) receive() error {
	for {
		for c.w-c.r >= requestLen {
			req, err := parseRequest(c.buf[c.r:])
			if err != nil {
				return fmt.Errorf("request: %w", err)
			}
			c.r += requestLen
			if err := c.request(&req); err != nil {
				return err
			}
		}
		// All that came in one read was submitted and leaves at once; what
		// completed meanwhile on this goroutine is answered in one write.
		c.kick()
		if c.dirty.Load() {
			c.flush()
		}
		if err := c.fill(requestLen); err != nil {
			return err
		}
	}
}

// request handles one request, whose payload, if any, is the next to be read.
// An error ends the connection.
func (c *conn) request(req *request) error {
	if req.typ == cmdDisc {
		return errDisconnect
	}
	s, err := c.take()
	if err != nil {
		return err
	}
	s.req = *req
	var errno syscall.Errno
	s.op, s.fl, errno = c.geo.check(req, c.structured)
	if errno == 0 && (s.op == OpRead || s.op == OpWrite) {
		switch {
		case req.length == 0:
			s.complete(0)
			return nil
		case req.length > c.geo.MaxIO:
			return c.large(s)
		}
	}
	if errno == 0 {
		errno, err = c.get(s, req.offset, req.length)
		if err != nil {
			c.giveBack(s)
			return err
		}
	}
	if errno != 0 {
		if req.typ == cmdWrite {
			// To stay in step the payload of a refused write is read all the same.
			err = c.skip(int(req.length))
		}
		s.complete(errno)
		return err
	}
	if s.op == OpWrite {
		if err := c.payload(s.io.Buffers()); err != nil {
			c.letGo(s)
			return err
		}
	}
	if !c.begin() {
		c.letGo(s)
		return errGone
	}
	more := c.w-c.r >= requestLen // the next request is here already
	c.held = c.held || more
	s.io.Submit(s, more)
	return nil
}

// kick starts the I/Os that were submitted in expectation of more.
func (c *conn) kick() {
	if c.held {
		c.held = false
		c.backend.Kick()
	}
}

// letGo gives an I/O that was not submitted back, with its slot.
func (c *conn) letGo(s *slot) {
	s.io.Release()
	c.giveBack(s)
}

// get obtains the I/O of s, when it may begin. Only the connection's end is an error.
func (c *conn) get(s *slot, off uint64, n uint32) (syscall.Errno, error) {
	if c.fresh {
		c.look()
	}
	if c.exp.orphans.Load() > 0 {
		if err := c.await(); err != nil {
			return 0, err
		}
	}
	b := c.backend
	io, err := b.TryGet(s.op, off, n, s.fl)
	if err == ErrBusy {
		c.kick()
		c.flush() // our own unsent replies may hold what it waits for
		io, err = b.Get(c.ctx, s.op, off, n, s.fl)
	}
	if err == nil {
		s.io = io
		return 0, nil
	}
	if err := c.cause(); err != nil {
		return 0, err
	}
	var errno syscall.Errno
	if !errors.As(err, &errno) || errno == 0 {
		errno = syscall.EIO
	}
	return errno, nil
}

// payload fills bufs from the stream: what is in the receive buffer is copied,
// the rest is read straight into bufs, and with it what follows into the
// receive buffer.
func (c *conn) payload(bufs [][]byte) error {
	i, off := 0, 0 // bufs[i][off:] is next
	for ; i < len(bufs); i, off = i+1, 0 {
		n := copy(bufs[i], c.buf[c.r:c.w])
		c.r += n
		if n < len(bufs[i]) {
			off = n
			break
		}
	}
	for i < len(bufs) {
		c.kick()
		c.r, c.w = 0, 0
		c.vec = append(append(c.vec[:0], bufs[i][off:]), bufs[i+1:]...)
		c.vec = append(c.vec, c.buf)
		c.fresh = true
		n, err := c.rd.TryReadv(c.vec)
		if err == sockio.ErrWouldBlock {
			if c.dirty.Load() {
				c.flush()
			}
			if n, err = c.nc.Read(bufs[i][off:]); n > 0 {
				err = nil
			}
		}
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return fmt.Errorf("read a write's payload: %w", err)
		}
		for i < len(bufs) && n >= len(bufs[i])-off {
			n -= len(bufs[i]) - off
			i, off = i+1, 0
		}
		if i < len(bufs) {
			off += n
		} else {
			c.w = n
		}
	}
	clear(c.vec)
	return nil
}

// large handles a read or write longer than one I/O of the backend. Clients
// that heed the advertised maximum send none, so it goes piece by piece: what
// matters is that it is right, and that it holds one I/O at a time.
func (c *conn) large(s *slot) error {
	var failed syscall.Errno
	if s.op == OpRead {
		c.kick()
		c.flush() // an earlier large read's reply may hold the place
		select {
		case c.srv.large <- struct{}{}:
		case <-c.ctx.Done():
			c.giveBack(s)
			return c.cause()
		}
		s.large = make([]byte, s.req.length)
	}
	for done := uint32(0); done < s.req.length; {
		n := min(s.req.length-done, c.geo.MaxIO)
		errno, err := c.piece(s, s.req.offset+uint64(done), n, done, failed)
		if err != nil {
			c.dropLarge(s)
			c.giveBack(s)
			return err
		}
		if failed == 0 {
			failed = errno
		}
		if failed != 0 && s.op == OpRead {
			break
		}
		done += n
	}
	if failed != 0 {
		c.dropLarge(s)
	}
	s.complete(failed)
	return nil
}

// piece does n bytes at off of a large request and waits for them. After a
// failure it only skips a write's payload.
func (c *conn) piece(parent *slot, off uint64, n, done uint32, failed syscall.Errno) (syscall.Errno, error) {
	if failed != 0 {
		return failed, c.skip(int(n))
	}
	s, err := c.take()
	if err != nil {
		return 0, err
	}
	s.op, s.fl, s.waited, s.done, s.left = parent.op, parent.fl, true, false, false
	s.req = request{offset: off, length: n}
	errno, err := c.get(s, off, n)
	if err != nil || errno != 0 {
		c.giveBack(s)
		if err == nil && parent.op == OpWrite {
			err = c.skip(int(n))
		}
		return errno, err
	}
	if s.op == OpWrite {
		if err := c.payload(s.io.Buffers()); err != nil {
			c.letGo(s)
			return 0, err
		}
	}
	if !c.begin() {
		c.letGo(s)
		return 0, errGone
	}
	s.io.Submit(s, false)
	c.kick()
	c.flush()
	c.mu.Lock()
	for !s.done && !c.cut {
		c.change.Wait()
	}
	s.left = !s.done // then Complete lets go of it
	c.mu.Unlock()
	if s.left {
		return 0, errCut
	}
	if s.op == OpRead && s.errno == 0 {
		p := parent.large[done:done]
		for _, b := range s.io.Buffers() {
			p = append(p, b...)
		}
	}
	errno = syscall.Errno(s.errno)
	s.io.Release()
	c.giveBack(s)
	return errno, nil
}

func (c *conn) dropLarge(s *slot) {
	if s.large != nil {
		s.large = nil
		<-c.srv.large
	}
}
