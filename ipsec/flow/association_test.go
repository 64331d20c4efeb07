package flow

import (
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/lanestate"
	"github.com/ironwarp/ironwarp/transport/assoc"
)

// fakeAssoc is an association whose troubles the test decides.
type fakeAssoc struct {
	assoc.Association // nil: what is not here is not asked
	outq              int
	bytes             uint64
	stats             assoc.Stats
	dead              time.Duration
}

func (a *fakeAssoc) Outq() (int, error)       { return a.outq, nil }
func (a *fakeAssoc) Bytes() uint64            { return a.bytes }
func (a *fakeAssoc) Stats() assoc.Stats       { return a.stats }
func (a *fakeAssoc) DeadAfter() time.Duration { return a.dead }

func TestStallsAndSilenceOfAnAssociationAreSeen(t *testing.T) {
	a := &fakeAssoc{dead: 20 * time.Second}
	w := &Watch{Monitored: a}
	now := time.Now()
	check := func(at time.Duration, stalled, alive, fading bool) {
		t.Helper()
		c := w.Ask(now.Add(at))
		if f := w.Fading(now.Add(at)); c.Stalled != stalled || c.Silent < lanestate.StallAfter != alive || f != fading {
			t.Errorf("after %v: %+v, fading %v", at, c, f)
		}
	}
	check(0, false, true, false)
	a.outq, a.stats.Timeouts = 1, 2
	check(2*time.Second, false, false, false) // not in vain often enough
	a.stats.Timeouts = 3
	check(2*time.Second, true, false, false)
	a.outq = 0
	check(2*time.Second, false, false, false) // nothing waits
	a.outq, a.stats.PacketsIn = 1, 1
	check(3*time.Second, false, true, false) // heard of
	check(12*time.Second, false, false, false)
	check(14*time.Second, false, false, true)
	a.stats.Retransmits = 9 // as the kernel counts
	check(14*time.Second, true, false, true)

	silent := &Watch{Monitored: &struct{ *fakeAssoc }{a}}
	if silent.Fading(now) || silent.Fading(now.Add(9*time.Second)) || !silent.Fading(now.Add(11*time.Second)) {
		t.Error("the tolerance of an association is not taken into account")
	}
}

func TestAssociationWithoutTrafficIsUnused(t *testing.T) {
	a := &fakeAssoc{}
	w := &Watch{Monitored: a}
	now := time.Now()
	if q := w.Unused(now, time.Minute); q > 0 {
		t.Errorf("idle for %v at first", q)
	}
	now = now.Add(30 * time.Second)
	a.bytes = 10_000
	if q := w.Unused(now, time.Minute); q > 0 {
		t.Errorf("idle for %v after traffic", q)
	}
	now = now.Add(time.Minute)
	if q := w.Unused(now, time.Minute); q < time.Minute {
		t.Errorf("idle for %v after a minute without traffic", q)
	}
}
