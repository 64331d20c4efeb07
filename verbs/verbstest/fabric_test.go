package verbstest_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
	"github.com/ironwarp/ironwarp/verbs/verbstest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair is a stream from alpha to beta, each with a device of its own.
type pair struct {
	*verbstest.Fabric
	alpha, beta *verbstest.Host
	a, b        *verbs.QP
	acq, bcq    *verbs.CQ
	am, bm      *verbs.MR
	dial        func() (*verbs.QP, error) // one more
}

func newPair(t *testing.T) *pair {
	t.Helper()
	return newPairOver(t, transport.TCP)
}

func newPairOver(t *testing.T, kind transport.Kind) *pair {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	p := &pair{Fabric: verbstest.New()}
	p.alpha, p.beta = p.Host("alpha"), p.Host("beta")
	end := func(name string) (*verbs.Device, *verbs.PD, *verbs.MR, verbs.QPConfig) {
		dev, err := verbs.Open(verbs.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { dev.Close() })
		ulp, err := dev.NewULP(name, verbs.ULPConfig{Trust: verbs.ST})
		if err != nil {
			t.Fatal(err)
		}
		pd, err := ulp.AllocPD()
		if err != nil {
			t.Fatal(err)
		}
		cq, err := ulp.CreateCQ(64, nil)
		if err != nil {
			t.Fatal(err)
		}
		mr, err := pd.RegisterMR(make([]byte, 4<<20), verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead)
		if err != nil {
			t.Fatal(err)
		}
		return dev, pd, mr, verbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: 8, MaxRecv: 8, IRD: 4, ORD: 4}
	}
	adev, apd, am, acfg := end("alpha")
	bdev, bpd, bm, bcfg := end("beta")
	_ = adev
	p.am, p.bm, p.acq, p.bcq = am, bm, acfg.SendCQ, bcfg.SendCQ
	over := func(h *verbstest.Host) *transport.Config {
		cfg := h.Transport()
		cfg.Kind = kind
		return cfg
	}
	ln, err := bdev.Listen(ctx, p.beta.Addr(0), verbs.ListenConfig{Transport: over(p.beta)})
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan *verbs.QP, 1)
	go func() {
		for {
			req, err := ln.Accept(ctx)
			if err != nil {
				return
			}
			qp, err := req.Accept(ctx, bpd, verbs.AcceptConfig{QP: bcfg, Prepare: func(qp *verbs.QP) error {
				return qp.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{{MR: bm, Len: 64}}})
			}})
			if err == nil {
				accepted <- qp
			}
		}
	}()
	p.dial = func() (*verbs.QP, error) {
		return apd.Dial(ctx, verbs.DialConfig{Remote: ln.Addr(), Transport: over(p.alpha), QP: acfg})
	}
	if p.a, err = p.dial(); err != nil {
		t.Fatal(err)
	}
	p.b = <-accepted
	return p
}

// write is an RDMA Write of n bytes from alpha to beta.
func (p *pair) write(t *testing.T, n uint32) {
	t.Helper()
	if err := p.a.PostSend(&verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: []verbs.SGE{{MR: p.am, Len: n}}, RemoteSTag: p.bm.STag()}); err != nil {
		t.Fatal(err)
	}
}

func (p *pair) ended(t *testing.T, qp *verbs.QP) error {
	t.Helper()
	select {
	case <-qp.Done():
		return qp.Err()
	case <-time.After(time.Minute):
		t.Fatal("the stream does not end")
		return nil
	}
}

func TestPeersHaveTheNamesOfTheirHosts(t *testing.T) {
	p := newPair(t)
	if p.a.Peer() != "beta" || p.b.Peer() != "alpha" || p.a.Flow().Remote.Addr() != p.beta.Addr(0).Addr() {
		t.Errorf("alpha has %q at %v, beta has %q", p.a.Peer(), p.a.Flow(), p.b.Peer())
	}
	p.a.Close()
	if err := p.ended(t, p.a); err != nil {
		t.Errorf("a graceful end: %v", err)
	}
	if err := p.ended(t, p.b); !errors.Is(err, io.EOF) {
		t.Errorf("the peer's graceful end: %v", err)
	}
}

