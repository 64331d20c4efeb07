package transport

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Conn is an admitted connection, over TCP or a Network. It is a net.Conn; its methods may be
// called from several goroutines.
type Conn struct {
	nc   net.Conn        // a *net.TCPConn, or a Network's
	raw  syscall.RawConn // nil for a Network's
	flow Flow
	prot Protection
	emss atomic.Int32
	most int  // the first EMSS
	mine bool // this host dialled

	refresh func(fd uintptr) // built once, so that RefreshEMSS does not allocate

	closeOnce sync.Once
	closeErr  error
}

// newConn makes a Conn from a connected socket. It is not admitted yet.
func newConn(nc net.Conn, cfg *Config) (*Conn, error) {
	c := &Conn{nc: nc, flow: tcpFlow(nc.LocalAddr(), nc.RemoteAddr())}
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		return c, nil
	}
	var err error
	if c.raw, err = tcp.SyscallConn(); err != nil {
		return nil, err
	}
	if err := cfg.tune(tcp, c.raw); err != nil {
		return c, err
	}
	c.refresh = func(fd uintptr) {
		if n, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG); err == nil && n > 0 {
			c.emss.Store(int32(n))
		}
	}
	c.most = c.RefreshEMSS()
	return c, nil
}

func tcpFlow(local, remote net.Addr) Flow {
	return Flow{Protocol: ProtoTCP, Local: addrPort(local), Remote: addrPort(remote)}
}

func addrPort(a net.Addr) netip.AddrPort {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	return unmap(t.AddrPort())
}

func unmap(ap netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// Flow returns the connection's complete flow.
func (c *Conn) Flow() Flow { return c.flow }

// Protection returns the protection of the connection.
func (c *Conn) Protection() Protection { return c.prot }

// EMSS returns TCP's effective maximum segment size in bytes (RFC 5044 section 4.5) as of
// the last RefreshEMSS, 0 if the kernel did not report one.
func (c *Conn) EMSS() int { return int(c.emss.Load()) }

// RefreshEMSS asks the kernel for the EMSS, which changes with the path's MTU,
// and returns it. It costs one system call and no allocation.
func (c *Conn) RefreshEMSS() int {
	if c.raw != nil {
		_ = c.raw.Control(c.refresh) // after Close the last value stays
	}
	return c.EMSS()
}

// PathMTU returns the size of the largest IP packets that get through, and a size that is
// lost although the route's MTU allows it: the kernel has shortened segments by itself
// (RFC 4821). 0 means not known.
func (c *Conn) PathMTU() (carries, lost int) {
	now := c.RefreshEMSS()
	if now == 0 {
		return 0, 0
	}
	var info *unix.TCPInfo
	err := c.raw.Control(func(fd uintptr) { info, _ = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
	if err != nil || info == nil {
		return 0, 0
	}
	const optTimestamps, timestampsLen, tcpHeaderLen = 1, 12, 20 // TCPI_OPT_TIMESTAMPS
	headers := 20 + tcpHeaderLen
	if c.flow.Remote.Addr().Is6() {
		headers = 40 + tcpHeaderLen
	}
	if info.Options&optTimestamps != 0 {
		headers += timestampsLen
	}
	if now < c.most && int(info.Pmtu) >= c.most+headers {
		lost = c.most + headers
	}
	return now + headers, lost
}

// Outq returns the number of written bytes that the peer has not acknowledged. It fails
// after Close.
func (c *Conn) Outq() (int, error) {
	if c.raw == nil {
		return 0, nil
	}
	var n int
	var err error
	if cerr := c.raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }); cerr != nil {
		return 0, cerr
	}
	return n, err
}

// SyscallConn gives access to the socket. It fails for a Network's connection, which has
// none.
func (c *Conn) SyscallConn() (syscall.RawConn, error) {
	if sc, ok := c.nc.(syscall.Conn); ok {
		return sc.SyscallConn()
	}
	return nil, flowError("use", c.flow, errors.ErrUnsupported)
}

// NetConn returns the underlying connection. Closing it does not release the Protection.
func (c *Conn) NetConn() net.Conn { return c.nc }

// Read reads from the connection. It fails with net.ErrClosed after Close, and with the
// network's error, which matches ErrHalfOpen if the peer's host never had the connection.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.nc.Read(p)
	return n, c.explain(err)
}

// Peek waits for the first byte that has not been read, and leaves it there. It fails as Read does,
// and for a Network's connection.
func (c *Conn) Peek() (byte, error) {
	if c.raw == nil {
		return 0, flowError("look at what arrived on", c.flow, errors.ErrUnsupported)
	}
	var b [1]byte
	var n int
	var err error
	cerr := c.raw.Read(func(fd uintptr) bool {
		for {
			n, _, err = unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK)
			if err != unix.EINTR {
				return err != unix.EAGAIN
			}
		}
	})
	switch {
	case cerr != nil:
		return 0, cerr
	case err != nil:
		return 0, c.explain(err)
	case n == 0:
		return 0, io.EOF
	}
	return b[0], nil
}

// Write writes to the connection. It fails as Read does.
func (c *Conn) Write(p []byte) (int, error) {
	n, err := c.nc.Write(p)
	return n, c.explain(err)
}

// explain adds what is known about a reset. Linux gives up a connection that it accepts if it
// can't repeat the SYN-ACK, as the guard will not let it while there is no SA. The host
// that dialled has the connection by then, and is told by the answer to its first byte.
func (c *Conn) explain(err error) error {
	if c.raw == nil || !c.mine || !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
		return err
	}
	var info *unix.TCPInfo
	if cerr := c.raw.Control(func(fd uintptr) { info, _ = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }); cerr != nil || info == nil {
		return err
	}
	const syn = 1 // counts as a byte
	if info.Bytes_acked <= syn && info.Bytes_received == 0 && info.Last_ack_recv >= uint32(synAckRepeated.Milliseconds()) {
		return fmt.Errorf("%w: %w", ErrHalfOpen, err)
	}
	return err
}

// CloseWrite ends the sending direction (FIN). It fails with the network's error.
func (c *Conn) CloseWrite() error {
	if cw, ok := c.nc.(interface{ CloseWrite() error }); ok {
		return cw.CloseWrite()
	}
	return flowError("close", c.flow, errors.ErrUnsupported)
}

// Close closes the connection and releases its protection. It is idempotent.
func (c *Conn) Close() error {
	c.closeOnce.Do(func() {
		c.closeErr = c.nc.Close()
		if c.prot != nil {
			c.prot.Release()
		}
	})
	return c.closeErr
}

// ResetOnClose has Close drop what the kernel has not sent, and reset the connection.
func (c *Conn) ResetOnClose() {
	if tcp, ok := c.nc.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // it fails for a connection that is closed
	}
}

// LocalAddr returns the local address.
func (c *Conn) LocalAddr() net.Addr { return c.nc.LocalAddr() }

// RemoteAddr returns the peer's address.
func (c *Conn) RemoteAddr() net.Addr { return c.nc.RemoteAddr() }

// SetDeadline sets both deadlines. It fails after Close.
func (c *Conn) SetDeadline(t time.Time) error { return c.nc.SetDeadline(t) }

// SetReadDeadline sets the deadline of reads. It fails after Close.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.nc.SetReadDeadline(t) }

// SetWriteDeadline sets the deadline of writes. It fails after Close.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.nc.SetWriteDeadline(t) }
