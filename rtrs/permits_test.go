package rtrs

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

func newPool(n int) *permitPool {
	p := &permitPool{total: n}
	for i := n - 1; i >= 0; i-- {
		p.free = append(p.free, &Permit{id: i})
	}
	return p
}

func (p *permitPool) waiting() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for w := p.first; w != nil; w = w.next {
		n++
	}
	return n
}

func TestPoolHandsOutTheWarmestFirst(t *testing.T) {
	p := newPool(4)
	ps := make([]*Permit, 2)
	if ok, _ := p.tryGet(nil, ps); !ok || ps[0].id != 0 || ps[1].id != 1 {
		t.Fatal(ps)
	}
	p.put(ps[1])
	p.put(ps[0])
	if ok, _ := p.tryGet(nil, ps); !ok || ps[0].id != 0 || ps[1].id != 1 {
		t.Fatal("the permit that was put back last does not come first")
	}
}

func TestPoolServesInOrder(t *testing.T) {
	p := newPool(3)
	all := make([]*Permit, 3)
	p.tryGet(nil, all)
	order := make(chan int, 3)
	var wg sync.WaitGroup
	for i, n := range []int{3, 1, 1} {
		wg.Go(func() {
			ps := make([]*Permit, n)
			if err := p.get(context.Background(), nil, ps); err != nil {
				t.Error(err)
			}
			order <- i
			p.put(ps...)
		})
		eventually(t, "nobody waits", func() bool { return p.waiting() == i+1 })
	}
	p.put(all[0])
	if ok, _ := p.tryGet(nil, make([]*Permit, 1)); ok {
		t.Error("a newcomer was served before those who wait")
	}
	p.put(all[1])
	if len(order) != 0 {
		t.Error("somebody was served before the first, who waits for three")
	}
	p.put(all[2])
	wg.Wait()
	if first := <-order; first != 0 {
		t.Errorf("waiter %d was served first", first)
	}
}

func TestPoolLargeRequestsDoNotDeadlock(t *testing.T) {
	p := newPool(8)
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			for range 500 {
				ps := make([]*Permit, 1+rand.IntN(8))
				if err := p.get(testContext(t), nil, ps); err != nil {
					t.Error(err)
					return
				}
				p.put(ps...)
			}
		})
	}
	wg.Wait()
	if len(p.free) != 8 {
		t.Errorf("%d permits are left of 8", len(p.free))
	}
}

func TestPoolGivesUpWithItsContext(t *testing.T) {
	p := newPool(2)
	one := make([]*Permit, 1)
	p.tryGet(nil, one)
	ctx, cancel := context.WithCancel(context.Background())
	errs := make(chan error, 2)
	go func() { errs <- p.get(ctx, nil, make([]*Permit, 2)) }()
	eventually(t, "nobody waits", func() bool { return p.waiting() == 1 })
	small := make(chan error, 1)
	go func() { small <- p.get(context.Background(), nil, make([]*Permit, 1)) }()
	eventually(t, "the second does not wait", func() bool { return p.waiting() == 2 })
	cancel()
	if err := <-errs; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := <-small; err != nil {
		t.Error("who waited behind the one that gave up was not served:", err)
	}
}

func TestPoolCloseFailsWaiters(t *testing.T) {
	p := newPool(1)
	one := make([]*Permit, 1)
	p.tryGet(nil, one)
	errs := make(chan error, 1)
	go func() { errs <- p.get(context.Background(), nil, make([]*Permit, 1)) }()
	eventually(t, "nobody waits", func() bool { return p.waiting() == 1 })
	if p.close() {
		t.Error("close reports a complete pool while a permit is out")
	}
	if err := <-errs; !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if err := p.get(context.Background(), nil, make([]*Permit, 1)); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if !p.put(one...) {
		t.Error("the last permit is back and put does not say so")
	}
}

// TestSharesGetWhatTheyAreOwed: whatever others hold and wait for, a share gets at once
// what it is owed.
func TestSharesGetWhatTheyAreOwed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newPool(rapid.IntRange(1, 130).Draw(t, "depth"))
		cl := &Client{depth: p.total}
		var shares []*Share
		held := map[*Share][]*Permit{}
		for range rapid.IntRange(1, min(64, p.total/2+1)).Draw(t, "shares") {
			s := &Share{cl: cl, isOpen: true}
			shares = append(shares, s)
		}
		p.divide(func([]*Share) []*Share { return shares })
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			s := rapid.SampledFrom(shares).Draw(t, "share")
			if n := len(held[s]); n > 0 && rapid.Bool().Draw(t, "put") {
				k := rapid.IntRange(1, n).Draw(t, "n")
				p.put(held[s][n-k:]...)
				held[s] = held[s][:n-k]
				continue
			}
			into := make([]*Permit, rapid.IntRange(1, cl.MostPermits()).Draw(t, "n"))
			ok, _ := p.tryGet(s, into)
			if ok {
				held[s] = append(held[s], into...)
			}
			owed := len(shares) > 1 && p.total >= 2*len(shares) && len(held[s])+len(into) <= p.total/(2*len(shares))
			if !ok && (owed || len(held) == 0) {
				t.Fatalf("a share with %d permits does not get %d of %d", len(held[s]), len(into), p.total)
			}
			for _, o := range shares {
				if p.each > 0 && o != s && len(held[o]) < p.each && p.total >= 2*len(shares) && len(p.free) < p.each-len(held[o]) {
					t.Fatalf("%d permits are free, a share with %d is owed %d", len(p.free), len(held[o]), p.each)
				}
			}
		}
		for _, s := range shares {
			p.put(held[s]...)
		}
		if len(p.free) != p.total || p.owed != p.each*len(shares) {
			t.Fatalf("%d of %d permits are free, %d owed to %d shares of %d", len(p.free), p.total, p.owed, len(shares), p.each)
		}
	})
}

// TestSharesDoNotStarveLargeRequests: small requests of other shares go on for ever, and
// the large one is served.
func TestSharesDoNotStarveLargeRequests(t *testing.T) {
	p := newPool(32)
	cl := &Client{depth: 32}
	var shares []*Share
	for range 4 {
		shares = append(shares, &Share{cl: cl, isOpen: true})
	}
	p.divide(func([]*Share) []*Share { return shares })
	ctx, cancel := context.WithCancel(testContext(t))
	var wg sync.WaitGroup
	for i := range 24 {
		wg.Go(func() {
			for ctx.Err() == nil {
				ps := make([]*Permit, 1+i%3)
				if p.get(ctx, shares[i%4], ps) == nil {
					runtime.Gosched()
					p.put(ps...)
				}
			}
		})
	}
	for range 200 {
		ps := make([]*Permit, cl.MostPermits())
		if err := p.get(testContext(t), shares[0], ps); err != nil {
			t.Fatal("a large request is starved:", err)
		}
		p.put(ps...)
	}
	cancel()
	wg.Wait()
}
