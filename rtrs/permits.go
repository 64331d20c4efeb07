package rtrs

import (
	"context"
	"sync"
)

// permitPool hands permits out, the most recently used first (its memory is
// warm, and buffers that were never needed are never touched). Who waits is
// served in order, so that a request for many permits is not starved, and
// takes all it needs at once, so that two large requests cannot wait for each
// other's permits.
type permitPool struct {
	mu     sync.Mutex
	free   []*Permit
	first  *permitWaiter
	last   *permitWaiter
	spare  *permitWaiter
	closed bool
	total  int
}

type permitWaiter struct {
	next  *permitWaiter
	into  []*Permit
	ready chan struct{} // capacity 1
	given bool
}

// take fills into, waiting in line if it must.
func (p *permitPool) take(ctx context.Context, into []*Permit) error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return ErrClosed
	}
	if p.first == nil && p.popLocked(into) {
		p.mu.Unlock()
		return nil
	}
	w := p.enqueueLocked(into)
	p.mu.Unlock()
	var err error
	select {
	case <-w.ready:
	case <-ctx.Done():
		err = ctx.Err()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case w.given:
		if err != nil {
			<-w.ready
			p.giveLocked(into)
			clear(into)
		}
	case err != nil:
		p.unlinkLocked(w)
		p.serveLocked()
	default:
		err = ErrClosed
	}
	w.into, w.given = nil, false
	w.next, p.spare = p.spare, w
	return err
}

// try fills into without waiting, and not before those who wait.
func (p *permitPool) try(into []*Permit) (ok bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false, ErrClosed
	}
	return p.first == nil && p.popLocked(into), nil
}

// put gives permits back. It reports that the pool is closed and complete.
func (p *permitPool) put(ps ...*Permit) (last bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.giveLocked(ps)
	return p.closed && len(p.free) == p.total
}

// close fails everybody who waits and will wait. It reports whether all
// permits are there.
func (p *permitPool) close() (last bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.closed = true
	for w := p.first; w != nil; {
		next := w.next
		w.next = nil
		w.ready <- struct{}{}
		w = next
	}
	p.first, p.last = nil, nil
	return len(p.free) == p.total
}

func (p *permitPool) popLocked(into []*Permit) bool {
	n := len(p.free) - len(into)
	if n < 0 {
		return false
	}
	for i := range into {
		j := len(p.free) - 1 - i
		into[i], p.free[j] = p.free[j], nil
	}
	p.free = p.free[:n]
	return true
}

func (p *permitPool) giveLocked(ps []*Permit) {
	for i := len(ps) - 1; i >= 0; i-- {
		p.free = append(p.free, ps[i])
	}
	p.serveLocked()
}

func (p *permitPool) serveLocked() {
	for w := p.first; w != nil && !p.closed && p.popLocked(w.into); w = p.first {
		p.first = w.next
		if p.first == nil {
			p.last = nil
		}
		w.next, w.given = nil, true
		w.ready <- struct{}{}
	}
}

func (p *permitPool) enqueueLocked(into []*Permit) *permitWaiter {
	w := p.spare
	if w != nil {
		p.spare, w.next = w.next, nil
	} else {
		w = &permitWaiter{ready: make(chan struct{}, 1)}
	}
	w.into = into
	if p.last == nil {
		p.first = w
	} else {
		p.last.next = w
	}
	p.last = w
	return w
}

func (p *permitPool) unlinkLocked(w *permitWaiter) {
	prev := (*permitWaiter)(nil)
	for q := p.first; q != nil; prev, q = q, q.next {
		if q != w {
			continue
		}
		if prev == nil {
			p.first = q.next
		} else {
			prev.next = q.next
		}
		if p.last == q {
			p.last = prev
		}
		q.next = nil
		return
	}
}
