package ipsec

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/flow"
	"github.com/ironwarp/ironwarp/ipsec/lanestate"
	"github.com/ironwarp/ironwarp/ipsec/pad/padtest"
	"github.com/ironwarp/ironwarp/transport/assoc"
)

// fakeAssoc is an association whose troubles the test decides.
type fakeAssoc struct {
	assoc.Association // nil: what is not here is not asked
	mu                sync.Mutex
	outq              int
	stats             assoc.Stats
	dead              time.Duration
	kicks             int
	stuck             bool
	rtoMax            []time.Duration
}

func (a *fakeAssoc) set(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
}

func (a *fakeAssoc) Outq() (int, error) { a.mu.Lock(); defer a.mu.Unlock(); return a.outq, nil }
func (a *fakeAssoc) Bytes() uint64      { return 0 }
func (a *fakeAssoc) Stats() assoc.Stats { a.mu.Lock(); defer a.mu.Unlock(); return a.stats }
func (a *fakeAssoc) Kick() bool         { a.mu.Lock(); defer a.mu.Unlock(); a.kicks++; return a.stuck }
func (a *fakeAssoc) LimitRTO(d time.Duration) {
	a.set(func() { a.rtoMax = append(a.rtoMax, d) })
}
func (a *fakeAssoc) DeadAfter() time.Duration { return a.dead }

func TestAssociationThatIsPausedSendsSoonAgainAndIsKicked(t *testing.T) {
	b := newBench(t)
	p := padtest.Linked(padtest.UDP)
	b.f.answering(p)
	b.add(t, p)
	if err := b.Prepare(t.Context(), flowOn(p, padtest.UDP, true)); err != nil {
		t.Fatal(err)
	}
	a := &fakeAssoc{dead: time.Hour}
	pr, err := b.Admit(t.Context(), flowOn(p, padtest.UDP, true), true, a)
	if err != nil {
		t.Fatal(err)
	}
	defer pr.Release()
	a.set(func() { a.outq, a.stuck = 1, true })
	b.f.down(p, "beta-out-udp")
	eventually(t, "the SA is back, and the association was kicked", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return !pr.Paused() && a.kicks >= lanestate.KickTimes
	})
	a.set(func() { a.outq, a.stuck = 0, false })
	eventually(t, "its timeout is its own again", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return slices.Equal(a.rtoMax, []time.Duration{time.Second, 0})
	})
}

// TestSAIsNotToBlameForOnePeerThatDied has a flow whose peer is gone for good,
// beside one that is heard of now and then: the SA is fine. When nothing more is
// heard of that one either, it is not.
func TestSAIsNotToBlameForOnePeerThatDied(t *testing.T) {
	l := &lane{flows: map[*protection]struct{}{}}
	dead, quiet := &fakeAssoc{outq: 1}, &fakeAssoc{}
	for _, a := range []*fakeAssoc{dead, quiet} {
		pr := &protection{Watch: flow.Watch{Monitored: a}}
		pr.admitted = true
		l.flows[pr] = struct{}{}
	}
	now := time.Now()
	check := func(at time.Duration, silentDead, silentQuiet time.Duration, again int, want bool) {
		t.Helper()
		dead.set(func() { dead.stats.Silent, dead.stats.Unanswered = silentDead, again })
		quiet.set(func() { quiet.stats.Silent = silentQuiet })
		s := l.silence(now.Add(at))
		if got := s.Of >= lanestate.StallAfter && s.Vain; got != want {
			t.Errorf("after %v: suspect %v", at, got)
		}
	}
	second := time.Second
	check(1*second, 1*second, 1*second, 0, false)
	check(2*second, 2*second, 2*second, 1, false) // in vain from here
	check(4*second, 4*second, 4*second, 4, true)  // nobody was heard since
	check(8*second, 8*second, 4*second, 6, false) // the other was heard at 4 s
	check(60*second, 60*second, 56*second, 30, false)
	quiet.set(func() { quiet.outq, quiet.stats.Unanswered = 1, 1 })
	check(61*second, 61*second, 57*second, 30, false)
	quiet.set(func() { quiet.stats.Unanswered = 5 })
	check(64*second, 64*second, 60*second, 31, true)
}

