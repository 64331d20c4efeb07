package ipsec

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/ike"
	"github.com/ironwarp/ironwarp/ipsec/lanestate"
	"github.com/ironwarp/ironwarp/ipsec/negotiation"
	"github.com/ironwarp/ironwarp/ipsec/pad"
)

// keep is the peer's keeper: it brings up children that flows need, and ends
// superfluous ones. It sleeps until poked or until something is due.
func (p *peer) keep(ctx context.Context) {
	defer close(p.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		wait := p.step(ctx)
		if wait > 0 {
			timer.Reset(wait)
		} else {
			timer.Stop()
		}
		select {
		case <-timer.C:
		case <-p.wake:
		case <-ctx.Done():
			return
		}
	}
}

// step does what is due, and returns when to look again; 0: when poked.
func (p *peer) step(ctx context.Context) time.Duration {
	l := p.m.currentSession()
	if l == nil {
		return 0
	}
	var next time.Duration
	later := func(d time.Duration) {
		if d > 0 && (next == 0 || d < next) {
			next = d
		}
	}
	for _, ln := range p.lanes {
		if ctx.Err() != nil {
			return 0
		}
		p.disown(ctx, l, ln)
		p.mu.Lock()
		var out lanestate.Effect
		if p.loaded {
			out = p.tickLocked(ln)
		}
		p.mu.Unlock()
		later(out.Again)
		switch out.Work {
		case lanestate.Initiate:
			p.initiate(ctx, l, ln)
		case lanestate.Dedupe:
			p.dedupe(ctx, l, ln)
		case lanestate.Reap:
			p.reap(ctx, l, ln)
		case lanestate.Evict:
			p.evict(ctx, l, ln)
		case lanestate.Probe:
			p.revive(ctx, l, ln)
		case lanestate.Reject:
			p.reject(ctx, l, ln)
		}
	}
	return next
}

// initiate makes one attempt to bring a lane's child up.
func (p *peer) initiate(ctx context.Context, l *ike.Session, ln *lane) {
	if !p.m.acquire(ctx) {
		return
	}
	defer p.m.release()
	p.mu.Lock()
	doubtful := ln.life.HasBeenUp() || p.cfg.Profile.Version == 1
	p.mu.Unlock()
	if doubtful {
		// The peer may have brought it up before charon's event arrives, and what it has sent
		// be what is to be answered. IKEv1 takes an initiate of what is up for a rekey, and
		// there would be two. If charon can't list, it is the attempt that says why.
		doubt, cancel := context.WithTimeout(ctx, doubtWait)
		_ = p.refresh(doubt)
		if cancel(); ln.up.Load() {
			return
		}
	}
	p.mu.Lock()
	cfg, again, hadIKE, reloads := p.cfg, ln.life.HasBeenUp(), p.hasIKE, p.counters.Reloads
	p.busy = true
	p.happenLocked(ln, lanestate.AttemptBegins{})
	p.counters.Initiations++
	if again {
		p.counters.Reinitiations++
	}
	asked := make(map[chan error]struct{}, len(ln.waiters))
	for w := range ln.waiters {
		asked[w] = struct{}{}
	}
	p.restateLocked()
	p.mu.Unlock()

	// On an IKE SA that the peer has forgotten, an exchange is repeated in vain
	// for minutes: it gets less patience, and then goes.
	patience := p.m.cfg.InitiateTimeout
	if hadIKE {
		patience = min(patience, staleTimeout)
	}
	err := l.Initiate(ctx, &cfg, ln.Name, patience)
	if err != nil && p.reloadedSince(ctx, reloads) {
		err = l.Initiate(ctx, &cfg, ln.Name, patience)
	}
	err = negotiation.BlameKernel(l.Status.DataPlane, err)
	_ = p.refresh(ctx)
	// Charon's end is no failure of the attempt; there is another one when it is
	// back.
	gone := p.m.currentSession() != l
	p.mu.Lock()
	p.busy = false
	out := p.happenLocked(ln, lanestate.AttemptEnds{Failed: err != nil, Crossed: crossed(err, hadIKE), Narrowed: len(ln.narrowed) > 0,
		Cut: ctx.Err() != nil || gone, Draw: rand.Float64()})
	switch out.Fault {
	case lanestate.NoFault:
		err = nil
	case lanestate.FaultImpostor:
		err = p.impostorErrorLocked(ln)
	case lanestate.FaultNarrowed:
		err = narrowedError(&cfg, ln)
	case lanestate.FaultVanished:
		err = &negotiation.Error{Peer: cfg.Name, Child: ln.Name, Kind: negotiation.ErrFailed,
			Advice: "the SA came up and went at once; the peer's log says why. Are the port, the ports of programs (ulps:), the labels of partitions and child_sas the same on both hosts?"}
	}
	if out.Do.Has(lanestate.Refuse) {
		p.counters.Failures++
		p.failedLocked(err)
		ln.lastFailure = err
		for w := range asked {
			if _, still := ln.waiters[w]; still {
				w <- err
				delete(ln.waiters, w)
			}
		}
		ln.countWaiters()
	}
	var narrowed []charon.Child
	if out.Do.Has(lanestate.EndNarrowed) {
		narrowed = slices.Clone(ln.narrowed)
	}
	why := needs[ln.life.Why()]
	p.restateLocked()
	p.mu.Unlock()
	for _, c := range narrowed {
		p.endChild(ctx, l, c, ReasonMismatch, true)
	}
	if err == nil {
		return
	}
	p.m.note(Event{Kind: EventFailed, Peer: cfg.Name, Child: ln.Name, Reason: why, Detail: err.Error()})
	if errors.Is(err, negotiation.ErrUnreachable) {
		// The half-open IKE SA would repeat its packets ever more rarely.
		p.expectEndOfIKE(ReasonStale)
		if _, err := l.Terminate(ctx, cfg.Name, charon.Section("ike", cfg.Name), true); err != nil && ctx.Err() == nil {
			p.m.cfg.Logger.Debug("could not end an IKE SA without answer", "peer", cfg.Name, "err", err)
		}
	}
}

