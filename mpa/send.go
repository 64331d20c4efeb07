package mpa

import (
	"encoding/binary"
	"sync/atomic"
	"time"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/internal/crc32c"
	"github.com/ironwarp/ironwarp/internal/sockio"
)

// sender is the sending half. Headers, trailers and short payloads of a batch
// stand one after the other in an arena, so that what is adjacent on the wire
// is adjacent there and goes out as one slice.
type sender struct {
	w      *sockio.Writer
	arena  []byte // borrowed while a batch is pending
	used   int
	fpdus  int
	limit  int    // bytes at which the batch is full
	copied []byte // a detached batch
	err    error  // sticky

	emss   func() int
	mulpdu atomic.Int32
	flush  int // batches since the last look at the EMSS

	pos int // markers: bytes of full operation sent, modulo markerSpacing

	seen  [][]byte // the FPDU that is being framed, for those who watch
	shown uint64   // bytes shown to them
}

// MULPDU is the longest ULPDU in bytes: the large one, if agreed on, or what
// fits the EMSS (RFC 5044 section 4.5).
func (c *Conn) MULPDU() int { return int(c.tx.mulpdu.Load()) }

func (c *Conn) refreshMULPDU() {
	n := c.p.large
	if n == 0 {
		emss := c.tx.emss()
		if emss <= 0 {
			emss = defaultEMSS
		}
		n = mulpdu(emss, c.p.txMarkers)
	}
	c.tx.mulpdu.Store(int32(n))
}

// Append frames a segment into the pending batch; see ddp.LLP. Payloads of up
// to 256 bytes are copied, longer ones referenced. It fails with ErrTooLong, and with
// why sending has failed before.
func (c *Conn) Append(hdr []byte, sgl [][]byte) error {
	t := &c.tx
	payload := 0
	for _, p := range sgl {
		payload += len(p)
	}
	n := len(hdr) + payload
	if n > MaxULPDU {
		return ErrTooLong
	}
	if t.err != nil {
		return t.err
	}
	watched := c.tap.On()
	if c.p.txMarkers {
		return c.appendMarked(hdr, sgl, n, watched)
	}
	pad := padLen(n)
	need := lengthLen + len(hdr) + pad + crcLen
	short := payload <= copyMax
	if short {
		need += payload
	}
	b := c.room(need)
	b = binary.BigEndian.AppendUint16(b, uint16(n))
	b = append(b, hdr...)
	var crc uint32
	if short {
		for _, p := range sgl {
			b = append(b, p...)
		}
		b = append(b, padding[:pad]...)
		if c.p.crc {
			crc = crc32c.Checksum(b)
		}
		b = binary.LittleEndian.AppendUint32(b, crc)
		t.w.Append(b)
		if watched {
			t.seen = append(t.seen, b)
		}
	} else {
		t.w.Append(b)
		for _, p := range sgl {
			t.w.Append(p)
		}
		tail := append(b[len(b):], padding[:pad]...)
		if c.p.crc {
			crc = crc32c.Checksum(b)
			for _, p := range sgl {
				crc = crc32c.Update(crc, p)
			}
			if pad > 0 {
				crc = crc32c.Update(crc, tail)
			}
		}
		tail = binary.LittleEndian.AppendUint32(tail, crc)
		t.w.Append(tail)
		if watched {
			t.seen = append(append(append(t.seen, b), sgl...), tail)
		}
	}
	if watched {
		c.showSent(hdr, n, 0)
	}
	t.used += need
	t.fpdus++
	return nil
}

// room returns an empty slice of the arena with at least need bytes of
// capacity. A batch that outgrows its arena gets another; the writer keeps the
// first one alive.
func (c *Conn) room(need int) []byte {
	t := &c.tx
	if t.used+need > len(t.arena) {
		switch {
		case t.arena == nil && c.cfg.Pool != nil && need <= arenaSize:
			t.arena = c.cfg.Pool.getArena()
		default:
			t.arena = make([]byte, max(arenaSize, need))
		}
		t.used = 0
	}
	return t.arena[t.used:t.used]
}

