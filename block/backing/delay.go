package backing

import (
	"sync/atomic"
	"time"
)

// delay is a moving average of how long writes hold their caller up, beyond what
// the copy of their bytes takes. A write to the page cache holds it up for some
// microseconds, now and then for a scheduler's time slice; one that waits for
// the storage, since the page cache is full, for much longer. The average
// shows the difference where a single measurement cannot.
//
// A concurrent update may be lost; this is a hint.
type delay struct{ avg atomic.Int64 } // ns

func (p *delay) fast() bool { return p.avg.Load() < int64(slowWrite) }

// observe records that a write of n bytes took d.
func (p *delay) observe(d time.Duration, n int) {
	d = min(max(0, d-time.Duration(n>>10)*writePerKiB), maxWriteTime)
	avg := p.avg.Load()
	p.avg.Store(avg + (int64(d)-avg)/delayWeight)
}
