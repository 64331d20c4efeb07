package ipsec

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/lanestate"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/ipsec/pad/padtest"
)

// stream is a flow whose idleness and troubles the test decides.
type stream struct {
	mu                     sync.Mutex
	outq                   int
	idle                   time.Duration
	fading, stalled, alive bool
}

func (s *stream) Outq() (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.outq, nil
}

func (s *stream) Idle() (time.Duration, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.idle, true
}

func (s *stream) Fading() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fading
}

func (s *stream) Stalled() (stalled, alive bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stalled, s.alive
}

func (s *stream) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// ending makes a terminate of any child take the SAs away.
func (f *fakeCharon) ending(p pad.Peer) {
	f.Set(func() {
		f.Answer = func(cmd string, req tree) ([]string, tree) {
			switch cmd {
			case "initiate":
				f.up(p, req.Str("child"))
			case "terminate":
				f.down(p, "beta-out")
				return nil, tree{{"success", "yes"}, {"terminated", "1"}}
			}
			return nil, nil
		}
	})
}

// hearing has the peer's first child up, with so many packets that came in.
func (f *fakeCharon) hearing(p pad.Peer, packets string) {
	sa := saOf(p, "beta-out")
	child := sa[0][1].(tree).Get("child-sas").(tree)[0][1].(tree)
	for i := range child {
		if child[i].Key() == "packets-in" {
			child[i][1] = packets
		}
	}
	f.Set(func() { f.SAs = []tree{sa} })
}

func idleBench(t *testing.T, change func(*pad.Peer)) (*bench, *stream, pad.Peer) {
	t.Helper()
	b := newBench(t)
	p := padtest.Peer("beta", 2)
	if change != nil {
		change(&p)
	}
	b.f.ending(p)
	b.add(t, p)
	if err := b.Prepare(t.Context(), padtest.FlowTo(p)); err != nil {
		t.Fatal(err)
	}
	s := &stream{}
	pr, err := b.Admit(t.Context(), padtest.FlowTo(p), true, s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pr.Release)
	q, _ := b.peer("beta")
	eventually(t, "the attempt is over", func() bool { q.mu.Lock(); defer q.mu.Unlock(); return !q.lanes[0].life.Trying() })
	return b, s, p
}

func TestIdleChildIsReapedOnlyIfAskedFor(t *testing.T) {
	for _, reap := range []time.Duration{0, time.Second} {
		t.Run(fmt.Sprint(reap), func(t *testing.T) {
			b, s, _ := idleBench(t, func(p *pad.Peer) { p.IdleReap = reap })
			q, _ := b.peer("beta")
			l := q.lanes[0]
			reaps := func(idle time.Duration, outq int) bool {
				q.mu.Lock() // or its keeper reaps it
				defer q.mu.Unlock()
				s.set(func() { s.idle, s.outq = idle, outq })
				defer s.set(func() { s.idle, s.outq = 0, 0 })
				now := b.now().Add(time.Hour)
				_, out := l.life.Next(now, lanestate.Tick{IdleReap: reap, Answered: lanestate.AskUse | lanestate.AskSilence, Use: l.use(now, reap)})
				return out.Work == lanestate.Reap
			}
			if got := reaps(time.Hour, 0); got != (reap > 0) {
				t.Errorf("reaped: %v", got)
			}
			if reaps(0, 0) {
				t.Error("reaped while it is busy")
			}
			if reaps(time.Hour, 1) {
				t.Error("reaped while data waits")
			}
			if reap == 0 {
				return
			}
			s.set(func() { s.idle = time.Hour })
			q.poke()
			eventually(t, "reaped", func() bool {
				st, _ := b.PeerStatus("beta")
				return st.State == StatePaused && b.f.Count("terminate")+b.f.Count("terminate 1") > 0
			})
		})
	}
}

func TestFadingStreamGetsItsSABack(t *testing.T) {
	b, s, p := idleBench(t, nil)
	b.f.down(p, "beta-out")
	eventually(t, "paused", func() bool { st, _ := b.PeerStatus("beta"); return st.State == StatePaused })
	if n := b.f.Count("initiate beta-out"); n != 1 {
		t.Errorf("%d attempts while the stream is idle", n)
	}
	s.set(func() { s.fading = true })
	eventually(t, "back", func() bool { st, _ := b.PeerStatus("beta"); return st.State == StateUp })
}