// crossed reports whether an exchange on an IKE SA that was up may have failed since a
// delete has crossed it: strongSwan gives no reason then.
func crossed(err error, hadIKE bool) bool {
	n, ok := errors.AsType[*negotiation.Error](err)
	return hadIKE && ok && n.Kind == negotiation.ErrFailed && n.Advice == ""
}

// narrowedError returns why the peer has agreed to a part of a lane only; p.mu is
// held.
func narrowedError(cfg *pad.Peer, ln *lane) error {
	c, other := ln.narrowed[0], fmt.Sprintf("another port than %d", ln.Link.Port)
	if ln.Link.IsBlock() {
		other = "others than " + ln.Link.Words()
	}
	if k := ln.Link; k.Name != "" || k.Label != "" {
		other += fmt.Sprintf(", or another label than this host, which has %s", pad.LabelWords(k.Label))
	}
	e := &negotiation.Error{Peer: cfg.Name, Child: ln.Name, Kind: negotiation.ErrTrafficSelectors,
		Advice: fmt.Sprintf("the peer agrees to %v - %v only; it has %s for this link, or other addresses: compare them on both hosts", c.LocalTS, c.RemoteTS, other)}
	e.Advice = cmp.Or(mismatch(ln, cfg.Children), e.Advice)
	return e
}

// mismatch says what the peer has configured otherwise, if a lane's narrowed children show
// it; else "".
func mismatch(l *lane, children int) string {
	if i := slices.IndexFunc(l.narrowed, func(c charon.Child) bool { return !l.HasLabel(c) }); i >= 0 {
		return fmt.Sprintf("the peer has %s for %v, and this host %s: give the partition the same label on both hosts", pad.LabelWords(l.narrowed[i].Label), l.Link, pad.LabelWords(l.Link.Label))
	}
	if n := splitAnew(l, children); n != 0 {
		return splitAdvice(n, children)
	}
	if theirs, other := blockAnew(l); other {
		return fmt.Sprintf("the peer has %s where this host has %s: give the programs of both hosts the same ports (ports: of ulps:)", theirs.Words(), l.Link.Words())
	}
	return ""
}

