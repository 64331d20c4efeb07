package api

import (
	"slices"

	"github.com/ironwarp/ironwarp/block"
)

// Latency is how long operations of one kind took that had no error, counted as IO counts them.
type Latency struct {
	Operation string  `json:"operation"` // read, write, flush
	Count     uint64  `json:"count"`
	Sum       float64 `json:"sum_seconds"`
	P50       float64 `json:"p50_seconds"`
	P99       float64 `json:"p99_seconds"`
	// Buckets are how many took up to each of block.LatencyBounds, but longer than the one before it, and last how many took longer
	// than all. Zeroes at the end are left out.
	Buckets []uint64 `json:"buckets"`
}

// Latencies are those of the operations that there were.
func Latencies(c block.LatencyCounts) (all []Latency) {
	for op := range c {
		h := &c[op]
		n := h.Count()
		if n == 0 {
			continue
		}
		used := len(h.Buckets)
		for h.Buckets[used-1] == 0 {
			used--
		}
		all = append(all, Latency{Operation: block.Op(op).String(), Count: n, Sum: h.Sum.Seconds(), P50: h.Quantile(0.5).Seconds(), P99: h.Quantile(0.99).Seconds(), Buckets: slices.Clone(h.Buckets[:used])})
	}
	return all
}
