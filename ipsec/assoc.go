package ipsec

import (
	"time"

	"github.com/ironwarp/ironwarp/ipsec/lanestate"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/transport/sctp"
)

// association is a flow that is an SCTP association, of the kernel or in UDP. The
// kernel tells of TCP what is counted here of an association: it has no notion of
// when its peer was last heard of.
type association interface {
	transport.Monitored
	Kick() (stuck bool)
	Hurry(rtoMax time.Duration)
	Stats() sctp.Stats
}

var _ association = sctp.Association(nil)

// defaultTolerance is how long an association that does not tell bears its peer's
// silence.
const defaultTolerance = 20 * time.Minute

// tolerant is a flow that tells how long it bears its peer's silence before it is
// given up.
type tolerant interface {
	DeadAfter() time.Duration
}

// hearing is what was seen of an association when its peer was last heard of, of
// one that does not tell by itself.
type hearing struct {
	at      time.Time
	packets uint64 // received
	again   uint64 // chunks and timers that were sent, and expired, again
}

// listen tells for how long the peer has been silent, and how often something was
// sent again since; the peer's mutex is held.
func (pr *protection) listen(a association, now time.Time) (silent time.Duration, again uint64) {
	s := a.Stats()
	if s.Silent > 0 {
		return s.Silent, uint64(s.Unanswered)
	}
	again = max(s.Retransmits, s.Timeouts)
	if pr.heard.at.IsZero() || s.PacketsIn != pr.heard.packets {
		pr.heard = hearing{at: now, packets: s.PacketsIn, again: again}
	}
	return now.Sub(pr.heard.at), again - pr.heard.again
}

// askAssociation is askTCP for an association; the peer's mutex is held.
func (pr *protection) askAssociation(a association, now time.Time) condition {
	silent, again := pr.listen(a, now)
	n, err := a.Outq()
	waits := err == nil && n > 0
	return condition{silent: silent, inVain: waits && again > 0, stalled: waits && again >= 3 && silent >= lanestate.StallAfter}
}

// fading tells that the peer has been silent for half as long as the flow
// tolerates; the peer's mutex is held.
func (pr *protection) fading(now time.Time) bool {
	a, ok := pr.c.(association)
	if !ok {
		return isFading(pr.c)
	}
	limit := defaultTolerance
	if t, ok := pr.c.(tolerant); ok {
		limit = t.DeadAfter()
	}
	silent, _ := pr.listen(a, now)
	return silent > limit/2
}
