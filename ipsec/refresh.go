package ipsec

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/charon"
)

// flights shares calls: everyone who asks while one is under way gets the result
// of the next one, which begins after they asked.
type flights[T any] struct {
	pace *pace // nil: as fast as they end

	mu      sync.Mutex
	running bool
	next    *flight[T]
}

type flight[T any] struct {
	done   chan struct{}
	result T
	err    error
}

// join returns the flight that will begin from now on; start tells that the
// caller has to run the loop.
func (f *flights[T]) join() (_ *flight[T], start bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.next == nil {
		f.next = &flight[T]{done: make(chan struct{})}
	}
	start = !f.running
	f.running = true
	return f.next, start
}

// loop runs flights until nobody asks for more.
func (f *flights[T]) loop(call func() (T, error)) {
	for {
		f.mu.Lock()
		now := f.next
		if now == nil {
			f.running = false
			f.mu.Unlock()
			return
		}
		f.mu.Unlock()
		f.pace.wait() // who asks meanwhile shares the flight
		f.mu.Lock()
		f.next = nil
		f.mu.Unlock()
		now.result, now.err = call()
		close(now.done)
	}
}

// pace lets paceBurst calls through at once and then one per paceEvery, so that a
// storm of events costs a bounded number of lists.
type pace struct {
	ctx context.Context
	due time.Time // of the next call if there were no burst; its user serialises
}

func newPace(ctx context.Context) *pace { return &pace{ctx: ctx} }

func (p *pace) wait() {
	if p == nil {
		return
	}
	now := time.Now()
	if least := now.Add(-paceBurst * paceEvery); p.due.Before(least) {
		p.due = least
	}
	p.due = p.due.Add(paceEvery)
	if d := p.due.Sub(now); d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-p.ctx.Done():
		}
	}
}

func (fl *flight[T]) wait(ctx context.Context) (T, error) {
	select {
	case <-fl.done:
		return fl.result, fl.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// refresh lists the peer's SAs and takes them over; it returns after a list that
// began after the call.
func (p *peer) refresh(ctx context.Context) error {
	_, err := p.beginRefresh().wait(ctx)
	return err
}

// beginRefresh does not wait. Calls that come faster than charon lists share.
func (p *peer) beginRefresh() *flight[struct{}] {
	fl, start := p.lists.join()
	if start && !p.m.goWork(func() { p.lists.loop(p.readSAs) }) {
		p.lists.loop(func() (struct{}, error) { return struct{}{}, ErrClosed })
	}
	return fl
}

func (p *peer) readSAs() (struct{}, error) {
	l := p.m.currentSession()
	if l == nil {
		return struct{}{}, ErrNotConnected
	}
	sas, err := l.List(p.m.ctx, p.name)
	if err == nil && p.missing(sas) {
		sas, err = l.List(p.m.ctx, p.name)
	}
	if err != nil {
		return struct{}{}, err
	}
	p.applying.Lock()
	defer p.applying.Unlock()
	if p.m.currentSession() != l {
		return struct{}{}, ErrNotConnected
	}
	p.apply(sas, false)
	return struct{}{}, nil
}

// missing reports whether a list lacks a child that carried a lane and whose end no
// event has told. charon lists one IKE SA after the other: a child that moves to the
// IKE SA which replaces its own (RFC 7296 2.18) may meanwhile be in neither.
func (p *peer) missing(sas []charon.SA) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.lanes {
		for _, c := range l.installed {
			_, known := p.endings.known[c.UniqueID]
			if known && !slices.ContainsFunc(sas, func(sa charon.SA) bool {
				return slices.ContainsFunc(sa.Children, func(o charon.Child) bool { return o.UniqueID == c.UniqueID })
			}) {
				return true
			}
		}
	}
	return false
}

// listAll returns all SAs that charon has, of other connections, too.
func (m *Manager) listAll(ctx context.Context) ([]charon.SA, error) {
	fl, start := m.lists.join()
	read := func() ([]charon.SA, error) {
		l := m.currentSession()
		if l == nil {
			return nil, m.notConnected()
		}
		return l.List(m.ctx, "")
	}
	if start && !m.goWork(func() { m.lists.loop(read) }) {
		m.lists.loop(func() ([]charon.SA, error) { return nil, ErrClosed })
	}
	return fl.wait(ctx)
}

// backoff doubles from a least to a most, and takes a random half off, so that
// two hosts do not go on colliding.
type backoff struct {
	min, max time.Duration
	n        int
}

func (b *backoff) next() time.Duration {
	d := min(b.min<<min(b.n, 20), b.max)
	b.n++
	return d - rand.N(d/2)
}

func (b *backoff) reset() { b.n = 0 }
