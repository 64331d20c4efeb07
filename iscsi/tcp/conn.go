package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironwarp/ironwarp/internal/crc32c"
	"github.com/ironwarp/ironwarp/internal/sockio"
	"github.com/ironwarp/ironwarp/iscsi"
)

// digestLen is the length in bytes of a digest (RFC 7143 section 13.1).
const digestLen = 4

// Conn is the target's end of a connection: an iscsi.Stream first and, from Run on, an
// iscsi.Datamover.
type Conn struct {
	nc net.Conn
	rd *sockio.Reader

	// Run's goroutine has these; before it, whoever reads PDUs.
	upper     iscsi.Upper // set with mu locked, nil before Run
	whenIdle  func()
	buf       []byte // buf[r:w] is received but not parsed yet
	r, w      int
	vec       [2][]byte
	in        iscsi.Incoming
	segment   int  // bytes of the data segment that are not read yet
	pad       int  // padding behind it
	finished  bool // ReadData was called
	headerCRC bool
	dataCRC   bool
	recovers  bool // from damaged data: ErrorRecoveryLevel is above 0
	maxRecv   int  // the longest data segment that is taken

	// Owned by whoever set flushing.
	sock  *sockio.Writer
	arena []byte
	loop  func()
	batch iscsi.OutQueue

	ending  atomic.Bool
	maxSend atomic.Uint32 // the longest data segment that the initiator takes

	mu       sync.Mutex // guards the fields below it; innermost
	change   sync.Cond  // flushing ended, or a batch was sent
	queued   iscsi.OutQueue
	flushing bool
	dead     bool         // nothing can be sent any more
	gets     []*iscsi.Get // by the lower 16 bits of their transfer tags
	freeTTT  []uint32     // tags that are free; of each slot of gets the next one
	placing  *iscsi.Get   // its data are being received
}

var (
	_ iscsi.Stream    = (*Conn)(nil)
	_ iscsi.Datamover = (*Conn)(nil)
	_ iscsi.Abandoner = (*Conn)(nil)
)

// NewConn returns a connection that begins with its login.
func NewConn(nc net.Conn) *Conn {
	c := &Conn{
		nc: nc, rd: sockio.NewReader(nc), sock: sockio.NewWriter(nc), buf: make([]byte, receiveBuffer),
		maxRecv: iscsi.LoginDataSegment,
	}
	c.change.L = &c.mu
	c.loop = c.sendLoop
	c.in.ReadData = c.readData
	c.whenIdle = c.idle
	return c
}

// fill waits for at least n bytes in the receive buffer.
func (c *Conn) fill(n int) error {
	for c.w-c.r < n {
		if c.r > 0 {
			c.w = copy(c.buf, c.buf[c.r:c.w])
			c.r = 0
		}
		c.vec[0] = c.buf[c.w:]
		if err := c.receive(c.vec[:1]); err != nil {
			return err
		}
	}
	return nil
}

