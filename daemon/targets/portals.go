package targets

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/transport"
)

// Awaited is a peer, and an address of this host that it comes to.
type Awaited struct {
	Peer  config.Peer
	Local netip.Addr
}

// portal is a place where initiators come.
type portal struct {
	at      netip.AddrPort
	ln      *transport.Listener // nil while it cannot listen
	problem *api.Error
}

// wanted are the places of a configuration's portals. A socket at all addresses leaves no room for
// others with its port.
func wanted(cfg *config.Config, peers []Awaited) map[netip.AddrPort]bool {
	w := map[netip.AddrPort]bool{}
	for _, t := range cfg.Targets {
		addresses := t.Addresses
		if len(addresses) == 0 && t.Undeclared {
			addresses = []netip.Addr{netip.IPv4Unspecified()}
		}
		for _, a := range addresses {
			w[netip.AddrPortFrom(a, t.Port)] = true
		}
		for _, p := range peers {
			if len(addresses) == 0 && p.Local.IsValid() && t.Allows(p.Peer) {
				w[netip.AddrPortFrom(p.Local, t.Port)] = true
			}
		}
	}
	for at := range w {
		if !at.Addr().IsUnspecified() && w[netip.AddrPortFrom(netip.IPv4Unspecified(), at.Port())] {
			delete(w, at)
		}
	}
	return w
}

// CloseBut closes the portals that a configuration and its peers do not want. The sessions that came
// there end.
func (t *Targets) CloseBut(cfg *config.Config, peers []Awaited) {
	want := wanted(cfg, peers)
	t.mu.Lock()
	var stale []*portal
	for at, p := range t.portals {
		if !want[at] {
			delete(t.portals, at)
			stale = append(stale, p)
		}
	}
	t.mu.Unlock()
	for _, p := range stale {
		if p.ln != nil {
			p.ln.Close()
		}
		t.log.Info("portal closed", "address", p.at)
	}
}

// Listen opens the portals that are wanted and closes those that are not. What cannot be opened is
// tried again by the next call.
func (t *Targets) Listen(ctx context.Context, cfg *config.Config, peers []Awaited) {
	t.CloseBut(cfg, peers)
	for at := range wanted(cfg, peers) {
		t.mu.Lock()
		p := t.portals[at]
		if p == nil {
			p = &portal{at: at}
			t.portals[at] = p
		}
		up := p.ln != nil
		t.mu.Unlock()
		if !up && t.ctx.Err() == nil {
			t.open(ctx, p)
		}
	}
}

func (t *Targets) open(ctx context.Context, p *portal) {
	ln, err := transport.Listen(ctx, p.at, &transport.Config{
		Protector: transport.PerPeer(func(a netip.Addr) (transport.Protector, error) {
			return t.cfg.Protector(a, t.servesAnyone(p.at.Port()))
		}),
		OnRefused: t.cfg.Refused,
	})
	problem := problemOf(p.at, err)
	t.mu.Lock()
	changed := problem != nil && (p.problem == nil || p.problem.Message != problem.Message)
	p.ln, p.problem = ln, problem
	t.mu.Unlock()
	switch {
	case changed:
		t.log.Error("cannot listen for initiators", "address", p.at, "error", problem)
	case problem == nil:
		t.log.Info("listening for initiators", "address", p.at)
		t.wg.Go(func() {
			// It ends when the portal is closed.
			_ = t.server.Serve(t.ctx, acceptor{ln, t})
		})
	}
}

// servesAnyone reports whether a target at a port is for hosts that are no peers, too.
func (t *Targets) servesAnyone(port uint16) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.all {
		if s.cfg.Undeclared && s.cfg.Port == port {
			return true
		}
	}
	return false
}

// acceptor is a portal as the server takes it.
type acceptor struct {
	*transport.Listener
	t *Targets
}

// Accept waits for the next connection. It fails as transport.Listener.Accept does.
func (a acceptor) Accept() (net.Conn, error) {
	c, err := a.Listener.Accept(a.t.ctx)
	if err != nil {
		return nil, err
	}
	if p, known := a.t.cfg.PeerOf(c.Protection().Peer(), c.Flow().Remote.Addr()); known {
		a.t.cfg.Came(p.Name)
	}
	return c, nil
}

// Addr is the portal's.
func (a acceptor) Addr() net.Addr { return net.TCPAddrFromAddrPort(a.Listener.Addr()) }

func problemOf(at netip.AddrPort, err error) *api.Error {
	if err == nil {
		return nil
	}
	e := &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("cannot listen for initiators at %s: %v", at, err)}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		e.Code, e.Message = api.CodeInUse, fmt.Sprintf("cannot listen for initiators at %s: another program has TCP port %d", at, at.Port())
		e.Fix = fmt.Sprintf("find it with `ss -ltnp 'sport = :%d'` and stop it, or give the target another port. The daemon keeps trying", at.Port())
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		e.Message = fmt.Sprintf("cannot listen for initiators at %s: no interface of this host has that address", at)
		e.Fix = "see `ip address`; correct the addresses of the target, or local_address of the peer. The daemon keeps trying"
	}
	return e
}

// Portals are the places where initiators may come.
func (t *Targets) Portals() []api.Listener {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := []api.Listener{}
	for _, at := range slices.SortedFunc(maps.Keys(t.portals), netip.AddrPort.Compare) {
		p := t.portals[at]
		v := api.Listener{Address: at.String(), Transport: transport.TCP.String(), State: "listening", Problem: p.problem}
		if p.ln == nil {
			v.State = api.PeerProblem
		}
		out = append(out, v)
	}
	return out
}
