package rtrs

import (
	"context"
	"slices"
	"sync"
)

// permitPool hands out permits, the most recently used first: its memory is warm, and
// buffers never needed are never touched. Waiters are served in order, so that a request
// for many permits is not starved, and get all they need at once, so that two large
// requests cannot deadlock.
//
// If the client has shares (see Share), permits owed to a share are given to nobody else,
// and a request for no more than what its share is owed does not queue. That costs
// waiters nothing: the free and the owed permits decrease by the same number.
type permitPool struct {
	mu     sync.Mutex // guards the fields below it
	free   []*Permit
	first  *permitWaiter
	last   *permitWaiter
	spare  *permitWaiter
	closed bool
	over   error // why nobody gets a permit, nil if they do
	total  int
	lent   int // permits that are none of the pool's, and in use

	shares []*Share
	each   int // permits that each share is entitled to
	owed   int // the part of that which the shares have not taken
}

type permitWaiter struct {
	next  *permitWaiter
	share *Share
	into  []*Permit
	ready chan struct{} // capacity 1
	given bool

	refused error
}

// get fills into, and queues if it must.
func (p *permitPool) get(ctx context.Context, share *Share, into []*Permit) error {
	p.mu.Lock()
	if p.over != nil {
		defer p.mu.Unlock()
		return p.over
	}
	if p.popLocked(share, into, p.first == nil) {
		p.mu.Unlock()
		return nil
	}
	w := p.enqueueLocked(share, into)
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
	case err != nil && w.refused != nil:
		<-w.ready
	case err != nil:
		p.unlinkLocked(w)
		p.serveLocked()
	default:
		err = w.refused
	}
	w.into, w.share, w.given, w.refused = nil, nil, false, nil
	w.next, p.spare = p.spare, w
	return err
}

// tryGet fills into without waiting, but not ahead of waiters.
func (p *permitPool) tryGet(share *Share, into []*Permit) (ok bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over != nil {
		return false, p.over
	}
	return p.popLocked(share, into, p.first == nil), nil
}

// borrow takes a permit that fits, if there is one that nobody waits for or is owed.
func (p *permitPool) borrow(fits func(*Permit) bool) *Permit {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.first != nil || len(p.free) <= p.reservedLocked(nil) {
		return nil
	}
	for i, one := range slices.Backward(p.free) {
		if fits(one) {
			p.free = slices.Delete(p.free, i, i+1)
			return one
		}
	}
	return nil
}

// put returns permits. last reports that the pool is closed and all permits are back.
func (p *permitPool) put(ps ...*Permit) (last bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.giveLocked(ps)
	return p.lastLocked()
}

// lastLocked reports that the pool is closed and all permits are back.
func (p *permitPool) lastLocked() bool { return p.closed && len(p.free) == p.total && p.lent == 0 }

// lend counts n more permits that are none of the pool's as in use. last is as for put.
func (p *permitPool) lend(n int) (last bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lent += n
	return p.lastLocked()
}

// close fails all current and future waiters. last reports whether all permits are back.
func (p *permitPool) close() (last bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.closed = true
	p.refuseLocked(ErrClosed)
	return p.lastLocked()
}

// refuse fails all current and future waiters with err; nil ends that.
func (p *permitPool) refuse(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.refuseLocked(err)
	}
}

func (p *permitPool) refuseLocked(err error) {
	if p.over = err; err == nil {
		return
	}
	for w := p.first; w != nil; {
		next := w.next
		w.next, w.refused = nil, err
		w.ready <- struct{}{}
		w = next
	}
	p.first, p.last = nil, nil
}

// popLocked fills into. Unless it is its turn, share gets only what it is owed.
func (p *permitPool) popLocked(share *Share, into []*Permit, turn bool) bool {
	n := len(p.free) - len(into)
	if n < 0 || !p.entitledLocked(share, len(into)) && (!turn || n < p.reservedLocked(share)) {
		return false
	}
	for i := range into {
		j := len(p.free) - 1 - i
		into[i], p.free[j] = p.free[j], nil
		into[i].share = share
	}
	p.free = p.free[:n]
	p.holdLocked(share, len(into))
	return true
}

func (p *permitPool) giveLocked(ps []*Permit) {
	for i := len(ps) - 1; i >= 0; i-- {
		p.holdLocked(ps[i].share, -1)
		ps[i].share = nil
		p.free = append(p.free, ps[i])
	}
	p.serveLocked()
}

func (p *permitPool) serveLocked() {
	if p.closed {
		return
	}
	turn := true
	for prev, w := (*permitWaiter)(nil), p.first; w != nil && len(p.free) > 0; {
		next := w.next
		if p.popLocked(w.share, w.into, turn) {
			p.cutLocked(prev, w)
			w.given = true
			w.ready <- struct{}{}
		} else {
			prev, turn = w, false
		}
		if !turn && p.each == 0 {
			return
		}
		w = next
	}
}

func (p *permitPool) enqueueLocked(share *Share, into []*Permit) *permitWaiter {
	w := p.spare
	if w != nil {
		p.spare, w.next = w.next, nil
	} else {
		w = &permitWaiter{ready: make(chan struct{}, 1)}
	}
	w.into, w.share = into, share
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
		if q == w {
			p.cutLocked(prev, q)
			return
		}
	}
}

// cutLocked removes w, which follows prev, from the queue.
func (p *permitPool) cutLocked(prev, w *permitWaiter) {
	if prev == nil {
		p.first = w.next
	} else {
		prev.next = w.next
	}
	if p.last == w {
		p.last = prev
	}
	w.next = nil
}
