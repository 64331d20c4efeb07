package verbs

import (
	"testing"

	"pgregory.net/rapid"
)

// Streams come, complete more than they should, and go, while completions are polled
// now and then: where a stream without trust is among them, each finds room in the
// queue for what is kept for it, and gets more as long as others' entries are not
// touched (R22).
func TestEntriesAreKeptForEachStream(t *testing.T) {
	e := underTrust(t, SLT)
	strictPD, err := e.ulp.AllocPDAs(SNT)
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		const depth = 24
		cq, err := e.ulp.CreateCQ(depth, nil)
		if err != nil {
			t.Fatal(err)
		}
		var live []*QP
		strict := 0
		gone := func(i int) {
			if live[i].pd == strictPD {
				strict--
			}
			live = append(live[:i], live[i+1:]...)
		}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"join", "leave", "push", "push", "push", "push", "poll"}).Draw(t, "step") {
			case "join":
				pd := rapid.SampledFrom([]*PD{e.pd, strictPD}).Draw(t, "pd")
				cfg := QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: rapid.IntRange(1, 6).Draw(t, "send"), MaxRecv: rapid.IntRange(1, 6).Draw(t, "receive")}
				if qp, err := newQP(pd, cfg, fakeConn{"p"}); err == nil {
					live = append(live, qp)
					if pd == strictPD {
						strict++
					}
				}
			case "leave":
				if len(live) > 0 {
					i := rapid.IntRange(0, len(live)-1).Draw(t, "which")
					live[i].discard(nil)
					gone(i)
				}
			case "push":
				if len(live) == 0 {
					continue
				}
				i := rapid.IntRange(0, len(live)-1).Draw(t, "whose")
				qp, has, before, isStrict := live[i], 0, cq.n, strict > 0
				for j := range cq.n {
					if cq.ring[(cq.head+j)%len(cq.ring)].QP == qp {
						has++
					}
				}
				cq.push(WC{QP: qp})
				lost := qp.overflow.Load()
				if lost {
					<-qp.done
					gone(i)
				}
				due := qp.cfg.MaxSend+qp.cfg.MaxRecv > has
				switch {
				case isStrict && lost && due:
					t.Fatalf("a stream with %d entries in use of %d+%d finds no room among %d", has, qp.cfg.MaxSend, qp.cfg.MaxRecv, before)
				case !isStrict && lost != (before == depth):
					t.Fatalf("without such streams, a completion is lost %v with %d of %d in use", lost, before, depth)
				}
			case "poll":
				cq.Poll(make([]WC, rapid.IntRange(1, depth).Draw(t, "so many")))
			}
			if cq.n > depth || cq.strict != (strict > 0) {
				t.Fatalf("%d entries of %d are in use, strict is %v with %d streams without trust", cq.n, depth, cq.strict, strict)
			}
		}
		for _, qp := range live {
			qp.discard(nil)
		}
		if cq.keeps != 0 {
			t.Fatalf("%d entries are kept for nobody", cq.keeps)
		}
		if err := cq.Destroy(); err != nil {
			t.Fatal(err)
		}
	})
}
