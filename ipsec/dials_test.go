package ipsec

import (
	"context"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/lanestate"
	"github.com/ironwarp/ironwarp/ipsec/pad/padtest"
)

// TestAdmittedDialEndsNoOthersWatch: an SA that one flow was admitted under may be lost at
// the peer while the next one connects.
func TestAdmittedDialEndsNoOthersWatch(t *testing.T) {
	b := newBench(t)
	b.stand()
	p := padtest.Peer("beta", 2)
	b.f.ending(p)
	b.add(t, p)
	var over []context.CancelFunc
	for range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		over = append(over, cancel)
		if err := b.Prepare(ctx, padtest.FlowTo(p)); err != nil {
			t.Fatal(err)
		}
	}
	q, _ := b.peer("beta")
	ln := q.lanes[0]
	watched := func() bool {
		q.mu.Lock()
		defer q.mu.Unlock()
		return ln.life.WatchesDial()
	}
	admit := func() {
		t.Helper()
		pr, err := b.Admit(t.Context(), padtest.FlowTo(p), true, &stream{idle: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pr.Release)
	}
	admit()
	over[0]()
	b.pass(2 * lanestate.StallAfter)
	if !watched() {
		t.Fatal("nobody watches the other dial any more")
	}
	q.revive(t.Context(), b.currentSession(), ln)
	if st, _ := b.PeerStatus("beta"); st.Counters.Stale != 1 {
		t.Errorf("made anew %d times for the other dial", st.Counters.Stale)
	}
	eventually(t, "up", func() bool { st, _ := b.PeerStatus("beta"); return st.State == StateUp })
	admit()
	over[1]()
	eventually(t, "no dial is watched once the last is over", func() bool { return !watched() })
}