// receive reads once, and adds what does not fit into the vectors before the last to the buffer's
// end; the last is the buffer. It returns the bytes read by w.
func (c *Conn) receive(vec [][]byte) error {
	for {
		n, err := c.rd.ReadvOrWait(vec, c.whenIdle)
		if err == sockio.ErrWouldBlock || errors.Is(err, os.ErrDeadlineExceeded) && c.stayAwake() {
			continue
		}
		c.w += n
		if err == io.EOF && c.w > c.r {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
}

func (c *Conn) idle() {
	if c.upper != nil {
		c.upper.IdleNotify()
	}
}

// header reads the next header group into c.in, verified.
func (c *Conn) header() error {
	if err := c.fill(iscsi.BHSLen); err != nil {
		return err
	}
	in := &c.in
	copy(in.BHS[:], c.buf[c.r:])
	n := iscsi.BHSLen + in.BHS.AHSLen()
	all := n
	if c.headerCRC {
		all += digestLen
	}
	if err := c.fill(all); err != nil {
		return err
	}
	b := c.buf[c.r : c.r+all]
	if c.headerCRC && crc32c.Checksum(b[:n]) != binary.LittleEndian.Uint32(b[n:]) {
		return fmt.Errorf("header of a %v: %w", in.BHS.Opcode(), iscsi.ErrDigest)
	}
	in.AHS = append(in.AHS[:0], b[iscsi.BHSLen:n]...)
	c.r += all
	c.segment = in.BHS.DataLen()
	c.pad = iscsi.Pad(c.segment)
	c.finished = false
	if c.segment > c.maxRecv {
		return fmt.Errorf("%v with %d bytes of data, where at most %d may be: %w", in.BHS.Opcode(), c.segment, c.maxRecv, iscsi.ErrFormat)
	}
	return nil
}

// readData implements Incoming.ReadData.
func (c *Conn) readData(dst []byte) error {
	c.finished = true
	dst = dst[:min(len(dst), c.segment)]
	if err := c.readInto(dst); err != nil {
		return err
	}
	c.segment -= len(dst)
	crc := uint32(0)
	if c.dataCRC {
		crc = crc32c.Checksum(dst)
	}
	return c.finish(crc, c.dataCRC)
}

// readInto fills dst: what is in the receive buffer is copied, the rest read directly, together
// with what follows into the buffer.
func (c *Conn) readInto(dst []byte) error {
	n := copy(dst, c.buf[c.r:c.w])
	c.r += n
	for dst = dst[n:]; len(dst) > 0; {
		c.r, c.w = 0, 0
		c.vec[0], c.vec[1] = dst, c.buf
		err := c.receive(c.vec[:])
		c.vec[0] = nil
		got := min(c.w, len(dst))
		c.w -= got
		dst = dst[got:]
		if err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}

// finish drops the rest of a data segment and its padding, and verifies the digest, of which crc is
// what was read so far.
func (c *Conn) finish(crc uint32, verify bool) error {
	had := c.in.BHS.DataLen() > 0
	for rest := c.segment + c.pad; rest > 0; {
		if err := c.fill(1); err != nil {
			return err
		}
		n := min(rest, c.w-c.r)
		if verify {
			crc = crc32c.Update(crc, c.buf[c.r:c.r+n])
		}
		c.r += n
		rest -= n
	}
	c.segment, c.pad = 0, 0
	if !c.dataCRC || !had {
		return nil
	}
	if err := c.fill(digestLen); err != nil {
		return err
	}
	got := binary.LittleEndian.Uint32(c.buf[c.r:])
	c.r += digestLen
	if verify && got != crc {
		return fmt.Errorf("data of a %v: %w", c.in.BHS.Opcode(), iscsi.ErrDigest)
	}
	return nil
}

// ReadPDU implements iscsi.Stream.
func (c *Conn) ReadPDU() (h iscsi.BHS, data []byte, err error) {
	if err := c.header(); err != nil {
		return h, nil, err
	}
	n := c.segment + c.pad
	if err := c.fill(n); err != nil {
		return h, nil, err
	}
	data = c.buf[c.r : c.r+c.segment]
	c.r += n
	return c.in.BHS, data, nil
}

// Buffered is how many bytes have been received that belong to no PDU yet.
func (c *Conn) Buffered() int { return c.w - c.r }

// WritePDU implements iscsi.Stream.
func (c *Conn) WritePDU(h *iscsi.BHS, data []byte) error {
	h.SetLengths(0, len(data))
	b := append(append(append([]byte(nil), h[:]...), data...), make([]byte, iscsi.Pad(len(data)))...)
	_, err := c.nc.Write(b)
	return err
}

// NoticeKeyValues implements iscsi.Datamover.
func (c *Conn) NoticeKeyValues(v *iscsi.Values, declared uint32) error {
	c.headerCRC = v[iscsi.KeyHeaderDigest] == iscsi.DigestCRC32C
	c.dataCRC = v[iscsi.KeyDataDigest] == iscsi.DigestCRC32C
	c.maxRecv = int(declared)
	c.recovers = v[iscsi.KeyErrorRecoveryLevel] > 0
	c.NoticeSegment(v[iscsi.KeyMaxRecvDataSegmentLength])
	return nil
}

// NoticeSegment implements iscsi.Datamover.
func (c *Conn) NoticeSegment(n uint32) { c.maxSend.Store(n) }

// Segment implements iscsi.Datamover.
func (c *Conn) Segment() int { return int(c.maxSend.Load()) }

// Run implements iscsi.Datamover.
func (c *Conn) Run(u iscsi.Upper) error {
	c.mu.Lock()
	c.upper = u
	c.mu.Unlock()
	err := c.receiveLoop()
	c.nc.SetWriteDeadline(time.Now().Add(farewell))
	c.Flush()
	c.mu.Lock()
	for c.flushing {
		c.change.Wait()
	}
	c.dead = true
	rest := c.queued.Take()
	c.gets, c.freeTTT, c.placing = nil, nil, nil
	c.mu.Unlock()
	c.nc.Close()
	c.giveBack(rest)
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func (c *Conn) receiveLoop() error {
	for {
		if err := c.header(); err != nil {
			return err
		}
		if o := c.in.BHS.Opcode(); o == iscsi.OpDataOut {
			d, err := iscsi.ParseDataOut(&c.in.BHS)
			if err != nil {
				return err
			}
			if d.TTT != iscsi.NoTag {
				if err := c.solicited(&d); err != nil {
					return err
				}
				continue
			}
		}
		if err := c.upper.ControlNotify(&c.in); err != nil {
			return err
		}
		if !c.finished {
			if err := c.drop(); err != nil {
				return err
			}
		}
	}
}

// drop drops the data segment. Where damaged data are recovered from, the initiator is told of them even if
// nobody wants them.
func (c *Conn) drop() error { return c.survive(c.finish(0, c.recovers)) }

// survive tells of damaged data, if that is why reading them has failed and they do not end the connection.
func (c *Conn) survive(err error) error {
	if c.recovers && errors.Is(err, iscsi.ErrDigest) {
		c.upper.DigestNotify(&c.in.BHS)
		return nil
	}
	return err
}

// solicited places data that an R2T has asked for. Data for a tag that is not known are those of a
// task that was aborted meanwhile: they are dropped.
func (c *Conn) solicited(d *iscsi.DataOut) error {
	g := c.asked(d.TTT, d.ITT)
	if g == nil {
		return c.drop()
	}
	n := c.segment
	place, ended := g.Sequence.Take(d, n)
	if place {
		at := d.Offset - g.R2T.Offset
		if err := c.readData(g.Into[at : at+uint32(n)]); err != nil {
			g.Sequence.Lose(n)
			if err = c.survive(err); err != nil {
				return err
			}
		}
	} else if err := c.drop(); err != nil {
		return err
	}
	switch {
	case !c.placed(g, ended):
		c.upper.DataCompletionNotify(g, false)
	case ended:
		_, whole := g.Sequence.Received()
		c.upper.DataCompletionNotify(g, whole)
	}
	return nil
}

// asked returns what is asked for by a tag, nil if there is nothing, and notes that its data are being
// received. Whoever guesses a tag waits until its R2T has been sent; so does, for a moment, who is
// quicker than this end's own notice of that.
func (c *Conn) asked(ttt, itt uint32) *iscsi.Get {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := int(ttt & slotMask); i < len(c.gets); {
		g := c.gets[i]
		switch {
		case g == nil || g.R2T.TTT != ttt || g.R2T.ITT != itt:
			return nil
		case !g.Out.Queued:
			c.placing = g
			return g
		case c.flushing:
			c.change.Wait()
		default:
			c.mu.Unlock()
			c.Flush()
			c.mu.Lock()
		}
	}
	return nil
}

// placed notes that data are not being received any more, and forgets what they were asked for by if
// they have ended. It returns false if that was forgotten meanwhile.
func (c *Conn) placed(g *iscsi.Get, ended bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.placing = nil
	if c.gets[g.R2T.TTT&slotMask] != g {
		return false
	}
	if ended {
		c.forgetLocked(g)
	}
	return true
}

// slotMask is what of a transfer tag is its place in Conn.gets. The rest tells those apart that had the same
// place: what answers an earlier R2T is dropped. There are far fewer Gets than places.
const slotMask = 1<<16 - 1

// forgetLocked forgets a Get that there is.
func (c *Conn) forgetLocked(g *iscsi.Get) {
	c.gets[g.R2T.TTT&slotMask] = nil
	c.freeTTT = append(c.freeTTT, g.R2T.TTT+slotMask+1)
}

// Abandon implements iscsi.Abandoner.
func (c *Conn) Abandon(g *iscsi.Get) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if g == c.placing || g.Out.Queued {
		return false
	}
	c.forgetLocked(g)
	return true
}

// DeallocateTaskResources implements iscsi.Datamover.
func (c *Conn) DeallocateTaskResources(itt uint32) (placing bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, g := range c.gets {
		if g != nil && g.R2T.ITT == itt {
			c.forgetLocked(g)
		}
	}
	return c.placing != nil && c.placing.R2T.ITT == itt // which may have been forgotten before
}

// past is a deadline that wakes whoever reads.
var past = time.Unix(1, 0)

// Wake implements iscsi.Datamover.
func (c *Conn) Wake() { c.nc.SetReadDeadline(past) }

// stayAwake reports whether a deadline was Wake's, and takes it back.
func (c *Conn) stayAwake() bool {
	if c.ending.Load() {
		return false
	}
	c.nc.SetReadDeadline(time.Time{})
	return !c.ending.Load() // whose deadline may have been taken back instead
}

// ConnectionTerminate implements iscsi.Datamover.
func (c *Conn) ConnectionTerminate() {
	c.ending.Store(true)
	c.nc.SetReadDeadline(past)
	c.nc.SetWriteDeadline(time.Now().Add(farewell)) // ends what waits for an initiator that does not read
}

// Addr returns the addresses of this end and of the initiator's.
func (c *Conn) Addr() (local, remote net.Addr) { return c.nc.LocalAddr(), c.nc.RemoteAddr() }
