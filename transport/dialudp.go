package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/ironwarp/ironwarp/internal/sockio"
	"github.com/ironwarp/ironwarp/transport/assoc"
	"github.com/ironwarp/ironwarp/transport/sctp"
)

var errOneAddress = errors.New("SCTP in UDP has one address on each host: further ones need the kernel's SCTP")

// dialUDP sets up an association in UDP, on a socket of its own. f is its flow as far as
// it is known.
func dialUDP(ctx context.Context, remote netip.AddrPort, f Flow, cfg *Config, recv NewReceiver) (*Assoc, error) {
	f.Remote = netip.AddrPortFrom(remote.Addr(), cfg.udpPort())
	if len(cfg.MoreLocal)+len(cfg.MoreRemote) > 0 {
		return nil, flowError("dial", f, errOneAddress)
	}
	f, lo, hi, err := choosePorts(ctx, cfg.Protector, f)
	if err != nil {
		return nil, flowError("prepare", f, err)
	}
	var g *gate
	var closeCarrier func()
	dial, over := context.WithCancel(ctx)
	defer over()
	err = attempts(ctx, f, func() error { return cfg.Protector.Prepare(dial, f) }, func() (err error) {
		g, closeCarrier, err = associateUDP(ctx, remote.Port(), f, lo, hi, cfg)
		return err
	})
	if err != nil {
		return nil, err
	}
	a, err := g.admitted(ctx, true, recv, closeCarrier)
	if err != nil {
		closeCarrier()
	}
	return a, err
}

// attempts prepares and dials. If an SA is deleted between the two (RFC 5042 section
// 5.4.5), the guard refuses every packet, and both are repeated.
func attempts(ctx context.Context, f Flow, prepare, dial func() error) error {
	for attempt := 1; ; attempt++ {
		if err := prepare(); err != nil {
			return flowError("prepare", f, err)
		}
		err := dial()
		if err == nil {
			return nil
		}
		if !errors.Is(err, syscall.EPERM) || attempt == dialAttempts || ctx.Err() != nil {
			return flowError("dial", f, cause(err))
		}
	}
}

// associateUDP sets up an association on a new socket, which closeCarrier closes.
func associateUDP(ctx context.Context, port uint16, f Flow, lo, hi uint16, cfg *Config) (g *gate, closeCarrier func(), err error) {
	conn, err := cfg.bindUDP(f, lo, hi)
	if err != nil {
		return nil, nil, err
	}
	f.Local = unmap(conn.LocalAddr().(*net.UDPAddr).AddrPort())
	sc := cfg.sctpConfig()
	sc.Admit = func(_, from netip.AddrPort, _ bool) error {
		if from != f.Remote {
			return fmt.Errorf("%w: this association is with %v", ErrNotProtected, f.Remote)
		}
		return nil
	}
	ep, err := sctp.Listen(conn, sc)
	if err != nil {
		return nil, nil, err
	}
	_, err = ep.Dial(ctx, f.Remote, sctp.DialConfig{RemotePort: port, Receiver: func(a *sctp.Assoc) assoc.Receiver {
		g = newGate(a, []Flow{f}, cfg)
		return g
	}})
	if err != nil {
		ep.Close()
		return nil, nil, err
	}
	return g, func() { ep.Close() }, nil
}

// bindUDP returns a socket bound to the flow's local address, or to the one that routes
// to the remote address, and to a port of the range, or any port.
func (c *Config) bindUDP(f Flow, lo, hi uint16) (conn net.PacketConn, err error) {
	local := f.Local.Addr()
	if !local.IsValid() && c.Network == nil {
		if local, err = sockio.Source(f.Remote); err != nil {
			return nil, err
		}
	}
	err = eachPort(lo, hi, func(port uint16) (err error) {
		at := netip.AddrPortFrom(local, port)
		switch {
		case c.Network != nil:
			conn, err = c.Network.ListenPacket(at)
		case c.OwnSockets:
			conn, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(at), net.UDPAddrFromAddrPort(f.Remote))
		default:
			conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		}
		return err
	})
	return conn, err
}
