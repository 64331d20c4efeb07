package attack

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// attack is one thing that a hostile party tries.
type attack struct {
	name  string
	check checks.Check
	// try makes the attack and tells whether it got what it wanted. Where it does not,
	// try itself reports what should have happened instead and did not.
	try func(v *victim) (succeeded bool)
}

// run makes attacks, each on a victim of its own.
func run(t *testing.T, attacks ...attack) {
	t.Helper()
	for _, a := range attacks {
		t.Run(a.name, func(t *testing.T) {
			switchOff(t, a.check)
			v := newVictim(t)
			switch succeeded := a.try(v); {
			case succeeded && !checks.Weakened:
				t.Error("the attack succeeds")
			case !succeeded && checks.Weakened:
				t.Error("the attack fails without the check that it is about, too")
			}
		})
	}
}

// victim is a device with a service on it.
type victim struct {
	*testing.T
	dev *verbs.Device
	ulp *verbs.ULP
	pd  *verbs.PD
	cq  *verbs.CQ
}

func newVictim(t *testing.T) *victim {
	t.Helper()
	return newVictimAs(t, verbs.Config{}, verbs.ST)
}

func newVictimAs(t *testing.T, cfg verbs.Config, m verbs.TrustModel) *victim {
	t.Helper()
	v := &victim{T: t}
	var err error
	if v.dev, err = verbs.Open(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.dev.Close() })
	v.ulp = v.consumer("service", m)
	v.pd = must(v.ulp.AllocPD())(t)
	v.cq = must(v.ulp.CreateCQ(1<<12, nil))(t)
	return v
}

func (v *victim) consumer(name string, m verbs.TrustModel) *verbs.ULP {
	return must(v.dev.NewULP(name, verbs.ULPConfig{Trust: m}))(v.T)
}

func must[T any](x T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
}

// conn is a connection of a peer that was authenticated as id.
type conn struct{ id transport.Identity }

func (conn) Flow() transport.Flow               { return transport.Flow{Protocol: transport.ProtoTCP} }
func (c conn) Protection() transport.Protection { return protection(c) }

type protection struct{ id transport.Identity }

func (p protection) Peer() transport.Identity { return p.id }
func (protection) Paused() bool               { return false }
func (protection) Kind() string               { return "test" }
func (protection) Release()                   {}

// foe is a stream of the victim whose peer is the attacker.
type foe struct {
	*iwarptest.Peer
	v     *victim
	qp    *verbs.QP
	heard chan iwarptest.Segment // what the victim has sent; closed at its end
	msn   uint32                 // of queue 0
	rmsn  uint32                 // of queue 1
}

// stream is a foe in pd, authenticated as id.
func (v *victim) stream(pd *verbs.PD, id transport.Identity) *foe {
	v.Helper()
	f, err := v.tryStream(pd, v.cq, id)
	if err != nil {
		v.Fatal(err)
	}
	return f
}

func (v *victim) tryStream(pd *verbs.PD, cq *verbs.CQ, id transport.Identity) (*foe, error) {
	return v.streamAs(pd, verbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: 64, MaxRecv: 64, IRD: 4, ORD: 4}, iwarptest.Options{}, id)
}

// streamAs is tryStream with any queue pair and LLP.
func (v *victim) streamAs(pd *verbs.PD, cfg verbs.QPConfig, o iwarptest.Options, id transport.Identity) (*foe, error) {
	peer, llp := iwarptest.NewPeer(o)
	return v.streamOn(pd, cfg, peer, llp, id)
}

