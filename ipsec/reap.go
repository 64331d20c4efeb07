package ipsec

import (
	"context"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/ike"
	"github.com/ironwarp/ironwarp/ipsec/lanestate"
)

// RFC 5042 5.4.5 lets an RNIC send Phase 2 deletes for idle SAs, so that hardware
// has to hold few. A stream whose child was reaped is paused, and its first
// byte brings the child back. The other host sees the delete while its side of
// the stream is idle as well, and leaves it at that.

// idler is a flow that tells for how long it has had no data in either
// direction, and for how long its peer has been silent. Keep-alive probes are no
// data.
type idler interface {
	// Idle returns the time since data last went or came.
	Idle() (d time.Duration, known bool)
	// Fading tells that the peer has been silent for half as long as the flow
	// tolerates.
	Fading() bool
}

// use is for how long a lane's flows have carried nothing; the peer's mutex is held.
func (l *lane) use(now time.Time, limit time.Duration) lanestate.Use {
	u := lanestate.Use{Unused: unheard}
	for f := range l.flows {
		if n, err := f.c.Outq(); err != nil || n > 0 || !f.admitted {
			return lanestate.Use{Busy: true}
		}
		u.Unused = min(u.Unused, f.unused(now, limit))
	}
	return u
}

// unused tells for how long a flow has carried nothing that is worth an SA.
// Heartbeats of what runs on the stream are not: they are few bytes, and stop
// when the stream is paused. The peer's mutex guards it.
func (pr *protection) unused(now time.Time, limit time.Duration) time.Duration {
	silent, known := idleFor(pr.c)
	total, counted := bytesOf(pr.c)
	switch {
	case !known && !counted:
		return limit // nothing tells
	case !counted:
		return silent
	}
	if pr.sinceAt.IsZero() {
		pr.since, pr.sinceAt, pr.used = total, now, now
	}
	period := now.Sub(pr.sinceAt)
	if total-pr.since > heartbeatBytes+uint64(period/time.Second)*heartbeatRate {
		pr.used = now
	}
	if pr.used.Equal(now) || period >= limit {
		pr.since, pr.sinceAt = total, now
	}
	return max(silent, now.Sub(pr.used))
}

// reap ends the children of an idle lane.
func (p *peer) reap(ctx context.Context, l *ike.Session, ln *lane) {
	p.mu.Lock()
	all := append([]charon.Child(nil), ln.installed...)
	p.mu.Unlock()
	ended := false
	for _, c := range all {
		ended = p.endChild(ctx, l, c, ReasonIdle, false) || ended
	}
	if !ended {
		p.mu.Lock()
		p.happen(ln, lanestate.ReapFailed{})
		p.mu.Unlock()
	}
	_ = p.refresh(ctx)
}

// fading tells whether a flow of a lane that is down would soon be given up for
// its peer's silence: an idle stream has to outlive its SA; p.mu is held.
func (l *lane) fading(now time.Time) bool {
	for f := range l.flows {
		if f.admitted && f.fading(now) {
			return true
		}
	}
	return false
}
