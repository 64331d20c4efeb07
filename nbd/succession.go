package nbd

import (
	"context"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/block"
)

// succession orders what an export's clients do: what a client submitted before it
// vanished is over before anything begins that is requested afterwards, whether by that
// client after it reconnects, by another, or by the same one on another of its connections.
// Otherwise a write that nobody waits for could overwrite an acknowledged one.
//
//	      client hangs up               its last I/O at the device ends
//	live ────────────────▶ orphan ────────────────────────────────────▶ over
//	  └─────────────── nothing is at the device ────────────────────────▲
//
// Nobody begins an I/O while there is an orphan. A client's end is noticed by its own
// goroutine at some time, and by any other's at the latest when it has received something
// and before it begins what that asks for: the end of a connection is seen at its socket
// as soon as the client or the server has closed it, whatever is still to be read; of a
// connection that is no socket, it is seen if it has HangUp.
type succession struct {
	members atomic.Int32
	orphans atomic.Int32

	mu      sync.Mutex // guards the fields below it
	change  sync.Cond  // an orphan is over, a waiting connection is to end
	conns   []*conn
	waiting int // connections, for orphans
}

// HangUp is what a connection without a socket may have, as one in memory or through a
// tunnel, so that its client's end is seen in time. Of a connection that has neither,
// nothing is promised about what its client had sent when it vanished: a successor may be
// served before the server gets there.
type HangUp interface {
	// HungUp reports whether the client or the server has closed the connection, whatever is
	// still to be read. It does not block.
	HungUp() bool
}

// member is a connection's relation to the others of its export.
type member struct {
	ctx    context.Context // ends with the server and with the connection's part
	cancel context.CancelFunc
	raw    syscall.RawConn
	fd     int32         // -1: there is no socket that reports whether its client is there
	other  HangUp        // reports it then, unless nil
	hangup int16         // the events that report that it has gone
	gone   atomic.Bool   // it submits nothing more
	out    atomic.Int32  // I/Os at the device
	orphan bool          // guarded by succession.mu
	fresh  bool          // the receiving goroutine's: something has arrived since it checked the others
	polls  []unix.PollFd // its own, too
	polled []*conn
}

// addConn makes a connection one of its export's.
func (x *succession) addConn(ctx context.Context, c *conn) {
	c.ctx, c.cancel = context.WithCancel(ctx)
	c.raw, c.fd, c.hangup = socketOf(c.nc)
	c.other, _ = c.nc.(HangUp)
	c.fresh = true
	x.mu.Lock()
	x.conns = append(x.conns, c)
	x.members.Add(1)
	x.mu.Unlock()
	// A client that has already connected, sent requests and hung up may have had a
	// successor that did not see it.
	if c.reportsHangUp() {
		own := []unix.PollFd{{Fd: c.fd, Events: c.hangup}}
		poll(own)
		if own[0].Revents != 0 || c.isClosed() {
			x.abandonConn(c)
		}
	}
}

// poll asks those that are sockets for events.
func poll(all []unix.PollFd) {
	if !slices.ContainsFunc(all, func(p unix.PollFd) bool { return p.Fd >= 0 }) {
		return
	}
	for {
		if _, err := unix.Poll(all, 0); err != unix.EINTR {
			return
		}
	}
}

// socketOf returns a connection's descriptor and the events by which its client's end is
// seen. A Unix socket shows whether the client has closed it or only sends no more.
func socketOf(nc net.Conn) (raw syscall.RawConn, fd int32, hangup int16) {
	fd = -1
	if sc, ok := nc.(syscall.Conn); ok {
		var err error
		if raw, err = sc.SyscallConn(); err == nil {
			raw.Control(func(n uintptr) { fd = int32(n) })
		}
	}
	if a := nc.LocalAddr(); a == nil || a.Network() != "unix" {
		hangup = unix.POLLRDHUP
	}
	return raw, fd, hangup
}

// reportsHangUp reports whether it is seen that the client hangs up.
func (m *member) reportsHangUp() bool { return m.fd >= 0 || m.other != nil }

// isClosed reports whether the server has closed the connection, so that its descriptor
// may be another's. Without a descriptor it reports whether anybody has.
func (m *member) isClosed() bool {
	if m.fd < 0 {
		return m.other.HungUp()
	}
	return m.raw.Control(func(uintptr) {}) != nil
}

// removeConn removes a connection, except for its I/O still at the device.
func (x *succession) removeConn(c *conn) {
	c.cancel()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.conns = slices.DeleteFunc(x.conns, func(o *conn) bool { return o == c })
	x.members.Add(-1)
}

// cutOff stops a connection from submitting anything more and, if its client vanished
// silently, abandons what it waits for. It does not block.
func (x *succession) cutOff(c *conn, silent bool) {
	x.mu.Lock()
	c.gone.Store(true)
	if c.out.Load() > 0 && !c.orphan {
		c.orphan = true
		x.orphans.Add(1)
	}
	x.change.Broadcast()
	x.mu.Unlock()
	c.cancel()
	c.mu.Lock()
	c.change.Broadcast()
	c.mu.Unlock()
	if u, ok := c.device.(block.User); ok && silent {
		u.Abandon()
	}
}

// beginIO records that an I/O is about to be submitted. If it returns false, the I/O must
// not be submitted.
func (c *conn) beginIO() bool {
	c.out.Add(1)
	if c.gone.Load() {
		c.endIO()
		return false
	}
	return true
}

// endIO records that an I/O has ended.
func (c *conn) endIO() {
	if c.out.Add(-1) > 0 || !c.gone.Load() {
		return
	}
	x := &c.exp.succession
	x.mu.Lock()
	defer x.mu.Unlock()
	if c.orphan {
		c.orphan = false
		x.orphans.Add(-1)
		x.change.Broadcast()
	}
}

// abandonHungUp abandons the export's other connections whose clients have hung up.
func (c *conn) abandonHungUp() {
	c.fresh = false
	x := &c.exp.succession
	if x.members.Load() < 2 {
		return
	}
	c.polls, c.polled = c.polls[:0], c.polled[:0]
	x.mu.Lock()
	for _, o := range x.conns {
		if o != c && o.reportsHangUp() && !o.gone.Load() {
			c.polls, c.polled = append(c.polls, unix.PollFd{Fd: o.fd, Events: o.hangup}), append(c.polled, o)
		}
	}
	x.mu.Unlock()
	poll(c.polls)
	for i, p := range c.polls {
		if p.Revents != 0 || c.polled[i].isClosed() {
			x.abandonConn(c.polled[i])
		}
	}
	clear(c.polled)
}

// awaitOrphans waits until there is no orphan.
func (c *conn) awaitOrphans() error {
	c.kick()
	c.flush()
	x := &c.exp.succession
	defer context.AfterFunc(c.ctx, func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.change.Broadcast()
	})()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.waiting++
	for x.orphans.Load() > 0 && c.ctx.Err() == nil {
		x.change.Wait()
	}
	x.waiting--
	return c.stopCause()
}

// stopCause returns why a connection must stop, or nil.
func (c *conn) stopCause() error {
	switch {
	case c.gone.Load():
		return errGone
	case c.ctx.Err() != nil:
		return errCut
	}
	return nil
}
