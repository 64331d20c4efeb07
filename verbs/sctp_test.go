package verbs

import (
	"context"
	"errors"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/ddp/sctpadapt"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/transport/assoc"
	"github.com/ironwarp/ironwarp/transport/sctp/sctptest"
)

// counter is a Protector of loopback that counts protections.
type counter struct {
	transport.Protector
	prepare  func(context.Context) error // nil: that of loopback
	admitted atomic.Int32
	released chan struct{} // one for each Release
}

func newCounter() *counter {
	return &counter{Protector: transport.LoopbackOnly(), released: make(chan struct{}, 64)}
}

func (c *counter) Prepare(ctx context.Context, f transport.Flow) error {
	if c.prepare != nil {
		if err := c.prepare(ctx); err != nil {
			return err
		}
	}
	return c.Protector.Prepare(ctx, f)
}

func (c *counter) Admit(ctx context.Context, f transport.Flow, outgoing bool, m transport.Monitored) (transport.Protection, error) {
	p, err := c.Protector.Admit(ctx, f, outgoing, m)
	if err != nil {
		return nil, err
	}
	c.admitted.Add(1)
	return &counted{Protection: p, c: c}, nil
}

type counted struct {
	transport.Protection
	c    *counter
	once sync.Once
}

func (p *counted) Release() { p.once.Do(func() { p.c.released <- struct{}{} }) }

func (c *counter) config(like *transport.Config) *transport.Config {
	tc := *like
	tc.Protector = c
	return &tc
}

// wantReleased waits for one Release, and for no more than that.
func (c *counter) wantReleased(t testing.TB) {
	t.Helper()
	select {
	case <-c.released:
	case <-testContext(t).Done():
		t.Fatal("a protection is not released")
	}
}

func (c *counter) wantHeld(t testing.TB) {
	t.Helper()
	select {
	case <-c.released:
		t.Error("a protection was released while streams live under it")
	default:
	}
}

// sctpEnds are two ends over SCTP in UDP, of which b listens and accepts
// everything.
func sctpEnds(t testing.TB, cfgB Config) (a, b *end, ln *Listener, accepted <-chan *QP) {
	t.Helper()
	a, b = newEnd(t, Config{}), newEnd(t, cfgB)
	a.tc = iwarptest.SCTPInUDP(t)
	b.tc = a.tc
	ln = listen(t, b, ListenConfig{})
	return a, b, ln, acceptAll(t, b, ln)
}

// acceptAll accepts what comes to ln as queue pairs of e.
func acceptAll(t testing.TB, e *end, ln *Listener) <-chan *QP {
	qps := make(chan *QP, 1024)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			r, err := ln.Accept(context.Background())
			if err != nil {
				return
			}
			qp, err := r.Accept(context.Background(), e.pd, AcceptConfig{QP: e.cfg})
			if err != nil {
				t.Errorf("accept: %v", err)
				continue
			}
			qps <- qp
		}
	})
	t.Cleanup(func() {
		ln.Close()
		wg.Wait()
	})
	return qps
}

// on is e with another queue pair and completion queue, for one of several
// streams.
func (e *end) on(qp *QP) *end {
	x := *e
	x.qp, x.cq = qp, qp.cfg.SendCQ
	return &x
}

// another dials one more stream with a completion queue of its own.
func (e *end) another(to netip.AddrPort, tc *transport.Config) *end {
	e.t.Helper()
	x := *e
	var err error
	if x.cq, err = e.ulp.CreateCQ(1024, nil); err != nil {
		e.t.Fatal(err)
	}
	x.cfg.SendCQ, x.cfg.RecvCQ = x.cq, x.cq
	if x.qp, err = e.pd.Dial(testContext(e.t), DialConfig{QP: x.cfg, Remote: to, Transport: tc}); err != nil {
		e.t.Fatal(err)
	}
	return &x
}

