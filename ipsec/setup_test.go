package ipsec

import (
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/pad/padtest"
)

// TestChildThatThePeerHasDeletedBeforeItIsHereIsMadeAnew: a delete may overtake the answer
// that makes the child. charon then has a child that the peer has not, and what is sent
// on it is lost.
func TestChildThatThePeerHasDeletedBeforeItIsHereIsMadeAnew(t *testing.T) {
	for _, tc := range []struct {
		name string
		late bool // the line of charon's log comes when the child is up
	}{{"told before", false}, {"told when it is up", true}} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t)
			p := padtest.Peer("beta", 2)
			b.add(t, p)
			one, ended := saOf(p, "beta-out"), make(chan struct{})
			spi := one[0][1].(tree).Get("child-sas").(tree)[0][1].(tree).Str("spi-out")
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
			b.f.Set(func() {
				b.f.Answer = func(cmd string, req tree) ([]string, tree) {
					switch {
					case cmd == "initiate" && !tc.late && b.f.Count("initiate beta-out") == 1:
						b.f.says(p, "received DELETE for unknown ESP CHILD_SA with SPI "+spi)
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
				b.f.says(p, "received DELETE for unknown ESP CHILD_SA with SPI "+spi)
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
