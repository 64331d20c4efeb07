package transport

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Config configures connections. The zero value of each field except Protector is useful.
// Config is never modified.
type Config struct {
	// Protector vouches for every flow. It is required.
	Protector Protector

	// Kind is the carrier of the streams. Dial and Listen are for TCP, DialSCTP and
	// ListenSCTP for the others.
	Kind Kind

	// Network, if not nil, carries the connections of Kind TCP and the packets of SCTPUDP
	// instead of the host's TCP and UDP. The Protector still decides about them.
	Network Network

	// Local is the address that Dial binds to; if it is invalid the kernel chooses.
	Local netip.Addr

	// OneFamily has a Listener on 0.0.0.0 take IPv4 alone, and one on :: IPv6 alone. Otherwise
	// either takes both.
	OneFamily bool

	// UDPPort is, for SCTPUDP, the UDP port of peers and of listeners, 0 for 9899 (RFC
	// 6951 section 6.2). A dialler uses any free port.
	UDPPort uint16

	// OwnSockets gives, for SCTPUDP, each association a UDP socket of its own, connected to
	// the peer, also one that a listener has accepted: the kernel says then whose packets
	// they are, and whoever has the socket can end that association and no other. A
	// Network's associations have none.
	OwnSockets bool

	// MTU is, for SCTPUDP, the path's MTU in bytes, IP header included, 640 to 65,535: no
	// packet is longer. 0 discovers it.
	MTU int

	// MoreLocal and MoreRemote are, for SCTP, further addresses of this host and of the
	// peer that an association uses when a path fails (RFC 9260 section 6.4). Each of
	// them must be protected like the first, or the association is refused.
	MoreLocal, MoreRemote []netip.Addr

	// SendBuffer and RecvBuffer set the kernel's socket buffers in bytes (SO_SNDBUF,
	// SO_RCVBUF); with SCTPUDP the buffers of each association. 0 leaves them to TCP's
	// own tuning, which is better unless memory is short.
	SendBuffer, RecvBuffer int

	// DeadAfter is how long the peer may be silent before the connection is given up, 0
	// for 20 minutes. It must exceed any outage of the SA that a stream should survive.
	DeadAfter time.Duration

	// AdmitTimeout bounds the Protector's Admit, 0 for 30 seconds.
	AdmitTimeout time.Duration

	// MaxPending bounds the connections of a Listener that wait for admission or Accept,
	// 0 for 128. One remote address may hold half of them. Addresses that hold none are
	// let in beyond that, up to eight times as many.
	MaxPending int

	// OnPath is called when a path of an SCTP association stops answering and when it
	// answers again, with that path's flow. It must not block.
	OnPath func(f Flow, up bool)

	// OnRefused is called for each connection that a Listener refused, with the reason;
	// about once a second for unknown hosts whose packets are ignored; and for a path
	// because of which an association was ended later. It is called from several
	// goroutines, must not block, and must not call the Listener's Close.
	OnRefused func(Flow, error)
}

// Network carries connections and packets instead of the host's TCP and UDP, for example in
// memory for tests (package verbs/verbstest). Addresses are *net.TCPAddr and *net.UDPAddr.
// Connections with a CloseWrite that ends the sending direction can end gracefully.
type Network interface {
	// Dial connects to remote, from local where that is valid.
	Dial(ctx context.Context, local netip.Addr, remote netip.AddrPort) (net.Conn, error)
	// Listen listens on local; port 0 picks a free one.
	Listen(local netip.AddrPort) (net.Listener, error)
	// ListenPacket takes packets to local, which may have no address; port 0 picks a free
	// one.
	ListenPacket(local netip.AddrPort) (net.PacketConn, error)
}

func (c *Config) admitTimeout() time.Duration {
	if c.AdmitTimeout > 0 {
		return c.AdmitTimeout
	}
	return defaultAdmitTimeout
}

func (c *Config) maxPending() int {
	if c.MaxPending > 0 {
		return c.MaxPending
	}
	return defaultMaxPending
}

func (c *Config) deadAfter() time.Duration {
	if c.DeadAfter > 0 {
		return c.DeadAfter
	}
	return defaultDeadAfter
}

// keepAlive spreads the probes over DeadAfter. With TCP_USER_TIMEOUT set the
// kernel gives up by the clock, not by their number.
func (c *Config) keepAlive() net.KeepAliveConfig {
	every := max(c.deadAfter()/keepAliveProbes, time.Second)
	return net.KeepAliveConfig{Enable: true, Idle: every, Interval: every, Count: keepAliveProbes}
}

// control sets buffer sizes before the socket connects or listens, because they determine
// the window scale of the handshake.
func (c *Config) control(_, _ string, rc syscall.RawConn) error {
	var err error
	set := func(fd uintptr) {
		if c.SendBuffer > 0 {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, c.SendBuffer)
		}
		if c.RecvBuffer > 0 && err == nil {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, c.RecvBuffer)
		}
	}
	if cerr := rc.Control(set); cerr != nil {
		return cerr
	}
	if err != nil {
		return fmt.Errorf("set socket buffers to %d and %d bytes: %w", c.SendBuffer, c.RecvBuffer, err)
	}
	return nil
}

// sockoptRTOMax is TCP_RTO_MAX_MS of linux/tcp.h, in kernels from 6.15 on.
const sockoptRTOMax = 44

// tune sets the options of a connected socket (RFC 5044 section 5.1: no Nagle, so that
// TCP segments start at FPDUs).
func (c *Config) tune(tcp *net.TCPConn, rc syscall.RawConn) error {
	if err := tcp.SetNoDelay(true); err != nil {
		return err
	}
	if err := tcp.SetKeepAliveConfig(c.keepAlive()); err != nil {
		return err
	}
	var err error
	set := func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(c.deadAfter()/time.Millisecond))
		// Older kernels lack it and only recover more slowly after an outage.
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, sockoptRTOMax, int(maxRTO/time.Millisecond))
	}
	if cerr := rc.Control(set); cerr != nil {
		return cerr
	}
	if err != nil {
		return fmt.Errorf("set TCP_USER_TIMEOUT: %w", err)
	}
	return nil
}
