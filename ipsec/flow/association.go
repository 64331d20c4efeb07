package flow

import (
	"time"

	"github.com/ironwarp/ironwarp/ipsec/lanestate"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/transport/assoc"
)

// association is a flow that is an SCTP association, of the kernel or in UDP. What the
// kernel reports of a TCP connection is counted here: not every association knows when
// its peer was last heard of.
type association interface {
	transport.Monitored
	Kick() (stuck bool)
	LimitRTO(rtoMax time.Duration)
	Stats() assoc.Stats
}

var _ association = assoc.Association(nil)

// defaultTolerance is how long an association that does not say bears its peer's
// silence.
const defaultTolerance = 20 * time.Minute

// tolerant is a flow that knows how long it bears its peer's silence before it is
// given up.
type tolerant interface {
	DeadAfter() time.Duration
}

// hearing is what was seen of an association when its peer was last heard of. It is for
// one that does not count that by itself.
type hearing struct {
	at      time.Time
	packets uint64 // received
	again   uint64 // chunks and timers that were sent, and expired, again
}

// silence returns for how long the peer has been silent, and how often something was
// sent again since.
func (w *Watch) silence(a association, now time.Time) (silent time.Duration, again uint64) {
	s := a.Stats()
	if s.Silent > 0 {
		return s.Silent, uint64(s.Unanswered)
	}
	again = max(s.Retransmits, s.Timeouts)
	if w.heard.at.IsZero() || s.PacketsIn != w.heard.packets {
		w.heard = hearing{at: now, packets: s.PacketsIn, again: again}
	}
	return now.Sub(w.heard.at), again - w.heard.again
}

// associationCondition is tcpCondition for an association.
func (w *Watch) associationCondition(a association, now time.Time) Condition {
	silent, again := w.silence(a, now)
	n, err := a.Outq()
	waits := err == nil && n > 0
	return Condition{Silent: silent, inVain: waits && again > 0, Stalled: waits && again >= 3 && silent >= lanestate.StallAfter}
}

// Fading reports whether the peer has been silent for half as long as the flow tolerates.
// While the guard holds keep-alive probes back, an idle stream has to get its SA back
// before it is given up.
func (w *Watch) Fading(now time.Time) bool {
	a, ok := w.Monitored.(association)
	if !ok {
		return isFading(w.Monitored)
	}
	limit := defaultTolerance
	if t, ok := w.Monitored.(tolerant); ok {
		limit = t.DeadAfter()
	}
	silent, _ := w.silence(a, now)
	return silent > limit/2
}
