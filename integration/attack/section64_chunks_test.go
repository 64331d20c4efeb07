package attack

import (
	"errors"
	"testing"

	"github.com/ironwarp/ironwarp/ddp/sctpadapt"
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/verbs"
)

// Chunks of a session arrive ahead of their turn, and SCTP has no reason to hold them
// back: those that wait for their turn are bounded like the others.
func TestChunksAheadOfTheirTurn(t *testing.T) {
	serve := func(v *target, kind func() (*verbs.PD, verbs.QPConfig), prepare func(*verbs.QP) error) *rawAssoc {
		to, from := sctpByAddress(v.T)
		s := v.listen(to)
		s.serveWith(kind, prepare)
		return must(s.associate(from(evilHost)))(v.T)
	}
	plain := func(v *target) func() (*verbs.PD, verbs.QPConfig) {
		return func() (*verbs.PD, verbs.QPConfig) {
			return v.pd, verbs.QPConfig{SendCQ: v.cq, RecvCQ: v.cq, MaxSend: 4, MaxRecv: 4, IRD: 4}
		}
	}
	run(t,
		// R23: they wait until the first one is there, and are more than the IRD then.
		attack{"Read Requests", checks.IRRQDepth, func(v *target) bool {
			a := serve(v, plain(v), nil)
			f := a.session(0)
			const reads = 100
			ask := func(i uint16) {
				s := iwarptest.Segment{Last: true, Op: rdmap.OpReadRequest, QN: rdmap.QNReadRequest, MSN: uint32(i)}
				s.Payload = rdmap.ReadRequest{SinkSTag: 1}.Append(nil)
				a.segment(0, i, s)
			}
			for i := uint16(2); i <= reads; i++ {
				ask(i)
			}
			ask(1)
			if err := f.qp.PostRecv(verbs.RecvWR{}); err == nil {
				a.segment(0, reads+1, iwarptest.Segment{Last: true, Op: rdmap.OpSend, MSN: 1})
			}
			return a.received(f, 1)
		}},
		// R24: each run of them takes a slow path.
		attack{"Writes in reverse", checks.SlowPath, func(v *target) bool {
			const times, burst = 1000, 50
			if err := v.dev.SetSlowPolicy(verbs.SlowPolicy{PerSecond: 1, Burst: burst}); err != nil {
				v.Fatal(err)
			}
			a := serve(v, plain(v), func(qp *verbs.QP) error { return qp.PostRecv(verbs.RecvWR{}) })
			f := a.session(0)
			mr := v.region(v.pd, 256, verbs.LocalWrite|verbs.RemoteWrite)
			w := iwarptest.Segment{Tagged: true, Last: true, Op: rdmap.OpWrite, STag: mr.STag(), Payload: make([]byte, 256)}
			for i := uint16(0); i < 2*times; i += 2 {
				a.segment(0, i+2, w)
				a.segment(0, i+1, w)
			}
			a.segment(0, 2*times+1, iwarptest.Segment{Last: true, Op: rdmap.OpSend, MSN: 1})
			goesOn := a.received(f, 1)
			v.slowPath(f, burst, goesOn)
			return goesOn
		}},
		// R21: messages that can't be delivered for want of the first one.
		attack{"Sends to a shared receive queue", checks.SRQShare, func(v *target) bool {
			const share, streams = 4, 4
			pd := must(v.ulp.AllocPDAs(verbs.SNT))(v.T)
			srq := must(pd.CreateSRQ(verbs.SRQConfig{MaxRecv: share * streams, MaxPerQP: share}))(v.T)
			for range share * streams {
				if err := srq.PostRecv(verbs.RecvWR{}); err != nil {
					v.Fatal(err)
				}
			}
			a := serve(v, func() (*verbs.PD, verbs.QPConfig) {
				return pd, verbs.QPConfig{SendCQ: v.cq, RecvCQ: v.cq, MaxSend: 4, SRQ: srq}
			}, nil)
			a.session(0)
			for i := uint16(2); i <= share*streams; i++ {
				a.segment(0, i, iwarptest.Segment{Last: true, Op: rdmap.OpSend, MSN: uint32(i)})
			}
			v.await(func() bool { return srq.Len() <= streams*share-takes(share, streams) })
			// Another session of the association, which keeps to its share.
			f := a.session(2)
			for i := uint16(1); i <= share; i++ {
				a.segment(2, i, iwarptest.Segment{Last: true, Op: rdmap.OpSend, MSN: uint32(i)})
			}
			return !a.received(f, share)
		}},
	)
}

