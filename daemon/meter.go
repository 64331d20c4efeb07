package daemon

import (
	"context"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/nbd"
	"github.com/ironwarp/ironwarp/rnbd"
)

const (
	// meterEvery is how often counters are looked at for rates.
	meterEvery = time.Second
	// meterSpan is the number of looks that a rate covers.
	meterSpan = 3
)

// meter turns counters into rates over the last seconds.
type meter struct {
	mu   sync.Mutex
	ring [meterSpan + 1]look
	n    int
}

type look struct {
	at time.Time
	io api.IO
}

func (m *meter) look(at time.Time, io api.IO) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ring[m.n%len(m.ring)] = look{at, io}
	m.n++
}

// rates fills in the rates between the oldest and the newest look.
func (m *meter) rates(io *api.IO) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.n < 2 {
		return
	}
	newest := m.ring[(m.n-1)%len(m.ring)]
	oldest := m.ring[max(0, m.n-len(m.ring))%len(m.ring)]
	span := newest.at.Sub(oldest.at).Seconds()
	if span <= 0 {
		return
	}
	per := func(a, b uint64) float64 { return float64(a-b) / span }
	io.ReadsPerSec = per(newest.io.Reads, oldest.io.Reads)
	io.WritesPerSec = per(newest.io.Writes, oldest.io.Writes)
	io.ReadBytesSec = per(newest.io.ReadBytes, oldest.io.ReadBytes)
	io.WriteBytesSec = per(newest.io.WriteBytes, oldest.io.WriteBytes)
}

// measure looks at all counters again and again.
func (d *Daemon) measure(ctx context.Context) {
	t := time.NewTicker(meterEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			stats := map[string]rnbd.Stats{}
			for _, i := range d.exporter.Exports() {
				stats[i.Name] = i.Stats
			}
			for _, e := range d.exportList() {
				e.meter.look(now, ioOf(stats[e.cfg.Name]))
			}
			for _, at := range d.attachmentList() {
				at.meter.look(now, at.io())
			}
		}
	}
}

func ioOf(s rnbd.Stats) api.IO {
	return api.IO{Reads: s.Reads, Writes: s.Writes, ReadBytes: s.ReadBytes, WriteBytes: s.WriteBytes, Errors: s.Errors}
}

func ioOfNBD(s nbd.Stats) api.IO {
	return api.IO{Reads: s.Reads, Writes: s.Writes, ReadBytes: s.ReadBytes, WriteBytes: s.WrittenBytes, Errors: s.Errors}
}
