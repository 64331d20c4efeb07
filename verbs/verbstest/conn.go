package verbstest

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// pipeSize bounds what is under way in one direction of a connection, as a socket's
// buffers do.
const pipeSize = 1 << 20

// conn is one end of a connection.
type conn struct {
	fabric        *Fabric
	hosts         [2]*Host // its own, and the other end's
	local, remote netip.AddrPort
	in, out       *pipe
	closed        atomic.Bool
}

func tcpAddr(a netip.AddrPort) net.Addr { return net.TCPAddrFromAddrPort(a) }

func (c *conn) LocalAddr() net.Addr  { return tcpAddr(c.local) }
func (c *conn) RemoteAddr() net.Addr { return tcpAddr(c.remote) }

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.in.read(b)
	if err != nil {
		err = c.ours(err)
	}
	return n, err
}

func (c *conn) Write(b []byte) (int, error) { return c.out.write(b) }

func (c *conn) SetReadDeadline(t time.Time) error {
	c.in.reader.set(c.in, t)
	return c.ours(nil)
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	c.out.writer.set(c.out, t)
	return c.ours(nil)
}

func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// ours is what a call has failed with: that this end has closed the connection, or err.
func (c *conn) ours(err error) error {
	if c.closed.Load() {
		return net.ErrClosed
	}
	return err
}

// isOf reports whether an end of the connection is a host's; with nil it is.
func (c *conn) isOf(h *Host) bool { return h == nil || c.hosts[0] == h || c.hosts[1] == h }

// HungUp implements nbd.HangUp.
func (c *conn) HungUp() bool {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	return c.closed.Load() || c.in.ended || c.in.err != nil
}

// CloseWrite ends the sending direction.
func (c *conn) CloseWrite() error {
	c.out.end()
	return nil
}

// Close ends both directions. What has been sent arrives all the same.
func (c *conn) Close() error {
	c.fabric.mu.Lock()
	c.fabric.conns = slices.DeleteFunc(c.fabric.conns, func(o *conn) bool { return o == c })
	c.fabric.mu.Unlock()
	c.closed.Store(true)
	c.in.reader.set(c.in, time.Time{}) // its timers go
	c.out.writer.set(c.out, time.Time{})
	c.in.leave()
	c.out.end()
	return nil
}

// pipe is one direction of a connection.
type pipe struct {
	reader, writer deadline

	mu     sync.Mutex // guards the fields below it
	cond   sync.Cond
	buf    bytes.Buffer
	ended  bool  // by the writer
	gone   bool  // the reader is
	err    error // it is broken
	paused bool
	spoil  bool // flip a bit of the next write

	delay func() time.Duration
	sent  bytes.Buffer // under way
	late  []piece      // of it, in order
	timer *time.Timer  // of the first
}

// piece is how much was written at once, and when it arrives.
type piece struct {
	n   int
	due time.Time
}

// deadline is that of one end of a pipe.
type deadline struct {
	timer  *time.Timer // guarded by pipe.mu
	passed bool        // guarded by pipe.mu
}

func newPipe(paused bool, delay func() time.Duration) *pipe {
	p := &pipe{paused: paused, delay: delay}
	p.cond.L = &p.mu
	return p
}

func (p *pipe) read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		switch {
		case p.reader.passed:
			return 0, os.ErrDeadlineExceeded
		case p.err != nil:
			return 0, p.err
		case p.gone:
			return 0, syscall.ECONNRESET
		case p.paused:
		case p.buf.Len() > 0:
			n, _ := p.buf.Read(b)
			p.cond.Broadcast()
			return n, nil
		case p.ended && len(p.late) == 0:
			return 0, io.EOF
		}
		p.cond.Wait()
	}
}

func (p *pipe) write(b []byte) (n int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(b) > 0 {
		switch {
		case p.writer.passed:
			return n, os.ErrDeadlineExceeded
		case p.err != nil:
			return n, p.err
		case p.ended:
			return n, net.ErrClosed
		case p.gone && !p.paused:
			return n, syscall.ECONNRESET
		case p.gone: // the writer does not know yet
			return n + len(b), nil
		case p.buf.Len() < pipeSize:
			k := min(len(b), pipeSize-p.buf.Len())
			p.sendLocked(b[:k])
			n, b = n+k, b[k:]
			continue
		}
		p.cond.Wait()
	}
	return n, nil
}

// sendLocked has b arrive, now or later.
func (p *pipe) sendLocked(b []byte) {
	var d time.Duration
	if p.delay != nil {
		d = p.delay()
	}
	if d <= 0 && len(p.late) == 0 {
		p.buf.Write(b)
		p.spoilLocked(p.buf.Bytes())
		p.cond.Broadcast()
		return
	}
	due := time.Now().Add(d)
	if i := len(p.late) - 1; i >= 0 && due.Before(p.late[i].due) {
		due = p.late[i].due
	}
	p.sent.Write(b)
	p.spoilLocked(p.sent.Bytes())
	p.late = append(p.late, piece{len(b), due})
	switch {
	case p.timer == nil:
		p.timer = time.AfterFunc(time.Until(due), p.arrive)
	case len(p.late) == 1:
		p.timer.Reset(time.Until(due))
	}
}

// spoilLocked flips a bit of what was sent last, if it is to.
func (p *pipe) spoilLocked(b []byte) {
	if p.spoil {
		p.spoil = false
		b[len(b)-1] ^= 0x10
	}
}

// arrive takes over the pieces that are due.
func (p *pipe) arrive() {
	p.change(func() {
		now, n, size := time.Now(), 0, 0
		for ; n < len(p.late) && !p.late[n].due.After(now); n++ {
			size += p.late[n].n
		}
		if arrived := p.sent.Next(size); p.err == nil && !p.gone {
			p.buf.Write(arrived)
		}
		p.late = slices.Delete(p.late, 0, n)
		if len(p.late) > 0 {
			p.timer.Reset(p.late[0].due.Sub(now))
		}
	})
}

// change changes the pipe's state by f.
func (p *pipe) change(f func()) {
	p.mu.Lock()
	f()
	p.cond.Broadcast()
	p.mu.Unlock()
}

func (p *pipe) end()          { p.change(func() { p.ended = true }) }
func (p *pipe) pause(on bool) { p.change(func() { p.paused = on }) }
func (p *pipe) corrupt()      { p.change(func() { p.spoil = true }) }

// leave ends the reader's part, which the writer notices by its next write.
func (p *pipe) leave() { p.change(func() { p.gone = true; p.buf.Reset() }) }

// fail breaks the pipe for both ends, and loses what is in it.
func (p *pipe) fail(err error) {
	p.change(func() {
		if p.err == nil {
			p.err = err
			p.buf.Reset()
		}
	})
}

// set sets a deadline of p.
func (d *deadline) set(p *pipe, t time.Time) {
	p.change(func() {
		if d.timer != nil {
			d.timer.Stop()
			d.timer = nil
		}
		d.passed = false
		switch left := time.Until(t); {
		case t.IsZero():
		case left <= 0:
			d.passed = true
		default:
			var timer *time.Timer
			timer = time.AfterFunc(left, func() {
				p.change(func() { d.passed = d.passed || d.timer == timer })
			})
			d.timer = timer
		}
	})
}
