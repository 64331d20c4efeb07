package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/daemon/api"
)

// histogramEmitter sends a histogram for each operation, which is its last label.
type histogramEmitter func(m *prometheus.Desc, all []api.Latency, labels ...string)

// emitHistograms is a histogramEmitter to ch.
func emitHistograms(ch chan<- prometheus.Metric) histogramEmitter {
	bounds := block.LatencyBounds()
	return func(m *prometheus.Desc, all []api.Latency, labels ...string) {
		for _, l := range all {
			buckets, n := make(map[float64]uint64, len(bounds)), uint64(0)
			for i, b := range bounds {
				if i < len(l.Buckets) {
					n += l.Buckets[i]
				}
				buckets[b.Seconds()] = n
			}
			ch <- prometheus.MustNewConstHistogram(m, l.Count, l.Sum, buckets, append(labels[:len(labels):len(labels)], l.Operation)...)
		}
	}
}
