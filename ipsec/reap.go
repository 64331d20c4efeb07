package ipsec

import (
	"context"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/flow"
	"github.com/ironwarp/ironwarp/ipsec/ike"
	"github.com/ironwarp/ironwarp/ipsec/lanestate"
)

// RFC 5042 5.4.5 lets an RNIC send Phase 2 deletes for idle SAs, so that hardware
// has to hold few. A stream whose child was reaped is paused, and its first
// byte brings the child back. The other host sees the delete while its side of
// the stream is idle as well, and leaves it at that.

// use is for how long a lane's flows have carried nothing.
func (l *lane) use(now time.Time, limit time.Duration) lanestate.Use {
	u := lanestate.Use{Unused: flow.Unheard}
	for f := range l.flows {
		if n, err := f.Outq(); err != nil || n > 0 || !f.admitted {
			return lanestate.Use{Busy: true}
		}
		u.Unused = min(u.Unused, f.Unused(now, limit))
	}
	return u
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
		p.happenLocked(ln, lanestate.ReapFailed{})
		p.mu.Unlock()
	}
	_ = p.refresh(ctx)
}

// fading reports whether a flow of a lane that is down would soon be given up for
// its peer's silence: an idle stream has to outlive its SA.
func (l *lane) fading(now time.Time) bool {
	for f := range l.flows {
		if f.admitted && f.Fading(now) {
			return true
		}
	}
	return false
}
