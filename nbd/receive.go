package nbd

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/ironwarp/ironwarp/block"
)

// receive reads requests and submits them until the client disconnects or
// the stream can't be parsed any further.
func (c *conn) receive() error {
	for {
		for c.w-c.r >= c.requestLen() {
			req, err := c.parseRequest(c.buf[c.r:c.w])
			if err != nil {
				return fmt.Errorf("request: %w", err)
			}
			c.r += c.requestLen()
			if err := c.handleRequest(&req); err != nil {
				return err
			}
		}
		// All that came in one read was submitted and leaves at once; what
		// completed meanwhile on this goroutine is answered in one write.
		c.kick()
		if c.dirty.Load() {
			c.flush()
		}
		if err := c.awaitRequest(); err != nil {
			return err
		}
	}
}

// handleRequest handles one request, whose payload, if any, is the next to be read.
// An error ends the connection.
func (c *conn) handleRequest(req *request) error {
	switch {
	case req.typ == cmdDisc:
		return errDisconnect
	case c.extended && req.payload && req.length > maxPayload:
		return fmt.Errorf("a payload of %d bytes", req.length)
	}
	s, err := c.takeSlot()
	if err != nil {
		return err
	}
	if c.isDone() {
		c.giveBack(s)
		c.r -= c.requestLen() // it is not begun
		return errCut
	}
	s.req = *req
	var errno syscall.Errno
	s.op, s.fl, errno = c.geo.translate(req, c.size.Load(), c.features)
	n := uint32(min(req.length, maxRange))
	switch {
	case errno != 0 && req.payload:
		// To stay in step the payload of a refused request is read all the same.
		err = c.discard(int(req.length))
	case errno != 0:
	case s.op.HasData() && n == 0:
		s.queueReply(0)
		return nil
	case s.op == block.OpWrite && n > min(c.geo.MaxIO, maxWritePiece):
		return c.submitInPieces(s, min(c.geo.MaxIO, maxWritePiece))
	case s.op.Writes() && req.length > maxRange:
		return c.submitInPieces(s, maxRange)
	case s.op == block.OpRead && n > c.geo.MaxIO:
		return c.largeRead(s)
	case s.op == block.OpWrite:
		errno, err = c.getWriteIO(s, req.offset, n)
	default:
		errno, err = c.getIO(s, req.offset, n)
	}
	if err != nil {
		c.giveBack(s)
		return err
	}
	if errno != 0 {
		s.queueReply(errno)
		return nil
	}
	return c.submit(s)
}

// submit starts an I/O that is complete. An error ends the connection.
func (c *conn) submit(s *slot) error {
	if !c.beginIO() {
		s.io.Release()
		c.giveBack(s)
		return errGone
	}
	more := c.w-c.r >= c.requestLen() // the next request is here already
	c.held = c.held || more
	s.io.Submit(s, more)
	return nil
}

// kick starts the I/Os that were submitted in expectation of more.
func (c *conn) kick() {
	if c.held {
		c.held = false
		c.device.Kick()
	}
}

// getIO obtains the I/O of s, once it may begin. Only the connection's end is an error.
func (c *conn) getIO(s *slot, off uint64, n uint32) (syscall.Errno, error) {
	if c.fresh {
		c.abandonHungUp()
	}
	s.since.Store(clock())
	if c.exp.orphans.Load() > 0 {
		if err := c.awaitOrphans(); err != nil {
			return 0, err
		}
	}
	b := c.device
	io, err := b.TryGet(s.op, off, n, s.fl)
	if err == block.ErrBusy {
		c.kick()
		c.flush() // our own unsent replies may hold what it waits for
		io, err = b.Get(c.ctx, s.op, off, n, s.fl)
	}
	if err == nil {
		s.io = io
		return 0, nil
	}
	s.since.Store(0)
	if err := c.stopCause(); err != nil {
		return 0, err
	}
	var errno syscall.Errno
	if !errors.As(err, &errno) || errno == 0 {
		errno = syscall.EIO
	}
	return errno, nil
}

// largeRead handles a read longer than one I/O of the device. Clients that heed the
// advertised maximum send none, so it goes piece by piece: it has to be correct, not fast,
// and holds one I/O at a time.
func (c *conn) largeRead(s *slot) error {
	c.kick()
	c.flush() // an earlier large read's reply may hold the place
	select {
	case c.srv.large <- struct{}{}:
	case <-c.ctx.Done():
		c.giveBack(s)
		return c.stopCause()
	}
	s.large = make([]byte, s.req.length)
	for done := uint64(0); done < s.req.length; {
		n := min(s.req.length-done, uint64(c.geo.MaxIO))
		errno, err := c.readPiece(s, s.req.offset+done, s.large[done:done+n])
		if err != nil {
			c.releaseLarge(s)
			c.giveBack(s)
			return err
		}
		if errno != 0 {
			c.releaseLarge(s)
			s.queueReply(errno)
			return nil
		}
		done += n
	}
	s.queueReply(0)
	return nil
}

// readPiece reads a part of a large read and waits for it.
func (c *conn) readPiece(parent *slot, off uint64, into []byte) (syscall.Errno, error) {
	s, err := c.takeSlot()
	if err != nil {
		return 0, err
	}
	s.op, s.fl, s.waited, s.done, s.abandoned = parent.op, parent.fl, true, false, false
	s.req = request{offset: off, length: uint64(len(into))}
	errno, err := c.getIO(s, off, uint32(len(into)))
	if err != nil || errno != 0 {
		c.giveBack(s)
		return errno, err
	}
	if err := c.submit(s); err != nil {
		return 0, err
	}
	c.kick()
	c.flush()
	c.mu.Lock()
	for !s.done && !c.cut {
		c.change.Wait()
	}
	s.abandoned = !s.done // then Complete releases it
	c.mu.Unlock()
	if s.abandoned {
		return 0, errCut
	}
	if s.errno == 0 {
		for _, b := range s.io.Buffers() {
			into = into[copy(into, b):]
		}
	}
	errno = syscall.Errno(s.errno)
	s.io.Release()
	c.giveBack(s)
	return errno, nil
}

func (c *conn) releaseLarge(s *slot) {
	if s.large != nil {
		s.large = nil
		<-c.srv.large
	}
}