func TestChildThatLeadsNowhereIsMadeAnew(t *testing.T) {
	b, s, _ := idleBench(t, nil)
	q, _ := b.peer("beta")
	suspect := func(at time.Duration) bool {
		q.mu.Lock()
		defer q.mu.Unlock()
		l, now := q.lanes[0], b.now().Add(at)
		_, out := l.life.Next(now, lanestate.Tick{Answered: lanestate.AskSilence, Silence: l.silence(now)})
		return out.Work == lanestate.Probe
	}
	s.set(func() { s.stalled, s.alive = true, true })
	if suspect(time.Minute) {
		t.Error("a lane is suspect although a peer was heard of on it")
	}
	s.set(func() { s.stalled, s.alive = false, false })
	if suspect(time.Minute) {
		t.Error("a lane whose streams are idle is suspect")
	}
	b.pass(time.Minute)
	s.set(func() { s.stalled = true })
	q.poke()
	eventually(t, "made anew", func() bool {
		st, _ := b.PeerStatus("beta")
		return st.Counters.Stale == 1 && b.f.Count("initiate beta-out") == 2 && st.State == StateUp
	})
	q.poke()
	if suspect(2 * lanestate.StallAfter) {
		t.Error("it is made anew again at once")
	}
}

// TestDialThatGetsNoFurtherDoesNotCostTheSA: a dial that gets no further is no fault of the
// SA if packets come in on it.
func TestDialThatGetsNoFurtherDoesNotCostTheSA(t *testing.T) {
	for _, heard := range []bool{true, false} {
		t.Run(fmt.Sprint("packets come in: ", heard), func(t *testing.T) {
			b := newBench(t)
			b.stand()
			p := padtest.Peer("beta", 2)
			b.f.ending(p)
			b.add(t, p)
			if err := b.Prepare(t.Context(), padtest.FlowTo(p)); err != nil {
				t.Fatal(err)
			}
			q, _ := b.peer("beta")
			if heard {
				b.f.hearing(p, "99")
			}
			b.pass(2 * lanestate.StallAfter)
			q.revive(t.Context(), b.currentSession(), q.lanes[0])
			st, _ := b.PeerStatus("beta")
			if ended := st.Counters.Stale == 1; ended == heard {
				t.Errorf("made anew: %v", ended)
			}
			// Admitted between the suspicion and the deed.
			eventually(t, "up", func() bool { st, _ := b.PeerStatus("beta"); return st.State == StateUp })
			pr, err := b.Admit(t.Context(), padtest.FlowTo(p), true, &stream{idle: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			defer pr.Release()
			b.pass(2 * lanestate.StallAfter)
			q.revive(t.Context(), b.currentSession(), q.lanes[0])
			if again, _ := b.PeerStatus("beta"); again.Counters.Stale != st.Counters.Stale {
				t.Error("made anew although the flow was admitted")
			}
		})
	}
}

// TestStuckDialIsWatchedToItsEnd: an SA that has carried something while a flow is
// connecting may be lost at the peer all the same, then or after it has come back.
func TestStuckDialIsWatchedToItsEnd(t *testing.T) {
	for _, tc := range []struct {
		name string
		over bool // the dial is over
	}{{"on its way", false}, {"over", true}} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t)
			b.stand()
			p := padtest.Peer("beta", 2)
			b.f.ending(p)
			b.add(t, p)
			ctx, over := context.WithCancel(t.Context())
			defer over()
			if err := b.Prepare(ctx, padtest.FlowTo(p)); err != nil {
				t.Fatal(err)
			}
			q, _ := b.peer("beta")
			ln := q.lanes[0]
			watched := func() bool {
				q.mu.Lock()
				defer q.mu.Unlock()
				return ln.life.WatchesDial()
			}
			stale := func() uint64 {
				st, _ := b.PeerStatus("beta")
				return st.Counters.Stale
			}
			b.pass(time.Second / 4) // one that goes younger is not made anew at once
			b.f.down(p, "beta-out")
			eventually(t, "it is made for the dial again", func() bool {
				st, _ := b.PeerStatus("beta")
				return b.f.Count("initiate beta-out") == 2 && st.State == StateUp
			})
			if !watched() {
				t.Fatal("nobody watches the dial any more once the SA was lost and is back")
			}
			if tc.over {
				over()
				eventually(t, "the dial is over", func() bool { q.mu.Lock(); defer q.mu.Unlock(); return !ln.life.Dialling(b.now()) })
			}
			b.f.hearing(p, "99")
			b.pass(2 * lanestate.StallAfter)
			q.revive(t.Context(), b.currentSession(), ln)
			if n := stale(); n != 0 {
				t.Errorf("made anew %d times although packets came in", n)
			}
			if w := watched(); w == tc.over {
				t.Errorf("the dial is watched: %v", w)
			}
			b.pass(2 * lanestate.StallAfter)
			q.revive(t.Context(), b.currentSession(), ln)
			if n := stale(); n != 0 == tc.over {
				t.Errorf("made anew %d times once nothing came in any more", n)
			}
		})
	}
}
