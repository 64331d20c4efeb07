package ipsec

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"
)

// stream is a flow whose idleness and troubles the test decides.
type stream struct {
	mu                     sync.Mutex
	outq                   int
	idle                   time.Duration
	bytes                  uint64
	fading, stalled, alive bool
}

// counting is a stream that tells how many bytes it has carried.
type counting struct{ stream }

func (c *counting) Bytes() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bytes
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
func (f *fakeCharon) ending(p Peer) {
	f.set(func() {
		f.answer = func(cmd string, req tree) ([]string, tree) {
			switch cmd {
			case "initiate":
				f.up(p, req.str("child"))
			case "terminate":
				f.down(p, "beta-out")
				return nil, tree{{"success", "yes"}, {"terminated", "1"}}
			}
			return nil, nil
		}
	})
}

func idleBench(t *testing.T, change func(*Peer)) (*bench, *stream, Peer) {
	t.Helper()
	b := newBench(t)
	p := testPeer("beta", 2)
	if change != nil {
		change(&p)
	}
	b.f.ending(p)
	b.add(t, p)
	if err := b.Prepare(t.Context(), flowTo(p)); err != nil {
		t.Fatal(err)
	}
	s := &stream{}
	pr, err := b.Admit(t.Context(), flowTo(p), true, s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pr.Release)
	return b, s, p
}

func TestIdleChildIsReapedOnlyIfAskedFor(t *testing.T) {
	for _, reap := range []time.Duration{0, time.Second} {
		t.Run(fmt.Sprint(reap), func(t *testing.T) {
			b, s, _ := idleBench(t, func(p *Peer) { p.IdleReap = reap })
			s.set(func() { s.idle = time.Hour })
			q, _ := b.peer("beta")
			q.mu.Lock()
			l := q.lanes[0]
			due, _ := q.idle(l, l.risenAt.Add(999*time.Millisecond))
			later, _ := q.idle(l, l.risenAt.Add(time.Hour))
			s.set(func() { s.idle = 0 })
			busy, _ := q.idle(l, l.risenAt.Add(time.Hour))
			s.set(func() { s.idle, s.outq = time.Hour, 1 })
			waiting, _ := q.idle(l, l.risenAt.Add(time.Hour))
			s.set(func() { s.outq = 0 })
			q.mu.Unlock()
			if due || later != (reap > 0) || busy || waiting {
				t.Errorf("reaped: before its time %v, then %v, busy %v, with data waiting %v", due, later, busy, waiting)
			}
			if reap == 0 {
				return
			}
			q.poke()
			eventually(t, "reaped", func() bool {
				st, _ := b.PeerStatus("beta")
				return st.State == StatePaused && b.f.count("terminate")+b.f.count("terminate 1") > 0
			})
		})
	}
}

func TestFadingStreamGetsItsSABack(t *testing.T) {
	b, s, p := idleBench(t, nil)
	b.f.down(p, "beta-out")
	eventually(t, "paused", func() bool { st, _ := b.PeerStatus("beta"); return st.State == StatePaused })
	if n := b.f.count("initiate beta-out"); n != 1 {
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
		l := q.lanes[0]
		l.stallAt = time.Time{}
		bad, _ := q.stalled(l, l.risenAt.Add(at))
		return bad
	}
	s.set(func() { s.stalled, s.alive = true, true })
	if suspect(time.Minute) {
		t.Error("a lane is suspect although a peer was heard of on it")
	}
	s.set(func() { s.stalled, s.alive = false, false })
	if suspect(time.Minute) {
		t.Error("a lane whose streams are idle is suspect")
	}
	s.set(func() { s.stalled = true })
	if suspect(stallAfter / 2) {
		t.Error("a child is suspect as soon as it is there")
	}
	q.mu.Lock()
	q.lanes[0].stallAt, q.lanes[0].risenAt = time.Time{}, time.Now().Add(-time.Minute)
	q.mu.Unlock()
	q.poke()
	eventually(t, "made anew", func() bool {
		st, _ := b.PeerStatus("beta")
		return st.Counters.Stale == 1 && b.f.count("initiate beta-out") == 2 && st.State == StateUp
	})
	q.poke()
	if suspect(2 * stallAfter) {
		t.Error("it is made anew again at once")
	}
}