func TestCutEndsBothEndsAndLetsNewOnesUp(t *testing.T) {
	p := newPair(t)
	p.Cut()
	for _, qp := range []*verbs.QP{p.a, p.b} {
		if err := p.ended(t, qp); !errors.Is(err, mpa.ErrConnectionLost) {
			t.Errorf("ended with %v", err)
		}
	}
	qp, err := p.dial()
	if err != nil {
		t.Fatal(err)
	}
	qp.Close()
}

func TestPauseLosesNothing(t *testing.T) {
	p := newPair(t)
	p.Pause(true)
	if !p.a.Paused() {
		t.Error("the stream does not know of its pause")
	}
	copy(p.am.Bytes(), "after the pause")
	p.write(t, 3<<20) // more than is under way at once
	if n := p.acq.Poll(make([]verbs.WC, 1)); n != 0 {
		t.Error("a Write of 3 MiB is over in a pause")
	}
	p.Pause(false)
	if wc, err := p.acq.Next(t.Context()); err != nil || wc.Err != nil {
		t.Fatal(err, wc.Err)
	}
	if err := p.a.PostSend(&verbs.SendWR{Op: verbs.OpSend}); err != nil { // behind the Write
		t.Fatal(err)
	}
	if wc, err := p.bcq.Next(t.Context()); err != nil || wc.Err != nil {
		t.Fatal(err, wc.Err)
	}
	if string(p.bm.Bytes()[:15]) != "after the pause" {
		t.Error("something else arrived")
	}
}

func TestCorruptionIsFoundByTheCRC(t *testing.T) {
	p := newPair(t)
	p.Corrupt(p.beta)
	p.write(t, 100)
	if err := p.ended(t, p.b); !errors.Is(err, mpa.ErrCRC) {
		t.Errorf("the receiver's stream ended with %v", err)
	}
	p.ended(t, p.a)
}

func TestRefuse(t *testing.T) {
	p := newPair(t)
	p.Refuse(true)
	if _, err := p.dial(); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial: %v", err)
	}
	p.Refuse(false)
	qp, err := p.dial()
	if err != nil {
		t.Fatal(err)
	}
	qp.Close()
}

func TestSilentPeerMeetsTheStartupsDeadline(t *testing.T) {
	p := newPair(t)
	p.Pause(true)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := p.a.PD().Dial(ctx, verbs.DialConfig{Remote: p.a.Flow().Remote, Transport: p.alpha.Transport(),
		QP: verbs.QPConfig{SendCQ: p.acq, RecvCQ: p.acq, MaxSend: 1, MaxRecv: 1}}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("dial: %v", err)
	}
	p.Pause(false)
}

// A listener may be closed while it is accepted from: one of the two takes what is queued.
func TestListenerIsClosedWhileItIsAcceptedFrom(t *testing.T) {
	f := verbstest.New()
	server, client := f.Host("server"), f.Host("client")
	at := server.Addr(18515)
	for range 5000 {
		ln, err := server.Transport().Network.Listen(at)
		if err != nil {
			t.Fatal(err)
		}
		var conns []net.Conn
		for range 8 {
			c, err := client.Transport().Network.Dial(t.Context(), client.Addr(0).Addr(), at)
			if err != nil {
				t.Fatal(err)
			}
			conns = append(conns, c)
		}
		ended := make(chan struct{})
		var all sync.WaitGroup
		all.Go(func() { ln.Close() })
		for range 4 {
			all.Go(func() {
				for err := error(nil); err == nil; {
					var c net.Conn
					if c, err = ln.Accept(); err == nil {
						c.Close()
					}
				}
			})
		}
		go func() { all.Wait(); close(ended) }()
		select {
		case <-ended:
		case <-time.After(time.Minute):
			t.Fatal("Close of the listener hangs")
		}
		for _, c := range conns {
			c.Close()
		}
	}
}

// The end that has closed a connection is told so, as by the host's TCP.
func TestClosedConnectionSaysSo(t *testing.T) {
	f := verbstest.New()
	server, client := f.Host("server"), f.Host("client")
	ln, err := server.Transport().Network.Listen(server.Addr(0))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c, err := client.Transport().Network.Dial(t.Context(), client.Addr(0).Addr(), ln.Addr().(*net.TCPAddr).AddrPort())
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	_, rerr := c.Read(make([]byte, 1))
	_, werr := c.Write(make([]byte, 1))
	for what, err := range map[string]error{"Read": rerr, "Write": werr, "SetDeadline": c.SetDeadline(time.Now())} {
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s after Close: %v", what, err)
		}
	}
}