// wantAlive moves data both ways over a stream: a Write, and a Read of it.
func (e *end) wantAlive(target *MR) {
	e.t.Helper()
	src, dst := e.mr(8, 0), e.mr(8, LocalWrite)
	fill(src.Bytes(), 77)
	e.post(SendWR{Op: OpWrite, SGL: whole(src, 8), RemoteSTag: target.STag()})
	e.post(SendWR{Op: OpRead, Flags: Signaled, SGL: whole(dst, 8), RemoteSTag: target.STag()})
	e.wantOK(WCRead)
	if string(src.Bytes()) != string(dst.Bytes()) {
		e.t.Errorf("read %x, written %x", dst.Bytes(), src.Bytes())
	}
}

// The streams of a ULP to one remote with one Config share an association, under
// one protection, which ends with the last of them. Other ULPs and Configs have
// their own, and a stream that comes later gets a new one.
func TestStreamsShareAnAssociation(t *testing.T) {
	a, b, _, accepted := sctpEnds(t, Config{})
	remote := sctpLocal
	c := newCounter()
	tc := c.config(a.tc)
	target := b.mr(8, LocalWrite|RemoteWrite|RemoteRead)
	x, y := a.another(remote, tc), a.another(remote, tc)
	if f, g := x.qp.Flow(), y.qp.Flow(); f != g || f.Protocol != transport.ProtoUDP || f.Remote.Port() != tc.UDPPort {
		t.Errorf("flows %v and %v", f, g)
	}
	if n := c.admitted.Load(); n != 1 {
		t.Errorf("%d admissions", n)
	}
	qx, qy := <-accepted, <-accepted
	if f, g := qx.Flow(), qy.Flow(); f != g || f.Remote != x.qp.Flow().Local {
		t.Errorf("the listener sees %v and %v, the dialler %v", f, g, x.qp.Flow())
	}
	other := *tc
	z := a.another(remote, &other)
	ulp, err := a.dev.NewULP("other", ULPConfig{Trust: SLT})
	if err != nil {
		t.Fatal(err)
	}
	w := *a
	w.ulp = ulp
	if w.pd, err = ulp.AllocPD(); err != nil {
		t.Fatal(err)
	}
	w2 := w.anotherOf(ulp, remote, tc)
	if z.qp.Flow() == x.qp.Flow() || w2.qp.Flow() == x.qp.Flow() {
		t.Error("an association is shared with another Config or ULP")
	}
	x.qp.Close()
	x.wantEnd()
	c.wantHeld(t)
	y.wantAlive(target)
	for _, e := range []*end{y, z, w2} {
		e.qp.Close()
		if err := e.wantEnd(); err != nil {
			t.Errorf("the end: %v", err)
		}
		c.wantReleased(t)
	}
	for _, qp := range []*QP{qx, qy, <-accepted, <-accepted} {
		<-qp.Done()
		if err := qp.Err(); !errors.Is(err, rdmap.ErrPeerClosed) {
			t.Errorf("the peer's end: %v", err)
		}
	}
	late := a.another(remote, tc)
	late.wantAlive(target)
	if c.admitted.Load() != 4 {
		t.Errorf("%d admissions", c.admitted.Load())
	}
}

