package verbs

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/ddp/enhanced"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/transport"
)

func testContext(t testing.TB) context.Context { return iwarptest.Context(t) }

func listen(t testing.TB, e *end, cfg ListenConfig) *Listener {
	t.Helper()
	cfg.Transport = e.tc
	local := netip.AddrPortFrom(sctpLocal.Addr(), 0)
	if e.tc.Kind != transport.TCP {
		local = sctpLocal
	}
	ln, err := e.dev.Listen(testContext(t), local, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln
}

func (e *end) dial(to netip.AddrPort) (*QP, error) {
	return e.pd.Dial(testContext(e.t), DialConfig{QP: e.cfg, Remote: to, Transport: e.tc})
}

func TestRejectReachesTheDialler(t *testing.T) {
	overEachCarrier(t, Config{}, Config{}, func(t *testing.T, a, b *end) {
		ln := listen(t, b, ListenConfig{})
		go func() {
			if cr, err := ln.Accept(context.Background()); err == nil {
				cr.Reject(context.Background(), []byte("not you"))
			}
		}()
		_, err := a.dial(ln.Addr())
		var rej *RejectedError
		if !errors.As(err, &rej) || string(rej.PrivateData) != "not you" {
			t.Errorf("dial: %v", err)
		}
		if u := a.dev.Usage(); u.Streams != 0 {
			t.Errorf("%d streams are charged", u.Streams)
		}
	})
}

// A client that connects and says nothing, and one that sends garbage, are
// reported, cut off and hold up nobody.
func TestSilentAndGarbageClientsHoldUpNobody(t *testing.T) {
	a, b := newEnd(t, Config{}), newEnd(t, Config{})
	failed := make(chan error, 8)
	// The good client has that time, too.
	ln := listen(t, b, ListenConfig{Setup: Setup{Timeout: 10 * time.Second}, OnFailed: func(_ transport.Flow, err error) { failed <- err }})
	for _, say := range []string{"", "GET / HTTP/1.1\r\nHost: storage\r\n\r\n"} {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		io.WriteString(c, say)
	}
	go func() {
		if cr, err := ln.Accept(context.Background()); err == nil {
			cr.Accept(context.Background(), b.pd, AcceptConfig{QP: b.cfg})
		}
	}()
	qp, err := a.dial(ln.Addr())
	if err != nil {
		t.Fatalf("a good client is held up: %v", err)
	}
	qp.Close()
	for range 2 {
		select {
		case err := <-failed:
			if err == nil {
				t.Error("a failure without an error")
			}
		case <-time.After(2 * time.Minute):
			t.Fatal("a bad client is not reported")
		}
	}
	<-qp.Done()
}

// A responder that demands more than we offered gets a Terminate (RFC
// 6581 section 9.1).
func TestImpossibleReplyIsAnsweredByATerminate(t *testing.T) {
	a := newEnd(t, Config{})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	got := make(chan []byte, 1)
	go func() {
		defer close(got)
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		c.Read(make([]byte, 512))
		rep, _ := (&mpa.Frame{Reply: true, Revision: 2, Enhanced: &enhanced.Data{IRD: 4, ORD: 1000}}).Append(nil)
		c.Write(rep)
		b, _ := io.ReadAll(c)
		got <- b
	}()
	_, err = a.dial(netip.MustParseAddrPort(ln.Addr().String()))
	var fault *ddp.Error
	if !errors.As(err, &fault) || fault.Layer != ddp.LayerLLP {
		t.Fatalf("dial: %v", err)
	}
	fpdu := <-got
	if len(fpdu) < 2+ddp.UntaggedHeaderLen+4 {
		t.Fatalf("the responder was sent %x", fpdu)
	}
	u := ddp.Untagged(fpdu[2:])
	if _, op := rdmap.ParseControl(u.ULP()); op != rdmap.OpTerminate {
		t.Fatalf("the responder was sent a %v", op)
	}
	if term, ok := rdmap.ParseTerminate(u.Payload()[:4]); !ok || term.Layer != fault.Layer || term.Code != fault.Code {
		t.Errorf("Terminate %+v, want the codes of %v", term, fault)
	}
}

func TestQuotaOfAPeerRefusesItsConnection(t *testing.T) {
	overEachCarrier(t, Config{}, Config{Peer: Quota{Streams: 1}}, func(t *testing.T, a, b *end) {
		ln := listen(t, b, ListenConfig{})
		go func() {
			for {
				cr, err := ln.Accept(context.Background())
				if err != nil {
					return
				}
				if _, err := cr.Accept(context.Background(), b.pd, AcceptConfig{QP: b.cfg}); err != nil {
					cr.Reject(context.Background(), []byte("full"))
				}
			}
		}()
		qp, err := a.dial(ln.Addr())
		if err != nil {
			t.Fatal(err)
		}
		var rej *RejectedError
		if _, err := a.dial(ln.Addr()); !errors.As(err, &rej) {
			t.Errorf("a second stream: %v", err)
		}
		wantEvent(t, b.dev, EventQuotaExceeded, 0)
		qp.Close()
		<-qp.Done()
	})
}

func TestClosedDeviceRefusesEverything(t *testing.T) {
	a := newEnd(t, Config{})
	a.dev.Close()
	if _, err := a.dev.NewULP("late", ULPConfig{Trust: ST}); !errors.Is(err, ErrClosed) {
		t.Errorf("a new ULP: %v", err)
	}
	if _, err := a.dev.Listen(testContext(t), netip.MustParseAddrPort("127.0.0.1:0"), ListenConfig{Transport: &transport.Config{Protector: transport.LoopbackOnly()}}); !errors.Is(err, ErrClosed) {
		t.Errorf("listen: %v", err)
	}
}

// The start-up may differ by peer, whom the Protector has named by then.
func TestStartUpMayDifferByPeer(t *testing.T) {
	overEachCarrier(t, Config{}, Config{}, func(t *testing.T, a, b *end) {
		asked := make(chan transport.Identity, 2)
		ln := listen(t, b, ListenConfig{PeerSetup: func(_ transport.Flow, id transport.Identity) Setup {
			asked <- id
			return Setup{PeerToPeer: RTRRead}
		}})
		go func() {
			for range 2 {
				if cr, err := ln.Accept(context.Background()); err == nil {
					cr.Accept(context.Background(), b.pd, AcceptConfig{QP: b.cfg})
				}
			}
		}()
		dial := DialConfig{QP: a.cfg, Remote: ln.Addr(), Transport: a.tc, Setup: Setup{PeerToPeer: RTRWrite}}
		var fault *ddp.Error
		if _, err := a.pd.Dial(testContext(t), dial); !errors.As(err, &fault) || fault.Code != mpa.CodeRTR {
			t.Errorf("a Write was offered where Reads alone are taken: %v", err)
		}
		dial.Setup.PeerToPeer = RTRWrite | RTRRead
		qp, err := a.pd.Dial(testContext(t), dial)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if id := <-asked; id != qp.Peer() {
				t.Errorf("asked for %q, not for %q", id, qp.Peer())
			}
		}
		qp.Close()
		<-qp.Done()
	})
}

