package verbs

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeConn stands for a protected connection under an in-memory LLP.
type fakeConn struct{ peer transport.Identity }

func (f fakeConn) Flow() transport.Flow             { return transport.Flow{Protocol: transport.ProtoTCP} }
func (f fakeConn) Protection() transport.Protection { return f }
func (f fakeConn) Peer() transport.Identity         { return f.peer }
func (f fakeConn) Paused() bool                     { return false }
func (f fakeConn) Kind() string                     { return "memory" }
func (f fakeConn) Release()                         {}

// end is one side of a pair under test.
type end struct {
	t   testing.TB
	dev *Device
	ulp *ULP
	pd  *PD
	cq  *CQ
	qp  *QP
	cfg QPConfig
	tc  *transport.Config // of listen and dial
}

// tcp is the carrier where a test does not say.
var tcp = &transport.Config{Protector: transport.LoopbackOnly()}

// carriers are what a listener may be on.
var carriers = []struct {
	name   string
	config func(t testing.TB) *transport.Config
}{
	{"TCP", func(testing.TB) *transport.Config { return tcp }},
	{"SCTP in UDP", iwarptest.SCTPInUDP},
}

// overEachCarrier runs f with two ends that may listen and dial, on each carrier.
func overEachCarrier(t *testing.T, cfgA, cfgB Config, f func(t *testing.T, a, b *end)) {
	for _, c := range carriers {
		t.Run(c.name, func(t *testing.T) {
			a, b := newEnd(t, cfgA), newEnd(t, cfgB)
			a.tc = c.config(t)
			b.tc = a.tc
			f(t, a, b)
		})
	}
}

func newEnd(t testing.TB, cfg Config) *end {
	t.Helper()
	e := &end{t: t, tc: tcp}
	var err error
	if e.dev, err = Open(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.dev.Close() })
	if e.ulp, err = e.dev.NewULP("test", ULPConfig{Trust: ST}); err != nil {
		t.Fatal(err)
	}
	if e.pd, err = e.ulp.AllocPD(); err != nil {
		t.Fatal(err)
	}
	if e.cq, err = e.ulp.CreateCQ(1024, nil); err != nil {
		t.Fatal(err)
	}
	e.cfg = QPConfig{SendCQ: e.cq, RecvCQ: e.cq, MaxSend: 64, MaxRecv: 64, IRD: 4, ORD: 4}
	return e
}

// startOn joins e to an LLP without a connection manager.
func (e *end) startOn(l ddp.LLP) {
	e.t.Helper()
	qp, err := e.pd.Adopt(AdoptConfig{QP: e.cfg, LLP: l, Conn: fakeConn{"peer"}, IRD: e.cfg.IRD, ORD: e.cfg.ORD})
	if err != nil {
		e.t.Fatal(err)
	}
	e.qp = qp
}

func (e *end) mr(n int, a Access) *MR {
	e.t.Helper()
	mr, err := e.pd.RegisterMR(make([]byte, n), a)
	if err != nil {
		e.t.Fatal(err)
	}
	return mr
}

func (e *end) post(wr SendWR) {
	e.t.Helper()
	if err := e.qp.PostSend(&wr); err != nil {
		e.t.Fatalf("post: %v", err)
	}
}

func (e *end) recv(wr RecvWR) {
	e.t.Helper()
	if err := e.qp.PostRecv(wr); err != nil {
		e.t.Fatalf("post a receive: %v", err)
	}
}

func fill(b []byte, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}

func whole(mr *MR, n int) []SGE { return []SGE{{MR: mr, Len: uint32(n)}} }

// next waits for the next completion.
func (e *end) next() WC {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	wc, err := e.cq.Next(ctx)
	if err != nil {
		e.t.Fatalf("no completion: %v; stream: %v", err, e.qp.Err())
	}
	return wc
}

func (e *end) wantOK(op WCOp) WC {
	e.t.Helper()
	wc := e.next()
	if wc.Op != op || wc.Err != nil {
		e.t.Fatalf("completion %v, %v; want %v without error", wc.Op, wc.Err, op)
	}
	return wc
}

