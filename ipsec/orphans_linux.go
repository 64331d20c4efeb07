package ipsec

import (
	"context"
	"slices"
	"strconv"

	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/guard"
)

// A charon that is killed leaves its SAs in the kernel, which goes on with them:
// streams do not even notice. The next charon knows nothing of them; they would
// stay until their lifetime is over, and since it counts its reqids from one
// again, the kernel might send on a state that the peer has long forgotten. So
// they are noted when a charon comes, and removed as soon as the peer has a new
// child, or no stream that might still use them. Removing states never lets a
// packet out in clear: the policies that demand ESP stay until charon replaces
// them, and below them stands the guard.

// unlisted leaves out states that a list of SAs has.
func unlisted(states []guard.State, sas []charon.SA) []guard.State {
	listed := map[uint32]bool{}
	for _, sa := range sas {
		for _, c := range sa.Children {
			for _, spi := range []string{c.SPIIn, c.SPIOut} {
				if n, err := strconv.ParseUint(spi, 16, 32); err == nil {
					listed[uint32(n)] = true
				}
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(states), func(o guard.State) bool { return listed[o.SPI] })
}

// noteOrphans looks for states of an earlier charon, before the present one
// makes any for these peers.
func (m *Manager) noteOrphans(ctx context.Context, peers []*peer) {
	st := m.DaemonStatus()
	if !st.DataPlane.Offers().HoldsSAs {
		return
	}
	var links []guard.ChildLink
	var of []*peer
	for _, p := range peers {
		for _, g := range p.guards(st.DataPlane, st.Tun) {
			links, of = append(links, guard.ChildLink{Spec: g, Local: p.local}), append(of, p)
		}
	}
	// The states come first: what charon makes meanwhile is in its list only.
	all, err := m.childStates(m.cfg.NetNS, links)
	left := map[*peer][]guard.State{}
	for i, states := range all {
		if len(states) > 0 {
			left[of[i]] = append(left[of[i]], states...)
		}
	}
	var sas []charon.SA
	if err == nil && len(left) > 0 {
		sas, err = m.listAll(ctx)
	}
	if err != nil {
		m.cfg.Logger.Warn("could not look for SAs that an earlier strongSwan has left", "err", err)
		return
	}
	for p, states := range left {
		if states = unlisted(states, sas); len(states) == 0 {
			continue
		}
		m.cfg.Logger.Info("an earlier strongSwan has left SAs; they go when there are new ones", "peer", p.name, "states", len(states))
		p.mu.Lock()
		p.orphans = states
		p.mu.Unlock()
	}
}

// sweepOrphans removes the noted states that are of no use any more.
func (m *Manager) sweepOrphans(ctx context.Context) {
	for _, p := range m.allPeers() {
		p.mu.Lock()
		states := p.orphans
		renewed := slices.ContainsFunc(p.lanes, func(l *lane) bool { return l.up.Load() })
		p.mu.Unlock()
		if len(states) == 0 || !renewed && p.flowCount() > 0 {
			continue
		}
		sas, err := m.listAll(ctx)
		if err != nil {
			continue // later
		}
		states = unlisted(states, sas)
		err = guard.DeleteStates(m.cfg.NetNS, states)
		if err != nil {
			m.cfg.Logger.Warn("could not remove SAs that an earlier strongSwan has left", "peer", p.name, "err", err)
			continue
		}
		p.mu.Lock()
		p.orphans = nil
		p.mu.Unlock()
		m.cfg.Logger.Info("removed SAs that an earlier strongSwan had left", "peer", p.name, "states", len(states))
	}
}
