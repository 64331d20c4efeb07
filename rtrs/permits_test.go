package rtrs

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
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
	if ok, _ := p.try(ps); !ok || ps[0].id != 0 || ps[1].id != 1 {
		t.Fatal(ps)
	}
	p.put(ps[1])
	p.put(ps[0])
	if ok, _ := p.try(ps); !ok || ps[0].id != 0 || ps[1].id != 1 {
		t.Fatal("the permit that was put back last does not come first")
	}
}

func TestPoolServesInOrder(t *testing.T) {
	p := newPool(3)
	all := make([]*Permit, 3)
	p.try(all)
	order := make(chan int, 3)
	var wg sync.WaitGroup
	for i, n := range []int{3, 1, 1} {
		wg.Go(func() {
			ps := make([]*Permit, n)
			if err := p.take(context.Background(), ps); err != nil {
				t.Error(err)
			}
			order <- i
			p.put(ps...)
		})
		eventually(t, "nobody waits", func() bool { return p.waiting() == i+1 })
	}
	p.put(all[0])
	if ok, _ := p.try(make([]*Permit, 1)); ok {
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
				if err := p.take(testContext(t), ps); err != nil {
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
	p.try(one)
	ctx, cancel := context.WithCancel(context.Background())
	errs := make(chan error, 2)
	go func() { errs <- p.take(ctx, make([]*Permit, 2)) }()
	eventually(t, "nobody waits", func() bool { return p.waiting() == 1 })
	small := make(chan error, 1)
	go func() { small <- p.take(context.Background(), make([]*Permit, 1)) }()
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
	p.try(one)
	errs := make(chan error, 1)
	go func() { errs <- p.take(context.Background(), make([]*Permit, 1)) }()
	eventually(t, "nobody waits", func() bool { return p.waiting() == 1 })
	if p.close() {
		t.Error("close reports a complete pool while a permit is out")
	}
	if err := <-errs; !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if err := p.take(context.Background(), make([]*Permit, 1)); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if !p.put(one...) {
		t.Error("the last permit is back and put does not say so")
	}
}