// Both consumers see the depths that the other side offers, on a rejection too
// (RFC 6581 section 9.1).
func TestDepthsReachTheConsumers(t *testing.T) {
	overEachCarrier(t, Config{}, Config{}, func(t *testing.T, a, b *end) {
		a.cfg.IRD, a.cfg.ORD = 3, 5
		ln := listen(t, b, ListenConfig{})
		offered := make(chan Depths, 1)
		go func() {
			cr, err := ln.Accept(context.Background())
			if err != nil {
				return
			}
			offered <- cr.Depths()
			if err := cr.RejectDepths(context.Background(), nil, -1, 1<<14-1); err == nil {
				t.Error("impossible depths are taken")
			}
			cr.RejectDepths(context.Background(), []byte("more"), 0, 17)
		}()
		_, err := a.dial(ln.Addr())
		var rej *RejectedError
		if !errors.As(err, &rej) || rej.Depths != (Depths{IRD: 0, ORD: 17}) || string(rej.PrivateData) != "more" {
			t.Errorf("dial: %v, %+v", err, rej)
		}
		if d := <-offered; d != (Depths{IRD: 3, ORD: 5}) {
			t.Errorf("the listener is offered %+v", d)
		}

		ln.Close()
		if a.tc.Kind != transport.TCP { // the association keeps the port for a moment
			a.tc = iwarptest.SCTPInUDP(t)
			b.tc = a.tc
		}
		ln = listen(t, b, ListenConfig{})
		go func() {
			if cr, err := ln.Accept(context.Background()); err == nil {
				offered <- cr.Depths()
				cr.Reject(context.Background(), nil)
			}
		}()
		_, err = a.pd.Dial(testContext(t), DialConfig{
			QP:     a.cfg,
			Remote: ln.Addr(), Transport: a.tc, Setup: Setup{Plain: true},
		})
		if !errors.As(err, &rej) || rej.Depths != (Depths{IRD: -1, ORD: -1}) {
			t.Errorf("dial with revision 1: %v, %+v", err, rej)
		}
		if d := <-offered; d != (Depths{IRD: -1, ORD: -1}) {
			t.Errorf("revision 1 offers %+v", d)
		}
	})
}