// Two sessions of one association, which one goroutine receives for: the completion
// queue of one overflows, the other one goes on (R26).
func TestOverflowOfAnotherSessionsCompletionQueue(t *testing.T) {
	run(t, attack{"overflow", checks.CQIsolation, func(v *target) bool {
		to, from := sctpByAddress(v.T)
		s := v.listen(to)
		const depth = 8
		first := true
		s.serveWith(func() (*verbs.PD, verbs.QPConfig) {
			cq := v.cq
			if first {
				cq = must(v.ulp.CreateCQ(depth, nil))(v.T)
			}
			first = false
			return v.pd, verbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: 4, MaxRecv: 4 * depth}
		}, func(qp *verbs.QP) error {
			for range 4 * depth {
				if err := qp.PostRecv(verbs.RecvWR{}); err != nil {
					return err
				}
			}
			return nil
		})
		a := must(s.associate(from(evilHost)))(v.T)
		f, bystander := a.session(0), a.session(2)
		for i := uint16(1); i < 4*depth; i++ {
			a.segment(0, i, iwarptest.Segment{Last: true, Op: rdmap.OpSend, MSN: uint32(i)})
			a.segment(2, i, iwarptest.Segment{Last: true, Op: rdmap.OpSend, MSN: uint32(i)})
		}
		<-f.qp.Done()
		if err := f.qp.Err(); !errors.Is(err, verbs.ErrCQOverflow) {
			v.Errorf("the stream of the queue that overflows ended with: %v", err)
		}
		a.segment(2, 4*depth, iwarptest.Segment{Last: true, Op: rdmap.OpSend, MSN: 4 * depth})
		return !a.received(bystander, 4*depth)
	}})
}

// Chunks without end that belong to no session, each of which is answered (RFC 5043
// section 6.1): the association ends, and another peer's stream goes on (R24).
func TestChunksOfNoSessionWithoutEnd(t *testing.T) {
	const burst, flood = 50, 1000
	strays := func(say func(a *rawAssoc, stream uint16)) func(v *target) bool {
		return func(v *target) bool {
			if err := v.dev.SetSlowPolicy(verbs.SlowPolicy{PerSecond: 1, Burst: burst}); err != nil {
				v.Fatal(err)
			}
			to, from := sctpByAddress(v.T)
			s := v.listen(to)
			s.serve()
			bystander := must(s.associate(from(goodHost)))(v.T)
			other := bystander.session(0)
			a := must(s.associate(from(evilHost)))(v.T)
			f := a.session(0)
			for i := range uint16(flood) {
				say(a, 1+i%500)
			}
			goesOn := false
			if err := f.qp.PostRecv(verbs.RecvWR{}); err == nil {
				a.segment(0, 1, iwarptest.Segment{Last: true, Op: rdmap.OpSend, MSN: 1})
				goesOn = a.received(f, 1)
			}
			if n := f.qp.SlowPath().Strays; n < burst {
				v.Errorf("%d chunks of no session are counted", n)
			}
			if !goesOn {
				<-f.qp.Done()
				v.await(func() bool { return a.Err() != nil })
				v.eventually(verbs.EventSlowPath, f.qp.Peer())
			}
			if err := other.qp.PostRecv(verbs.RecvWR{}); err != nil {
				v.Fatal(err)
			}
			if bystander.segment(0, 1, iwarptest.Segment{Last: true, Op: rdmap.OpSend, MSN: 1}); !bystander.received(other, 1) {
				v.Error("another peer's stream has ended")
			}
			return goesOn
		}
	}
	run(t,
		attack{"segments", checks.SlowPath, strays(func(a *rawAssoc, stream uint16) {
			a.segment(stream, 1, iwarptest.Segment{Last: true, Op: rdmap.OpSend, MSN: 1})
		})},
		attack{"another protocol's", checks.SlowPath, strays(func(a *rawAssoc, stream uint16) { a.say(stream, 46, []byte{0, 0}) })},
		attack{"Initiates with a wrong number", checks.SlowPath, strays(func(a *rawAssoc, stream uint16) {
			c := must((&sctpadapt.Control{SSN: 1, Function: sctpadapt.FunctionInitiate}).Append(nil))(a.s.T)
			a.say(stream, sctpadapt.PPIDControl, c)
		})},
	)
}
