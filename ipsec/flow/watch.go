// Package flow watches the flows of admitted streams, TCP connections and SCTP
// associations: whether a flow is idle, stalls or is about to be given up, and, while it
// has no SA, how patiently it sends again.
package flow

import (
	"time"

	"github.com/ironwarp/ironwarp/transport"
)

const (
	// A flow that carries no more than heartbeatBytes and heartbeatRate bytes a second
	// within Peer.IdleReap is idle: an RTRS connection's heartbeats are 72 bytes every
	// 10 s.
	heartbeatBytes = 128
	heartbeatRate  = 16
)

// Watch is what is seen of one flow. It takes no lock: its user has one.
type Watch struct {
	transport.Monitored

	rtoMax int       // its own longest retransmission timeout in milliseconds, while ShortenRTO has cut it; else 0
	heard  hearing   // if it is an association
	vainAt time.Time // when it was first seen to send in vain

	since   uint64 // bytes carried at sinceAt
	sinceAt time.Time
	used    time.Time // when it last carried more than heartbeats
}

// staller is a flow that knows whether it has sent data repeatedly in vain; alive says
// that its peer was heard of lately.
type staller interface {
	Stalled() (stalled, alive bool)
}

// Condition is the state of a flow.
type Condition struct {
	Silent  time.Duration // since the peer was heard of
	Stalled bool          // data was sent in vain so often and for so long that the SA may be to blame
	Vain    time.Duration // since data was first seen to be sent in vain; 0: it was not
	inVain  bool          // data was sent again, and nothing has come back
}

// Unheard is the silence of a flow that does not know of any.
const Unheard = time.Duration(1<<63 - 1)

// Ask returns the flow's condition.
func (w *Watch) Ask(now time.Time) (c Condition) {
	switch f := w.Monitored.(type) {
	case staller:
		stalled, alive := f.Stalled()
		c = Condition{Silent: Unheard, inVain: stalled, Stalled: stalled}
		if alive {
			c.Silent = 0
		}
	case association:
		c = w.associationCondition(f, now)
	default:
		c = tcpCondition(f)
	}
	switch {
	case !c.inVain:
		w.vainAt = time.Time{}
	case w.vainAt.IsZero():
		w.vainAt = now
	}
	if !w.vainAt.IsZero() {
		c.Vain = now.Sub(w.vainAt)
	}
	return c
}

// idler is a flow that knows for how long it has had no data in either direction, and for
// how long its peer has been silent. Keep-alive probes are no data.
type idler interface {
	// Idle returns the time since data last went or came.
	Idle() (d time.Duration, known bool)
	// Fading reports that the peer has been silent for half as long as the flow
	// tolerates.
	Fading() bool
}

// Unused returns for how long the flow has carried nothing that is worth an SA.
// Heartbeats of what runs on the stream are not: they are few bytes, and stop
// when the stream is paused.
func (w *Watch) Unused(now time.Time, limit time.Duration) time.Duration {
	silent, known := idleFor(w.Monitored)
	total, counted := bytesOf(w.Monitored)
	switch {
	case !known && !counted:
		return limit // nobody knows
	case !counted:
		return silent
	}
	if w.sinceAt.IsZero() {
		w.since, w.sinceAt, w.used = total, now, now
	}
	period := now.Sub(w.sinceAt)
	if total-w.since > heartbeatBytes+uint64(period/time.Second)*heartbeatRate {
		w.used = now
	}
	if w.used.Equal(now) || period >= limit {
		w.since, w.sinceAt = total, now
	}
	return max(silent, now.Sub(w.used))
}
