package gate

import (
	"time"

	"golang.org/x/time/rate"

	"github.com/ironwarp/ironwarp/block"
)

// Directions of I/O, each of which has a queue.
const (
	reads = iota
	writes
	directions
)

func directionOf(op block.Op) int {
	if op.Writes() {
		return writes
	}
	return reads
}

// isCounted reports whether limits know an operation.
func isCounted(op block.Op) bool { return op == block.OpRead || op.Writes() }

// limiter has the token buckets of Limits.
type limiter struct {
	limits Limits
	iops   [directions][]*rate.Limiter // those that an I/O of a direction takes a token of
	bytes  [directions][]*rate.Limiter // those that it takes one of for each byte
}

// newLimiter returns full buckets for limits that have been checked.
func newLimiter(l Limits) *limiter {
	if l.Burst == 0 {
		l.Burst = DefaultBurst
	}
	m := &limiter{limits: l}
	add := func(to *[directions][]*rate.Limiter, perSecond int64, dirs ...int) {
		if perSecond == 0 {
			return
		}
		b := rate.NewLimiter(rate.Limit(perSecond), saved(perSecond, l.Burst))
		for _, d := range dirs {
			to[d] = append(to[d], b)
		}
	}
	add(&m.iops, l.IOPS, reads, writes)
	add(&m.iops, l.ReadIOPS, reads)
	add(&m.iops, l.WriteIOPS, writes)
	add(&m.bytes, l.Bandwidth, reads, writes)
	add(&m.bytes, l.ReadBandwidth, reads)
	add(&m.bytes, l.WriteBandwidth, writes)
	return m
}

// take takes the tokens of an I/O of n bytes, and returns how long it has to wait for them.
func (m *limiter) take(now time.Time, direction, n int) (wait time.Duration) {
	for _, b := range m.iops[direction] {
		wait = max(wait, takeOf(b, now, 1))
	}
	for _, b := range m.bytes[direction] {
		wait = max(wait, takeOf(b, now, n))
	}
	return wait
}

// takeOf takes n tokens of a bucket, also more than it ever holds.
func takeOf(b *rate.Limiter, now time.Time, n int) (wait time.Duration) {
	for n > 0 {
		part := min(n, b.Burst())
		wait = max(wait, b.ReserveN(now, part).DelayFrom(now))
		n -= part
	}
	return wait
}
