package attack

import (
	"errors"
	"runtime"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

var noBuffer = rdmap.Terminate{Layer: ddp.LayerDDP, Type: ddp.TypeUntagged, Code: ddp.CodeUntaggedNoBuffer}

// received waits until the target has delivered n messages of the peer, false if the
// stream ends before.
func (f *stream) received(n uint64) bool {
	for f.qp.Stats().RecvOps < n {
		select {
		case <-f.qp.Done():
			return false
		default:
			runtime.Gosched()
		}
	}
	return true
}

// flood sends n Sends of these bytes.
func (f *stream) flood(n int, data []byte) {
	for range n {
		f.send(0, data)
	}
}

// One of four streams of a shared receive queue takes all that it can get while the
// consumer is slow: it does not get more than its share, the high-water event names
// it, and the others never run dry (R21, RFC 5042 section 6.4.3.1).
func TestFloodOfASharedReceiveQueue(t *testing.T) { run(t, receiveFloods()...) }

func receiveFloods() []attack {
	const share, streams = 4, 4
	group := func(v *target, o iwarptest.Options) (*verbs.SRQ, []*stream) {
		pd := must(v.ulp.AllocPDAs(verbs.SNT))(v.T)
		srq := must(pd.CreateSRQ(verbs.SRQConfig{MaxRecv: share * streams, MaxPerQP: share, HighWater: share - 1}))(v.T)
		mr := v.region(pd, 8*share*streams, verbs.LocalWrite)
		for i := range share * streams {
			if err := srq.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{{MR: mr, Off: uint32(8 * i), Len: 8}}}); err != nil {
				v.Fatal(err)
			}
		}
		var hostile []*stream
		id := transport.Identity("mallory")
		for range streams {
			cfg := verbs.QPConfig{SendCQ: v.cq, RecvCQ: v.cq, MaxSend: 4, SRQ: srq}
			hostile = append(hostile, must(v.streamAs(pd, cfg, o, id))(v.T))
			id, o = "alice", iwarptest.Options{}
		}
		return srq, hostile
	}
	// dry reports whether the stream of one that keeps to its share has ended.
	dry := func(hostile []*stream) bool {
		for _, f := range hostile {
			if f.flood(share, []byte{1}); !f.received(share) {
				return true
			}
		}
		return false
	}
	noticed := func(v *target, srq *verbs.SRQ, f *stream) {
		high, low := 0, 0
		for ev, ok := v.dev.TryEvent(); ok; ev, ok = v.dev.TryEvent() {
			switch {
			case ev.Kind == verbs.EventSRQHighWater && ev.QP == f.qp.ID():
				high++
			case ev.Kind == verbs.EventSRQHighWater:
				v.Errorf("a high-water event names stream %d, which has taken nothing", ev.QP)
			case ev.Kind == verbs.EventSRQLimit && ev.SRQ == srq:
				low++
			}
		}
		if high != 1 || low != 1 {
			v.Errorf("%d high-water events name the stream that floods, and %d low-water events the queue, want 1 each", high, low)
		}
	}
	sends := func(data []byte) func(v *target) bool {
		return func(v *target) bool {
			srq, hostile := group(v, iwarptest.Options{})
			v.granted(srq.Arm(share*streams - 1)) // the low-water mark: two are taken
			hostile[0].flood(10*share*streams, data)
			<-hostile[0].qp.Done()
			noticed(v, srq, hostile[0])
			if err := hostile[0].qp.Err(); !checks.Weakened && !errors.Is(err, verbs.ErrSRQShare) {
				v.Errorf("the stream that floods ended with: %v", err)
			}
			return dry(hostile[1:])
		}
	}
	return []attack{
		{"Sends of one byte", checks.SRQShare, sends([]byte{1})},
		// What a stream was given counts when it has ended, too.
		{"one stream after the other", checks.SRQShare, func(v *target) bool {
			srq, hostile := group(v, iwarptest.Options{})
			f, cfg := hostile[0], verbs.QPConfig{SendCQ: v.cq, RecvCQ: v.cq, MaxSend: 4, SRQ: srq}
			for range streams {
				f.flood(share, []byte{1})
				f.received(share)
				<-closed(f)
				f = must(v.streamAs(f.qp.PD(), cfg, iwarptest.Options{}, "mallory"))(v.T)
			}
			return dry(hostile[1:])
		}},
		{"Sends of nothing", checks.SRQShare, sends(nil)},
		// Messages whose predecessor never arrives: each occupies the receive that it was
		// placed in.
		{"Sends out of order", checks.SRQShare, func(v *target) bool {
			srq, hostile := group(v, iwarptest.Options{Window: 64})
			v.granted(srq.Arm(share*streams - 1))
			for i := uint32(1); i < share*streams; i++ {
				s := iwarptest.Segment{Last: true, Op: rdmap.OpSend, MSN: i + 1, Payload: []byte{1}}
				if err := hostile[0].SendNumbered(uint16(i), s.Append(nil)); err != nil {
					v.Fatal(err)
				}
			}
			v.await(func() bool { return srq.Len() <= streams*share-takes(share, streams) })
			noticed(v, srq, hostile[0])
			return dry(hostile[1:])
		}},
	}
}

