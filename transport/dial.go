package transport

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"
)

// Dial connects to remote over TCP. The Protector prepares the flow before its first
// packet and admits it before its first byte. It fails with ErrNoProtector or a
// *FlowError.
func Dial(ctx context.Context, remote netip.AddrPort, cfg *Config) (*Conn, error) {
	if cfg == nil || cfg.Protector == nil {
		return nil, ErrNoProtector
	}
	f := Flow{Protocol: ProtoTCP, Remote: unmap(remote)}
	if cfg.Local.IsValid() {
		f.Local = netip.AddrPortFrom(cfg.Local.Unmap(), 0)
	}
	if !f.Remote.IsValid() || f.Remote.Port() == 0 {
		return nil, flowError("dial", f, errors.New("the remote address or port is missing"))
	}
	f, lo, hi, err := choosePorts(ctx, cfg.Protector, f)
	if err != nil {
		return nil, flowError("prepare", f, err)
	}
	d := net.Dialer{Control: cfg.control, KeepAlive: -1}
	// A multipath connection would add subflows that nobody admitted.
	d.SetMultipathTCP(false)
	if hi != 0 {
		local := f.Local.Addr()
		switch {
		case local.IsValid():
		case f.Remote.Addr().Is4():
			local = netip.IPv4Unspecified()
		default:
			local = netip.IPv6Unspecified()
		}
		d.Control = func(network, address string, rc syscall.RawConn) error {
			return errors.Join(cfg.control(network, address, rc), bindWithin(rc, local, lo, hi))
		}
	} else if f.Local.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(f.Local)
	}
	dial, over := context.WithCancel(ctx)
	defer over()
	open := func() (net.Conn, error) { return d.DialContext(dial, "tcp", f.Remote.String()) }
	if cfg.Network != nil {
		open = func() (net.Conn, error) { return cfg.Network.Dial(dial, f.Local.Addr(), f.Remote) }
	}
	nc, err := connect(dial, open, f, cfg.Protector)
	if err != nil {
		return nil, err
	}
	c, err := newConn(nc, cfg)
	if err != nil {
		nc.Close()
		return nil, flowError("dial", f, err)
	}
	c.mine = true
	if err := c.admit(ctx, cfg, true); err != nil {
		return nil, err
	}
	return c, nil
}

// connect prepares the flow and connects. If an SA is deleted between the two (RFC 5042
// section 5.4.5: a delete is no reason to give up a stream), the guard refuses the first
// packet, and the flow is prepared again.
func connect(ctx context.Context, open func() (net.Conn, error), f Flow, p Protector) (net.Conn, error) {
	pause := prepareAgainMin
	for {
		if err := p.Prepare(ctx, f); err != nil {
			return nil, flowError("prepare", f, err)
		}
		nc, err := open()
		if err == nil {
			return nc, nil
		}
		if cerr := ctx.Err(); cerr != nil && !errors.Is(err, cerr) {
			err = errors.Join(cerr, err)
		}
		if !errors.Is(err, syscall.EPERM) || pause > prepareAgainMax {
			return nil, flowError("dial", f, err)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, flowError("dial", f, errors.Join(ctx.Err(), err))
		}
		pause *= 2
	}
}

// admit asks the Protector to admit a connected flow, and closes the connection if it
// refuses.
func (c *Conn) admit(ctx context.Context, cfg *Config, outgoing bool) error {
	ctx, cancel := context.WithTimeout(ctx, cfg.admitTimeout())
	defer cancel()
	p, err := cfg.Protector.Admit(ctx, c.flow, outgoing, c)
	if err == nil && p == nil {
		err = ErrNotProtected
	}
	if err != nil {
		if errors.Is(err, ErrNoAnswer) {
			c.ResetOnClose()
		}
		c.Close()
		return flowError("admit", c.flow, err)
	}
	c.prot = p
	return nil
}
