package rate

import (
	"context"
	"iter"
	"time"
)

// Ticks are the times from now on, one after each interval d, until ctx ends. Who is slow
// misses some.
func Ticks(ctx context.Context, d time.Duration) iter.Seq[time.Time] {
	return func(yield func(time.Time) bool) {
		t := time.NewTicker(d)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case now := <-t.C:
				if !yield(now) {
					return
				}
			}
		}
	}
}
