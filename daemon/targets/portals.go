package targets

import (
	"context"
	"net/netip"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/listen"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// portalSet returns a set without portals.
func (t *Targets) portalSet() *listen.Set[*verbs.Listener] {
	return listen.NewSet(listen.SetConfig[*verbs.Listener]{
		Open: func(ctx context.Context, at listen.Place) (*verbs.Listener, error) {
			return t.cfg.Listen(ctx, at.Addr, verbs.ListenConfig{
				Transport: &transport.Config{
					Protector: transport.PerPeer(func(a netip.Addr) (transport.Protector, error) {
						return t.cfg.Protector(a, t.servesAnyone(at.Addr.Port()))
					}),
					OnRefused: t.cfg.Refused,
				},
				Streaming: true, OnFailed: t.cfg.Refused,
				Partition: at.Partition, Label: func() string { return t.labelAt(at) },
			})
		},
		For:          " for initiators",
		OtherPort:    "give the target another port",
		OtherAddress: "correct the addresses of the target, or local_address of the peer",
	})
}

// wantedPortals are the places of a configuration's portals. A socket at all addresses leaves no room for
// others with its port.
func (t *Targets) wantedPortals(cfg *config.Config, peers []listen.Awaited) map[listen.Place]bool {
	denies := t.cfg.Denies
	w := map[listen.Place]bool{}
	for _, t := range cfg.Targets {
		if denies(t) {
			continue
		}
		addresses := t.Addresses
		if len(addresses) == 0 && t.Undeclared {
			addresses = []netip.Addr{netip.IPv4Unspecified()}
		}
		for _, a := range addresses {
			w[portalAt(a, t)] = true
		}
		for _, p := range peers {
			if len(addresses) == 0 && p.Local.IsValid() && t.Allows(p.Peer) {
				w[portalAt(p.Local, t)] = true
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

func portalAt(a netip.Addr, t config.Target) listen.Place {
	return listen.Place{Kind: transport.TCP, Addr: netip.AddrPortFrom(a, t.Port), Partition: t.Partition}
}

// labelAt is the security label of a portal: of the targets there the one that may use the partition least easily decides, since
// all are reached by it; they have the same one as a rule.
func (t *Targets) labelAt(at listen.Place) (label string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.all {
		if s.cfg.Partition == at.Partition && s.cfg.Port == at.Addr.Port() {
			if label = t.cfg.Label(s.cfg); t.cfg.Denies(s.cfg) {
				return label
			}
		}
	}
	return label
}

// CloseBut closes the portals that a configuration and its peers do not want. The sessions that came
// there end.
func (t *Targets) CloseBut(cfg *config.Config, peers []listen.Awaited) {
	t.closeBut(t.wantedPortals(cfg, peers))
}

func (t *Targets) closeBut(want map[listen.Place]bool) {
	for _, at := range t.portals.CloseBut(want) {
		t.log.Info("portal closed", "address", at)
	}
}

// Listen opens the portals that are wanted and closes those that are not. What cannot be opened is
// tried again by the next call.
func (t *Targets) Listen(ctx context.Context, cfg *config.Config, peers []listen.Awaited) {
	want := t.wantedPortals(cfg, peers)
	t.closeBut(want)
	for at := range want {
		if t.ctx.Err() != nil {
			return
		}
		ln, problem := t.portals.Open(ctx, at)
		switch {
		case problem != nil:
			t.log.Error("cannot listen for initiators", "address", at, "error", problem)
		case ln != nil:
			t.log.Info("listening for initiators", "address", at)
			t.wg.Go(func() {
				// It ends when the portal is closed.
				_ = t.server.ServeRDMA(t.ctx, acceptor{ln, t}, t.cfg.ULP)
			})
		}
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
	*verbs.Listener
	t *Targets
}

// Accept waits for the next connection. It fails as verbs.Listener.Accept does.
func (a acceptor) Accept(ctx context.Context) (*verbs.ConnRequest, error) {
	r, err := a.Listener.Accept(ctx)
	if err != nil {
		return nil, err
	}
	if p, known := a.t.cfg.PeerOf(r.Peer(), r.Flow().Remote.Addr()); known {
		a.t.cfg.Came(p.Name)
	}
	return r, nil
}

// Portals are the places where initiators may come.
func (t *Targets) Portals() []api.Listener { return t.portals.States() }