// takes is how many receives a stream that wants them all gets.
func takes(share, streams int) int {
	if checks.Weakened {
		return share * streams
	}
	return share
}

// The shortest possible messages, at full rate, for streams of a completion queue that
// nobody polls: it is never full, since a queue pair that could fill it is not admitted
// (R22, RFC 5042 section 6.4.3.2).
func TestFloodOfASharedCompletionQueue(t *testing.T) { run(t, completionFloods()...) }

func completionFloods() []attack {
	const recvs = 64
	post := func(v *target, f *stream) {
		for range recvs {
			if err := f.qp.PostRecv(verbs.RecvWR{}); err != nil {
				v.Fatal(err)
			}
		}
	}
	cq := func(v *target) *verbs.CQ { return must(v.ulp.CreateCQ(4*recvs, nil))(v.T) }
	// lost reports whether the bystander stream loses one of its completions.
	lost := func(v *target, cq *verbs.CQ, bystander *stream) bool {
		post(v, bystander)
		bystander.flood(recvs, nil)
		if !bystander.received(recvs) {
			return true
		}
		for got := 0; got < recvs; {
			var wc [1]verbs.WC
			if cq.Poll(wc[:]) == 1 && wc[0].QP == bystander.qp && wc[0].Err == nil {
				got++
			}
			select {
			case <-bystander.qp.Done():
				return true
			default:
			}
		}
		return false
	}
	// streams has the attacker open several, each at the end of the one before or beside
	// it.
	streams := func(after bool) func(v *target) bool {
		return func(v *target) bool {
			pd, cq := must(v.ulp.AllocPDAs(verbs.SNT))(v.T), cq(v)
			bystander := must(v.tryStream(pd, cq, "alice"))(v.T)
			for range 5 {
				f, err := v.tryStream(pd, cq, "mallory")
				if err != nil {
					if !errors.Is(err, verbs.ErrTrust) {
						v.Fatal(err)
					}
					continue
				}
				post(v, f)
				f.flood(recvs, nil)
				f.received(recvs)
				if after {
					<-closed(f)
				}
			}
			return lost(v, cq, bystander)
		}
	}
	return []attack{
		{"more streams than it has room for", checks.CQReservation, streams(false)},
		{"a shared receive queue that it has no room for", checks.CQReservation, func(v *target) bool {
			pd, cq := must(v.ulp.AllocPDAs(verbs.SNT))(v.T), cq(v)
			bystander := must(v.tryStream(pd, cq, "alice"))(v.T)
			const deep = 4 * recvs
			srq := must(pd.CreateSRQ(verbs.SRQConfig{MaxRecv: deep + 1, MaxPerQP: deep}))(v.T)
			for range deep {
				if err := srq.PostRecv(verbs.RecvWR{}); err != nil {
					v.Fatal(err)
				}
			}
			f, err := v.streamAs(pd, verbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: 4, SRQ: srq}, iwarptest.Options{}, "mallory")
			if err == nil {
				f.flood(deep, nil)
				f.received(deep)
			} else if !errors.Is(err, verbs.ErrTrust) {
				v.Fatal(err)
			}
			return lost(v, cq, bystander)
		}},
		// What the consumer has posted when a stream ends is completed then.
		{"streams that end with full queues", checks.CQReservation, func(v *target) bool {
			pd, cq := must(v.ulp.AllocPDAs(verbs.SNT))(v.T), cq(v)
			bystander := must(v.tryStream(pd, cq, "alice"))(v.T)
			mr := v.region(pd, 8, verbs.LocalWrite)
			for range 4 {
				f, err := v.tryStream(pd, cq, "mallory")
				if err != nil {
					if !errors.Is(err, verbs.ErrTrust) {
						v.Fatal(err)
					}
					continue
				}
				post(v, f)
				for range recvs { // which are never answered
					wr := verbs.SendWR{Op: verbs.OpRead, SGL: []verbs.SGE{{MR: mr, Len: 8}}, RemoteSTag: 1}
					v.granted(f.qp.PostSend(&wr))
				}
				f.write(1, 0, evil)
				<-f.qp.Done()
			}
			return lost(v, cq, bystander)
		}},
		// The completions of a stream that has ended are there until they are polled.
		{"one stream after the other", checks.CQReservation, streams(true)},
		// A consumer that posts a receive as soon as there is room for it.
		{"receives posted before the last ones are polled", checks.CQReservation, func(v *target) bool {
			pd, cq := must(v.ulp.AllocPDAs(verbs.SNT))(v.T), cq(v)
			bystander := must(v.tryStream(pd, cq, "alice"))(v.T)
			f := must(v.tryStream(pd, cq, "mallory"))(v.T)
			for i := range uint64(5) {
				for range recvs {
					if err := f.qp.PostRecv(verbs.RecvWR{}); err != nil {
						break
					}
				}
				f.flood(recvs, nil)
				if !f.received((i + 1) * recvs) {
					break
				}
			}
			return lost(v, cq, bystander)
		}},
	}
}

