package verbs

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ironwarp/ironwarp/transport"
)

// StreamInfo describes a stream to an administrator.
type StreamInfo struct {
	ID     uint64 // see QP.ID, Device.Kill
	ULP    string
	Peer   transport.Identity
	Flow   transport.Flow
	Trust  TrustModel
	State  QPState
	Paused bool // it waits for its security association
	Since  time.Time
	// BytesIn and BytesOut are the payload received and sent.
	BytesIn, BytesOut uint64
	// Idle is how long no data has moved, to within ten seconds.
	Idle time.Duration
	Slow SlowCounts
}

// progress is when a stream last moved data, guarded by Device.mu.
type progress struct {
	moved uint64    // bytes in all, at that time
	at    time.Time // the stream's start before it has
}

// record takes what qp has moved by now. It is progress if it is more than least bytes
// beyond what was there last.
func (p *progress) record(qp *QP, least uint64, now time.Time) {
	s := qp.Stats()
	switch moved := s.SendBytes + s.RecvBytes; {
	case moved-p.moved > least:
		p.moved, p.at = moved, now
	case p.at.IsZero():
		p.at = qp.since
	}
}

// Streams lists the live streams, the oldest first.
func (d *Device) Streams() []StreamInfo {
	now := time.Now()
	d.lookAt(now)
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make([]StreamInfo, 0, len(d.qps))
	for _, qp := range d.qps {
		if qp.stream.Load() == nil {
			continue
		}
		s := qp.Stats()
		all = append(all, StreamInfo{
			ID: qp.id, ULP: qp.pd.ulp.name, Peer: qp.Peer(), Flow: qp.Flow(), Trust: qp.pd.model, State: qp.State(), Paused: qp.Paused(),
			Since: qp.since, BytesIn: s.RecvBytes, BytesOut: s.SendBytes, Idle: now.Sub(qp.activity.at), Slow: qp.SlowPath(),
		})
	}
	slices.SortFunc(all, func(a, b StreamInfo) int { return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.ID, b.ID)) })
	return all
}

// lookAt records which streams have moved data.
func (d *Device) lookAt(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, qp := range d.qps {
		if qp.stream.Load() == nil {
			continue
		}
		qp.activity.record(qp, 0, now)
	}
}

// ErrKilled is in the reason of a stream ended by Kill.
var ErrKilled = errors.New("verbs: the stream was ended by the administrator")

// ErrNoStream is returned by Kill if there is no such stream.
var ErrNoStream = errors.New("there is no such stream")

// Kill ends the stream of that ID at once, for an administrator who sees in Streams
// that it costs too much (RFC 5042 section 6.4.4). Its reason matches ErrKilled and
// contains why. It fails with ErrNoStream if there is none.
func (d *Device) Kill(id uint64, why string) error {
	d.mu.Lock()
	qp := d.qps[id]
	d.mu.Unlock()
	if qp == nil {
		return fmt.Errorf("verbs: end stream %#016x: %w, it may be over already", id, ErrNoStream)
	}
	err := ErrKilled
	if why != "" {
		err = fmt.Errorf("%w: %s", ErrKilled, why)
	}
	qp.Abort(err)
	return nil
}
