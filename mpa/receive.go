package mpa

import (
	"encoding/binary"
	"errors"
	"io"
	"runtime"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/internal/sockio"
)

// receiver is the receiving half. buf[head:tail] was read and not yet handed over.
// While the connection waits for more, buf goes back to the pool and the beginning
// of an FPDU, if any, stays in stash.
type receiver struct {
	r          *sockio.Reader
	buf        []byte
	head, tail int
	stash      []byte
	bufs       [2][]byte // argument of readv
	idle       func()    // Conn.awayAndUnlock
	got        int       // bytes that the last read brought
	turn       int       // segments since others had the processor
	pieces     ddp.PiecewiseSink

	skip    int  // bytes of padding and CRC to drop, after a direct segment
	refused bool // the sink does not want the FPDU at head directly
	batch   bool // segments were handed over since the last BatchEnd

	shown uint64 // bytes shown to those who watch

	pos   int                                // markers: offset of head in the stream, modulo markerSpacing
	first [lengthLen + ddp.MaxHeaderLen]byte // markers: the beginning of an FPDU, without them

	err error // sticky: after an error nothing more is delivered (RFC 5044 section 8)

	role    sync.Mutex     // of who receives, see progress.go; the rest of the receiver is whose it is; taken before Pool.mu
	waits   bool           // Receive waits and has given up the role; Receive's own
	sink    ddp.Sink       // Receive's; nil: it has not begun, or is over
	polled  *sockio.Reader // of Progress, nil: not used yet
	collect bool           // Progress receives: nothing is read into place, which may take waiting
	failed  error          // what Progress has found, for Receive to end with
	low     lowWater
}

// Receive hands segments to s until the stream ends; see ddp.LLP. Errors of
// the connection match a *ddp.Error of CodeConnectionLost and their cause, a
// wrong CRC matches ErrCRC. They do not close the connection, so that a
// Terminate may still be sent.
func (c *Conn) Receive(s ddp.Sink) error {
	r := &c.rx
	if r.err == nil {
		r.role.Lock() // but for while it waits
		r.sink = s
		r.pieces, _ = s.(ddp.PiecewiseSink)
		r.err = c.receive(s)
		c.endHold(r.err)
		if r.batch {
			r.batch = false
			s.BatchEnd()
		}
		c.giveBack()
		r.sink = nil
		r.role.Unlock()
	}
	return r.err
}

func (c *Conn) receive(s ddp.Sink) error {
	for {
		again, err := c.handOver(s)
		if err != nil {
			return err
		}
		if again {
			continue
		}
		c.takeTurns()
		if err := c.fill(); err != nil {
			return err
		}
	}
}

// handOver hands over what is complete in the buffer, and notifies the sink of its end. again reports that it has also
// read, so that there may be more.
func (c *Conn) handOver(s ddp.Sink) (again bool, err error) {
	if c.p.rxMarkers {
		again, err = c.parseMarked(s)
	} else {
		again, err = c.parse(s)
	}
	if err != nil {
		return false, err
	}
	if c.rx.batch {
		c.rx.batch = false
		s.BatchEnd()
	} else if err := c.piece(c.rx.got); err != nil {
		return false, err
	}
	c.rx.got = 0
	return again, nil
}

// takeTurns lets other goroutines run now and then.
func (c *Conn) takeTurns() {
	r := &c.rx
	if r.turn < turnSegments {
		return
	}
	r.turn = 0
	runtime.Gosched()
}

// parse hands over what is complete in the buffer. again reports that it has also
// read, so that there may be more to parse.
func (c *Conn) parse(s ddp.Sink) (again bool, err error) {
	r := &c.rx
	if r.skip > 0 {
		n := min(r.skip, r.tail-r.head)
		r.skip -= n
		r.head += n
		if r.skip > 0 {
			return false, nil
		}
	}
	for r.tail-r.head >= lengthLen {
		fpdu := r.buf[r.head:r.tail]
		n := int(binary.BigEndian.Uint16(fpdu))
		size := fpduLen(n)
		if len(fpdu) < size {
			if c.p.crc || r.refused || r.collect || c.tap.On() || len(fpdu) < lengthLen+ddp.MaxHeaderLen || len(fpdu) >= lengthLen+n {
				return false, nil
			}
			return c.direct(s, fpdu[lengthLen:], n)
		}
		if c.p.crc && !checkCRC(fpdu[:size]) {
			return false, fault(CodeCRC, "wrong CRC in an FPDU with a ULPDU of %d bytes", n)
		}
		if c.held.Load() {
			c.release()
		}
		if c.tap.On() {
			c.showReceived(fpdu[:size], 0, n)
		}
		r.head += size
		r.refused = false
		r.batch = true
		r.turn++
		if err := s.Segment(fpdu[lengthLen : lengthLen+n : lengthLen+n]); err != nil {
			return false, err
		}
	}
	return false, nil
}

