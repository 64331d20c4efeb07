package attack

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// conn is a connection of a peer that was authenticated as id.
type conn struct{ id transport.Identity }

func (conn) Flow() transport.Flow               { return transport.Flow{Protocol: transport.ProtoTCP} }
func (c conn) Protection() transport.Protection { return protection(c) }

type protection struct{ id transport.Identity }

func (p protection) Peer() transport.Identity { return p.id }
func (protection) Paused() bool               { return false }
func (protection) Kind() string               { return "test" }
func (protection) Release()                   {}

// stream is a stream of the target, and its peer, whom the test plays: the attacker or a
// bystander.
type stream struct {
	*iwarptest.Peer
	v     *target
	qp    *verbs.QP
	cq    *verbs.CQ              // of its receives
	heard chan iwarptest.Segment // what the target has sent; closed at its end
	term  rdmap.Terminate        // valid when heard is closed
	msn   uint32                 // of queue 0
	rmsn  uint32                 // of queue 1
}

// stream makes a stream in pd, whose peer is authenticated as id. Its completion queue is
// the target's, or its own where the trust model shares none.
func (v *target) stream(pd *verbs.PD, id transport.Identity) *stream {
	v.Helper()
	cq := v.cq
	if pd.ULP() != v.ulp || !pd.Trust().Trust().ShareStreams {
		cq = must(pd.ULP().CreateCQ(1<<10, nil))(v.T)
	}
	f, err := v.tryStream(pd, cq, id)
	v.granted(err)
	return f
}

// refusal is the panic when the trust model does not permit what an attack needs.
type refusal struct{ error }

// granted ends the attack if err is not nil.
func (v *target) granted(err error) {
	v.Helper()
	if errors.Is(err, verbs.ErrTrust) && v.mayBeRefused {
		panic(refusal{err})
	}
	if err != nil {
		v.Fatal(err)
	}
}

func (v *target) tryStream(pd *verbs.PD, cq *verbs.CQ, id transport.Identity) (*stream, error) {
	return v.streamAs(pd, v.config(cq), iwarptest.Options{}, id)
}

// config is an ordinary queue pair.
func (v *target) config(cq *verbs.CQ) verbs.QPConfig {
	return verbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: 64, MaxRecv: 64, IRD: 4, ORD: 4}
}

// streamAs is tryStream with any queue pair and LLP.
func (v *target) streamAs(pd *verbs.PD, cfg verbs.QPConfig, o iwarptest.Options, id transport.Identity) (*stream, error) {
	peer, llp := iwarptest.NewPeer(o)
	if v.reroute != nil {
		return v.streamOn(pd, cfg, peer, v.reroute(v.T, llp), id)
	}
	return v.streamOn(pd, cfg, peer, llp, id)
}

// streamOn is streamAs on an LLP that is at hand.
func (v *target) streamOn(pd *verbs.PD, cfg verbs.QPConfig, peer *iwarptest.Peer, llp ddp.LLP, id transport.Identity) (*stream, error) {
	qp, err := pd.Adopt(verbs.AdoptConfig{QP: cfg, LLP: llp, Conn: conn{id}, IRD: cfg.IRD, ORD: cfg.ORD})
	if err != nil {
		peer.Close()
		return nil, err
	}
	f := &stream{Peer: peer, v: v, qp: qp, cq: cfg.RecvCQ, heard: make(chan iwarptest.Segment, 1<<12)}
	listening := make(chan struct{})
	go func() {
		defer close(listening)
		f.listen()
	}()
	v.Cleanup(func() {
		peer.Close()
		<-listening
	})
	return f, nil
}

// listen hears all that the target sends, and ends the peer's direction when it is
// terminated, as even the worst peer has to for its next stream.
func (f *stream) listen() {
	defer close(f.heard)
	for {
		s, err := f.Peer.Hear()
		if err != nil {
			return
		}
		if !s.Tagged && s.QN == rdmap.QNTerminate {
			f.term, _ = rdmap.ParseTerminate(s.Payload)
			f.CloseWrite()
		}
		f.heard <- s
	}
}

// hear returns the next segment that the target has sent, false at the end.
func (f *stream) hear() (iwarptest.Segment, bool) {
	s, ok := <-f.heard
	return s, ok
}

// region registers n bytes.
func (v *target) region(pd *verbs.PD, n int, access verbs.Access) *verbs.MR {
	v.Helper()
	mr, err := pd.RegisterMR(make([]byte, n), access)
	v.granted(err)
	return mr
}

// domain is another protection domain of the target's.
func (v *target) domain() *verbs.PD {
	v.Helper()
	return must(v.ulp.AllocPD())(v.T)
}

