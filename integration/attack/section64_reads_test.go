package attack

import (
	"testing"

	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/verbs"
)

// A peer that asks for more at once than the IRD lets it, and takes no answer: its
// stream ends, and no other (R23, RFC 5042 section 6.4.3.3).
func TestMoreRequestsThanTheReadQueueHolds(t *testing.T) {
	const flood = 512 // what a batch of answers takes, too
	// full tells whether all requests were taken.
	full := func(v *victim, ask func(f *foe, stag uint32)) bool {
		mr := v.region(v.pd, 64, all)
		f, innocent := v.stream(v.pd, "mallory"), v.stream(v.pd, "alice")
		f.Stall(true)
		for range flood {
			ask(f, mr.STag())
		}
		f.msn++
		_ = f.Say(iwarptest.Segment{Last: true, Op: rdmap.OpSend, QN: rdmap.QNSend, MSN: f.msn}) // there is no receive for it
		for f.qp.State() == verbs.QPRTS {
			innocent.read(mr.STag(), 0, 8)
			if s, ok := innocent.hear(); !ok || !s.Tagged {
				v.Fatalf("the stream of another peer gets %+v", s)
			}
		}
		f.Stall(false)
		taken := false
		for s := range f.heard {
			if term, ok := rdmap.ParseTerminate(s.Payload); ok && !s.Tagged && s.QN == rdmap.QNTerminate {
				// The Send that found no receive is quoted, or a request is.
				taken = len(term.DDP) > 4 && term.DDP[1]&0x0f == uint8(rdmap.OpSend)
				if term.Layer != noBuffer.Layer || term.Type != noBuffer.Type || term.Code != noBuffer.Code {
					v.Errorf("Terminate %v %d.%#02x, want that there is no buffer", term.Layer, term.Type, term.Code)
				}
			}
		}
		<-f.qp.Done()
		if !innocent.settled() {
			v.Error("the stream of another peer does not go on")
		}
		return taken
	}
	run(t,
		attack{"Reads", checks.IRRQDepth, func(v *victim) bool {
			return full(v, func(f *foe, stag uint32) { f.read(stag, 0, 64) })
		}},
		attack{"Reads of nothing", checks.IRRQDepth, func(v *victim) bool {
			return full(v, func(f *foe, _ uint32) { f.read(0, 0, 0) })
		}},
		attack{"Atomics", checks.IRRQDepth, func(v *victim) bool {
			return full(v, func(f *foe, stag uint32) { f.fetchAdd(stag, 0, 1) })
		}},
	)
}

// A ULP of ours that posts more Reads than the peer takes at a time: they wait here,
// so that a proper peer has no reason to end the stream (R23).
func TestMoreReadsOfOursThanThePeerTakes(t *testing.T) {
	run(t, attack{"post", checks.ORDDepth, func(v *victim) bool {
		const depth, posted = 3, 12
		mr := v.region(v.pd, 64, verbs.LocalWrite)
		cfg := verbs.QPConfig{SendCQ: v.cq, RecvCQ: v.cq, MaxSend: posted, MaxRecv: 64, IRD: 1, ORD: depth}
		f := must(v.streamAs(v.pd, cfg, iwarptest.Options{}, "alice"))(v.T)
		for range posted {
			wr := verbs.SendWR{Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{{MR: mr, Len: 8}}, RemoteSTag: 1}
			if err := f.qp.PostSend(&wr); err != nil {
				v.Fatal(err)
			}
		}
		var asked []rdmap.ReadRequest
		request := func() bool {
			s, ok := f.hear()
			if ok {
				r, _ := rdmap.ParseReadRequest(s.Payload)
				asked = append(asked, r)
			}
			return ok
		}
		for answered := 0; answered < posted; answered++ {
			due := min(depth, posted-answered)
			if checks.Weakened {
				due = depth + 1 // it has no reason to wait
			}
			for len(asked) < due && request() {
				continue
			}
			if !checks.Weakened && !f.settled() {
				v.Fatal("the stream ended")
			}
			select {
			case <-f.heard:
				return true
			default:
			}
			if len(asked) > depth {
				return true
			}
			r := asked[0]
			asked = asked[1:]
			_ = f.Say(iwarptest.Segment{Tagged: true, Last: true, Op: rdmap.OpReadResponse, STag: r.SinkSTag, TO: r.SinkTO, Payload: make([]byte, r.Size)})
		}
		return false
	}})
}