// piece notifies the sink of a read of n bytes that completed no FPDU, if they were
// few.
func (c *Conn) piece(n int) error {
	if n == 0 || n >= pieceLen || c.rx.pieces == nil {
		return nil
	}
	return c.rx.pieces.Piece()
}

// fill reads more behind tail, waiting if it must.
func (c *Conn) fill() error {
	r := &c.rx
	for {
		c.makeRoom()
		n, err := 0, sockio.ErrWouldBlock
		if c.cfg.Spin > 0 {
			n, err = r.r.ReadOrSpin(r.buf[r.tail:], c.cfg.Spin)
		}
		if err == sockio.ErrWouldBlock {
			r.bufs[0] = r.buf[r.tail:]
			n, err = r.r.ReadvOrWait(r.bufs[:1], r.idle)
			if failed := c.back(); failed != nil {
				return failed
			}
			r.bufs[0] = nil
		}
		if err == nil {
			r.tail += n
			r.got = n
			return nil
		}
		if err != sockio.ErrWouldBlock {
			return c.readFailed(err, r.tail-r.head+len(r.stash)+r.skip > 0)
		}
	}
}

// makeRoom ensures that there is a buffer, with room for the rest of the
// FPDU at its head and for a good read.
func (c *Conn) makeRoom() {
	r := &c.rx
	if r.buf == nil {
		if c.cfg.Pool != nil {
			r.buf = c.cfg.Pool.getRead()
		} else {
			r.buf = make([]byte, readBuffer)
		}
		r.head, r.tail = 0, copy(r.buf, r.stash)
		r.stash = r.stash[:0]
	}
	switch have := r.tail - r.head; {
	case have == 0:
		r.head, r.tail = 0, 0
	case r.head > 0 && (have <= stashMax || len(r.buf)-r.tail < readBuffer/2):
		copy(r.buf, r.buf[r.head:r.tail])
		r.head, r.tail = 0, have
	}
}

// goIdle returns the buffer to the pool before the connection waits, unless it holds
// much of an FPDU.
func (c *Conn) goIdle() {
	r := &c.rx
	if have := r.tail - r.head; have <= stashMax && c.cfg.Pool != nil && r.buf != nil {
		r.stash = append(r.stash[:0], r.buf[r.head:r.tail]...)
		r.bufs[0] = nil
		c.giveBack()
	}
}

// Drain reads and discards what the peer still sends until it ends its
// direction or d has passed; see ddp.LLP.
func (c *Conn) Drain(d time.Duration) {
	if c.nc.SetReadDeadline(time.Now().Add(d)) != nil {
		return
	}
	buf := make([]byte, drainBuffer)
	for {
		if _, err := c.nc.Read(buf); err != nil {
			return
		}
	}
}

// giveBack returns the read buffer.
func (c *Conn) giveBack() {
	r := &c.rx
	if r.buf != nil && c.cfg.Pool != nil {
		c.cfg.Pool.putRead(r.buf)
	}
	r.buf, r.head, r.tail = nil, 0, 0
}

// readFailed returns the error that stands for the end of the stream, or for its
// failure. inside: it came within an FPDU.
func (c *Conn) readFailed(err error, inside bool) error {
	if err == io.EOF && !inside {
		return io.EOF
	}
	if err = c.wrapClosed(err); errors.Is(err, ddp.ErrClosed) {
		return err
	}
	if inside && err == io.EOF {
		return lost("inside an FPDU", err)
	}
	return lost("while receiving", err)
}