// streamOn is streamAs on an LLP that is at hand.
func (v *victim) streamOn(pd *verbs.PD, cfg verbs.QPConfig, peer *iwarptest.Peer, llp ddp.LLP, id transport.Identity) (*foe, error) {
	qp, err := pd.ULP().Adopt(pd, cfg, verbs.AdoptConfig{LLP: llp, Conn: conn{id}, IRD: cfg.IRD, ORD: cfg.ORD}, nil)
	if err != nil {
		peer.Close()
		return nil, err
	}
	f := &foe{Peer: peer, v: v, qp: qp, heard: make(chan iwarptest.Segment, 1<<12)}
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

// listen hears all that the victim sends, and ends the foe's direction when it is
// terminated, as even the worst peer has to for its next stream.
func (f *foe) listen() {
	defer close(f.heard)
	for {
		s, err := f.Peer.Hear()
		if err != nil {
			return
		}
		f.heard <- s
		if !s.Tagged && s.QN == rdmap.QNTerminate {
			f.CloseWrite()
		}
	}
}

// hear returns the next segment that the victim has sent, false at the end.
func (f *foe) hear() (iwarptest.Segment, bool) {
	s, ok := <-f.heard
	return s, ok
}

// region registers n bytes.
func (v *victim) region(pd *verbs.PD, n int, access verbs.Access) *verbs.MR {
	v.Helper()
	return must(pd.RegisterMR(make([]byte, n), access))(v.T)
}

// write sends an RDMA Write.
func (f *foe) write(stag uint32, to uint64, data []byte) {
	// What fails here shows in what the attack does not get.
	_ = f.Say(iwarptest.Segment{Tagged: true, Last: true, Op: rdmap.OpWrite, STag: stag, TO: to, Payload: data})
}

// read sends an RDMA Read Request.
func (f *foe) read(stag uint32, to uint64, n uint32) {
	f.rmsn++
	req := rdmap.ReadRequest{SinkSTag: 1, Size: n, SourceSTag: stag, SourceTO: to}
	_ = f.Say(iwarptest.Segment{Last: true, Op: rdmap.OpReadRequest, QN: rdmap.QNReadRequest, MSN: f.rmsn, Payload: req.Append(nil)})
}

// send sends a Send, with the STag to be invalidated if there is one.
func (f *foe) send(invalidate uint32, data []byte) {
	f.msn++
	s := iwarptest.Segment{Last: true, Op: rdmap.OpSend, QN: rdmap.QNSend, MSN: f.msn, Payload: data}
	if invalidate != 0 {
		s.Op, s.STag = rdmap.OpSendInvalidate, invalidate
	}
	_ = f.Say(s)
}

// settled waits until the victim has dealt with all that the foe has sent: a Send
// behind it has arrived, or the stream is over. It reports whether the stream goes
// on.
func (f *foe) settled() bool {
	f.v.Helper()
	const id = 1 << 40
	if err := f.qp.PostRecv(verbs.RecvWR{ID: id}); err != nil {
		return false
	}
	f.send(0, nil)
	ctx, cancel := context.WithTimeout(f.v.Context(), patience)
	defer cancel()
	for {
		var wc [1]verbs.WC
		if f.v.cq.Poll(wc[:]) == 0 {
			if err := f.v.cq.Wait(ctx); err != nil {
				f.v.Fatalf("nothing comes of what was sent: %v", err)
			}
			continue
		}
		if wc[0].QP == f.qp && wc[0].ID == id {
			return wc[0].Err == nil
		}
	}
}

// wantTerminated checks that the stream ended with a Terminate of these codes
// (RFC 5040 section 4.8), and that an event says so.
func (f *foe) wantTerminated(want rdmap.Terminate) {
	f.v.Helper()
	var got rdmap.Terminate
	for s := range f.heard {
		if !s.Tagged && s.QN == rdmap.QNTerminate {
			got, _ = rdmap.ParseTerminate(s.Payload)
			break
		}
	}
	if got.Layer != want.Layer || got.Type != want.Type || got.Code != want.Code {
		f.v.Errorf("Terminate %v %d.%#02x, want %v %d.%#02x", got.Layer, got.Type, got.Code, want.Layer, want.Type, want.Code)
	}
	select {
	case <-f.qp.Done():
	case <-time.After(patience):
		f.v.Fatal("the stream does not end")
	}
	for {
		ev, ok := f.v.dev.TryEvent()
		if !ok {
			f.v.Error("no event tells of it")
			return
		}
		if ev.Kind == verbs.EventPeerFault && ev.QP == f.qp.ID() {
			return
		}
	}
}

const patience = 20 * time.Second
