package ipsec

import (
	"fmt"
	"slices"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/ipsec/lanestate"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/transport"
)

func (p *peer) status(plane esp.Plane) Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Status{Peer: p.cfg.Name, State: p.state, Since: p.since, DataPlane: plane, Guarded: p.guarded, Loaded: p.loaded,
		LocalID: p.cfg.LocalID, RemoteID: p.cfg.RemoteID, Profile: p.cfg.Profile.Name, Live: p.liveStatusLocked(),
		LastError: p.lastErr, LastErrorAt: p.lastErrAt, ReloadedAt: p.reloadedAt, Counters: p.counters}
	if p.lastErr != "" {
		s.Err = p.lastFailure
	}
	for _, l := range p.lanes {
		s.Flows += len(l.flows)
		if !l.up.Load() {
			s.Paused += len(l.flows)
		}
		s.Lanes = append(s.Lanes, l.status(p.busy))
	}
	return s
}

func (l *lane) status(busy bool) LaneStatus {
	s := LaneStatus{Child: l.Name, State: l.state(busy), Flows: len(l.flows), Reaped: l.life.Reaped(), Link: l.Link.String(), Label: l.Link.Label, Err: l.lastFailure}
	if c := youngest(l.installed); c != nil {
		s.UniqueID, s.SPIIn, s.SPIOut, s.ESP, s.Installed = c.UniqueID, c.SPIIn, c.SPIOut, c.Algorithms(), c.Installed
	}
	return s
}

// youngest returns the child that was made last, nil if there is none.
func youngest(all []charon.Child) *charon.Child {
	var last *charon.Child
	for i := range all {
		if last == nil || all[i].UniqueID > last.UniqueID {
			last = &all[i]
		}
	}
	return last
}

// liveStatusLocked is about the youngest IKE SA and its youngest child.
func (p *peer) liveStatusLocked() *Live {
	if len(p.live) == 0 {
		return nil
	}
	sa := slices.MaxFunc(p.live, func(a, b charon.SA) int { return int(int64(a.UniqueID) - int64(b.UniqueID)) })
	v := &Live{IKEVersion: sa.Version, LocalID: sa.LocalID, RemoteID: sa.RemoteID, IKE: sa.Algorithms(), Initiator: sa.Initiator,
		SPI: sa.SPI, Established: sa.Established, Rekey: sa.Rekey}
	if sa.RemoteHost != p.cfg.Remote {
		v.Gateway = sa.RemoteHost.String()
	}
	var all []charon.Child
	for _, l := range p.lanes {
		all = append(all, l.installed...)
	}
	if c := youngest(all); c != nil {
		v.ESP, v.Mode, v.ESN, v.Encap, v.Installed, v.ChildRekey, v.ChildExpiry = c.Algorithms(), c.Mode, c.ESN, c.Encap, c.Installed, c.Rekey, c.Expires
	}
	return v
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// leastLoaded picks the lane for a flow that this host is about to dial: the one
// with the fewest flows, those that are on their way included; among equals the
// one that was picked longest ago; nil if the flow is of none of the peer's
// links.
func (p *peer) leastLoaded(f transport.Flow) *lane {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	var best *lane
	load := 0
	for _, l := range p.lanes {
		if l.Role != pad.Dialler || !l.Link.Carries(f, true) {
			continue
		}
		l.picks = slices.DeleteFunc(l.picks, func(t time.Time) bool { return now.Sub(t) > lanestate.DialWait })
		n := len(l.flows) + len(l.picks)
		if best == nil || n < load || n == load && l.picked.Before(best.picked) {
			best, load = l, n
		}
	}
	return best
}
