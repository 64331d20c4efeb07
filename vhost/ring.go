package vhost

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"
)

// ring is a virtqueue, split or packed (virtio 1.2 sections 2.7 and 2.8), with the log of its
// requests under way if the front end has one. All of it is in the front end's memory, which
// may change at any time: what is used is read once, and then checked. The methods run within
// guarded, one at a time.
type ring interface {
	// pop takes the next request, those of the log first. ok is false if there is none. It
	// fails if the ring is broken.
	pop(c *chain) (ok bool, err error)
	// push gives a request back, with n bytes written to its memory. publish makes those
	// that were pushed since seen, and reports whether the guest wants to be told.
	push(c *chain, n uint32)
	publish() (call bool)
	// rearm asks for a kick when there are more requests, and reports whether there are by now.
	rearm() (more bool)
	// base is where the ring goes on after a stop.
	base() uint32
	// relocate finds the ring in other memory. It fails, and changes nothing, if not all of it
	// is there.
	relocate(mem *memory, at vringAddr) error
}

// chain is the memory of one request.
type chain struct {
	id      uint16 // the head's index, or the buffer's id
	slots   uint16 // packed: its descriptors in the ring
	entry   uint16 // packed: where it is in the log
	descs   int
	out, in [][]byte // to be read, to be written
	outLen  uint64   // bytes of out
	inLen   uint64   // bytes of in
}

func (c *chain) reset() {
	clear(c.out)
	clear(c.in)
	*c = chain{out: c.out[:0], in: c.in[:0]}
}

func ringError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errRing, fmt.Sprintf(format, args...))
}

// walker follows the descriptors of requests.
type walker struct {
	mem    *memory
	packed bool
	table  []byte // copies of descriptors elsewhere
	parts  [][]byte
}

func (w *walker) parse(b []byte) desc {
	d := parseDesc(b)
	if w.packed {
		d.flags, d.next = d.next, d.flags
	}
	return d
}

// addDescriptor adds the memory of a descriptor, which may name a table of others, to a request.
func (w *walker) addDescriptor(c *chain, d desc) (err error) {
	if d.flags&descIndirect == 0 {
		return w.addBuffer(c, d)
	}
	n := int(d.len) / descLen
	if d.flags&descNext != 0 || d.len%descLen != 0 || n == 0 || n > maxChain {
		return ringError("a table of descriptors has %d bytes and the flags %#x", d.len, d.flags)
	}
	if w.parts, err = w.mem.appendGuest(d.addr, uint64(d.len), w.parts[:0]); err != nil {
		return err
	}
	w.table = w.table[:0]
	for _, p := range w.parts {
		w.table = append(w.table, p...)
	}
	for i := 0; i < n; {
		d := w.parse(w.table[i*descLen:])
		if d.flags&descIndirect != 0 {
			return ringError("a table of descriptors has another in it")
		}
		if err := w.addBuffer(c, d); err != nil {
			return err
		}
		switch {
		case w.packed: // all of the table, in its order
			i++
		case d.flags&descNext == 0:
			return nil
		case int(d.next) >= n:
			return ringError("a table of %d descriptors goes on at %d", n, d.next)
		default:
			i = int(d.next)
		}
	}
	return nil
}

func (w *walker) addBuffer(c *chain, d desc) (err error) {
	if c.descs++; c.descs > maxChain {
		return ringError("a request has more than %d descriptors: they go in a circle, or are too many", maxChain)
	}
	switch {
	case d.flags&descWrite != 0:
		c.in, err = w.mem.appendGuest(d.addr, uint64(d.len), c.in)
		c.inLen += uint64(d.len)
	case c.inLen > 0:
		return ringError("a request has memory to be read behind memory to be written")
	default:
		c.out, err = w.mem.appendGuest(d.addr, uint64(d.len), c.out)
		c.outLen += uint64(d.len)
	}
	if len(c.in)+len(c.out) > maxChain {
		return ringError("a request is in more than %d parts of memory", maxChain)
	}
	return err
}

// errRing matches the errors of rings that a front end has broken.
var errRing = errors.New("vhost: the front end's ring")

// Words of 32 and 64 bits are read and written whole and in order, since the guest, or the
// successor of a process that was killed, sees them meanwhile. b[off:] is aligned.

func load32(b []byte, off int) uint32 {
	_ = b[off+3]
	return atomic.LoadUint32((*uint32)(unsafe.Pointer(&b[off])))
}

func store32(b []byte, off int, v uint32) {
	_ = b[off+3]
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&b[off])), v)
}

func load64(b []byte, off int) uint64 {
	_ = b[off+7]
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(&b[off])))
}

func store64(b []byte, off int, v uint64) {
	_ = b[off+7]
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&b[off])), v)
}

// load16 reads 2 aligned bytes, by the aligned word that they are in.
func load16(b []byte, off int) uint16 {
	_ = b[off+1]
	p := unsafe.Pointer(&b[off])
	odd := uintptr(p) & 2
	return uint16(atomic.LoadUint32((*uint32)(unsafe.Add(p, -int(odd)))) >> (8 * odd))
}

// fence orders what was stored before anything that is loaded afterwards.
func fence(word *atomic.Uint32) { word.Add(1) }

// wantsCall reports whether the other side, which wants a notification at event, gets one when
// an index has gone from old to now (virtio 1.2 section 2.7.7.2).
func wantsCall(event, old, now uint16) bool { return now-event-1 < now-old }
