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

// paths are the paths of one association, and its Protection. Each path is a flow that
// the Protector admits separately. One admitted path is enough to begin; on the others
// the guard lets nothing pass until they are admitted too, which is tried for as long as
// the association lives. All must lead to the same peer.
type paths struct {
	cfg      *Config
	flows    []Flow
	outgoing bool
	assoc    *Assoc
	wake     []chan struct{} // of each flow: signals that its path has answered

	ctx    context.Context // ends with Release
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu       sync.Mutex   // guards the fields below it
	settled  bool         // admit has returned
	parts    []Protection // of each flow, nil if not admitted
	down     []bool       // of each flow: reported as down
	id       Identity     // of the first admitted
	released bool
}

// verdict is the result of the first attempt to admit a path.
type verdict struct {
	f   Flow
	err error
}

// newPaths makes the paths of an association that lives as long as ctx.
func newPaths(ctx context.Context, a *Assoc, outgoing bool, cfg *Config) *paths {
	p := &paths{cfg: cfg, flows: a.flows, outgoing: outgoing, assoc: a,
		parts: make([]Protection, len(a.flows)), down: make([]bool, len(a.flows))}
	for range a.flows {
		p.wake = append(p.wake, make(chan struct{}, 1))
	}
	p.ctx, p.cancel = context.WithCancel(ctx)
	return p
}

// admit waits until one path is admitted, and up to pathGrace for the others. The flow it
// returns is the one that the error is about.
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

// settle ends the wait for the other paths. From now on a refusal aborts the association.
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

// run tries to admit one path until it is admitted or refused for good.
func (p *paths) run(i int, first chan<- verdict) {
	f, pause := p.flows[i], pathRetryMin
	settled, err := p.admitPath(i, first)
	for errors.Is(err, ErrAway) && p.waitRetry(i, pause) {
		pause = min(2*pause, pathRetryMax)
		// If Prepare fails, that may pass, and Admit would fail as well.
		if p.outgoing && p.cfg.Protector.Prepare(p.ctx, f) != nil {
			continue
		}
		settled, err = p.admitPath(i, nil)
	}
	if err != nil && settled && p.ctx.Err() == nil {
		p.cfg.refused(f, flowError("admit", f, err))
		p.assoc.Abort("a path of the association is not admitted")
	}
}

// admitPath tries once to admit a path. Until admit has settled, it sends the verdict on
// first.
func (p *paths) admitPath(i int, first chan<- verdict) (settled bool, err error) {
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

// waitRetry waits until a path is to be tried again: for d, or until the peer answers on
// it, which takes an SA. It returns false when the association has ended.
func (p *paths) waitRetry(i int, d time.Duration) bool {
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

// add adds the protection of one more path.
func (p *paths) add(i int, part Protection) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch id := part.Peer(); {
	case p.released:
		part.Release()
		return context.Canceled
	case p.firstLocked() == nil:
		p.id = id
	case id != p.id:
		part.Release()
		return fmt.Errorf("%w: %w: %q on one, %q on another", ErrNotProtected, ErrTwoPeers, p.id, id)
	}
	p.parts[i] = part
	return nil
}

// firstLocked returns the protection of the first path that has one.
func (p *paths) firstLocked() Protection {
	for _, part := range p.parts {
		if part != nil {
			return part
		}
	}
	return nil
}

// changed handles a path, named by the peer's address, that stopped answering or answers
// again. While its SA is down, only an answer is reported.
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
	return p.firstLocked().Kind()
}

// Paused implements Protection: no path has an SA.
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

// wait waits for d. It returns false if ctx ends first.
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
