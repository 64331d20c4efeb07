package mpa

import (
	"errors"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/internal/sockio"
)

// directAhead is how much is read behind the payload of a direct segment in
// the same system call: the next FPDU's header and whatever small FPDUs
// follow, yet little enough that a next large payload is not copied.
const directAhead = 16 << 10

var errNoDirectBuffer = errors.New("mpa: the sink gave an empty direct buffer")

// direct reads the payload of the segment at the head of the buffer straight
// into its place. seg is the part of its n bytes that is here. No CRC is in
// use. placed reports whether the sink wanted that.
func (c *Conn) direct(s ddp.Sink, seg []byte, n int) (placed bool, err error) {
	r := &c.rx
	hdrLen, ok, err := s.Direct(seg, n)
	if err != nil {
		return false, err
	}
	if !ok {
		r.refused = true
		return false, nil
	}
	here := seg[hdrLen:]
	rest := n - hdrLen
	for len(here) > 0 {
		b, err := s.DirectBuffer()
		if err != nil {
			return false, err
		}
		m := copy(b, here)
		if err := s.DirectDone(m); err != nil {
			return false, err
		}
		if m == 0 {
			return false, errNoDirectBuffer
		}
		here = here[m:]
		rest -= m
	}
	r.head, r.tail = 0, 0
	r.skip = padLen(n) + crcLen
	if rest > 0 {
		if err := c.piece(r.got); err != nil {
			return false, err
		}
	}
	for rest > 0 {
		m, err := c.readDirect(s, rest)
		if err != nil {
			return false, err
		}
		rest -= m
	}
	r.batch = true
	r.turn++
	return true, nil
}

// readDirect reads some of the rest bytes of a direct segment, and what
// follows them into the empty read buffer.
func (c *Conn) readDirect(s ddp.Sink, rest int) (int, error) {
	r := &c.rx
	for {
		c.makeRoom()
		b, err := s.DirectBuffer()
		if err != nil {
			return 0, err
		}
		b = b[:min(len(b), rest)]
		if len(b) == 0 {
			return 0, errors.Join(errNoDirectBuffer, s.DirectDone(0))
		}
		bufs := r.bufs[:1]
		bufs[0] = b
		if len(b) == rest {
			bufs = r.bufs[:2]
			bufs[1] = r.buf[:directAhead]
		}
		got, rerr := r.r.TryReadv(bufs)
		clear(bufs)
		placed := min(got, len(b))
		r.tail = got - placed
		if placed == rest && c.held.Load() {
			c.release()
		}
		if err := s.DirectDone(placed); err != nil {
			return 0, err
		}
		switch {
		case rerr == nil && placed < rest:
			return placed, c.piece(got)
		case rerr == nil:
			return placed, nil
		case rerr != sockio.ErrWouldBlock:
			return 0, c.readFailed(rerr, true)
		}
		if r.batch {
			r.batch = false
			s.BatchEnd()
		}
		c.goIdle()
		c.waitsInPlace(true)
		err = r.r.WaitReadable()
		c.waitsInPlace(false)
		if err != nil {
			return 0, c.readFailed(err, true)
		}
	}
}
