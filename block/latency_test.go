package block

import (
	"slices"
	"sync"
	"testing"
	"time"
)

// Each operation is counted once, in the bucket that its time belongs to, bounds included.
func TestLatencyIsCountedInItsBucket(t *testing.T) {
	var l Latency
	bounds := LatencyBounds()
	if !slices.IsSorted(bounds) {
		t.Fatal("the bounds are in no order")
	}
	for i, b := range bounds {
		for range i + 1 {
			l.Observe(OpWrite, b)
		}
	}
	l.Observe(OpRead, -time.Second)
	l.Observe(OpRead, bounds[0]+1)
	l.Observe(OpFlush, time.Hour)
	for op := Op(timedOps); op < 255; op++ {
		l.Observe(op, time.Second)
	}
	c := l.Counts()
	for i := range bounds {
		if c[OpWrite].Buckets[i] != uint64(i+1) {
			t.Errorf("%d writes up to %v, want %d", c[OpWrite].Buckets[i], bounds[i], i+1)
		}
	}
	if r := c[OpRead]; r.Buckets[0] != 1 || r.Buckets[1] != 1 || r.Count() != 2 || r.Sum != bounds[0]+1 {
		t.Errorf("reads: %+v", r)
	}
	if f := c[OpFlush]; f.Buckets[len(bounds)] != 1 || f.Sum != time.Hour || f.Quantile(0.5) != bounds[len(bounds)-1] {
		t.Errorf("flushes: %+v", f)
	}
}

// What many goroutines count at once is all there.
func TestLatencyLosesNothing(t *testing.T) {
	var l Latency
	var all sync.WaitGroup
	const goroutines, each = 8, 1000
	for g := range goroutines {
		all.Go(func() {
			for i := range each {
				l.Observe(Op(i%2), time.Duration(g*i)*time.Nanosecond)
			}
		})
	}
	all.Wait()
	c := l.Counts()
	if n := c[OpRead].Count() + c[OpWrite].Count(); n != goroutines*each {
		t.Errorf("%d of %d", n, goroutines*each)
	}
	var want time.Duration
	for g := range goroutines {
		want += time.Duration(g * each * (each - 1) / 2)
	}
	if got := c[OpRead].Sum + c[OpWrite].Sum; got != want {
		t.Errorf("the sum is %v, want %v", got, want)
	}
}

// A quantile lies within the bucket of the operation that it is of.
func TestQuantile(t *testing.T) {
	var none Histogram
	if none.Quantile(0.5) != 0 {
		t.Error("the quantile of nothing")
	}
	var h Histogram
	h.Buckets[4], h.Buckets[5] = 90, 10 // 0.5 to 1 ms, 1 to 2 ms
	for q, want := range map[float64]time.Duration{0: 500 * time.Microsecond, 0.45: 750 * time.Microsecond, 0.9: time.Millisecond, 0.95: 1500 * time.Microsecond, 1: 2 * time.Millisecond} {
		if got := h.Quantile(q); (got - want).Abs() > time.Microsecond {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
}

// Counting costs the data path nothing that the garbage collector would see.
func TestObserveAllocatesNothing(t *testing.T) {
	var l Latency
	if n := testing.AllocsPerRun(1000, func() { l.Observe(OpRead, 137*time.Microsecond) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkObserve(b *testing.B) {
	var l Latency
	b.RunParallel(func(pb *testing.PB) {
		for d := time.Duration(0); pb.Next(); d += 7919 {
			l.Observe(OpRead, d%(2*time.Millisecond))
		}
	})
}
