package ipsec

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/ipsec/pad/padtest"
)

// childTree is what charon's events report of a child.
func childTree(name string, id int) tree {
	return tree{{"name", name}, {"uniqueid", fmt.Sprint(id)}, {"state", "INSTALLED"}, {"spi-in", fmt.Sprintf("a%07x", id)}, {"spi-out", fmt.Sprintf("b%07x", id)},
		{"bytes-in", "100"}, {"bytes-out", "200"}}
}

func (f *fakeCharon) childEvent(p pad.Peer, up bool, ike, id int) {
	body := tree{{p.Name, tree{{"uniqueid", fmt.Sprint(ike)}, {"child-sas", tree{{"c", childTree("beta-out", id)}}}}}}
	if up {
		body = append(tree{{"up", "yes"}}, body...)
	}
	f.Raise("child-updown", body)
}

func (f *fakeCharon) says(p pad.Peer, line string) {
	f.Raise("log", tree{{"group", "IKE"}, {"ikesa-name", p.Name}, {"msg", line}})
}

// await returns the next event of a kind.
func await(t *testing.T, events <-chan Event, kind EventKind) Event {
	t.Helper()
	timeout := time.After(2 * time.Minute)
	for {
		select {
		case e := <-events:
			if e.Kind == kind {
				return e
			}
		case <-timeout:
			t.Fatalf("no event %s", kind)
		}
	}
}

func TestEndOfAChildTellsItsReason(t *testing.T) {
	b := newBench(t)
	p := padtest.Peer("beta", 2)
	b.add(t, p)
	events, cancel := b.Events()
	defer cancel()
	for id, tc := range []struct {
		name string
		end  func(id int)
		want Reason
	}{
		{"the peer's delete, told before", func(id int) {
			b.f.says(p, fmt.Sprintf("received DELETE for ESP CHILD_SA with SPI b%07x", id))
			b.f.childEvent(p, false, 1, id)
		}, ReasonPeer},
		{"the delete of another child", func(id int) {
			b.f.says(p, "received DELETE for ESP CHILD_SA with SPI b0099999")
			b.f.childEvent(p, false, 1, id)
		}, ReasonElsewhere},
		{"by hand", func(id int) { b.f.childEvent(p, false, 1, id) }, ReasonElsewhere},
		{"the peer ends the IKE SA", func(int) {
			b.f.says(p, "received DELETE for IKE_SA beta[1]")
			b.f.Raise("ike-updown", tree{{"beta", tree{{"uniqueid", "1"}}}})
		}, ReasonPeer},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b.f.childEvent(p, true, 1, id+1)
			if e := await(t, events, EventChildUp); e.Reason != ReasonByPeer || e.UniqueID != uint32(id+1) {
				t.Errorf("up: %+v", e)
			}
			tc.end(id + 1)
			e := await(t, events, EventChildDown)
			if e.Reason != tc.want || e.UniqueID != uint32(id+1) || e.Child != "beta-out" || e.BytesIn != 100 || e.BytesOut != 200 {
				t.Errorf("down: %+v, want reason %q", e, tc.want)
			}
		})
	}
	st, _ := b.PeerStatus("beta")
	if k := st.Counters; k.ChildDeletes != 4 || k.DeletedByPeer != 2 {
		t.Errorf("counters %+v", k)
	}
	b.f.childEvent(p, true, 2, 77)
	await(t, events, EventChildUp)
	b.f.Stop()
	if e := await(t, events, EventChildDown); e.Reason != ReasonCharon || e.UniqueID != 77 {
		t.Errorf("with charon: %+v", e)
	}
	b.f.start()
}