// Full reports that the batch should be flushed before the next Append: 256
// FPDUs or enough bytes are pending, or the arena for their headers is used up.
// Enough are 32 KiB after a pause and 1 MiB while there is more.
func (c *Conn) Full() bool {
	t := &c.tx
	return t.fpdus >= batchFPDUs || t.w.Pending() >= t.limit ||
		t.arena != nil && len(t.arena)-t.used < arenaSpare
}

// TryFlush writes what the socket takes without blocking. On a connection
// without a file descriptor, and before a responder may send, it does nothing:
// use Flush. An error is the connection's, and permanent.
func (c *Conn) TryFlush() (done bool, err error) {
	t := &c.tx
	if t.err != nil {
		return false, t.err
	}
	if t.w.Pending() == 0 {
		return true, nil
	}
	if c.held.Load() {
		return false, nil
	}
	more := t.w.Pending() >= t.limit
	done, err = t.w.TryFlush()
	if err != nil {
		return false, c.sendFailed(err)
	}
	if done {
		c.batchDone(more)
	}
	return done, nil
}

// Flush writes the pending batch, however long it takes. A responder's waits
// for the first FPDU before, at most Config.HoldTimeout and the end of the
// initiator's direction; then it fails with ErrNoFPDU, and the batch stays
// pending.
func (c *Conn) Flush() error {
	t := &c.tx
	if t.err != nil {
		return t.err
	}
	if t.w.Pending() == 0 {
		return nil
	}
	if c.held.Load() {
		if err := c.waitReleased(); err != nil {
			return err
		}
	}
	if err := t.w.Flush(); err != nil {
		return c.sendFailed(err)
	}
	c.batchDone(true)
	return nil
}

// waitReleased waits until the responder may send.
func (c *Conn) waitReleased() error {
	t := time.NewTimer(c.cfg.holdTimeout())
	defer t.Stop()
	select {
	case <-c.released:
		if c.held.Load() {
			return ErrNoFPDU
		}
		return nil
	case <-c.closed:
		return ddp.ErrClosed
	case <-t.C:
		return ErrNoFPDU
	}
}

// Detach copies what is pending, so that the payloads' memory may be reused.
func (c *Conn) Detach() {
	t := &c.tx
	n := t.w.Pending()
	if n == 0 {
		return
	}
	var b []byte
	if n <= detachSize && c.cfg.Pool != nil {
		b = c.cfg.Pool.getCopy()
	} else {
		b = make([]byte, n)
	}
	t.w.Detach(b[:0])
	c.freeCopy()
	t.copied = b
	c.freeArena()
}

func (c *Conn) freeCopy() {
	t := &c.tx
	if len(t.copied) == detachSize && c.cfg.Pool != nil {
		c.cfg.Pool.putCopy(t.copied)
	}
	t.copied = nil
}

func (c *Conn) freeArena() {
	t := &c.tx
	t.used = 0
	if t.arena != nil && c.cfg.Pool != nil {
		if len(t.arena) == arenaSize {
			c.cfg.Pool.putArena(t.arena)
		}
		t.arena = nil
	}
}

// batchDone releases the batch's memory. more: the stream does not pause after it, since
// the batch or the socket was full.
func (c *Conn) batchDone(more bool) {
	t := &c.tx
	t.fpdus = 0
	t.limit = firstBatchBytes
	if more {
		t.limit = batchBytes
	}
	c.freeArena()
	if t.copied != nil {
		c.freeCopy()
	}
	if t.flush++; t.flush >= refreshEvery && c.p.large == 0 {
		t.flush = 0
		c.refreshMULPDU()
	}
}

// sendFailed makes the connection unusable for sending and releases the
// payloads.
func (c *Conn) sendFailed(err error) error {
	t := &c.tx
	err = c.wrapClosed(err)
	if err != ddp.ErrClosed {
		err = lost("while sending", err)
	}
	t.err = err
	t.w.Discard()
	t.fpdus = 0
	c.freeArena()
	c.freeCopy()
	return err
}
