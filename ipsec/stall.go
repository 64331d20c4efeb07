package ipsec

import (
	"context"
	"slices"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/charon"
)

// An SA may be up on this host alone: the peer has rebooted, or a collision of
// IKE exchanges has left the two with different SAs. What is sent into it is
// lost, and IKE finds out after minutes if at all. TCP knows sooner: data is sent
// again and again, and nothing comes back on any stream of the lane.

// staller is a flow that tells whether it has sent data repeatedly in vain; alive
// tells that its peer was heard of lately.
type staller interface {
	Stalled() (stalled, alive bool)
}

// condition is how it stands with a flow.
type condition struct {
	silent  time.Duration // since the peer was heard of
	inVain  bool          // data was sent again, and nothing has come back
	stalled bool          // so often and for so long that the SA may be to blame
}

// unheard is the silence of a flow that does not tell.
const unheard = time.Duration(1<<63 - 1)

// ask tells how it stands with a flow, and since when it has sent in vain, 0: it
// has not; the peer's mutex is held.
func (pr *protection) ask(now time.Time) (c condition, vain time.Duration) {
	switch f := pr.c.(type) {
	case staller:
		stalled, alive := f.Stalled()
		c = condition{silent: unheard, inVain: stalled, stalled: stalled}
		if alive {
			c.silent = 0
		}
	case association:
		c = pr.askAssociation(f, now)
	default:
		c = askTCP(f)
	}
	switch {
	case !c.inVain:
		pr.vainAt = time.Time{}
	case pr.vainAt.IsZero():
		pr.vainAt = now
	}
	if pr.vainAt.IsZero() {
		return c, 0
	}
	return c, now.Sub(pr.vainAt)
}

// stalled tells whether a lane that is up seems to lead nowhere; p.mu is held.
func (p *peer) stalled(l *lane, now time.Time) (bool, time.Duration) {
	if len(l.flows) == 0 && l.dialledAt.IsZero() {
		return false, 0
	}
	if wait := l.stallAt.Sub(now); wait > 0 {
		return false, wait
	}
	every := stallCheck * time.Duration(1+len(l.flows)/maxPollFlows)
	l.stallAt = now.Add(every)
	if !l.dialledAt.IsZero() && now.Sub(l.dialledAt) > dialWait {
		l.dialledAt = time.Time{}
	}
	if !l.suspect(now) || now.Sub(l.risenAt) < stallAfter || now.Before(l.reviveAt) {
		return false, every
	}
	return true, every
}

// suspect tells whether a flow is stuck on its way to Admit, or has sent data in
// vain, while nothing was heard on any other: its host may as well have died
// alone, without a word. The peer's mutex is held.
func (l *lane) suspect(now time.Time) bool {
	suspect := !l.dialledAt.IsZero() && now.Sub(l.dialledAt) > stallAfter
	silent := unheard // of all
	var vain []time.Duration
	for f := range l.flows {
		if !f.admitted.Load() {
			continue
		}
		c, since := f.ask(now)
		silent = min(silent, c.silent)
		if c.stalled {
			vain = append(vain, since)
		}
	}
	if silent < stallAfter {
		return false
	}
	return suspect || slices.ContainsFunc(vain, func(since time.Duration) bool { return silent >= since })
}

// revive ends a lane's children, unless packets have come in on them, so that
// the keeper brings up a new one. A peer that does not answer the delete has
// forgotten the IKE SA as well, which then goes without its consent.
func (p *peer) revive(ctx context.Context, l *link, ln *lane) {
	if p.refresh(ctx) != nil {
		return
	}
	p.mu.Lock()
	now := time.Now()
	if !ln.suspect(now) { // a flow was admitted meanwhile
		p.mu.Unlock()
		return
	}
	if now.Sub(ln.reviveAt) > reviveMax {
		ln.revivals.reset()
	}
	if !ln.dialledAt.IsZero() && ln.packetsIn() != ln.dialledIn {
		// It was not the SA that the dialling suffered from, so far.
		ln.dialledAt = time.Time{}
		if ln.isDialling(now) {
			ln.watchDial(now)
		}
		p.mu.Unlock()
		return
	}
	ln.reviveAt = now.Add(ln.revivals.next())
	all := slices.Clone(ln.installed)
	ln.dialledAt = time.Time{}
	p.mu.Unlock()
	p.m.cfg.Logger.Warn("an IPsec SA seems to lead nowhere, and is made anew", "peer", p.name, "child", ln.child)
	p.mu.Lock()
	p.counters.Stale++
	ln.wanted(ReasonStale)
	p.mu.Unlock()
	for _, c := range all {
		p.doom(ReasonStale, func(_ uint32, k charon.Child) bool { return k.UniqueID == c.UniqueID })
		if _, err := l.terminateWithin(ctx, reviveWait, c.Name, charon.Section("child-id", charon.Uint(c.UniqueID)), false); err == nil || ctx.Err() != nil {
			continue
		}
		p.doomIKE(ReasonStale)
		if _, err := l.terminate(ctx, p.name, charon.Section("ike", p.name), true); err != nil && ctx.Err() == nil {
			p.m.cfg.Logger.Debug("could not end an IKE SA without answer", "peer", p.name, "err", err)
		}
		break
	}
	_ = p.refresh(ctx)
}

// watchDial has the lane's SA proved from now on by what comes in, as long as a flow is
// on its way to Admit.
func (l *lane) watchDial(now time.Time) { l.dialledAt, l.dialledIn = now, l.packetsIn() }

// dialEnds has one flow's way to Admit end well. That of others is watched from now on;
// the peer's mutex is held.
func (l *lane) dialEnds(now time.Time) {
	l.proved = true
	if l.dials > 1 && l.isDialling(now) { // the one that has ended is still among them
		l.watchDial(now)
		return
	}
	l.dialling, l.dialledAt = time.Time{}, time.Time{}
}

// isDialling reports whether a flow is on its way to Admit for all that is known.
func (l *lane) isDialling(now time.Time) bool { return l.dials > 0 && now.Before(l.dialling) }

// packetsIn is what has come in on a lane's children by the last list.
func (l *lane) packetsIn() (n uint64) {
	for _, c := range l.installed {
		n += c.PacketsIn
	}
	return n
}
