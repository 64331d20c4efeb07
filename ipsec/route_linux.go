package ipsec

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// kernel-libipsec routes by host: all children of a peer need the same route in
// charon's table, but it belongs to the child that came first and goes with
// that one, whatever children are left. So there is a second one, of this
// package, as long as any child of the peer is up. Its metric is worse and its
// protocol another than charon's, so that neither replaces nor deletes the
// other's.
const (
	routeMetric   = 1000
	routeProtocol = 74
)

// keepRoute adds the route into the tun of userland ESP to a peer's address, or
// removes it. A route that is as it should be is no error, and neither is a
// device that is gone: its routes have gone with it.
func keepRoute(g GuardSpec, local netip.Addr, up bool) error {
	return inGuardNS(g.NetNS, func(k *kernel) error {
		r := &netlink.Route{Dst: hostNet(g.Remote), Table: charonTable, Protocol: routeProtocol, Priority: routeMetric}
		if !up {
			if err := k.RouteDel(r); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("remove the route to %v: %w", g.Remote, err)
			}
			return nil
		}
		tuns, err := k.tuns(g.Tun)
		if err != nil || len(tuns) == 0 {
			return err
		}
		r.LinkIndex, r.Src, r.Scope = tuns[0].Attrs().Index, local.AsSlice(), unix.RT_SCOPE_LINK
		if err := k.RouteReplace(r); err != nil {
			return fmt.Errorf("add a route to %v by %s: %w", g.Remote, tuns[0].Attrs().Name, err)
		}
		return nil
	})
}

// steer keeps the peer's route in step with its children; p.applying is held.
// Only userland ESP routes.
func (p *peer) steer(up bool) {
	st := p.m.DaemonStatus()
	if st.DataPlane != DataPlaneUserland || !up && !p.steered {
		return
	}
	p.mu.Lock()
	g, local := p.guard(st.DataPlane, st.Tun), p.cfg.Local
	p.mu.Unlock()
	if !up {
		for _, o := range p.m.allPeers() {
			if o != p && o.reaches(g.Remote) {
				return
			}
		}
	}
	p.steered = up
	if err := p.m.route(g, local, up); err != nil {
		p.m.cfg.Logger.Warn("the route of userland ESP is not in order", "peer", p.name, "err", err)
	}
}

// reaches tells whether the peer has that address and a child that is up.
func (p *peer) reaches(a netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cfg.Remote == a && slices.ContainsFunc(p.lanes, func(l *lane) bool { return l.up.Load() })
}
