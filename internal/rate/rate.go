// Package rate bounds how often something happens, by token buckets.
package rate

import (
	"context"
	"math"
	"sync"
	"time"
)

// Limit is how often something may happen: PerSecond in the long run, and Burst at once.
type Limit struct{ PerSecond, Burst float64 }

// Bucket records what has happened recently. The zero value is an empty record. The
// caller serialises, and passes the limit and the time: tests and simulations have their
// own.
type Bucket struct {
	taken float64 // not refilled yet
	at    time.Time
}

// Take reports whether one more event may happen now, and if so counts it.
func (b *Bucket) Take(l Limit, now time.Time) bool {
	_, ok := b.Reserve(l, now, 1, 0)
	return ok
}

// Reserve counts n more events, and returns how long to wait for the last of them. If
// that exceeds limit, it counts nothing and ok is false.
func (b *Bucket) Reserve(l Limit, now time.Time, n int, limit time.Duration) (wait time.Duration, ok bool) {
	b.refill(l, now)
	if over := b.taken + float64(n) - l.Burst; over > 0 {
		seconds := over / l.PerSecond
		if seconds > limit.Seconds() {
			return 0, false
		}
		wait = time.Duration(math.Round(seconds * float64(time.Second)))
	}
	b.taken += float64(n)
	return wait, true
}

// Full reports whether the bucket is full again: no past event counts any more.
func (b *Bucket) Full(l Limit, now time.Time) bool {
	b.refill(l, now)
	return b.taken == 0
}

func (b *Bucket) refill(l Limit, now time.Time) {
	if passed := now.Sub(b.at); passed > 0 {
		b.taken = max(0, b.taken-passed.Seconds()*l.PerSecond)
		b.at = now
	}
}

// Pacer makes its callers wait until their events may happen. It is safe for concurrent
// use.
type Pacer struct {
	limit Limit

	mu     sync.Mutex // guards the fields below it
	bucket Bucket
}

// NewPacer returns a Pacer that lets burst events happen at once, and then one per
// interval every.
func NewPacer(every time.Duration, burst int) *Pacer {
	return &Pacer{limit: Limit{PerSecond: 1 / every.Seconds(), Burst: float64(burst)}}
}

// Wait waits until n more may happen. It fails with context.DeadlineExceeded, at once,
// where that takes longer than limit, and with ctx's error.
func (p *Pacer) Wait(ctx context.Context, n int, limit time.Duration) error {
	p.mu.Lock()
	wait, ok := p.bucket.Reserve(p.limit, time.Now(), n, limit)
	p.mu.Unlock()
	if !ok {
		return context.DeadlineExceeded
	}
	if wait == 0 {
		return nil
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