// blockAnew returns the block of ports that the peer has, if a lane's narrowed children show that it is
// another than ours.
func blockAnew(l *lane) (theirs pad.Link, other bool) {
	for _, c := range l.narrowed {
		ports := c.RemoteTS // of the host that is dialled
		if l.Role == pad.Listener {
			ports = c.LocalTS
		}
		for _, s := range ports {
			theirs = pad.Link{Protocol: l.Link.Protocol, Port: s.PortFrom, Size: s.PortTo - s.PortFrom + 1}.Normal()
			if !s.AnyPort() && l.Link.Overlaps(theirs) && !l.Link.SamePorts(theirs) {
				return theirs, true
			}
		}
	}
	return pad.Link{}, false
}

func splitAdvice(peer, own int) string {
	return fmt.Sprintf("the peer splits its link into %d child SAs per direction, and this host into %d: set child_sas to the same number on both", peer, own)
}

// splitAnew returns into how many blocks the peer splits its link, if a lane's
// narrowed children show that it is another number than ours; else 0.
func splitAnew(l *lane, n int) int {
	for _, c := range l.narrowed {
		ports := c.LocalTS // of the host that dials
		if l.Role == pad.Listener {
			ports = c.RemoteTS
		}
		for _, s := range ports {
			if m := pad.SplitOf(s); m > 1 && m != n {
				return m
			}
		}
	}
	return 0
}

// reject ends children that the peer has asked for with other blocks of ports, of either host.
func (p *peer) reject(ctx context.Context, l *ike.Session, ln *lane) {
	p.mu.Lock()
	cfg, narrowed := p.cfg, slices.Clone(ln.narrowed)
	why := mismatch(ln, cfg.Children)
	if why == "" {
		p.mu.Unlock()
		return
	}
	err := &negotiation.Error{Peer: cfg.Name, Child: ln.Name, Kind: negotiation.ErrTrafficSelectors, Advice: why}
	p.counters.Failures++
	p.failedLocked(err)
	ln.lastFailure = err
	p.mu.Unlock()
	p.m.note(Event{Kind: EventFailed, Peer: cfg.Name, Child: ln.Name, Reason: ReasonMismatch, Detail: err.Error()})
	for _, c := range narrowed {
		p.endChild(ctx, l, c, ReasonMismatch, false)
	}
	_ = p.refresh(ctx)
}

// endChild ends one child, and reports whether charon had it.
func (p *peer) endChild(ctx context.Context, l *ike.Session, c charon.Child, why Reason, force bool) bool {
	p.expectEnd(why, func(_ uint32, k charon.Child) bool { return k.UniqueID == c.UniqueID })
	n, err := l.Terminate(ctx, c.Name, charon.Section("child-id", charon.Uint(c.UniqueID)), force)
	if err != nil && ctx.Err() == nil {
		p.m.cfg.Logger.Debug("could not end a child SA", "peer", p.name, "child", c.Name, "reason", why, "err", err)
	}
	return n > 0
}

// staleTimeout is the patience with an IKE SA that may be stale: TCP-like, a few
// round trips and a retransmission.
const staleTimeout = 5 * time.Second

// dedupe ends all children of a lane but the youngest.
func (p *peer) dedupe(ctx context.Context, l *ike.Session, ln *lane) {
	_ = p.refresh(ctx)
	p.mu.Lock()
	all := slices.DeleteFunc(slices.Clone(ln.installed), func(c charon.Child) bool { return c.State != charon.StateInstalled })
	p.mu.Unlock()
	if len(all) < 2 {
		return
	}
	slices.SortFunc(all, func(a, b charon.Child) int { return int(int64(a.UniqueID) - int64(b.UniqueID)) })
	for _, c := range all[:len(all)-1] {
		if p.endChild(ctx, l, c, ReasonDuplicate, false) {
			p.mu.Lock()
			p.counters.Duplicates++
			p.mu.Unlock()
		}
	}
	_ = p.refresh(ctx)
}
