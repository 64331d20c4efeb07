package transport

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Conn is an admitted TCP connection. It is a net.Conn; its methods may be
// called from several goroutines.
type Conn struct {
	tcp  *net.TCPConn
	raw  syscall.RawConn
	flow Flow
	prot Protection
	emss atomic.Int32
	most int // EMSS at first

	refresh func(fd uintptr) // built once, so that RefreshEMSS does not allocate

	closeOnce sync.Once
	closeErr  error
}

// newConn dresses a connected socket. The connection still has to be admitted.
func newConn(tcp *net.TCPConn, cfg *Config) (*Conn, error) {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil, err
	}
	c := &Conn{tcp: tcp, raw: raw, flow: tcpFlow(tcp.LocalAddr(), tcp.RemoteAddr())}
	if err := cfg.tune(tcp, raw); err != nil {
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

// Flow is the connection's flow, complete.
func (c *Conn) Flow() Flow { return c.flow }

// Protection is what the connection lives under.
func (c *Conn) Protection() Protection { return c.prot }

// EMSS is TCP's effective maximum segment size in bytes (RFC 5044 section 4.5)
// as of the last RefreshEMSS, 0 if the kernel did not tell.
func (c *Conn) EMSS() int { return int(c.emss.Load()) }

// RefreshEMSS asks the kernel for the EMSS, which changes with the path's MTU,
// and returns it. It costs one system call and no allocation.
func (c *Conn) RefreshEMSS() int {
	// After Close the last value stays.
	_ = c.raw.Control(c.refresh)
	return c.EMSS()
}

// PathMTU is how long IP packets of the connection are at most, and which length
// gets lost although the route has it: the kernel has shortened segments by itself
// (RFC 4821). 0 is not known.
func (c *Conn) PathMTU() (carries, lost int) {
	now := c.RefreshEMSS()
	var info *unix.TCPInfo
	err := c.raw.Control(func(fd uintptr) { info, _ = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
	if err != nil || info == nil || now == 0 {
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

// Outq is the number of bytes written which the peer has not acknowledged.
func (c *Conn) Outq() (int, error) {
	var n int
	var err error
	if cerr := c.raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }); cerr != nil {
		return 0, cerr
	}
	return n, err
}

// SyscallConn gives access to the socket.
func (c *Conn) SyscallConn() (syscall.RawConn, error) { return c.tcp.SyscallConn() }

// NetConn is the TCP connection below. Closing it does not release the
// Protection.
func (c *Conn) NetConn() net.Conn { return c.tcp }

// Read reads from the connection.
func (c *Conn) Read(p []byte) (int, error) { return c.tcp.Read(p) }

// Write writes to the connection.
func (c *Conn) Write(p []byte) (int, error) { return c.tcp.Write(p) }

// CloseWrite ends the sending direction (FIN).
func (c *Conn) CloseWrite() error { return c.tcp.CloseWrite() }

// Close closes the connection and releases its protection. It is idempotent.
func (c *Conn) Close() error {
	c.closeOnce.Do(func() {
		c.closeErr = c.tcp.Close()
		if c.prot != nil {
			c.prot.Release()
		}
	})
	return c.closeErr
}

// LocalAddr returns the local address.
func (c *Conn) LocalAddr() net.Addr { return c.tcp.LocalAddr() }

// RemoteAddr returns the peer's address.
func (c *Conn) RemoteAddr() net.Addr { return c.tcp.RemoteAddr() }

// SetDeadline sets both deadlines.
func (c *Conn) SetDeadline(t time.Time) error { return c.tcp.SetDeadline(t) }

// SetReadDeadline sets the deadline of reads.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.tcp.SetReadDeadline(t) }

// SetWriteDeadline sets the deadline of writes.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.tcp.SetWriteDeadline(t) }
