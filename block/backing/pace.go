package backing

import (
	"sync/atomic"
	"time"
)

// pace is a moving average of how long writes hold their caller up, beyond what
// the copy of their bytes takes. A write to the page cache holds it up for some
// microseconds, now and then for a scheduler's time slice; one that waits for
// the storage, as a full page cache makes it, for much longer. The average
// tells them apart where a single measurement cannot.
//
// A concurrent update may be lost; this is a hint.
type pace struct{ avg atomic.Int64 } // ns

func (p *pace) fast() bool { return p.avg.Load() < int64(slowWrite) }

// observe records that a write of n bytes took d.
func (p *pace) observe(d time.Duration, n int) {
	d = min(max(0, d-time.Duration(n>>10)*writePerKiB), maxWriteTime)
	avg := p.avg.Load()
	p.avg.Store(avg + (int64(d)-avg)/paceWeight)
}