// TestIdleStreamsAreAskedWhenThePeerHasStartedAfresh: a peer that ends its streams and
// its IKE SA may do so without a word that arrives. Idle streams are asked for once it
// is back, whichever lists have been read in between. A child's end alone, and fresh keys
// for IKE, are no reason.
func TestIdleStreamsAreAskedWhenThePeerHasStartedAfresh(t *testing.T) {
	const between, none = "a list without it is read in between", "none is"
	for _, tc := range []struct {
		name  string
		out   bool   // the stream was dialled here
		lists string // of the time when there is no IKE SA
		child string // that comes with the new IKE SA
		asked bool
		come  string // event of the new IKE SA
	}{
		{"dialled here", true, between, "", true, "ike-updown"},
		{"dialled here, with a child of the other direction", true, between, "beta-in-udp", true, "ike-updown"},
		{"dialled here, no list between", true, none, "", true, "ike-updown"},
		{"dialled by the peer", false, between, "", true, "ike-updown"},
		{"dialled by the peer, which makes the child", false, between, "beta-in-udp", true, "ike-updown"},
		{"dialled by the peer, which makes the child, no list between", false, none, "beta-in-udp", true, "ike-updown"},
		{"fresh keys for IKE", true, none, "", false, "ike-rekey"},
		{"a child's end", true, none, "", false, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t)
			p := padtest.Linked(padtest.UDP)
			lane, own := 0, "beta-out-udp"
			if !tc.out {
				lane, own = 1, "beta-in-udp"
			}
			ike := "7"
			has := func(id string, children ...string) {
				sa := saOf(p, children...)
				section := sa[0][1].(tree)
				section[0][1] = id
				b.f.Set(func() { b.f.SAs, ike = []tree{sa}, id })
			}
			b.f.Set(func() {
				b.f.Answer = func(cmd string, req tree) ([]string, tree) {
					if cmd == "initiate" {
						has(ike, own)
					}
					return nil, nil
				}
			})
			b.add(t, p)
			q, _ := b.peer("beta")
			has("7", own)
			if err := q.refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
			a := &fakeAssoc{dead: time.Hour}
			pr, err := b.Admit(t.Context(), flowOn(p, padtest.UDP, tc.out), tc.out, a)
			if err != nil {
				t.Fatal(err)
			}
			defer pr.Release()
			rest := "7"
			if tc.come == "" || tc.come == "ike-rekey" { // the child goes first, alone
				has(rest)
				if err := q.refresh(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			before := b.f.Count("initiate " + own)
			if tc.lists == between {
				b.f.Set(func() { b.f.SAs = nil })
				b.f.Raise("ike-updown", tree{{"beta", tree{{"uniqueid", "7"}}}})
				eventually(t, "paused", pr.Paused)
			}
			var children []string
			if tc.child != "" {
				children = []string{tc.child}
			}
			switch tc.come {
			case "ike-updown":
				has("8", children...)
				if tc.lists == none { // the list comes before its event
					if err := q.refresh(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				b.f.Raise("ike-updown", tree{{"up", "yes"}, {"beta", tree{{"uniqueid", "8"}}}})
			case "ike-rekey":
				has("8")
				b.f.Raise("ike-rekey", tree{{"beta", tree{{"old", tree{{"uniqueid", "7"}}}, {"new", tree{{"uniqueid", "8"}}}}}})
			}
			if tc.asked {
				eventually(t, "the stream has its SA, and is asked", func() bool {
					a.mu.Lock()
					defer a.mu.Unlock()
					return !pr.Paused() && a.kicks > 0
				})
				return
			}
			if err := q.refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
			q.mu.Lock()
			wanted := q.lanes[lane].life.Wanted()
			q.mu.Unlock()
			if n := b.f.Count("initiate "+own) - before; wanted || n != 0 || !pr.Paused() {
				t.Errorf("an idle stream got an SA: wanted %v, %d attempts", wanted, n)
			}
		})
	}
}

// TestChildThatMovesBetweenIKESAsIsNotPaused: charon lists its IKE SAs one after the
// other, so that a child which moves to the SA with the fresh keys (RFC 7296 2.18) may
// be missing in a list although it never ended. A child that stays away is paused, also
// when no event has told of its end.
func TestChildThatMovesBetweenIKESAsIsNotPaused(t *testing.T) {
	b := newBench(t)
	p := padtest.Linked(padtest.UDP)
	b.add(t, p)
	q, _ := b.peer("beta")
	of := func(id string, children ...string) []tree {
		sa := saOf(p, children...)
		sa[0][1].(tree)[0][1] = id
		return []tree{sa}
	}
	b.f.Set(func() { b.f.SAs = of("7", "beta-out-udp") })
	if err := q.refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	pr, err := b.Admit(t.Context(), flowOn(p, padtest.UDP, true), true, &fakeAssoc{dead: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer pr.Release()
	moves := true // while a list is read
	b.f.Set(func() {
		b.f.SAs = of("7")
		b.f.Answer = func(cmd string, _ tree) ([]string, tree) {
			if cmd == "list-sas" && moves {
				b.f.Set(func() { b.f.SAs = of("8", "beta-out-udp") })
			}
			return nil, nil
		}
	})
	if err := q.refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if st, _ := b.PeerStatus("beta"); pr.Paused() || st.Counters.Outages != 0 {
		t.Errorf("a child that moved is taken for lost: paused %v, %+v", pr.Paused(), st.Counters)
	}
	b.f.Set(func() { moves, b.f.SAs = false, of("8") })
	if err := q.refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if st, _ := b.PeerStatus("beta"); !pr.Paused() || st.Counters.Outages != 1 {
		t.Errorf("a child that is gone is not missed: paused %v, %+v", pr.Paused(), st.Counters)
	}
}
