package mpa

import (
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/internal/sockio"
)

// Who receives has the receiver's role:
//
//	           nothing to read             Progress finds it free
//	Receive ------------------> nobody's -------------------------> Progress
//	        <------------------          <-------------------------
//	           the socket wakes it         after one read
//
// Receive keeps it while it reads into place.

// Progress implements ddp.Progresser. It makes one read of at most 256 KiB, waits for nothing, and does nothing on a
// connection without a file descriptor. A fault that it finds ends Receive. What comes without a CRC is collected before
// it is placed.
func (c *Conn) Progress() bool {
	r := &c.rx
	if !r.role.TryLock() {
		return false
	}
	defer r.role.Unlock()
	if r.sink == nil || r.failed != nil || !c.hasDescriptor() {
		return false
	}
	c.makeRoom()
	r.bufs[0] = r.buf[r.tail:]
	n, err := r.polled.TryReadv(r.bufs[:1])
	r.bufs[0] = nil
	if err == nil {
		r.tail += n
		r.got = n
		r.collect = true
		_, err = c.handOver(r.sink)
		r.collect = false
	} else if err != sockio.ErrWouldBlock {
		err = c.readFailed(err, r.tail-r.head+len(r.stash)+r.skip > 0)
	}
	switch {
	case err == sockio.ErrWouldBlock:
	case err != nil:
		r.failed = err
		c.nc.SetReadDeadline(time.Unix(1, 0)) // wakes Receive, which removes it
	}
	c.goIdle()
	return n > 0
}

// Polled implements ddp.Progresser: Receive is not woken for less than polledLowWater bytes.
func (c *Conn) Polled(on bool) (waited bool) {
	w := &c.rx.low
	w.mu.Lock()
	defer w.mu.Unlock()
	w.polled = on
	return c.setLowWaterLocked() > 0
}

// waitsInPlace tells that Receive waits without giving up its role, in which nobody else can receive what comes.
func (c *Conn) waitsInPlace(on bool) {
	w := &c.rx.low
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inPlace = on
	c.setLowWaterLocked()
}

// lowWater is for how much Receive is woken.
type lowWater struct {
	mu      sync.Mutex // guards the fields below it
	polled  bool
	inPlace bool
	rarely  bool // what the socket was told
}

// setLowWaterLocked tells the socket, and returns how many bytes wait there if it was another way before.
func (c *Conn) setLowWaterLocked() (waiting int) {
	w := &c.rx.low
	rarely, bytes := w.polled && !w.inPlace, 1
	if rarely == w.rarely {
		return 0
	}
	if rarely {
		bytes = polledLowWater
	}
	waiting, err := sockio.SetLowWater(c.nc, bytes)
	if err != nil {
		return 0 // the connection is closed
	}
	w.rarely = rarely
	return waiting
}

var _ ddp.Progresser = (*Conn)(nil)

// hasDescriptor makes the reader of Progress, if there can be one.
func (c *Conn) hasDescriptor() bool {
	r := &c.rx
	if r.polled == nil {
		r.polled = sockio.NewReader(c.nc)
	}
	return r.polled.HasDescriptor()
}

// awayAndUnlock gives up the role of who receives while the connection waits.
func (c *Conn) awayAndUnlock() {
	c.goIdle()
	c.rx.waits = true
	c.rx.role.Unlock()
}

// back takes it again. It fails with what Progress has found meanwhile.
func (c *Conn) back() error {
	r := &c.rx
	if r.waits {
		r.role.Lock()
		r.waits = false
	}
	if r.failed != nil {
		c.nc.SetReadDeadline(time.Time{})
	}
	return r.failed
}
