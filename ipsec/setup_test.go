package ipsec

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/pad/padtest"
)

// TestChildThatThePeerHasDeletedBeforeItIsHereIsMadeAnew: a delete may overtake the message
// that makes the child: the answer to CREATE_CHILD_SA, or the third one of Quick Mode.
// charon then has a child that the peer has not, and what is sent on it is lost.
func TestChildThatThePeerHasDeletedBeforeItIsHereIsMadeAnew(t *testing.T) {
	ikev1 := []string{"received DELETE for ESP CHILD_SA with SPI ", "CHILD_SA not found, ignored"}
	ikev2 := []string{"received DELETE for unknown ESP CHILD_SA with SPI "}
	for _, tc := range []struct {
		name  string
		lines []string // of charon's log
		late  bool     // they come when the child is up
	}{{"IKEv1, told before", ikev1, false}, {"IKEv1, told when it is up", ikev1, true}, {"IKEv2, told before", ikev2, false}, {"IKEv2, told when it is up", ikev2, true}} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t)
			p := padtest.Peer("beta", 2)
			b.add(t, p)
			one, ended := saOf(p, "beta-out"), make(chan struct{})
			another := saOf(p, "beta-out")
			children := another[0][1].(tree).Get("child-sas").(tree)
			for i, pair := range children[0][1].(tree) {
				switch pair.Key() {
				case "uniqueid":
					children[0][1].(tree)[i][1] = "2"
				case "spi-out":
					children[0][1].(tree)[i][1] = "c0ffee00"
				}
			}
			has := []tree{one}
			told := func() {
				for i, line := range tc.lines {
					if i == 0 {
						line += spiOut(one)
					}
					b.f.says(p, line)
				}
			}
			b.f.Set(func() {
				b.f.Answer = func(cmd string, req tree) ([]string, tree) {
					switch {
					case cmd == "initiate" && !tc.late && b.f.Count("initiate beta-out") == 1:
						told()
						fallthrough
					case cmd == "initiate":
						b.f.Set(func() { b.f.SAs = has })
					case cmd == "terminate" && req.Str("child-id") == "1":
						b.f.Set(func() { b.f.SAs = nil; has = []tree{another} })
						close(ended)
						return nil, tree{{"success", "yes"}, {"terminated", "1"}}
					}
					return nil, nil
				}
			})
			if err := b.Prepare(t.Context(), padtest.FlowTo(p)); err != nil {
				t.Fatal(err)
			}
			pr, err := b.Admit(t.Context(), padtest.FlowTo(p), true, &stream{idle: time.Hour, outq: 1})
			if err != nil {
				t.Fatal(err)
			}
			defer pr.Release()
			if tc.late {
				told()
			}
			select {
			case <-ended:
			case <-time.After(time.Minute):
				t.Fatal("nobody ends the child that the peer has not")
			}
			eventually(t, "another is up", func() bool {
				q, _ := b.peer("beta")
				q.mu.Lock()
				defer q.mu.Unlock()
				return len(q.lanes[0].installed) == 1 && q.lanes[0].installed[0].UniqueID == 2 && !pr.Paused()
			})
		})
	}
}

// A list that charon has made before the peer's delete still has the child: that one has not
// come after its delete, and there is nothing to end.
func TestListOlderThanADeleteDisownsNothing(t *testing.T) {
	b := newBench(t)
	p := padtest.Peer("beta", 2)
	b.add(t, p)
	b.f.up(p, "beta-in")
	pr, err := b.Admit(t.Context(), incoming(p), false, &traffic{})
	if err != nil {
		t.Fatal(err)
	}
	defer pr.Release()
	q, _ := b.peer("beta")
	heard := func() bool {
		q.mu.Lock()
		defer q.mu.Unlock()
		return q.endings.deletes > 0
	}
	disowned := func() int {
		q.mu.Lock()
		defer q.mu.Unlock()
		return len(q.laneNamed("beta-in").disowned)
	}
	var asked atomic.Bool
	older, younger := make(chan (<-chan struct{}), 1), make(chan struct{})
	b.f.Set(func() {
		b.f.Answer = func(cmd string, req tree) ([]string, tree) {
			switch {
			case cmd != "list-sas" || req.Str("ike") == "":
			case asked.Swap(true):
				<-younger
			default: // the answer has the child already
				b.f.says(p, "received DELETE for ESP CHILD_SA with SPI "+spiOut(saOf(p, "beta-in")))
				eventually(t, "the line is heard", heard)
				q.mu.Lock()
				older <- q.changed
				q.mu.Unlock()
			}
			return nil, nil
		}
	})
	q.beginRefresh()
	<-<-older
	if n := disowned(); n != 0 {
		t.Errorf("%d children are disowned by a list that is older than their delete", n)
	}
	close(younger)
	if err := q.refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := disowned(); n != 1 {
		t.Errorf("%d children are disowned by one that is younger", n)
	}
}

// spiOut is the outgoing SPI of the first child of a list-sa event.
func spiOut(sa tree) string {
	return sa[0][1].(tree).Get("child-sas").(tree)[0][1].(tree).Str("spi-out")
}