// relayTo puts a relay before the listener of server. The Config is the dialler's. It
// is to be called before the ends are made: the relay outlives them.
func relayTo(t testing.TB, server *transport.Config, f sctptest.Faults) (*transport.Config, *sctptest.Relay) {
	t.Helper()
	r, err := sctptest.NewRelay(netip.AddrPortFrom(sctpLocal.Addr(), server.UDPPort), f, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	tc := *server
	tc.UDPPort = r.Addr().Port()
	return &tc, r
}

func muxOf(a assoc.Association) assoc.Receiver { return sctpadapt.New(a, sctpadapt.Config{}, true) }

// anotherOf is another as another ULP.
func (e *end) anotherOf(ulp *ULP, to netip.AddrPort, tc *transport.Config) *end {
	e.t.Helper()
	x := *e
	x.ulp = ulp
	return x.another(to, tc)
}

// A stream that is aborted or at fault ends alone (RFC 5043 section 11.3: the end
// of a stream does not mandate that of the association).
func TestStreamEndsAlone(t *testing.T) {
	a, b, _, accepted := sctpEnds(t, Config{})
	target := b.mr(8, LocalWrite|RemoteWrite|RemoteRead)
	bystander := a.another(sctpLocal, a.tc)
	<-accepted
	failing := a.another(sctpLocal, a.tc)
	peer := <-accepted
	failing.qp.Abort(errors.New("enough"))
	failing.wantEnd()
	<-peer.Done()
	bystander.wantAlive(target)
	// A fault of the peer's is reported by RDMAP's Terminate.
	failing = a.another(sctpLocal, a.tc)
	peer = <-accepted
	failing.post(SendWR{Op: OpWrite, SGL: whole(a.mr(8, 0), 8), RemoteSTag: target.STag() ^ 0xff00})
	var term *rdmap.TerminateError
	if err := failing.wantEnd(); !errors.As(err, &term) || term.Terminate.Layer != ddp.LayerDDP {
		t.Errorf("the end of a stream with an invalid STag: %v", err)
	}
	<-peer.Done()
	bystander.wantAlive(target)
	if n := len(a.dev.QPs()); n != 1 {
		t.Errorf("%d streams live", n)
	}
}

// The end of the association ends its streams, each of which says so to its
// consumer, without Terminates of RDMAP (RFC 5043 section 11.3).
func TestEndOfTheAssociationEndsItsStreams(t *testing.T) {
	a, b, _, accepted := sctpEnds(t, Config{})
	qps := []*QP{a.another(sctpLocal, a.tc).qp, a.another(sctpLocal, a.tc).qp, <-accepted, <-accepted}
	qps[0].link().(*session).a.assoc.Abort("a test")
	for _, qp := range qps {
		<-qp.Done()
		if err := qp.Err(); !errors.Is(err, sctpadapt.ErrConnectionLost) {
			t.Errorf("the end: %v", err)
		}
	}
	for _, e := range []*end{a, b} {
		down := 0
		for n := 0; n < 4; {
			ev, err := e.dev.Event(testContext(t))
			if err != nil {
				t.Fatal(err)
			}
			n += ev.Count
			switch ev.Kind {
			case EventStreamDown:
				down += ev.Count
			case EventStreamUp:
			default:
				t.Errorf("event %v: %v", ev.Kind, ev.Err)
			}
		}
		if down != 2 {
			t.Errorf("%d streams are reported down", down)
		}
	}
	// The next stream has a new association.
	a.another(sctpLocal, a.tc).wantAlive(b.mr(8, LocalWrite|RemoteWrite|RemoteRead))
}

// A peer that has come back without a word is found out by the next stream, which
// gets a new association.
func TestNextStreamFindsAPeerThatHasRestarted(t *testing.T) {
	server := iwarptest.SCTPInUDP(t)
	tc, relay := relayTo(t, server, sctptest.Faults{})
	a, b := newEnd(t, Config{}), newEnd(t, Config{})
	b.tc = server
	ln := listen(t, b, ListenConfig{})
	accepted := acceptAll(t, b, ln)
	old := a.another(sctpLocal, tc)
	<-accepted
	relay.SetFaults(sctptest.Faults{Loss: 1})
	b.dev.Close()
	ln.Close()
	relay.SetFaults(sctptest.Faults{})
	b2 := newEnd(t, Config{})
	b2.tc = server
	acceptAll(t, b2, listen(t, b2, ListenConfig{}))
	next := a.another(sctpLocal, tc)
	next.wantAlive(b2.mr(8, LocalWrite|RemoteWrite|RemoteRead))
	if err := old.wantEnd(); !errors.Is(err, sctpadapt.ErrConnectionLost) {
		t.Errorf("the old stream: %v", err)
	}
}

// More streams than an association has take another.
func TestMoreStreamsThanAnAssociationHas(t *testing.T) {
	a, b, _, _ := sctpEnds(t, Config{})
	a.cfg.MaxSend, a.cfg.MaxRecv, b.cfg.MaxSend, b.cfg.MaxRecv = 4, 4, 4, 4
	const n = 600 // of 512
	flows := make(map[transport.Flow]int)
	var last *end
	for range n {
		qp, err := a.dial(sctpLocal)
		if err != nil {
			t.Fatal(err)
		}
		flows[qp.Flow()]++
		last = a.on(qp)
	}
	if len(flows) != 2 || flows[last.qp.Flow()] != n-512 {
		t.Errorf("streams of each association: %v", flows)
	}
	last.wantAlive(b.mr(8, LocalWrite|RemoteWrite|RemoteRead))
}

// Many streams at once, more than a peer lets wait: all come up.
func TestManyStreamsAtOnce(t *testing.T) {
	a, b := newEnd(t, Config{}), newEnd(t, Config{})
	a.tc = iwarptest.SCTPInUDP(t)
	b.tc = a.tc
	acceptAll(t, b, listen(t, b, ListenConfig{Backlog: maxInitiates}))
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() {
			if _, err := a.dial(sctpLocal); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// RFC 5043 section 6.4: the requests that wait are limited; what is beyond is
// answered by a Terminate, and those that wait can still be accepted.
func TestBacklogOfSessions(t *testing.T) {
	a, b := newEnd(t, Config{}), newEnd(t, Config{})
	a.tc = iwarptest.SCTPInUDP(t)
	b.tc = a.tc
	ln := listen(t, b, ListenConfig{Backlog: 2})
	dialled := make(chan error, 3)
	for range 3 {
		go func() {
			_, err := a.dial(sctpLocal)
			dialled <- err
		}()
	}
	if err := <-dialled; !errors.Is(err, sctpadapt.ErrTerminated) {
		t.Errorf("one more than may wait: %v", err)
	}
	acceptAll(t, b, ln)
	for range 2 {
		if err := <-dialled; err != nil {
			t.Errorf("a request that waited: %v", err)
		}
	}
}

// A dialler takes no sessions of the peer's (RFC 5043 section 6.4), and goes on.
func TestDiallerTakesNoSessions(t *testing.T) {
	a, b, _, accepted := sctpEnds(t, Config{})
	x := a.another(sctpLocal, a.tc)
	mux := (<-accepted).link().(*session).a.mux
	if _, err := mux.Initiate(testContext(t), sctpadapt.Session{}); !errors.Is(err, sctpadapt.ErrTerminated) {
		t.Errorf("a session to the dialler: %v", err)
	}
	x.wantAlive(b.mr(8, LocalWrite|RemoteWrite|RemoteRead))
}

// An association on which its peer starts no session is ended, one with a session
// is not.
func TestIdleAssociationsEnd(t *testing.T) {
	a, b := newEnd(t, Config{}), newEnd(t, Config{})
	a.tc = iwarptest.SCTPInUDP(t)
	b.tc = a.tc
	acceptAll(t, b, listen(t, b, ListenConfig{}))
	x := a.another(sctpLocal, a.tc) // which has all the time to begin its session
	const idle = time.Second
	b.dev.assocs.idle.Store(int64(idle))
	begin := time.Now()
	silent, err := transport.DialSCTP(testContext(t), sctpLocal, a.tc, muxOf)
	switch d := time.Since(begin); {
	case err == nil:
		defer silent.Close()
		select {
		case <-silent.Done():
		case <-testContext(t).Done():
			t.Fatal("an association without sessions lives on")
		}
	case d < idle/2: // else it may have ended while it was admitted here
		t.Fatal(err)
	}
	x.wantAlive(b.mr(8, LocalWrite|RemoteWrite|RemoteRead))
}

// Sessions that are over here, and that the peer does not end or can't, keep no
// association: their streams count as half-open for a while only. One with an open
// stream lives on, whether its peer can be reached or not, and also behind a listener
// that is closed.
func TestEndingSessionsKeepNoAssociation(t *testing.T) {
	for name, c := range map[string]struct{ cut, closed bool }{
		"the peer says no Terminate":            {},
		"the peer is gone":                      {cut: true},
		"no Terminate behind a closed listener": {closed: true},
		"gone behind a closed listener":         {cut: true, closed: true},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newEnd(t, Config{}), newEnd(t, Config{})
			b.tc = iwarptest.SCTPInUDP(t)
			tc, relay := relayTo(t, b.tc, sctptest.Faults{})
			ln := listen(t, b, ListenConfig{})
			accepted := acceptAll(t, b, ln)
			open := a.another(sctpLocal, tc)
			<-accepted
			heard := make(chan assoc.Message, 100)
			rude, err := transport.DialSCTP(testContext(t), sctpLocal, tc, func(a assoc.Association) assoc.Receiver {
				return &overhear{sctpadapt.New(a, sctpadapt.Config{}, true), heard}
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { rude.Close() })
			initiate := func(stream uint16) *QP {
				t.Helper()
				if err := rude.SendNow(assoc.Outgoing{Stream: stream, PPID: sctpadapt.PPIDControl, Bufs: [][]byte{{0, 0, 0, byte(sctpadapt.FunctionInitiate)}}}); err != nil {
					t.Fatal(err)
				}
				return <-accepted
			}
			qps := []*QP{initiate(own)}
			b.dev.assocs.idle.Store(int64(time.Second)) // now that nothing has to begin within it, and from the next session on
			qps = append(qps, initiate(own+1))
			if c.closed {
				ln.Close()
			}
			if c.cut {
				relay.SetFaults(sctptest.Faults{Loss: 1})
			}
			for _, qp := range qps {
				qp.Abort(nil)
			}
			b.dev.wantAssociations(t, 1)
			wantHalfOpen(t, b.dev, 0)
			if !c.cut {
				<-rude.Done()
			}
			relay.SetFaults(sctptest.Faults{})
			open.wantAlive(b.mr(8, LocalWrite|RemoteWrite|RemoteRead))
		})
	}
}

// A listener that is closed and opened again, at the same port or another, gets
// streams while those of before live on.
func TestListenerIsOpenedAgainBesideItsStreams(t *testing.T) {
	a, b, ln, _ := sctpEnds(t, Config{})
	at := ln.Addr()
	before := []*end{a.another(at, a.tc)}
	for i := range 3 {
		ln.Close()
		at = netip.AddrPortFrom(at.Addr(), at.Port()+uint16(i%2))
		var err error
		if ln, err = b.dev.Listen(testContext(t), at, ListenConfig{Transport: b.tc}); err != nil {
			t.Fatalf("listening on %v beside %d streams: %v", at, len(before), err)
		}
		acceptAll(t, b, ln)
		tc := *a.tc // so that no association is shared
		before = append(before, a.another(at, &tc))
		for _, e := range before {
			e.wantAlive(b.mr(8, LocalWrite|RemoteWrite|RemoteRead))
		}
	}
}

// wantAssociations waits until the device has n associations.
func (d *Device) wantAssociations(t *testing.T, n int) {
	t.Helper()
	ctx := testContext(t)
	for {
		d.assocs.mu.Lock()
		k := len(d.assocs.all)
		d.assocs.mu.Unlock()
		switch {
		case k == n:
			return
		case ctx.Err() != nil:
			t.Fatalf("%d associations, want %d", k, n)
		}
		runtime.Gosched()
	}
}

// A dialler that gives up does not take those with it that wait for the same
// association.
func TestGivingUpIsNotShared(t *testing.T) {
	a, b, _, _ := sctpEnds(t, Config{})
	c := newCounter()
	tc := c.config(a.tc)
	waiting := make(chan struct{})
	var calls atomic.Int32
	c.prepare = func(ctx context.Context) error {
		if calls.Add(1) > 1 {
			return nil
		}
		close(waiting)
		<-ctx.Done()
		return ctx.Err()
	}
	ctx, giveUp := context.WithCancel(testContext(t))
	first := make(chan error)
	go func() {
		_, err := a.pd.Dial(ctx, DialConfig{QP: a.cfg, Remote: sctpLocal, Transport: tc})
		first <- err
	}()
	<-waiting
	second := make(chan error)
	go func() {
		qp, err := a.pd.Dial(testContext(t), DialConfig{QP: a.cfg, Prepare: func(qp *QP) error { a.qp = qp; return nil }, Remote: sctpLocal, Transport: tc})
		if err == nil {
			a.qp = qp
		}
		second <- err
	}()
	giveUp()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("the first: %v", err)
	}
	if err := <-second; err != nil {
		t.Fatalf("the second: %v", err)
	}
	a.wantAlive(b.mr(8, LocalWrite|RemoteWrite|RemoteRead))
}

// Against a peer that knows RFC 5043 and not RFC 6581 the session starts without
// IRD and ORD.
func TestPlainPeers(t *testing.T) {
	a, b, _, accepted := sctpEnds(t, Config{})
	a.qp = nil
	qp, err := a.pd.Dial(testContext(t), DialConfig{QP: a.cfg, Remote: sctpLocal, Transport: a.tc, Setup: Setup{Plain: true}})
	if err != nil {
		t.Fatal(err)
	}
	a.on(qp).wantAlive(b.mr(8, LocalWrite|RemoteWrite|RemoteRead))
	if qp := <-accepted; qp.ORD() != b.cfg.ORD {
		t.Errorf("ORD %d", qp.ORD())
	}

	// A listener that ends every Enhanced Initiate, as one must that does not know
	// it, and that has one association.
	tc := iwarptest.SCTPInUDP(t)
	ln, err := transport.ListenSCTP(testContext(t), sctpLocal, tc, muxOf)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	served := make(chan error, 1)
	go func() {
		assoc, err := ln.Accept(testContext(t))
		if err != nil {
			served <- err
			return
		}
		defer assoc.Close()
		mux := assoc.Receiver().(*sctpadapt.Mux)
		for {
			r, err := mux.Accept(testContext(t))
			if err != nil {
				served <- err
				return
			}
			if r.Enhanced != nil {
				r.Close()
				continue
			}
			s, err := r.Accept(sctpadapt.Session{})
			if err == nil {
				s.Drain(20 * time.Second)
				err = s.Close()
			}
			served <- err
			return
		}
	}()
	qp, err = a.pd.Dial(testContext(t), DialConfig{QP: a.cfg, Remote: sctpLocal, Transport: tc})
	if err != nil {
		t.Fatal(err)
	}
	qp.Abort(nil)
	<-qp.Done()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// Private data has 512 bytes, less the 4 of IRD and ORD (RFC 5043 section 5.2.3,
// RFC 6581 section 7).
func TestPrivateDataOverSCTP(t *testing.T) {
	a, b := newEnd(t, Config{}), newEnd(t, Config{})
	a.tc = iwarptest.SCTPInUDP(t)
	b.tc = a.tc
	ln := listen(t, b, ListenConfig{})
	long := make([]byte, 508)
	fill(long, 3)
	accepted := make(chan error, 1)
	go func() {
		r, err := ln.Accept(testContext(t))
		if err == nil {
			if string(r.PrivateData()) != string(long) {
				t.Error("other private data came in the request")
			}
			_, err = r.Accept(testContext(t), b.pd, AcceptConfig{QP: b.cfg, PrivateData: long})
		}
		accepted <- err
	}()
	dial := DialConfig{Remote: sctpLocal, Transport: a.tc, PrivateData: append(long, 1)}
	dial.QP = a.cfg
	if _, err := a.pd.Dial(testContext(t), dial); !errors.Is(err, sctpadapt.ErrPrivateData) {
		t.Errorf("509 bytes: %v", err)
	}
	dial.PrivateData = long
	dial.QP = a.cfg
	qp, err := a.pd.Dial(testContext(t), dial)
	if err := errors.Join(err, <-accepted); err != nil {
		t.Fatal(err)
	}
	if string(qp.PrivateData()) != string(long) {
		t.Error("other private data came in the answer")
	}
	qp.Close()
}
