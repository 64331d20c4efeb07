package mpa

import (
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