// TestDialThatGetsNoFurtherDoesNotCostTheSA: a dial that gets no further is no fault of the
// SA if packets come in on it.
func TestDialThatGetsNoFurtherDoesNotCostTheSA(t *testing.T) {
	for _, heard := range []bool{true, false} {
		t.Run(fmt.Sprint("packets come in: ", heard), func(t *testing.T) {
			b := newBench(t)
			p := testPeer("beta", 2)
			b.f.ending(p)
			b.add(t, p)
			if err := b.Prepare(t.Context(), flowTo(p)); err != nil {
				t.Fatal(err)
			}
			if err := b.Prepare(t.Context(), flowTo(p)); err != nil {
				t.Fatal(err)
			}
			q, _ := b.peer("beta")
			q.mu.Lock()
			q.lanes[0].dialledAt = time.Now().Add(-2 * stallAfter)
			q.mu.Unlock()
			if heard {
				b.f.set(func() {
					child := b.f.sas[0][0].value.(tree).get("child-sas").(tree)[0].value.(tree)
					for i := range child {
						if child[i].key == "packets-in" {
							child[i].value = "99"
						}
					}
				})
			}
			q.revive(t.Context(), b.currentLink(), q.lanes[0])
			st, _ := b.PeerStatus("beta")
			if ended := st.Counters.Stale == 1; ended == heard {
				t.Errorf("made anew: %v", ended)
			}
			// Admitted between the suspicion and the deed.
			eventually(t, "up", func() bool { st, _ := b.PeerStatus("beta"); return st.State == StateUp })
			q.mu.Lock()
			q.lanes[0].dialledAt = time.Time{}
			q.mu.Unlock()
			q.revive(t.Context(), b.currentLink(), q.lanes[0])
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
			p := testPeer("beta", 2)
			b.f.ending(p)
			b.add(t, p)
			ctx, over := context.WithCancel(t.Context())
			defer over()
			if err := b.Prepare(ctx, flowTo(p)); err != nil {
				t.Fatal(err)
			}
			q, _ := b.peer("beta")
			ln := q.lanes[0]
			// since moves the beginning of the watch into the past, and says whether there
			// is one.
			since := func() bool {
				q.mu.Lock()
				defer q.mu.Unlock()
				if ln.dialledAt.IsZero() {
					return false
				}
				ln.dialledAt = time.Now().Add(-2 * stallAfter)
				return true
			}
			stale := func() uint64 {
				st, _ := b.PeerStatus("beta")
				return st.Counters.Stale
			}
			b.f.down(p, "beta-out")
			eventually(t, "it is made for the dial again", func() bool {
				st, _ := b.PeerStatus("beta")
				return b.f.count("initiate beta-out") == 2 && st.State == StateUp
			})
			if !since() {
				t.Fatal("nobody watches the dial any more once the SA was lost and is back")
			}
			if tc.over {
				over()
				eventually(t, "the dial is over", func() bool { q.mu.Lock(); defer q.mu.Unlock(); return ln.dials == 0 })
			}
			b.f.set(func() {
				child := b.f.sas[0][0].value.(tree).get("child-sas").(tree)[0].value.(tree)
				for i := range child {
					if child[i].key == "packets-in" {
						child[i].value = "99"
					}
				}
			})
			q.revive(t.Context(), b.currentLink(), ln)
			if n := stale(); n != 0 {
				t.Errorf("made anew %d times although packets came in", n)
			}
			if watched := since(); watched == tc.over {
				t.Errorf("the dial is watched: %v", watched)
			}
			q.revive(t.Context(), b.currentLink(), ln)
			if n := stale(); n != 0 == tc.over {
				t.Errorf("made anew %d times once nothing came in any more", n)
			}
		})
	}
}

// TestHeartbeatsAreNoUseOfAStream: data goes every 10 s, and nobody uses it.
func TestHeartbeatsAreNoUseOfAStream(t *testing.T) {
	for _, tc := range []struct {
		name  string
		bytes uint64 // every 10 s
		limit time.Duration
		idle  bool
	}{
		{"heartbeats", 72, 10 * time.Second, true},
		{"heartbeats, long limit", 72, 5 * time.Minute, true},
		{"a small request", 512, 10 * time.Second, false},
		{"small requests, long limit", 512, 5 * time.Minute, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := &counting{}
			pr := &protection{c: c}
			now := time.Now()
			pr.unused(now, tc.limit)
			for range 60 {
				now = now.Add(10 * time.Second)
				c.set(func() { c.bytes += tc.bytes })
				if quiet := pr.unused(now, tc.limit); quiet >= tc.limit {
					if !tc.idle {
						t.Fatalf("idle for %v although it is used", quiet)
					}
					return
				}
			}
			if tc.idle {
				t.Error("heartbeats keep it from being idle")
			}
		})
	}
}
