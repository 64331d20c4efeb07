package ipsec

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/transport/sctp"
)

// assoc is an association whose troubles the test decides.
type assoc struct {
	sctp.Association // nil: what is not here is not asked
	mu               sync.Mutex
	outq             int
	bytes            uint64
	stats            sctp.Stats
	dead             time.Duration
	kicks            int
	stuck            bool
	rtoMax           []time.Duration
}

func (a *assoc) set(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
}

func (a *assoc) Outq() (int, error) { a.mu.Lock(); defer a.mu.Unlock(); return a.outq, nil }
func (a *assoc) Bytes() uint64      { a.mu.Lock(); defer a.mu.Unlock(); return a.bytes }
func (a *assoc) Stats() sctp.Stats  { a.mu.Lock(); defer a.mu.Unlock(); return a.stats }
func (a *assoc) Kick() bool         { a.mu.Lock(); defer a.mu.Unlock(); a.kicks++; return a.stuck }
func (a *assoc) Hurry(d time.Duration) {
	a.set(func() { a.rtoMax = append(a.rtoMax, d) })
}
func (a *assoc) DeadAfter() time.Duration { return a.dead }

func TestAssociationThatIsPausedIsHurriedAndKicked(t *testing.T) {
	b := newBench(t)
	p := linkPeer(udpLink)
	b.f.answering(p)
	b.add(t, p)
	if err := b.Prepare(t.Context(), flowOn(p, udpLink, true)); err != nil {
		t.Fatal(err)
	}
	a := &assoc{dead: time.Hour}
	pr, err := b.Admit(t.Context(), flowOn(p, udpLink, true), true, a)
	if err != nil {
		t.Fatal(err)
	}
	defer pr.Release()
	a.set(func() { a.outq, a.stuck = 1, true })
	b.f.down(p, "beta-out-udp")
	eventually(t, "the SA is back, and the association was kicked", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return !pr.Paused() && a.kicks >= kickTimes
	})
	a.set(func() { a.outq, a.stuck = 0, false })
	eventually(t, "it is calm again", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return slices.Equal(a.rtoMax, []time.Duration{hurryMS * time.Millisecond, 0})
	})
}

func TestAssociationTellsOfStallsAndSilence(t *testing.T) {
	a := &assoc{dead: 20 * time.Second}
	pr := &protection{c: a}
	now := time.Now()
	check := func(at time.Duration, stalled, alive, fading bool) {
		t.Helper()
		s, l := pr.stalled(now.Add(at))
		if f := pr.fading(now.Add(at)); s != stalled || l != alive || f != fading {
			t.Errorf("after %v: stalled %v, alive %v, fading %v", at, s, l, f)
		}
	}
	check(0, false, true, false)
	a.set(func() { a.outq, a.stats.Timeouts = 1, 2 })
	check(2*time.Second, false, false, false) // not in vain often enough
	a.set(func() { a.stats.Timeouts = 3 })
	check(2*time.Second, true, false, false)
	a.set(func() { a.outq = 0 })
	check(2*time.Second, false, false, false) // nothing waits
	a.set(func() { a.outq, a.stats.PacketsIn = 1, 1 })
	check(3*time.Second, false, true, false) // heard of
	check(12*time.Second, false, false, false)
	check(14*time.Second, false, false, true)
	a.set(func() { a.stats.Retransmits = 9 }) // as the kernel tells
	check(14*time.Second, true, false, true)

	silent := &protection{c: &struct{ *assoc }{a}}
	if silent.fading(now) || silent.fading(now.Add(9*time.Second)) || !silent.fading(now.Add(11*time.Second)) {
		t.Error("the tolerance of an association is not taken into account")
	}
}

func TestIdleAssociationIsReaped(t *testing.T) {
	a := &assoc{}
	pr := &protection{c: a}
	now := time.Now()
	if q := pr.unused(now, time.Minute); q > 0 {
		t.Errorf("idle for %v at first", q)
	}
	now = now.Add(30 * time.Second)
	a.set(func() { a.bytes = 10_000 })
	if q := pr.unused(now, time.Minute); q > 0 {
		t.Errorf("idle for %v after traffic", q)
	}
	now = now.Add(time.Minute)
	if q := pr.unused(now, time.Minute); q < time.Minute {
		t.Errorf("idle for %v after a minute without traffic", q)
	}
}
