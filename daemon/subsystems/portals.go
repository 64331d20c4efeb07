package subsystems

import (
	"context"
	"net/netip"
	"slices"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/listen"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// portalSet returns a set without portals.
func (s *Subsystems) portalSet() *listen.Set[*verbs.Listener] {
	return listen.NewSet(listen.SetConfig[*verbs.Listener]{
		Open: func(ctx context.Context, at listen.Place) (*verbs.Listener, error) {
			return s.cfg.Listen(ctx, at.Addr, verbs.ListenConfig{
				Transport: &transport.Config{
					Protector: transport.PerPeer(func(a netip.Addr) (transport.Protector, error) {
						return s.cfg.Protector(a, s.servesAnyone(at.Addr.Port()))
					}),
					OnRefused: s.cfg.Refused,
				},
				OnFailed: s.cfg.Refused,
			})
		},
		For:          " for NVMe hosts",
		OtherPort:    "give the subsystem another port",
		OtherAddress: "correct the addresses of the subsystem, or local_address of the peer",
	})
}

// wantedPortals are the places of a configuration's portals. A socket at all addresses leaves no room for others with
// its port.
func wantedPortals(cfg *config.Config, peers []listen.Awaited) map[listen.Place]bool {
	w := map[listen.Place]bool{}
	for _, c := range cfg.Subsystems {
		addresses := c.Addresses
		if len(addresses) == 0 && c.Undeclared {
			addresses = []netip.Addr{netip.IPv4Unspecified()}
		}
		for _, a := range addresses {
			w[portalAt(a, c)] = true
		}
		for _, p := range peers {
			if len(addresses) == 0 && p.Local.IsValid() && c.Allows(p.Peer) {
				w[portalAt(p.Local, c)] = true
			}
		}
	}
	for at := range w {
		all := at
		all.Addr = netip.AddrPortFrom(netip.IPv4Unspecified(), at.Addr.Port())
		if !at.Addr.Addr().IsUnspecified() && w[all] {
			delete(w, at)
		}
	}
	return w
}

func portalAt(a netip.Addr, c config.Subsystem) listen.Place {
	return listen.Place{Kind: transport.TCP, Addr: netip.AddrPortFrom(a, c.Port)}
}

// at reports whether a portal is one of a subsystem's.
func at(c *config.Subsystem, a netip.AddrPort) bool {
	return a.Port() == c.Port && (len(c.Addresses) == 0 || a.Addr().IsUnspecified() || slices.Contains(c.Addresses, a.Addr()))
}

// CloseBut closes the portals that a configuration and its peers do not want. The connections that came there end.
func (s *Subsystems) CloseBut(cfg *config.Config, peers []listen.Awaited) {
	s.closeBut(wantedPortals(cfg, peers))
}

func (s *Subsystems) closeBut(want map[listen.Place]bool) {
	for _, at := range s.portals.CloseBut(want) {
		s.log.Info("portal closed", "address", at)
	}
}

// Listen opens the portals that are wanted and closes those that are not. What cannot be opened is tried again by the
// next call.
func (s *Subsystems) Listen(ctx context.Context, cfg *config.Config, peers []listen.Awaited) {
	want := wantedPortals(cfg, peers)
	s.closeBut(want)
	for at := range want {
		if s.ctx.Err() != nil {
			return
		}
		ln, problem := s.portals.Open(ctx, at)
		switch {
		case problem != nil:
			s.log.Error("cannot listen for NVMe hosts", "address", at, "error", problem)
		case ln != nil:
			s.log.Info("listening for NVMe hosts", "address", at)
			s.wg.Go(func() {
				// It ends when the portal is closed.
				_ = s.server.Serve(s.ctx, acceptor{ln, s}, s.cfg.ULP)
			})
		}
	}
}

// servesAnyone reports whether a subsystem at a port is for hosts that are no peers, too.
func (s *Subsystems) servesAnyone(port uint16) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.all {
		if x.cfg.Undeclared && x.cfg.Port == port {
			return true
		}
	}
	return false
}

// acceptor is a portal as the server takes it.
type acceptor struct {
	*verbs.Listener
	s *Subsystems
}

// Accept waits for the next connection. It fails as verbs.Listener.Accept does.
func (a acceptor) Accept(ctx context.Context) (*verbs.ConnRequest, error) {
	r, err := a.Listener.Accept(ctx)
	if err != nil {
		return nil, err
	}
	if p, known := a.s.cfg.PeerOf(r.Peer(), r.Flow().Remote.Addr()); known {
		a.s.cfg.Came(p.Name)
	}
	return r, nil
}

// Portals are the places where hosts may come.
func (s *Subsystems) Portals() []api.Listener { return s.portals.States() }