// wantEnd waits for the stream's end and returns its reason.
func (e *end) wantEnd() error {
	e.t.Helper()
	select {
	case <-e.qp.Done():
		return e.qp.Err()
	case <-time.After(2 * time.Minute):
		e.t.Fatal("the stream does not end")
		return nil
	}
}

func memPair(o iwarptest.Options) func(t testing.TB, a, b *end) {
	return func(t testing.TB, a, b *end) {
		la, lb := iwarptest.Pair(o)
		a.startOn(la)
		b.startOn(lb)
	}
}

func tcpPair(client, server Setup) func(t testing.TB, a, b *end) {
	return func(t testing.TB, a, b *end) {
		t.Helper()
		tc := &transport.Config{Protector: transport.LoopbackOnly()}
		connect(t, a, b, DialConfig{Transport: tc, Setup: client}, netip.MustParseAddrPort("127.0.0.1:0"), ListenConfig{Transport: tc, Setup: server})
	}
}

// sctpPair is over SCTP in UDP, an association for each pair.
func sctpPair(t testing.TB, a, b *end) {
	t.Helper()
	tc := iwarptest.SCTPInUDP(t)
	connect(t, a, b, DialConfig{Transport: tc}, sctpLocal, ListenConfig{Transport: tc})
}

// sctpLocal is where listeners over SCTP in UDP are.
var sctpLocal = netip.MustParseAddrPort("127.0.0.1:7471")

// connect joins a and b by a listener at local, to which dial goes.
func connect(t testing.TB, a, b *end, dial DialConfig, local netip.AddrPort, listen ListenConfig) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	ln, err := b.dev.Listen(ctx, local, listen)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	accepted := make(chan error, 1)
	go func() {
		cr, err := ln.Accept(ctx)
		if err == nil {
			if string(cr.PrivateData()) != "hello" {
				t.Errorf("private data of the request: %q", cr.PrivateData())
			}
			b.qp, err = cr.Accept(ctx, b.pd, AcceptConfig{QP: b.cfg, PrivateData: []byte("welcome")})
		}
		accepted <- err
	}()
	dial.Remote, dial.PrivateData = ln.Addr(), []byte("hello")
	dial.QP = a.cfg
	qp, err := a.pd.Dial(ctx, dial)
	if err := errors.Join(err, <-accepted); err != nil {
		t.Fatal(err)
	}
	if private := qp.PrivateData(); string(private) != "welcome" {
		t.Errorf("private data %q", private)
	}
	a.qp = qp
}

// llps are the lower layers that overEachLLP chooses from; the conformance suite
// runs over more of them.
var llps = []struct {
	name string
	pair func(t testing.TB, a, b *end)
}{
	{"memory", memPair(iwarptest.Options{})},
	{"memory direct", memPair(iwarptest.Options{Direct: true, MULPDU: 128})},
	{"MPA with CRC", tcpPair(Setup{}, Setup{})},
	{"MPA without CRC", tcpPair(Setup{NoCRC: true}, Setup{NoCRC: true})},
	{"MPA large FPDUs", tcpPair(Setup{LargeFPDU: MaxLargeFPDU}, Setup{LargeFPDU: MaxLargeFPDU})},
	{"MPA large FPDUs without CRC", tcpPair(Setup{LargeFPDU: MaxLargeFPDU, NoCRC: true}, Setup{LargeFPDU: MaxLargeFPDU, NoCRC: true})},
	{"SCTP in UDP", sctpPair},
}

// overEachLLP runs f on a connected pair over each lower layer.
func overEachLLP(t *testing.T, f func(t *testing.T, a, b *end)) {
	for _, l := range llps {
		t.Run(l.name, func(t *testing.T) {
			a, b := newEnd(t, Config{}), newEnd(t, Config{})
			l.pair(t, a, b)
			f(t, a, b)
		})
	}
}
