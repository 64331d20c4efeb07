package verbs

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ironwarp/ironwarp/transport"
)

// IdlePolicy decides which idle streams are ended when the device runs short of
// streams (RFC 5042 section 6.4.2). Streams of privileged ULPs whose trust model
// waives this stay.
type IdlePolicy struct {
	// After is how long a stream must have been idle, 0: none is ended. It is at
	// least a second.
	After time.Duration
	// Bytes is how much a stream may move, both directions together, within After
	// and still count as idle, 0 for 4 KiB: heartbeats.
	Bytes uint64
	// Mark is the part of the device's streams, work queue entries or inbound read
	// queue entries, in percent, at which it runs short, 0 for 90.
	Mark int
}

// ErrReaped is the reason of streams ended because they were idle when the device ran
// short of streams.
var ErrReaped = errors.New("verbs: the stream was idle when streams ran short")

// reaper ends idle streams.
type reaper struct {
	wake   chan struct{} // one slot: look again
	stop   context.CancelFunc
	policy IdlePolicy // guarded by Device.mu
}

// SetIdlePolicy changes which idle streams are ended under pressure. The zero
// policy ends none.
func (d *Device) SetIdlePolicy(p IdlePolicy) {
	if p.After != 0 {
		p.After = max(p.After, minIdleAfter)
	}
	p.Bytes = cmp.Or(p.Bytes, defaultIdleBytes)
	p.Mark = min(cmp.Or(p.Mark, defaultIdleMark), 100)
	d.mu.Lock()
	d.reaper.policy = p
	d.mu.Unlock()
	d.reaper.poke()
}

func (r *reaper) poke() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// reap ends idle streams until ctx ends: at each change of the policy, when streams
// become scarce and, while they are, several times within After. Otherwise it only
// records which streams move data.
func (d *Device) reap(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		now := time.Now()
		d.lookAt(now)
		again := min(cmp.Or(d.reapIdle(now), idleLook), idleLook)
		// However many newcomers there are, it runs a bounded number of times.
		if !sleep(ctx, timer, reapPause, nil) || !sleep(ctx, timer, again, d.reaper.wake) {
			return
		}
	}
}

// sleep waits for d or until woken; false: ctx has ended.
func sleep(ctx context.Context, timer *time.Timer, d time.Duration, wake <-chan struct{}) bool {
	timer.Reset(d)
	select {
	case <-wake:
	case <-timer.C:
	case <-ctx.Done():
		return false
	}
	return true
}

// reapIdle records which streams are idle and ends the excess. It returns after what time
// to call it again, 0: only when woken.
func (d *Device) reapIdle(now time.Time) time.Duration {
	d.mu.Lock()
	policy := d.reaper.policy
	d.mu.Unlock()
	if !policy.reaps() {
		return 0
	}
	short, scarce := d.prm.shortage(policy.Mark)
	if !scarce {
		return 0
	}
	if idle := d.idle(now, policy); short > 0 {
		for _, qp := range idle[:min(len(idle), short)] {
			qp.Abort(ErrReaped)
		}
	}
	return policy.After / 4
}

// idle lists the streams that may be ended: those of the peers with the most first, and
// of each peer the longest idle first.
func (d *Device) idle(now time.Time, policy IdlePolicy) []*QP {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []*QP
	streams := make(map[transport.Identity]int)
	for _, qp := range d.qps {
		if qp.stream.Load() == nil {
			continue
		}
		streams[qp.Peer()]++
		qp.busy.record(qp, policy.Bytes, now)
		if now.Sub(qp.busy.at) >= policy.After && !(qp.pd.trust.KeepIdle && qp.pd.ulp.privileged) {
			all = append(all, qp)
		}
	}
	slices.SortFunc(all, func(a, b *QP) int {
		return cmp.Or(streams[b.Peer()]-streams[a.Peer()], a.busy.at.Compare(b.busy.at))
	})
	return all
}

// shortage returns by how many streams the device is beyond the mark of its streams
// or their queues, and whether it is near enough to watch idle streams. What is
// reserved for shares counts as used: nobody beyond its share gets it.
func (m *manager) shortage(mark int) (streams int, scarce bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := &m.device
	for _, r := range []resource{resStreams, resQueueEntries, resIRRQEntries} {
		at := d.limit[r] * int64(mark) / 100
		taken := d.used[r] + max(m.ulps.unmet[r], m.peers.unmet[r])
		if over := taken - at; over > 0 && d.used[r] > 0 {
			// A stream counts for its part of what is in use.
			streams = max(streams, int((over*d.used[resStreams]+d.used[r]-1)/d.used[r]))
		}
		scarce = scarce || taken >= at/4*3
	}
	return streams, scarce
}
