// Package meter turns counters of block I/O into rates.
package meter

import (
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// span is the number of intervals between samples that a rate covers.
const span = 3

// Meter turns counters into rates over the last seconds.
type Meter struct {
	mu   sync.Mutex // guards the fields below it
	ring [span + 1]sample
	n    int
}

type sample struct {
	at time.Time
	io api.IO
}

// Sample records the present counters.
func (m *Meter) Sample(at time.Time, io api.IO) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ring[m.n%len(m.ring)] = sample{at, io}
	m.n++
}

// Rates fills in the rates between the oldest and the newest sample.
func (m *Meter) Rates(io *api.IO) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.n < 2 {
		return
	}
	newest := m.ring[(m.n-1)%len(m.ring)]
	oldest := m.ring[max(0, m.n-len(m.ring))%len(m.ring)]
	took := newest.at.Sub(oldest.at).Seconds()
	if took <= 0 {
		return
	}
	per := func(a, b uint64) float64 { return float64(a-b) / took }
	io.ReadsPerSec = per(newest.io.Reads, oldest.io.Reads)
	io.WritesPerSec = per(newest.io.Writes, oldest.io.Writes)
	io.ReadBytesSec = per(newest.io.ReadBytes, oldest.io.ReadBytes)
	io.WriteBytesSec = per(newest.io.WriteBytes, oldest.io.WriteBytes)
}