// The same with a shared receive queue that the consumer keeps full.
func TestFloodOfACompletionQueueByWayOfASharedReceiveQueue(t *testing.T) {
	run(t, attack{"receives posted before the last ones are polled", checks.CQReservation, func(v *target) bool {
		const shared, of, streams = 64, 16, 8
		pd := must(v.ulp.AllocPDAs(verbs.SNT))(v.T)
		cq := must(v.ulp.CreateCQ(shared+streams, nil))(v.T)
		srq := must(pd.CreateSRQ(verbs.SRQConfig{MaxRecv: shared, MaxPerQP: of}))(v.T)
		var hostile []*stream
		for range streams {
			cfg := verbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: 1, SRQ: srq}
			hostile = append(hostile, must(v.streamAs(pd, cfg, iwarptest.Options{}, "mallory"))(v.T))
		}
		for _, f := range hostile {
			for srq.PostRecv(verbs.RecvWR{}) == nil { // until it is full
			}
			f.flood(of, nil)
			f.received(of)
		}
		for polled := uint64(0); ; {
			var wcs [64]verbs.WC
			polled += uint64(cq.Poll(wcs[:]))
			var delivered uint64
			for _, f := range hostile {
				delivered += f.qp.Stats().RecvOps
				if errors.Is(f.qp.Err(), verbs.ErrCQOverflow) {
					return true
				}
			}
			if polled == delivered {
				return false
			}
		}
	}})
}

// A completion queue that overflows while another one is in use: streams of that one
// don't notice (R26, RFC 5042 section 6.4.6).
func TestOverflowOfAnotherCompletionQueue(t *testing.T) {
	run(t, attack{"overflow", checks.CQIsolation, func(v *target) bool {
		small := must(v.ulp.CreateCQ(8, nil))(v.T)
		f := must(v.tryStream(v.pd, small, "mallory"))(v.T)
		bystander := v.stream(v.pd, "alice")
		for range 32 {
			if err := f.qp.PostRecv(verbs.RecvWR{}); err != nil {
				v.Fatal(err)
			}
		}
		for range 64 { // before its neighbour's queue overflows
			if err := bystander.qp.PostRecv(verbs.RecvWR{}); err != nil {
				v.Fatal(err)
			}
		}
		f.flood(32, nil)
		bystander.flood(63, nil)
		<-f.qp.Done()
		if err := f.qp.Err(); !errors.Is(err, verbs.ErrCQOverflow) {
			v.Errorf("the stream of the queue that overflows ended with: %v", err)
		}
		bystander.flood(1, nil)
		if !bystander.received(64) {
			return true
		}
		return !bystander.settled()
	}})
}