// IRD and ORD 0 are none, on either end and over each carrier: nothing stands in
// their place, and a Read is refused when it is posted (RFC 6581 section 9.1).
func TestDepthZeroIsNone(t *testing.T) {
	overEachCarrier(t, Config{}, Config{}, func(t *testing.T, a, b *end) {
		ln := listen(t, b, ListenConfig{})
		for _, depth := range [][2]int{{0, 7}, {7, 0}} {
			a.cfg.IRD, a.cfg.ORD, b.cfg.IRD, b.cfg.ORD = depth[0], depth[0], depth[1], depth[1]
			accepted := make(chan error, 1)
			go func() {
				cr, err := ln.Accept(testContext(t))
				if err == nil {
					if want := (Depths{IRD: a.cfg.IRD, ORD: a.cfg.ORD}); cr.Depths() != want {
						t.Errorf("the listener is offered %+v, want %+v", cr.Depths(), want)
					}
					b.qp, err = cr.Accept(testContext(t), b.pd, AcceptConfig{QP: b.cfg})
				}
				accepted <- err
			}()
			var err error
			a.qp, err = a.dial(ln.Addr())
			if err := errors.Join(err, <-accepted); err != nil {
				t.Fatal(err)
			}
			for _, e := range []*end{a, b} {
				if e.qp.ORD() != 0 {
					t.Errorf("a queue pair has ORD %d where one end has none", e.qp.ORD())
				}
				if err := e.qp.PostSend(&SendWR{Op: OpRead, SGL: whole(e.mr(8, LocalWrite), 8)}); err == nil || !strings.Contains(err.Error(), "ORD is 0") {
					t.Errorf("a Read was posted: %v", err)
				}
			}
			a.qp.Abort(nil)
			<-b.qp.Done()
		}
	})
}

// An LLP whose ends left the depths to their ULPs is adopted with the queue
// pair's.
func TestAdoptedDepthsMayBeTheULPs(t *testing.T) {
	a, b := newEnd(t, Config{}), newEnd(t, Config{})
	a.cfg.ORD, b.cfg.IRD = 2, 2
	cfg := mpa.Config{IRD: enhanced.DepthULP, ORD: enhanced.DepthULP}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	accepted := make(chan error, 1)
	go func() {
		c, err := ln.Accept()
		if err == nil {
			var req *mpa.Request
			if req, err = mpa.Server(context.Background(), c, nil); err == nil {
				var m *mpa.Conn
				if m, err = req.Accept(context.Background(), mpa.AcceptOptions{IRD: enhanced.DepthULP, ORD: enhanced.DepthULP}); err == nil {
					b.qp, err = b.pd.Adopt(AdoptMPA(b.cfg, m, fakeConn{"a"}, false))
				}
			}
		}
		accepted <- err
	}()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	m, err := mpa.Client(testContext(t), c, &cfg)
	if err != nil {
		t.Fatal(err)
	}
	a.qp, err = a.pd.Adopt(AdoptMPA(a.cfg, m, fakeConn{"b"}, true))
	if err := errors.Join(err, <-accepted); err != nil {
		t.Fatal(err)
	}
	if a.qp.ORD() != 2 {
		t.Errorf("ORD %d, want the queue pair's 2", a.qp.ORD())
	}
	src := b.mr(8, RemoteRead)
	a.post(SendWR{Op: OpRead, Flags: Signaled, SGL: whole(a.mr(8, LocalWrite), 8), RemoteSTag: src.STag()})
	a.wantOK(WCRead)
	a.qp.Close()
	a.wantEnd()
	b.wantEnd()
}

// An initiator that can't set the stream up after the reply says so (RFC 6581
// section 9.3).
func TestLocalFaultAfterTheReplyIsTold(t *testing.T) {
	a, b := newEnd(t, Config{}), newEnd(t, Config{})
	ln := listen(t, b, ListenConfig{})
	ended := make(chan error, 1)
	go func() {
		cr, err := ln.Accept(testContext(t))
		if err == nil {
			var qp *QP
			qp, err = cr.Accept(testContext(t), b.pd, AcceptConfig{QP: b.cfg})
			if err == nil {
				<-qp.Done()
				err = qp.Err()
			}
		}
		ended <- err
	}()
	reason := errors.New("changed my mind")
	var qp *QP
	_, err := a.pd.Dial(testContext(t), DialConfig{
		QP: a.cfg, Prepare: func(q *QP) error {
			qp = q
			return nil
		},
		Remote: ln.Addr(), Transport: &transport.Config{Protector: transport.LoopbackOnly()},
		Setup: Setup{EMSS: func() int { // asked when the reply has been read
			qp.Abort(reason)
			return 1460
		}},
	})
	if !errors.Is(err, reason) {
		t.Errorf("dial: %v", err)
	}
	var te *rdmap.TerminateError
	if err := <-ended; !errors.As(err, &te) || te.Terminate.Layer != ddp.LayerLLP || te.Terminate.Type != 0 || te.Terminate.Code != mpa.CodeLocal {
		t.Errorf("the responder's stream ended with %v", err)
	}
}
