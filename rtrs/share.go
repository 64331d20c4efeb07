package rtrs

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"syscall"
)

// Share is a part of a client's permits, so that nobody who holds on to permits starves
// others. Half of the permits is divided equally among the shares and reserved for them;
// the rest is first come, first served. A single share has all.
type Share struct {
	cl     *Client
	held   int  // guarded by permitPool.mu
	isOpen bool // guarded by permitPool.mu

	suspended atomic.Bool // set and cleared with Client.mu held
	anew      bool        // suspended since Resume was called; guarded by Client.mu
}

// NewShare adds a share.
func (cl *Client) NewShare() *Share {
	s := &Share{cl: cl, isOpen: true}
	cl.pool.divide(func(all []*Share) []*Share { return append(all, s) })
	return s
}

// Close gives up the share. Permits taken from it may be returned later.
func (s *Share) Close() {
	s.cl.pool.divide(func(all []*Share) []*Share {
		s.isOpen = false
		return slices.DeleteFunc(all, func(o *Share) bool { return o == s })
	})
}

// GetN is Client.GetN within the share. It fails as that does.
func (s *Share) GetN(ctx context.Context, ps []*Permit) error { return s.cl.getN(ctx, s, ps) }

// TryGetN is GetN that does not wait: ok is false when it would. It fails as GetN does.
func (s *Share) TryGetN(ps []*Permit) (ok bool, err error) { return s.cl.tryN(s, ps) }

// Suspend holds back I/O of the share's permits that is submitted from now on: it waits for
// Resume as it would for a path. What has been sent goes on until it is answered, or until the
// server has forgotten the session: then it is held back as well.
func (s *Share) Suspend() {
	s.cl.mu.Lock()
	defer s.cl.mu.Unlock()
	s.suspended.Store(true)
	s.anew = true
}

// Resume sends the I/O that Suspend has held back, in the order of its posting, and lets
// later I/O pass, unless the share is suspended again meanwhile. OnResend is called for each.
func (s *Share) Resume() {
	cl := s.cl
	cl.mu.Lock()
	s.anew = false
	cl.mu.Unlock()
	for {
		cl.mu.Lock()
		none := len(*cl.up.Load()) == 0
		i := slices.IndexFunc(cl.suspended, func(p *Permit) bool { return p.share == s })
		switch {
		case i < 0 || s.anew:
			s.suspended.Store(s.anew)
			cl.mu.Unlock()
			cl.Flush()
			cl.EndBatch()
			return
		case none: // all of it waits for a path instead
			cl.suspended = slices.DeleteFunc(cl.suspended, func(p *Permit) bool {
				if p.share == s {
					cl.parked = inOrder(cl.parked, p)
				}
				return p.share == s
			})
			s.suspended.Store(false)
			cl.mu.Unlock()
			return
		}
		p := cl.suspended[i]
		cl.suspended = slices.Delete(cl.suspended, i, i+1)
		cl.mu.Unlock()
		if cl.endRefused(p) {
			continue
		}
		t := cl.choosePath(p)
		if t != nil && t.post(p, true) {
			continue
		}
		cl.mu.Lock()
		closing := cl.closing
		if !closing {
			// It goes ahead of what is submitted from now on, whatever its share does.
			cl.parked = inOrder(cl.parked, p)
			p.state.Store(permitParked)
		}
		cl.mu.Unlock()
		if closing {
			p.state.Store(permitIdle)
			p.finish(syscall.ESHUTDOWN)
			continue
		}
		cl.startParked()
	}
}

// InFlight returns how many I/Os of the share have been sent and not answered, by a path that
// was lost since included.
func (s *Share) InFlight() (n int) {
	pool := &s.cl.pool
	pool.mu.Lock()
	defer pool.mu.Unlock()
	for _, p := range s.cl.permits {
		if p.share != s {
			continue
		}
		switch p.state.Load() & 0xff {
		case permitFlying, permitMoved:
			n++
		}
	}
	return n
}

// isSuspended reports whether a permit's I/O must be held back. One that the server may be executing
// is not: it would be refused, or its memory used again, before anybody knows when that ends.
func (p *Permit) isSuspended() bool {
	return p.share != nil && p.share.suspended.Load() && !p.unsettled && !p.sent
}

// inOrder adds p to a list in the order of posting.
func inOrder(list []*Permit, p *Permit) []*Permit {
	i, _ := slices.BinarySearchFunc(list, p, func(a, b *Permit) int { return cmp.Compare(a.seq, b.seq) })
	return slices.Insert(list, i, p)
}

// MostPermits returns how many permits one I/O of a share can count on, however many
// shares there are.
func (cl *Client) MostPermits() int { return max(1, cl.depth/4) }

func (cl *Client) getN(ctx context.Context, share *Share, ps []*Permit) error {
	if len(ps) > cl.depth {
		return fmt.Errorf("rtrs: %d permits asked for, the session has %d", len(ps), cl.depth)
	}
	err := cl.pool.get(ctx, share, ps)
	if err == nil {
		cl.moveToPaths(ps)
	}
	return err
}

func (cl *Client) tryN(share *Share, ps []*Permit) (ok bool, err error) {
	if ok, err = cl.pool.tryGet(share, ps); ok {
		cl.moveToPaths(ps)
	}
	return ok, err
}

// moveToPaths gives permits the memory of the paths by which their I/O is to go.
func (cl *Client) moveToPaths(ps []*Permit) {
	for _, p := range ps {
		if t := cl.choosePath(p); t != nil {
			p.moveTo(t.path)
		}
	}
}

// divide changes the set of shares.
func (p *permitPool) divide(change func([]*Share) []*Share) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shares = change(p.shares)
	p.each, p.owed = p.shareSizeLocked(), 0
	for _, s := range p.shares {
		p.owed += max(0, p.each-s.held)
	}
	p.serveLocked()
}

// entitledLocked reports whether a share is owed n more permits.
func (p *permitPool) entitledLocked(s *Share, n int) bool {
	return s != nil && s.isOpen && s.held+n <= p.each
}

// reservedLocked returns how many permits are reserved for others than s: what they are
// owed, but at most half, as many shares may be owed one permit each.
func (p *permitPool) reservedLocked(s *Share) int {
	kept := p.owed
	if s != nil && s.isOpen {
		kept -= max(0, p.each-s.held)
	}
	return min(kept, p.total/2)
}

// holdLocked records that a share holds n more permits.
func (p *permitPool) holdLocked(s *Share, n int) {
	if s == nil {
		return
	}
	if s.isOpen {
		p.owed += max(0, p.each-s.held-n) - max(0, p.each-s.held)
	}
	s.held += n
}
