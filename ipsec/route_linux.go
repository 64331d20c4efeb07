package ipsec

import (
	"net/netip"
	"slices"
)

// steerLocked keeps the peer's route in step with its children; the lock is p.applying.
func (p *peer) steerLocked(up bool) {
	if !up && !p.steered {
		return
	}
	st := p.m.DaemonStatus()
	g := p.host(st.DataPlane, st.Tun)
	if !up {
		for _, o := range p.m.allPeers() {
			if o != p && o.reaches(g.Remote) {
				return
			}
		}
	}
	p.steered = up
	if err := p.m.route(g, p.local, up); err != nil {
		p.m.cfg.Logger.Warn("the peer's packets are not led to ESP as they should be", "peer", p.name, "err", err)
	}
}

// reaches reports whether the peer has that address and a child that is up.
func (p *peer) reaches(a netip.Addr) bool {
	return p.remote == a && slices.ContainsFunc(p.lanes, func(l *lane) bool { return l.up.Load() })
}
