package ipsec

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/internal/rate"
	"github.com/ironwarp/ironwarp/ipsec/charon"
)

// flights shares calls: everyone who asks while one is under way gets the result
// of the next one, which begins after they asked.
type flights[T any] struct {
	call func() (T, error)
	ctx  context.Context   // ends the pauses of pace
	work func(func()) bool // runs a function on a goroutine; false if it no longer does
	pace *rate.Pacer       // nil: as fast as they end

	mu      sync.Mutex // guards the fields below it
	running bool
	next    *flight[T]
}

type flight[T any] struct {
	done   chan struct{}
	result T
	err    error
}

// join returns the flight that will begin from now on. It does not wait.
func (f *flights[T]) join() *flight[T] {
	f.mu.Lock()
	defer f.mu.Unlock()
	fl := f.next
	if fl == nil {
		fl = &flight[T]{done: make(chan struct{})}
		f.next = fl
	}
	if f.running = f.running || f.work(f.loop); !f.running {
		f.next, fl.err = nil, ErrClosed
		close(fl.done)
	}
	return fl
}

// loop runs flights until nobody asks for more.
func (f *flights[T]) loop() {
	for {
		f.mu.Lock()
		now := f.next
		f.running = now != nil
		f.mu.Unlock()
		if now == nil {
			return
		}
		if f.pace != nil {
			_ = f.pace.Wait(f.ctx, 1, math.MaxInt64) // who asks meanwhile shares the flight
		}
		f.mu.Lock()
		f.next = nil
		f.mu.Unlock()
		now.result, now.err = f.call()
		close(now.done)
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

// sleep reports whether a time has passed before ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// refresh lists the peer's SAs and takes them over; it returns after a list that
// began after the call.
func (p *peer) refresh(ctx context.Context) error {
	_, err := p.beginRefresh().wait(ctx)
	return err
}

// beginRefresh is refresh without waiting. Calls that come faster than charon lists share.
func (p *peer) beginRefresh() *flight[struct{}] {
	return p.lists.join()
}

func (p *peer) readSAs() (struct{}, error) {
	l := p.m.currentSession()
	if l == nil {
		return struct{}{}, ErrNotConnected
	}
	p.mu.Lock()
	deletes := p.endings.deletes
	p.mu.Unlock()
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
	p.takeListLocked(sas, deletes, false)
	return struct{}{}, nil
}

// missing reports whether a list lacks a child that carried a lane and whose end no
// event has reported. charon lists one IKE SA after the other: a child that moves to the
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
	return m.lists.join().wait(ctx)
}

func (m *Manager) readAll() ([]charon.SA, error) {
	l := m.currentSession()
	if l == nil {
		return nil, m.notConnected()
	}
	return l.List(m.ctx, "")
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
