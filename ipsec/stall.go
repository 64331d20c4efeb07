package ipsec

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/flow"
	"github.com/ironwarp/ironwarp/ipsec/ike"
	"github.com/ironwarp/ironwarp/ipsec/lanestate"
)

// An SA may be up on this host alone: the peer has rebooted, or a collision of
// IKE exchanges has left the two with different SAs. What is sent into it is
// lost, and IKE finds out after minutes if at all. TCP knows sooner: data is sent
// again and again, and nothing comes back on any stream of the lane.

// silence is for how long nothing was heard on a lane's flows.
func (l *lane) silence(now time.Time) lanestate.Silence {
	s := lanestate.Silence{Of: flow.Unheard}
	var vain []time.Duration
	for f := range l.flows {
		if !f.admitted {
			continue
		}
		c := f.Ask(now)
		s.Of = min(s.Of, c.Silent)
		if c.Stalled {
			vain = append(vain, c.Vain)
		}
	}
	s.Vain = slices.ContainsFunc(vain, func(since time.Duration) bool { return s.Of >= since })
	return s
}

// revive ends a lane's children, unless packets have come in on them, so that
// the keeper brings up a new one. A peer that does not answer the delete has
// forgotten the IKE SA as well, which then goes without its consent.
func (p *peer) revive(ctx context.Context, l *ike.Session, ln *lane) {
	if p.refresh(ctx) != nil {
		return
	}
	p.mu.Lock()
	out := p.happenLocked(ln, lanestate.Suspected{Silence: ln.silence(p.m.now()), Draw: rand.Float64()})
	all := slices.Clone(ln.installed)
	if out.Work == lanestate.Renew {
		p.counters.Stale++
	}
	p.mu.Unlock()
	if out.Work != lanestate.Renew {
		return
	}
	p.m.cfg.Logger.Warn("an IPsec SA seems to lead nowhere, and is made anew", "peer", p.name, "child", ln.Name)
	p.endOneSided(ctx, l, all, ReasonStale)
}

// disown ends children that the peer has deleted before charon had them: its delete has
// overtaken the message that makes the child (the answer to CREATE_CHILD_SA, the third one of
// Quick Mode), was taken for one of an unknown child, and is not repeated.
func (p *peer) disown(ctx context.Context, l *ike.Session, ln *lane) {
	p.mu.Lock()
	gone := slices.Clone(ln.disowned)
	p.mu.Unlock()
	if len(gone) > 0 {
		p.endOneSided(ctx, l, gone, ReasonPeer)
	}
}

// endOneSided ends children that the peer may not have any more.
func (p *peer) endOneSided(ctx context.Context, l *ike.Session, children []charon.Child, why Reason) {
	for _, c := range children {
		p.expectEnd(why, func(_ uint32, k charon.Child) bool { return k.UniqueID == c.UniqueID })
		if _, err := l.TerminateWithin(ctx, reviveWait, c.Name, charon.Section("child-id", charon.Uint(c.UniqueID)), false); err == nil || ctx.Err() != nil {
			continue
		}
		p.expectEndOfIKE(ReasonStale)
		if _, err := l.Terminate(ctx, p.name, charon.Section("ike", p.name), true); err != nil && ctx.Err() == nil {
			p.m.cfg.Logger.Debug("could not end an IKE SA without answer", "peer", p.name, "err", err)
		}
		break
	}
	_ = p.refresh(ctx)
}

// packetsIn is what has come in on a lane's children by the last list.
func (l *lane) packetsIn() (n uint64) {
	for _, c := range l.installed {
		n += c.PacketsIn
	}
	return n
}
