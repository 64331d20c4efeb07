package ipsec

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
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
	l := p.m.currentLink()
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
		due, again := p.due(ln)
		later(again)
		switch due {
		case actInitiate:
			p.initiate(ctx, l, ln)
			later(time.Millisecond)
		case actDedupe:
			p.dedupe(ctx, l, ln)
			later(leaderDedupe)
		}
	}
	return next
}

type act uint8

const (
	actNothing act = iota
	actInitiate
	actDedupe
)

// due decides what a lane needs now, and when to ask again.
func (p *peer) due(l *lane) (act, time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if !p.loaded {
		return actNothing, 0
	}
	if l.up.Load() {
		if wait := l.kickAt.Sub(now); l.kicks > 0 && wait > 0 {
			return actNothing, wait
		}
		if l.kicks > 0 {
			l.kickWaiting()
			l.kicks--
			l.kickAt = now.Add(kickEvery)
			return actNothing, kickEvery
		}
		if l.duplicates.IsZero() {
			return actNothing, 0
		}
		limit := leaderDedupe
		if !p.leads() {
			limit = followerDedupe
		}
		if left := limit - now.Sub(l.duplicates); left > 0 {
			return actNothing, left
		}
		return actDedupe, 0
	}
	need := len(l.waiters) > 0 || l.want || now.Before(l.dialling)
	if wait := l.notBefore.Sub(now); wait > 0 && len(l.waiters) == 0 {
		if !need && len(l.flows) == 0 {
			return actNothing, 0
		}
		return actNothing, wait
	}
	if need || l.waiting() {
		return actInitiate, 0
	}
	if len(l.flows) > 0 {
		return actNothing, idlePoll
	}
	return actNothing, 0
}

// initiate makes one attempt to bring a lane's child up.
func (p *peer) initiate(ctx context.Context, l *link, ln *lane) {
	if !p.m.acquire(ctx) {
		return
	}
	defer p.m.release()
	p.mu.Lock()
	cfg, again, hadIKE := p.cfg, ln.lostBefore, p.hasIKE
	p.busy = true
	p.counters.Initiations++
	if again {
		p.counters.Reinitiations++
	}
	asked := make(map[chan error]struct{}, len(ln.waiters))
	for w := range ln.waiters {
		asked[w] = struct{}{}
	}
	p.restate(time.Now())
	p.mu.Unlock()

	// On an IKE SA that the peer has forgotten, an exchange is repeated in vain
	// for minutes: it gets less patience, and then goes.
	patience := p.m.cfg.InitiateTimeout
	if hadIKE {
		patience = min(patience, staleTimeout)
	}
	begin := time.Now()
	err := blameKernel(l.status.DataPlane, l.initiate(ctx, &cfg, ln.child, patience))
	_ = p.refresh(ctx)
	// Charon's end is no failure of the attempt; there is another one when it is
	// back.
	gone := p.m.currentLink() != l
	p.mu.Lock()
	p.busy = false
	switch {
	case ln.up.Load():
		err = nil
	case err == nil && ln.risenAt.After(begin): // up, and lost again meanwhile
		p.restate(time.Now())
		p.mu.Unlock()
		return
	case err == nil && len(ln.narrowed) > 0:
		c := ln.narrowed[0]
		err = &NegotiationError{Peer: cfg.Name, Child: ln.child, Kind: ErrTrafficSelectors,
			Advice: fmt.Sprintf("the peer agrees to %v - %v only; it has another port than %d for this link, or other addresses: compare them on both hosts", c.LocalTS, c.RemoteTS, cfg.Port)}
	case err == nil:
		err = &NegotiationError{Peer: cfg.Name, Child: ln.child, Kind: ErrNegotiation, Advice: "the SA came up and went at once"}
	}
	if err != nil && ctx.Err() == nil && !gone {
		p.counters.Failures++
		p.failed(err)
		ln.notBefore = time.Now().Add(ln.attempts.next())
		ln.want = ln.want && len(ln.flows) > 0
		for w := range asked {
			if _, still := ln.waiters[w]; still {
				w <- err
				delete(ln.waiters, w)
			}
		}
	}
	narrowed := slices.Clone(ln.narrowed)
	p.restate(time.Now())
	p.mu.Unlock()
	for _, c := range narrowed {
		_, _ = l.terminate(ctx, c.Name, section("child-id", uintString(c.UniqueID)), true)
	}
	switch {
	case err == nil:
		p.m.cfg.Logger.Info("IPsec SA is up", "peer", cfg.Name, "child", ln.child, "took", time.Since(begin).Round(time.Millisecond), "again", again)
	case ctx.Err() != nil || gone:
	default:
		p.m.cfg.Logger.Warn("no IPsec SA", "peer", cfg.Name, "child", ln.child, "err", err)
		p.m.board.post(Event{Kind: EventFailed, Peer: cfg.Name, Child: ln.child, Detail: err.Error()})
		if errors.Is(err, ErrUnreachable) {
			// The half-open IKE SA would repeat its packets ever more rarely.
			if _, err := l.terminate(ctx, cfg.Name, section("ike", cfg.Name), true); err != nil && ctx.Err() == nil {
				p.m.cfg.Logger.Debug("could not end an IKE SA without answer", "peer", cfg.Name, "err", err)
			}
		}
	}
}

// staleTimeout is the patience with an IKE SA that may be stale: TCP-like, a few
// round trips and a retransmission.
const staleTimeout = 5 * time.Second

// dedupe ends all children of a lane but the youngest.
func (p *peer) dedupe(ctx context.Context, l *link, ln *lane) {
	_ = p.refresh(ctx)
	p.mu.Lock()
	all := slices.Clone(ln.installed)
	p.mu.Unlock()
	if len(all) < 2 {
		return
	}
	slices.SortFunc(all, func(a, b Child) int { return int(int64(a.UniqueID) - int64(b.UniqueID)) })
	for _, c := range all[:len(all)-1] {
		n, err := l.terminate(ctx, c.Name, section("child-id", uintString(c.UniqueID)), false)
		if err != nil {
			p.m.cfg.Logger.Debug("could not end a superfluous child", "peer", p.cfg.Name, "child", c.Name, "err", err)
		}
		p.mu.Lock()
		p.counters.Duplicates += uint64(n)
		p.mu.Unlock()
	}
	_ = p.refresh(ctx)
}
