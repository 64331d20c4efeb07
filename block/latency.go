package block

import (
	"sync/atomic"
	"time"
)

// LatencyBounds are the upper bounds of the buckets in which latencies are counted, from what memory takes to what a disk that is
// to be replaced takes. They are fixed, so that histograms of hosts and times can be added.
func LatencyBounds() []time.Duration { return latencyBounds[:] }

var latencyBounds = [...]time.Duration{
	50 * time.Microsecond, 100 * time.Microsecond, 200 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second,
}

// latencyShards divides the counters, so that the processors that end I/O seldom write to the same cache line.
const latencyShards = 4

// Latency counts how long reads, writes and flushes take. It takes no lock and allocates nothing. The zero value is empty.
type Latency struct {
	shards [latencyShards]struct {
		of [timedOps]struct {
			buckets [len(latencyBounds) + 1]atomic.Uint64
			nanos   atomic.Uint64
		}
		_ [64]byte // of another cache line
	}
}

// timedOps are the operations that are timed: OpRead, OpWrite and OpFlush. Others are rare, and take what the storage likes.
const timedOps = 3

// Observe counts an operation that has taken d. Operations that are not timed count nothing.
func (l *Latency) Observe(op Op, d time.Duration) {
	if op >= timedOps {
		return
	}
	d = max(d, 0)
	// The last nanoseconds of a time are as good as drawn.
	h := &l.shards[uint64(d)%latencyShards].of[op]
	i := 0
	for i < len(latencyBounds) && d > latencyBounds[i] {
		i++
	}
	h.buckets[i].Add(1)
	h.nanos.Add(uint64(d))
}

// Counts returns what was counted. Operations that end meanwhile may be missing in a part of it.
func (l *Latency) Counts() (c LatencyCounts) {
	for s := range l.shards {
		for op := range c {
			h := &l.shards[s].of[op]
			for i := range h.buckets {
				c[op].Buckets[i] += h.buckets[i].Load()
			}
			c[op].Sum += time.Duration(h.nanos.Load())
		}
	}
	return c
}

// LatencyCounts are the histograms of OpRead, OpWrite and OpFlush, by operation.
type LatencyCounts [timedOps]Histogram

// Histogram is how many operations took up to each of LatencyBounds but longer than the one before it, and last how many took
// longer than all.
type Histogram struct {
	Buckets [len(latencyBounds) + 1]uint64
	Sum     time.Duration // of all of them
}

// Count is how many operations were counted.
func (h *Histogram) Count() (n uint64) {
	for _, b := range h.Buckets {
		n += b
	}
	return n
}

// Quantile is what the part q of all operations took at most, 0 to 1: a line drawn within its bucket, as PromQL's
// histogram_quantile does. It is the highest bound for what took longer, and 0 if nothing was counted.
func (h *Histogram) Quantile(q float64) time.Duration {
	rank := q * float64(h.Count())
	below, low := 0.0, time.Duration(0)
	for i, high := range latencyBounds {
		n := float64(h.Buckets[i])
		if n > 0 && below+n >= rank {
			return low + time.Duration(float64(high-low)*max(0, rank-below)/n)
		}
		below, low = below+n, high
	}
	if h.Buckets[len(latencyBounds)] == 0 {
		return 0
	}
	return low
}
