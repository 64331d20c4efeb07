package attack

import (
	"testing"

	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/verbs"
)

// A peer has more requests outstanding than the IRD allows, and takes no answer: its
// stream ends, and no other (R23, RFC 5042 section 6.4.3.3).
func TestMoreRequestsThanTheReadQueueHolds(t *testing.T) {
	const flood = 512 // what a batch of answers takes, too
	// full reports whether all requests were taken.
	full := func(v *target, ask func(f *stream, stag uint32)) bool {
		mr := v.region(v.pd, 64, all)
		f, bystander := v.stream(v.pd, "mallory"), v.stream(v.pd, "alice")
		f.Stall(true)
		for range flood {
			ask(f, mr.STag())
		}
		f.msn++
		_ = f.Say(iwarptest.Segment{Last: true, Op: rdmap.OpSend, QN: rdmap.QNSend, MSN: f.msn}) // there is no receive for it
		for f.qp.State() == verbs.QPRTS {
			bystander.read(mr.STag(), 0, 8)
			if s, ok := bystander.hear(); !ok || !s.Tagged {
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
		if !bystander.settled() {
			v.Error("the stream of another peer does not go on")
		}
		return taken
	}
	run(t,
		attack{"Reads", checks.IRRQDepth, func(v *target) bool {
			return full(v, func(f *stream, stag uint32) { f.read(stag, 0, 64) })
		}},
		attack{"Reads of nothing", checks.IRRQDepth, func(v *target) bool {
			return full(v, func(f *stream, _ uint32) { f.read(0, 0, 0) })
		}},
		attack{"Atomics", checks.IRRQDepth, func(v *target) bool {
			return full(v, func(f *stream, stag uint32) { f.fetchAdd(stag, 0, 1) })
		}},
	)
}

// One request more than the IRD, all of which the target has before it can answer any:
// the first comes last (R23).
func TestOneRequestMoreThanTheReadQueueHolds(t *testing.T) {
	// taken reports whether the target takes n of them.
	taken := func(v *target, n int, op rdmap.Opcode) bool {
		f := must(v.streamAs(v.pd, v.config(v.cq), iwarptest.Options{Window: 64}, "mallory"))(v.T)
		const id = 7
		v.granted(f.qp.PostRecv(verbs.RecvWR{ID: id}))
		mr := v.region(v.pd, 64, all)
		for i := n; i >= 0; i-- { // behind the requests is a Send
			s := iwarptest.Segment{Last: true, Op: op, QN: rdmap.QNReadRequest, MSN: uint32(i + 1)}
			switch {
			case i == n:
				s.Op, s.QN, s.MSN = rdmap.OpSend, rdmap.QNSend, 1
			case op == rdmap.OpReadRequest:
				s.Payload = rdmap.ReadRequest{SinkSTag: 1, Size: 8, SourceSTag: mr.STag()}.Append(nil)
			default:
				s.Payload = rdmap.AtomicRequest{Op: rdmap.AtomicFetchAdd, STag: mr.STag(), AddSwap: 1}.Append(nil)
			}
			if err := f.SendNumbered(uint16(i), s.Append(nil)); err != nil {
				v.Fatal(err)
			}
		}
		if f.completion(id).Err == nil {
			return true
		}
		f.wantTerminated(noBuffer)
		return false
	}
	for name, op := range map[string]rdmap.Opcode{"Reads": rdmap.OpReadRequest, "Atomics": rdmap.OpAtomicRequest} {
		v := newTarget(t)
		ird := v.config(v.cq).IRD
		if !taken(v, ird, op) {
			t.Errorf("%d %s are refused, as many as the IRD permits", ird, name)
		}
		run(t, attack{name, checks.IRRQDepth, func(v *target) bool { return taken(v, ird+1, op) }})
	}
}

// A ULP of ours that posts more Reads and Atomics than the peer takes at a time: they
// wait here, so that a correct peer has no reason to end the stream (R23).
func TestMoreReadsOfOursThanThePeerTakes(t *testing.T) {
	for name, op := range map[string]verbs.Opcode{"Reads": verbs.OpRead, "Atomics": verbs.OpFetchAdd} {
		run(t, attack{name, checks.ORDDepth, func(v *target) bool { return moreThanThePeerTakes(v, op) }})
	}
}

func moreThanThePeerTakes(v *target, op verbs.Opcode) bool {
	const depth, posted = 3, 12
	mr := v.region(v.pd, 64, verbs.LocalWrite)
	cfg := verbs.QPConfig{SendCQ: v.cq, RecvCQ: v.cq, MaxSend: posted, MaxRecv: 64, IRD: 1, ORD: depth}
	f := must(v.streamAs(v.pd, cfg, iwarptest.Options{}, "alice"))(v.T)
	for range posted {
		wr := verbs.SendWR{Op: op, Flags: verbs.Signaled, SGL: []verbs.SGE{{MR: mr, Len: 8}}, RemoteSTag: 1}
		if err := f.qp.PostSend(&wr); err != nil {
			v.Fatal(err)
		}
	}
	var asked []uint32 // the STag or identifier of each
	request := func() bool {
		s, ok := f.hear()
		if ok {
			asked = append(asked, sinkOf(s))
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
		if op == verbs.OpRead {
			f.answer(asked[0], make([]byte, 8))
		} else {
			f.answerAtomic(asked[0], uint32(answered+1))
		}
		asked = asked[1:]
	}
	return false
}
