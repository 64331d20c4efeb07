package rtrs

import (
	"context"
	"fmt"
	"slices"

	"github.com/ironwarp/ironwarp/internal/checks"
)

// Share is a part of a client's permits, so that nobody who holds on to permits keeps
// others from theirs. Half of the permits is divided equally among the shares there are,
// and kept for them; the rest goes to whoever comes first. A single share has all.
type Share struct {
	cl     *Client
	held   int // guarded by the pool's lock, as is open
	isOpen bool
}

// NewShare adds a share.
func (cl *Client) NewShare() *Share {
	s := &Share{cl: cl, isOpen: true}
	cl.pool.divide(func(all []*Share) []*Share { return append(all, s) })
	return s
}

// Close gives the share up. What is out of it comes back later.
func (s *Share) Close() {
	s.cl.pool.divide(func(all []*Share) []*Share {
		s.isOpen = false
		return slices.DeleteFunc(all, func(o *Share) bool { return o == s })
	})
}

// GetN is Client.GetN within the share.
func (s *Share) GetN(ctx context.Context, ps []*Permit) error { return s.cl.getN(ctx, s, ps) }

// TryGetN is GetN that does not wait: ok is false when it would.
func (s *Share) TryGetN(ps []*Permit) (ok bool, err error) { return s.cl.pool.try(s, ps) }

// MostPermits is how many permits one I/O of a share can count on, however many shares
// there are.
func (cl *Client) MostPermits() int { return max(1, cl.depth/4) }

func (cl *Client) getN(ctx context.Context, share *Share, ps []*Permit) error {
	if len(ps) > cl.depth {
		return fmt.Errorf("rtrs: %d permits asked for, the session has %d", len(ps), cl.depth)
	}
	return cl.pool.take(ctx, share, ps)
}

// divide changes who has a share.
func (p *permitPool) divide(change func([]*Share) []*Share) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shares = change(p.shares)
	p.each, p.owed = 0, 0
	if n := len(p.shares); n > 1 && checks.On(checks.DiskShare) {
		p.each = max(1, p.total/(2*n))
	}
	for _, s := range p.shares {
		p.owed += max(0, p.each-s.held)
	}
	p.serveLocked()
}

// entitledLocked tells whether n more permits are what a share is owed.
func (p *permitPool) entitledLocked(s *Share, n int) bool {
	return s != nil && s.isOpen && s.held+n <= p.each
}

// keptLocked is how many permits are kept for others than s: what they are owed, and
// where that is one permit each for many, at most half.
func (p *permitPool) keptLocked(s *Share) int {
	kept := p.owed
	if s != nil && s.isOpen {
		kept -= max(0, p.each-s.held)
	}
	return min(kept, p.total/2)
}

// holdLocked notes that a share holds n permits more.
func (p *permitPool) holdLocked(s *Share, n int) {
	if s == nil {
		return
	}
	if s.isOpen {
		p.owed += max(0, p.each-s.held-n) - max(0, p.each-s.held)
	}
	s.held += n
}