func TestReasonMayBeToldAfterwards(t *testing.T) {
	b := newBench(t)
	b.reasonWait = time.Hour // a busy machine may tell it late
	p := padtest.Peer("beta", 2)
	b.add(t, p)
	events, cancel := b.Events()
	defer cancel()
	b.f.childEvent(p, true, 1, 1)
	b.f.childEvent(p, false, 1, 1)
	b.f.says(p, "received DELETE for ESP CHILD_SA with SPI b0000001")
	if e := await(t, events, EventChildDown); e.Reason != ReasonPeer || e.UniqueID != 1 {
		t.Errorf("down: %+v", e)
	}
	if st, _ := b.PeerStatus("beta"); st.Counters.ChildDeletes != 1 || st.Counters.DeletedByPeer != 1 {
		t.Errorf("counters %+v", st.Counters)
	}
}

func TestEndIsReportedOnce(t *testing.T) {
	var e endings
	c := charon.Child{Name: "beta-out", UniqueID: 5, State: charon.StateInstalled}
	e.came(1, c)
	now := time.Now()
	e.ended(now, 1, c)
	e.saw(1, c) // a list that was under way
	e.ended(now, 1, c)
	if out, _ := e.settle(now.Add(reasonWait), reasonWait); len(out) != 1 {
		t.Errorf("reported %d times", len(out))
	}
	if len(e.known) != 0 {
		t.Errorf("still known: %v", e.known)
	}
}

func TestWhatIsRememberedOfEndingsIsBounded(t *testing.T) {
	var e endings
	for i := range 5 * maxEndings {
		e.said(fmt.Sprintf("received DELETE for ESP CHILD_SA with SPI %08x", i), nil)
		e.said(fmt.Sprintf("received DELETE for IKE_SA beta[%d]", i), nil)
		e.came(uint32(i), charon.Child{Name: fmt.Sprint(i), UniqueID: uint32(i), State: charon.StateInstalled})
	}
	if len(e.logged) > maxEndings || len(e.loggedIKE) > maxEndings || len(e.known) > maxEndings {
		t.Errorf("%d, %d and %d entries", len(e.logged), len(e.loggedIKE), len(e.known))
	}
}

func TestStormCostsBoundedListsAndLines(t *testing.T) {
	var lines lineCounter
	b := newBenchWith(t, &lines)
	p := padtest.Peer("beta", 2)
	b.add(t, p)
	before := b.f.Count("list-sas")
	begin := time.Now()
	const storm = 2000
	for i := range storm {
		b.f.childEvent(p, i%2 == 0, 1, 1+i/2)
	}
	b.f.up(p, "beta-out")
	defer func() { st, _ := b.PeerStatus("beta"); t.Logf("%s %+v", st.State, st.Counters) }()
	eventually(t, "all is taken in", func() bool {
		st, _ := b.PeerStatus("beta")
		return st.State == StateUp && st.Counters.ChildDeletes == storm/2
	})
	// Every kind of list has its own budget: that of the peer, and that of all SAs.
	budget := 2 * (paceBurst + 2 + int(time.Since(begin)/paceEvery))
	if n := b.f.Count("list-sas") - before; n > budget {
		t.Errorf("%d lists for %d events, at most %d are due", n, storm, budget)
	}
	windows := int(time.Since(begin)/time.Second) + 2
	if n := lines.of("event=child-down"); n == 0 || n > windows*(linesPerSecond+1) {
		t.Errorf("%d lines of child-down for %d of them", n, storm/2)
	}
}

func TestLinesLeftOutAreCounted(t *testing.T) {
	var lines lineCounter
	b := newBenchWith(t, &lines)
	b.stand()
	for range linesPerSecond + 7 {
		b.note(Event{Kind: EventChildUp, Peer: "beta"})
	}
	for k, w := range b.lines.flush(b.now().Add(2 * time.Second)) {
		b.logMissed(k, w.level, w.missed)
	}
	if n := lines.of("event=child-up"); n != linesPerSecond+1 {
		t.Errorf("%d lines", n)
	}
	if n := lines.of("more_like_this=7"); n != 1 {
		t.Errorf("%d lines report 7 more", n)
	}
}

func (c *lineCounter) of(what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, l := range c.lines {
		if strings.Contains(l, what) {
			n++
		}
	}
	return n
}
