package verbstest

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
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

// CloseWrite ends the sending direction.
func (c *conn) CloseWrite() error {
	c.out.end()
	return nil
}

// Close ends both directions. What has been sent arrives all the same.
func (c *conn) Close() error {
	c.fabric.mu.Lock()
	delete(c.fabric.conns, c)
	c.fabric.mu.Unlock()
	c.closed.Store(true)
	c.in.reader.set(c.in, time.Time{}) // its timers go
	c.out.writer.set(c.out, time.Time{})
	c.in.fail(syscall.ECONNRESET)
	c.out.end()
	return nil
}

// pipe is one direction of a connection.
type pipe struct {
	reader, writer deadline

	mu     sync.Mutex // guards the fields below it
	cond   sync.Cond
	buf    []byte
	ended  bool  // by the writer
	err    error // it is broken
	paused bool
	spoil  bool // flip a bit of the next write
}

// deadline is that of one end of a pipe.
type deadline struct {
	timer  *time.Timer // guarded by pipe.mu
	passed bool        // guarded by pipe.mu
}

func newPipe(paused bool) *pipe {
	p := &pipe{paused: paused}
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
		case p.paused:
		case len(p.buf) > 0:
			n := copy(b, p.buf)
			p.buf = p.buf[n:]
			p.cond.Broadcast()
			return n, nil
		case p.ended:
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
		case len(p.buf) < pipeSize:
			k := min(len(b), pipeSize-len(p.buf))
			p.buf = append(p.buf, b[:k]...)
			if p.spoil {
				p.spoil = false
				p.buf[len(p.buf)-1] ^= 0x10
			}
			n, b = n+k, b[k:]
			p.cond.Broadcast()
			continue
		}
		p.cond.Wait()
	}
	return n, nil
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

// fail breaks the pipe for both ends, and loses what is in it.
func (p *pipe) fail(err error) {
	p.change(func() {
		if p.err == nil {
			p.err, p.buf = err, nil
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
