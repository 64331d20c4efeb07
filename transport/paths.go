package transport

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// paths are those of one association, and the Protection that it lives under.
// Each path is a flow, and the Protector is asked about each. One that is
// admitted is enough to begin with; on the others the guard lets nothing pass
// until they are admitted too, which is tried for as long as the association
// lives. All have to lead to the same peer.
type paths struct {
	cfg      *Config
	flows    []Flow
	outgoing bool
	assoc    *Assoc

	ctx    context.Context // ends with Release
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu       sync.Mutex
	settled  bool            // admit has returned
	wake     []chan struct{} // of each flow: its path has answered
	parts    []Protection    // of each flow, nil: not admitted
	down     []bool          // of each flow: it was told to be down
	id       Identity        // of the first admitted
	released bool
}

// verdict is what has come of the first question about a path.
type verdict struct {
	f   Flow
	err error
}

// newPaths is for an association that lives as long as ctx.
func newPaths(ctx context.Context, a *Assoc, outgoing bool, cfg *Config) *paths {
	p := &paths{cfg: cfg, flows: a.flows, outgoing: outgoing, assoc: a,
		parts: make([]Protection, len(a.flows)), down: make([]bool, len(a.flows))}
	for range a.flows {
		p.wake = append(p.wake, make(chan struct{}, 1))
	}
	p.ctx, p.cancel = context.WithCancel(ctx)
	return p
}

// admit waits until one path is admitted, and for a while for the others. The
// flow returned is that of the error.
func (p *paths) admit(ctx context.Context) (Flow, error) {
	first := make(chan verdict, len(p.flows))
	for i := range p.flows {
		p.wg.Go(func() { p.run(i, first) })
	}
	var grace <-chan time.Time
	var errs []error
	for range p.flows {
		select {
		case v := <-first:
			switch {
			case v.err == nil && grace == nil:
				t := time.NewTimer(pathGrace)
				defer t.Stop()
				grace = t.C
			case v.err == nil:
			case !errors.Is(v.err, ErrAway) || len(p.flows) == 1:
				return v.f, v.err
			default:
				errs = append(errs, fmt.Errorf("%v: %w", v.f, v.err))
			}
		case <-grace:
			return p.settle(first)
		case <-ctx.Done():
			return p.flows[0], ctx.Err()
		case <-p.ctx.Done():
			return p.flows[0], p.ctx.Err()
		}
	}
	if grace == nil {
		return p.flows[0], errors.Join(errs...)
	}
	return p.settle(first)
}

// settle ends the wait for the other paths. From now on a refusal aborts the
// association.
func (p *paths) settle(first <-chan verdict) (Flow, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settled = true
	for {
		select {
		case v := <-first:
			if v.err != nil && !errors.Is(v.err, ErrAway) {
				return v.f, v.err
			}
		default:
			return Flow{}, nil
		}
	}
}

// run asks about one path until it is admitted or refused for good.
func (p *paths) run(i int, first chan<- verdict) {
	f, pause := p.flows[i], pathRetryMin
	settled, err := p.ask(i, first)
	for errors.Is(err, ErrAway) && p.rest(i, pause) {
		pause = min(2*pause, pathRetryMax)
		// What Prepare has against the flow may pass, and Admit would say the same.
		if p.outgoing && p.cfg.Protector.Prepare(p.ctx, f) != nil {
			continue
		}
		settled, err = p.ask(i, nil)
	}
	if err != nil && settled && p.ctx.Err() == nil {
		p.cfg.refused(f, flowError("admit", f, err))
		p.assoc.Abort("a path of the association is not admitted")
	}
}

// ask asks about one path once. Unless admit has settled, it is told on first.
func (p *paths) ask(i int, first chan<- verdict) (settled bool, err error) {
	f := p.flows[i]
	part, err := p.cfg.admit(p.ctx, f, p.outgoing, p.assoc)
	if err == nil {
		err = p.add(i, part)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if first != nil && !p.settled {
		first <- verdict{f, err}
		return false, err
	}
	return true, err
}

// rest waits until a path is to be asked about again: for d, or until it answers,
// which it can't without an SA. It is false when the association is over.
func (p *paths) rest(i int, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-p.wake[i]:
	case <-p.ctx.Done():
		return false
	}
	return true
}

// add takes the protection of one more path.
func (p *paths) add(i int, part Protection) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch id := part.Peer(); {
	case p.released:
		part.Release()
		return context.Canceled
	case p.first() == nil:
		p.id = id
	case id != p.id:
		part.Release()
		return fmt.Errorf("%w: %w: %q on one, %q on another", ErrNotProtected, ErrTwoPeers, p.id, id)
	}
	p.parts[i] = part
	return nil
}

// first is the protection of the first path that has one.
func (p *paths) first() Protection {
	for _, part := range p.parts {
		if part != nil {
			return part
		}
	}
	return nil
}

// changed tells of a path, named by the peer's address, that has ceased to answer
// or answers again. While its SA is away that is no news.
func (p *paths) changed(peer netip.Addr, up bool) {
	i := max(0, slices.IndexFunc(p.flows, func(f Flow) bool { return f.Remote.Addr() == peer.Unmap() }))
	p.mu.Lock()
	part := p.parts[i]
	if up && part == nil {
		select {
		case p.wake[i] <- struct{}{}:
		default:
		}
	}
	news := p.down[i] == up && (up || part != nil && !part.Paused())
	if news {
		p.down[i] = !up
	}
	p.mu.Unlock()
	if news && p.cfg.OnPath != nil {
		p.cfg.OnPath(p.flows[i], up)
	}
}

// Peer implements Protection.
func (p *paths) Peer() Identity {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.id
}

// Kind implements Protection.
func (p *paths) Kind() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.first().Kind()
}

// Paused implements Protection: on no path is there an SA.
func (p *paths) Paused() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, part := range p.parts {
		if part != nil && !part.Paused() {
			return false
		}
	}
	return true
}

// Release implements Protection.
func (p *paths) Release() {
	p.cancel()
	p.mu.Lock()
	parts := slices.Clone(p.parts)
	again := p.released
	p.released = true
	p.mu.Unlock()
	if again {
		return
	}
	for _, part := range parts {
		if part != nil {
			part.Release()
		}
	}
}

// wait waits for d. It is false if ctx is over before.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
