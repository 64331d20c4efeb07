package nbd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/internal/sockio"
)

// errSlow means that the client has not sent the rest of a payload in time.
var errSlow = errors.New("the client is slow")

// getWriteIO obtains the I/O of a write, with its payload in it. An I/O of the device waits
// for the client no longer than clientTime: it is released while a late payload is
// awaited. Only the connection's end is an error.
func (c *conn) getWriteIO(s *slot, off uint64, n uint32) (syscall.Errno, error) {
	if n <= smallWrite && c.w-c.r < int(n) {
		c.kick()
		c.flush()
		if err := c.receiveAtLeast(int(n)); err != nil {
			return 0, payloadError(err)
		}
	}
	errno, err := c.getIO(s, off, n)
	if err != nil {
		return 0, err
	}
	if errno != 0 {
		return errno, c.discard(int(n))
	}
	got, err := c.readPayload(s.io.Buffers())
	if err == nil {
		return 0, nil
	}
	if err == errSlow {
		c.stagePayload(s.io.Buffers(), got, int(n))
	}
	s.io.Release()
	s.io = nil
	s.since.Store(0)
	if err != errSlow {
		return 0, payloadError(err)
	}
	if err := c.readStage(got); err != nil {
		return 0, payloadError(err)
	}
	if errno, err = c.getIO(s, off, n); errno != 0 || err != nil {
		return errno, err
	}
	rest := c.stage
	for _, b := range s.io.Buffers() {
		rest = rest[copy(b, rest):]
	}
	return 0, nil
}

func payloadError(err error) error {
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read a write's payload: %w", err)
}

// readPayload fills bufs from the stream: what is in the receive buffer is copied, the rest
// is read directly into bufs, together with what follows into the receive buffer. With
// errSlow, got bytes have arrived in time.
func (c *conn) readPayload(bufs [][]byte) (got int, err error) {
	i, off := 0, 0 // bufs[i][off:] is next
	for ; i < len(bufs); i, off = i+1, 0 {
		n := copy(bufs[i], c.buf[c.r:c.w])
		c.r += n
		got += n
		if n < len(bufs[i]) {
			off = n
			break
		}
	}
	waiting := false
	for err == nil && i < len(bufs) {
		c.kick()
		c.r, c.w = 0, 0
		c.vec = append(append(c.vec[:0], bufs[i][off:]), bufs[i+1:]...)
		c.vec = append(c.vec, c.buf)
		c.fresh = true
		var n int
		if n, err = c.rd.TryReadv(c.vec); err == sockio.ErrWouldBlock {
			if c.dirty.Load() {
				c.flush()
			}
			if !waiting {
				waiting = true
				c.setReadDeadline(clientDeadline())
			}
			if n, err = c.rd.ReadvOrWait(c.vec, nothing); err == sockio.ErrWouldBlock {
				err = nil
			}
		}
		for i < len(bufs) && n >= len(bufs[i])-off {
			got += len(bufs[i]) - off
			n -= len(bufs[i]) - off
			i, off = i+1, 0
		}
		if i < len(bufs) {
			off += n
			got += n
		} else {
			c.w = n
		}
	}
	clear(c.vec)
	if waiting {
		c.setReadDeadline(time.Time{})
		if errors.Is(err, os.ErrDeadlineExceeded) && c.ctx.Err() == nil {
			err = errSlow
		}
	}
	return got, err
}

// stagePayload keeps the first got bytes of a payload of n bytes.
func (c *conn) stagePayload(bufs [][]byte, got, n int) {
	if cap(c.stage) < n {
		c.stage = make([]byte, n)
	}
	c.stage = c.stage[:n]
	for p := c.stage[:got]; len(p) > 0; bufs = bufs[1:] {
		p = p[copy(p, bufs[0]):]
	}
}

// readStage waits for the rest of a payload that was set aside.
func (c *conn) readStage(got int) error {
	c.kick()
	c.flush()
	_, err := io.ReadFull(c.nc, c.stage[got:])
	c.fresh = true
	return err
}

// submitInPieces handles a request that is longer than what the device gets at a time: each
// piece of a write is given to it when it has arrived, while the next is received.
func (c *conn) submitInPieces(s *slot, size uint32) error {
	s.left.Store(1)
	s.failed.Store(0)
	var err error
	for done, n := uint64(0), uint32(0); done < s.req.length && err == nil; done += uint64(n) {
		n = uint32(min(s.req.length-done, uint64(size)))
		switch {
		case s.failed.Load() == 0:
			err = c.submitPiece(s, s.req.offset+done, n)
		case s.req.payload:
			err = c.discard(int(n))
		}
	}
	if err != nil {
		s.failed.CompareAndSwap(0, uint32(syscall.EIO))
	}
	s.pieceDone()
	return err
}

func (c *conn) submitPiece(parent *slot, off uint64, n uint32) error {
	s, err := c.takeSlot()
	if err != nil {
		return err
	}
	s.op, s.fl, s.req = parent.op, parent.fl, request{offset: off, length: uint64(n)}
	get := c.getIO
	if s.op == block.OpWrite {
		get = c.getWriteIO
	}
	errno, err := get(s, off, n)
	if errno != 0 || err != nil {
		parent.failed.CompareAndSwap(0, uint32(errno))
		c.giveBack(s)
		return err
	}
	s.parent = parent
	parent.left.Add(1)
	if err := c.submit(s); err != nil {
		s.parent = nil
		parent.left.Add(-1)
		return err
	}
	return nil
}

// pieceDone records that a piece of a large request has ended, or that all are submitted.
func (s *slot) pieceDone() {
	if s.left.Add(-1) == 0 {
		s.queueReply(syscall.Errno(s.failed.Load()))
	}
}