// grant exposes n bytes to the peer, in the way that the trust model has: by the STag
// of a region, or by a window for the peer's stream alone.
func (f *stream) grant(n int, access verbs.Access) (*verbs.MR, uint32) {
	f.v.Helper()
	if f.qp.PD().Trust().Trust().ShareSTags {
		mr := f.v.region(f.qp.PD(), n, access)
		return mr, mr.STag()
	}
	mr := f.v.region(f.qp.PD(), n, verbs.LocalWrite|verbs.WindowBind)
	_, stag := f.bind(mr, 0, n, access)
	return mr, stag
}

// bind opens a window of n bytes at off of mr for the peer alone.
func (f *stream) bind(mr *verbs.MR, off, n int, access verbs.Access) (*verbs.MW, uint32) {
	f.v.Helper()
	mw := must(f.qp.PD().AllocMW())(f.v.T)
	const id = 1 << 41
	wr := verbs.SendWR{ID: id, Op: verbs.OpBind, MW: mw, SGL: []verbs.SGE{{MR: mr, Off: uint32(off), Len: uint32(n)}}, Access: access &^ verbs.LocalWrite, Flags: verbs.Signaled}
	f.v.granted(f.qp.PostSend(&wr))
	f.v.granted(f.completion(id).Err)
	return mw, mw.STag()
}

// write sends an RDMA Write.
func (f *stream) write(stag uint32, to uint64, data []byte) {
	// If this fails, the attack fails.
	_ = f.Say(iwarptest.Segment{Tagged: true, Last: true, Op: rdmap.OpWrite, STag: stag, TO: to, Payload: data})
}

// read sends an RDMA Read Request.
func (f *stream) read(stag uint32, to uint64, n uint32) {
	f.rmsn++
	req := rdmap.ReadRequest{SinkSTag: 1, Size: n, SourceSTag: stag, SourceTO: to}
	_ = f.Say(iwarptest.Segment{Last: true, Op: rdmap.OpReadRequest, QN: rdmap.QNReadRequest, MSN: f.rmsn, Payload: req.Append(nil)})
}

// fetchAdd sends an Atomic.
func (f *stream) fetchAdd(stag uint32, to, add uint64) {
	f.rmsn++
	req := rdmap.AtomicRequest{Op: rdmap.AtomicFetchAdd, ID: 9, STag: stag, TO: to, AddSwap: add, CompareMask: math.MaxUint64}
	_ = f.Say(iwarptest.Segment{Last: true, Op: rdmap.OpAtomicRequest, QN: rdmap.QNReadRequest, MSN: f.rmsn, Payload: req.Append(nil)})
}

// send sends a Send, with the STag to be invalidated if there is one.
func (f *stream) send(invalidate uint32, data []byte) {
	f.msn++
	s := iwarptest.Segment{Last: true, Op: rdmap.OpSend, QN: rdmap.QNSend, MSN: f.msn, Payload: data}
	if invalidate != 0 {
		s.Op, s.STag = rdmap.OpSendInvalidate, invalidate
	}
	_ = f.Say(s)
}

// settled waits until the target has dealt with all that the peer has sent: a Send
// behind it has arrived, or the stream is over. It reports whether the stream goes
// on.
func (f *stream) settled() bool {
	f.v.Helper()
	const id = 1 << 40
	if err := f.qp.PostRecv(verbs.RecvWR{ID: id}); err != nil {
		return false
	}
	f.send(0, nil)
	return f.completion(id).Err == nil
}

// completion waits for that of work request id.
func (f *stream) completion(id uint64) verbs.WC {
	f.v.Helper()
	ctx, cancel := context.WithTimeout(f.v.Context(), patience)
	defer cancel()
	for {
		var wc [1]verbs.WC
		if f.cq.Poll(wc[:]) == 0 {
			if err := f.cq.Wait(ctx); err != nil {
				f.v.Fatalf("nothing comes of what was sent: %v", err)
			}
			continue
		}
		if wc[0].QP == f.qp && wc[0].ID == id {
			return wc[0]
		}
	}
}

// wantTerminated checks that the stream ended with a Terminate of these codes
// (RFC 5040 section 4.8), and that an event says so.
func (f *stream) wantTerminated(want rdmap.Terminate) {
	f.v.Helper()
	got, event := f.end()
	if got.Layer != want.Layer || got.Type != want.Type || got.Code != want.Code {
		f.v.Errorf("Terminate %v %d.%#02x, want %v %d.%#02x", got.Layer, got.Type, got.Code, want.Layer, want.Type, want.Code)
	}
	if !event {
		f.v.Error("no event reports it")
	}
}

// end waits for the stream's. It returns the Terminate that the target sent, and
// whether an event reports the peer's fault.
func (f *stream) end() (_ rdmap.Terminate, event bool) {
	f.v.Helper()
	for range f.heard {
	}
	select {
	case <-f.qp.Done():
	case <-time.After(patience):
		f.v.Fatal("the stream does not end")
	}
	for {
		switch ev, ok := f.v.dev.TryEvent(); {
		case !ok:
			return f.term, false
		case ev.Kind == verbs.EventPeerFault && ev.QP == f.qp.ID():
			return f.term, true
		}
	}
}
