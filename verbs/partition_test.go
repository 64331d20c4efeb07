package verbs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/transport"
)

// rules is a Partitions that tests change.
type rules struct {
	allowed atomic.Pointer[map[string]bool] // "LABEL PARTITION", and "PARTITION with PEER"
	// asked, if not nil, is called when it has decided, and before it says so.
	asked func(label, partition string, err error)
}

func newRules(allowed ...string) *rules {
	r := new(rules)
	r.publish(allowed...)
	return r
}

func (r *rules) publish(allowed ...string) {
	m := map[string]bool{}
	for _, a := range allowed {
		m[a] = true
	}
	r.allowed.Store(&m)
}

var errRules = errors.New("by policy test.te")

func (r *rules) MayUse(label, partition string) (err error) {
	if !(*r.allowed.Load())[label+" "+partition] {
		err = fmt.Errorf("%s may not use %s, %w", label, partition, errRules)
	}
	if r.asked != nil {
		r.asked(label, partition, err)
	}
	return err
}

func (r *rules) MayTalk(partition, peer string) error {
	if !(*r.allowed.Load())[partition+" with "+peer] {
		return fmt.Errorf("no link with %s in %s, %w", peer, partition, errRules)
	}
	return nil
}

const withLoopback = "lab with loopback"

// inLab is an end whose queue pairs are of partition lab, with label hpc.
func inLab(t testing.TB, r *rules) *end {
	e := newEnd(t, Config{Partitions: r})
	e.dev.SetLabel(e.ulp, "hpc")
	e.cfg.Partition = "lab"
	return e
}

func labListener(label string) ListenConfig {
	return ListenConfig{Partition: "lab", Label: func() string { return label }}
}

// wantDenied checks that an error names the label, the partition and the policy.
func wantDenied(t *testing.T, what string, err error, words ...string) {
	t.Helper()
	var p *PartitionError
	if !errors.Is(err, ErrPartition) || !errors.As(err, &p) || p.Partition != "lab" || !errors.Is(err, errRules) && !errors.Is(err, errNoPartitions) && !errors.Is(err, errOtherPartition) {
		t.Errorf("%s: %v", what, err)
		return
	}
	for _, w := range append(words, "lab") {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%s: %v\nhas no %q", what, err, w)
		}
	}
}

func TestQueuePairOfTheWrongLabelIsNotMade(t *testing.T) {
	r := newRules("viewer lab")
	e := inLab(t, r)
	before := e.dev.Usage()
	_, err := e.pd.CreateQP(e.cfg)
	wantDenied(t, "create", err, "label hpc", "test.te")
	llp, _ := iwarptest.Pair(iwarptest.Options{})
	_, err = e.pd.Adopt(AdoptConfig{QP: e.cfg, LLP: llp, Conn: fakeConn{"loopback"}, IRD: 4, ORD: 4})
	wantDenied(t, "adopt", err, "label hpc", "test.te")
	r.publish("hpc lab")
	_, err = e.pd.Adopt(AdoptConfig{QP: e.cfg, LLP: llp, Conn: fakeConn{"loopback"}, IRD: 4, ORD: 4})
	wantDenied(t, "adopt from a host without a link", err, "no link with loopback")
	r.publish("viewer lab")
	own := e.cfg
	own.Label = "viewer"
	if qp, err := e.pd.CreateQP(own); err != nil {
		t.Errorf("with a label of its own: %v", err)
	} else {
		if qp.Label() != "viewer" || qp.Partition() != "lab" {
			t.Errorf("label %q, partition %q", qp.Label(), qp.Partition())
		}
		qp.Abort(nil)
		<-qp.Done()
	}
	own.Partition, own.Label = "", "nobody"
	if qp, err := e.pd.CreateQP(own); err != nil {
		t.Errorf("of no partition: %v", err)
	} else {
		qp.Abort(nil)
		<-qp.Done()
	}
	// What was made and never connected is freed by a goroutine of the device.
	for after := e.dev.Usage(); after != before; after = e.dev.Usage() {
		select {
		case <-t.Context().Done():
			t.Fatalf("usage %+v, before %+v", after, before)
		default:
			runtime.Gosched()
		}
	}
	none := newEnd(t, Config{})
	none.cfg.Partition = "lab"
	_, err = none.pd.CreateQP(none.cfg)
	wantDenied(t, "on a device without partitions", err)
	if _, err := none.dev.Listen(t.Context(), localOf(none), ListenConfig{Transport: tcp, Partition: "lab"}); !errors.Is(err, ErrPartition) {
		t.Errorf("listen on a device without partitions: %v", err)
	}
}

// TestRequestOfTheWrongLabelIsNotSent: not a packet leaves, over TCP as over SCTP in UDP.
func TestRequestOfTheWrongLabelIsNotSent(t *testing.T) {
	r := newRules("viewer lab", withLoopback)
	e := inLab(t, r)
	tcpAt, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcpAt.Close()
	udpAt, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer udpAt.Close()
	to := tcpAt.Addr().(*net.TCPAddr).AddrPort()
	_, err = e.pd.Dial(t.Context(), DialConfig{QP: e.cfg, Remote: to, Transport: tcp})
	wantDenied(t, "over TCP", err, "label hpc", "test.te")
	sctp := &transport.Config{Protector: transport.LoopbackOnly(), Kind: transport.SCTPUDP, UDPPort: uint16(udpAt.LocalAddr().(*net.UDPAddr).Port)}
	_, err = e.pd.Dial(t.Context(), DialConfig{QP: e.cfg, Remote: sctpLocal, Transport: sctp})
	wantDenied(t, "over SCTP in UDP", err, "label hpc", "test.te")
	r.publish("hpc lab", withLoopback)
	made, err := e.pd.CreateQP(e.cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.publish("viewer lab", withLoopback)
	_, err = e.pd.Dial(t.Context(), DialConfig{QP: QPConfig{IRD: 1, ORD: 1}, Made: made, Remote: to, Transport: tcp})
	wantDenied(t, "with one that was made before", err, "test.te")
	// What comes first is what is sent now.
	mark, err := net.Dial("tcp4", to.String())
	if err != nil {
		t.Fatal(err)
	}
	defer mark.Close()
	c, err := tcpAt.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if c.RemoteAddr().String() != mark.LocalAddr().String() {
		t.Error("a connection was made over TCP")
	}
	say, err := net.Dial("udp4", udpAt.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer say.Close()
	if _, err := say.Write([]byte("mark")); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 2000)
	if n, _, err := udpAt.ReadFrom(b); err != nil || string(b[:n]) != "mark" {
		t.Errorf("over SCTP in UDP came %x, %v", b[:n], err)
	}
}

// TestRequestToTheWrongLabelIsResetWithoutAReply: over TCP, whatever the peer has sent.
func TestRequestToTheWrongLabelIsResetWithoutAReply(t *testing.T) {
	for _, tc := range []struct {
		what    string
		allowed []string
	}{
		{"the listener's label may not", []string{"viewer lab", withLoopback}},
		{"there is no link with the peer", []string{"hpc lab"}},
	} {
		r := newRules(tc.allowed...)
		e := inLab(t, r)
		cfg := labListener("hpc")
		refused := make(chan error, 1)
		e.tc = &transport.Config{Protector: transport.LoopbackOnly(), OnRefused: func(_ transport.Flow, err error) { refused <- err }}
		ln := listen(t, e, cfg)
		c, err := net.Dial("tcp4", ln.Addr().String())
		if err == nil {
			_, err = c.Write(mpaRequestBytes(t)) // which fails if it is reset before
			n, rerr := io.Copy(io.Discard, c)
			if n != 0 {
				t.Errorf("%s: %d bytes came", tc.what, n)
			}
			err = cmp.Or(err, rerr)
			c.Close()
		}
		if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
			t.Errorf("%s: the connection ended with %v", tc.what, err)
		}
		wantDenied(t, tc.what, <-refused, "test.te")
		// The same listener takes the same request when it may.
		r.publish("hpc lab", withLoopback)
		accepted := acceptAll(t, e, ln)
		o := newEnd(t, Config{Partitions: newRules("hpc lab", withLoopback)})
		o.dev.SetLabel(o.ulp, "hpc")
		o.cfg.Partition = "lab"
		if _, err := o.dial(ln.Addr()); err != nil {
			t.Errorf("%s: when it may: %v", tc.what, err)
			continue
		}
		if qp := <-accepted; qp.Partition() != "lab" || qp.Label() != "hpc" {
			t.Errorf("partition %q, label %q", qp.Partition(), qp.Label())
		}
	}
}

// mpaRequestBytes are what a dialler sends first.
func mpaRequestBytes(t *testing.T) []byte {
	t.Helper()
	near, far := net.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if c, err := mpa.Client(ctx, near, nil); err == nil {
			c.Close()
		}
	})
	b := make([]byte, 512)
	n, err := far.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	far.Close()
	near.Close()
	wg.Wait()
	return b[:n]
}

// TestRequestToTheWrongLabelMeetsSilenceInUDP: the same INIT that is answered when it may come gets no packet when
// it may not.
func TestRequestToTheWrongLabelMeetsSilenceInUDP(t *testing.T) {
	sink, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	a := newEnd(t, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	var dialled sync.WaitGroup
	dialled.Go(func() {
		_, err := a.pd.Dial(ctx, DialConfig{QP: a.cfg, Remote: sctpLocal, Transport: &transport.Config{Protector: transport.LoopbackOnly(), Kind: transport.SCTPUDP, UDPPort: uint16(sink.LocalAddr().(*net.UDPAddr).Port)}})
		if err == nil {
			t.Error("a sink has taken a stream")
		}
	})
	init := make([]byte, 2000)
	n, _, err := sink.ReadFrom(init)
	if err != nil {
		t.Fatal(err)
	}
	init = init[:n]
	cancel()
	dialled.Wait()

	r := newRules("viewer lab", withLoopback)
	e := inLab(t, r)
	refused := make(chan error, 16)
	e.tc = iwarptest.SCTPInUDP(t)
	e.tc.OnRefused = func(_ transport.Flow, err error) { refused <- err }
	listen(t, e, labListener("hpc"))
	c, err := net.Dial("udp4", netip.AddrPortFrom(sctpLocal.Addr(), e.tc.UDPPort).String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	answered := func(within time.Duration) bool {
		if _, err := c.Write(init); err != nil {
			t.Fatal(err)
		}
		if err := c.SetReadDeadline(time.Now().Add(within)); err != nil {
			t.Fatal(err)
		}
		_, err := c.Read(make([]byte, 2000))
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
		return err == nil
	}
	if answered(200 * time.Millisecond) {
		t.Error("an INIT that may not come is answered")
	}
	wantDenied(t, "the INIT", <-refused, "test.te")
	r.publish("hpc lab", withLoopback)
	if !answered(time.Minute) {
		t.Error("an INIT that may come is not answered")
	}
}

// labStream is a stream of partition lab over a carrier, and one of no partition beside it.
type labStream struct {
	a, b   *end
	rules  *rules // of b
	beside *end
	target *MR // of a's for b's streams
}

func newLabStream(t *testing.T, tc *transport.Config) *labStream {
	t.Helper()
	s := &labStream{rules: newRules("hpc lab", withLoopback)}
	s.a, s.b = inLab(t, newRules("hpc lab", withLoopback)), inLab(t, s.rules)
	s.a.tc, s.b.tc = tc, tc
	ln := listen(t, s.b, labListener("hpc"))
	accepted := acceptAll(t, s.b, ln)
	var err error
	if s.a.qp, err = s.a.dial(ln.Addr()); err != nil {
		t.Fatal(err)
	}
	s.b.qp = <-accepted
	beside := *s.b
	beside.tc = &transport.Config{Protector: transport.LoopbackOnly()}
	beside.cfg.Partition = ""
	free := listen(t, &beside, ListenConfig{})
	more := acceptAll(t, &beside, free)
	x := *s.a
	x.tc, x.cfg.Partition = beside.tc, ""
	s.beside = x.another(free.Addr(), x.tc)
	<-more
	s.target = s.b.mr(1<<20, RemoteWrite|RemoteRead|LocalWrite)
	eventsSoFar(s.b.dev)
	return s
}

// TestChangedPolicyEndsQueuePairs: under I/O both ways the policy, the label or the members of a partition change.
// The queue pair goes to Error at once, with an event that says why; nothing that the peer sends is placed
// after that; and streams of no partition go on.
func TestChangedPolicyEndsQueuePairs(t *testing.T) {
	for _, carrier := range carriers {
		for _, tc := range []struct {
			what   string
			change func(s *labStream)
			words  string
		}{
			{"another policy", func(s *labStream) { s.rules.publish("viewer lab", withLoopback) }, "hpc may not use lab"},
			{"another label", func(s *labStream) { s.b.dev.SetLabel(s.b.ulp, "viewer") }, "viewer may not use lab"},
			{"the peer is no member", func(s *labStream) { s.rules.publish("hpc lab") }, "no link with loopback"},
		} {
			t.Run(carrier.name+" "+tc.what, func(t *testing.T) {
				s := newLabStream(t, carrier.config(t))
				src := s.a.mr(1<<16, 0)
				stop := make(chan struct{})
				var writer sync.WaitGroup
				writer.Go(func() { // until the stream ends
					for n := byte(1); ; n++ {
						src.Bytes()[0] = n
						wr := SendWR{Op: OpWrite, Flags: Signaled, SGL: whole(src, 1<<16), RemoteSTag: s.target.STag()}
						if err := s.a.qp.PostSend(&wr); err != nil {
							return
						}
						if wc, err := s.a.cq.Next(context.Background()); err != nil || wc.Err != nil {
							return
						}
						select {
						case <-stop:
							return
						default:
						}
					}
				})
				defer func() { close(stop); writer.Wait() }()
				for s.b.qp.Stats().RecvBytes < 1<<20 { // it is live
					select {
					case <-s.b.qp.Done():
						t.Fatal(s.b.qp.Err())
					default:
					}
				}
				if n := s.b.dev.CheckPartitions(); n != 0 || s.b.qp.State() != QPRTS {
					t.Fatalf("without a change %d queue pairs are ended", n)
				}
				tc.change(s)
				if n := s.b.dev.CheckPartitions(); n != 1 {
					t.Errorf("%d queue pairs are ended", n)
				}
				<-s.b.qp.Done()
				placed := s.b.qp.Stats().RecvBytes
				wantDenied(t, "the queue pair", s.b.qp.Err(), tc.words)
				if st := s.b.qp.State(); st != QPError {
					t.Errorf("it is in %v", st)
				}
				var found bool
				for _, ev := range eventsSoFar(s.b.dev) {
					found = found || ev.Kind == EventPartition && ev.QP == s.b.qp.ID() && ev.Peer == "loopback" && errors.Is(ev.Err, ErrPartition)
				}
				if !found {
					t.Error("there is no event")
				}
				<-s.a.qp.Done()
				if now := s.b.qp.Stats().RecvBytes; now != placed {
					t.Errorf("%d bytes were placed when it had ended", now-placed)
				}
				s.beside.wantAlive(s.target)
				if n := s.b.dev.CheckPartitions(); n != 0 {
					t.Errorf("%d are ended once more", n)
				}
				s.b.dev.wantAssociations(t, 0)
				if err := s.b.pd.mayStill(s.b); !errors.Is(err, ErrPartition) {
					t.Errorf("another one: %v", err)
				}
			})
		}
	}
}

// mayStill creates one more queue pair, for a moment.
func (pd *PD) mayStill(e *end) error {
	qp, err := pd.CreateQP(e.cfg)
	if err != nil {
		return err
	}
	if err := pd.ulp.dev.mayUse("talk", qp.Label(), "lab", "loopback"); err != nil { // CreateQP knows no peer
		qp.Abort(nil)
		<-qp.Done()
		return err
	}
	qp.Abort(nil)
	<-qp.Done()
	return nil
}

// TestNoQueuePairSlipsBetweenPolicyAndWalk: the policy changes, and the queue pairs are looked at, between the moment
// in which one was allowed by the old policy and that in which its maker has it. It is among those that are ended.
func TestNoQueuePairSlipsBetweenPolicyAndWalk(t *testing.T) {
	r := newRules("hpc lab")
	e := inLab(t, r)
	var once sync.Once
	r.asked = func(_, _ string, err error) {
		if err == nil {
			once.Do(func() {
				r.publish()
				e.dev.CheckPartitions()
			})
		}
	}
	qp, err := e.pd.CreateQP(e.cfg)
	if err != nil {
		t.Fatalf("it was not allowed by the old policy: %v", err)
	}
	select {
	case <-qp.Done():
	case <-time.After(time.Minute):
	}
	if qp.State() != QPError || !errors.Is(qp.Err(), ErrPartition) {
		t.Errorf("it is in %v: %v", qp.State(), qp.Err())
	}
}

// TestQueuePairsAreMadeWhileThePolicyChanges: many at once, made and joined to streams, by label and by
// partition; when the last change has been looked at, none is left that may not be.
func TestQueuePairsAreMadeWhileThePolicyChanges(t *testing.T) {
	r := newRules("hpc lab", withLoopback)
	e := inLab(t, r)
	e.tc = &transport.Config{Protector: transport.LoopbackOnly()}
	ln := listen(t, e, labListener("hpc"))
	var wg sync.WaitGroup
	var mu sync.Mutex
	var made []*QP
	keep := func(qp *QP, err error) {
		if err != nil && !errors.Is(err, ErrPartition) && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, net.ErrClosed) && !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		if err == nil {
			mu.Lock()
			made = append(made, qp)
			mu.Unlock()
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	wg.Go(func() {
		for {
			cr, err := ln.Accept(ctx)
			if err != nil {
				return
			}
			keep(cr.Accept(ctx, e.pd, AcceptConfig{QP: e.cfg}))
		}
	})
	keep(e.pd.CreateQP(e.cfg))
	var makers sync.WaitGroup
	for i := range 4 {
		makers.Go(func() {
			for range 20 {
				if i%2 == 0 {
					keep(e.pd.CreateQP(e.cfg))
				} else {
					keep(e.dial(ln.Addr()))
				}
			}
		})
	}
	ready := make(chan struct{})
	go func() { makers.Wait(); close(ready) }()
	for i, on := 0, true; on || i < 50; i++ {
		r.publish([...]string{"viewer lab", "hpc lab"}[i%2], withLoopback)
		e.dev.CheckPartitions()
		select {
		case <-ready:
			on = false
		default:
		}
	}
	r.publish("viewer lab", withLoopback)
	e.dev.CheckPartitions()
	cancel()
	wg.Wait()
	for _, qp := range made {
		<-qp.Done()
		if qp.State() != QPError {
			t.Errorf("one is in %v", qp.State())
		}
	}
	if len(made) == 0 {
		t.Error("none was made")
	}
}

func TestQueuePairKeepsItsPartition(t *testing.T) {
	r := newRules("hpc lab", "hpc other", withLoopback, "other with loopback")
	e := inLab(t, r)
	e.tc = tcp
	ln := listen(t, e, labListener("hpc"))
	made, err := e.pd.CreateQP(e.cfg)
	if err != nil {
		t.Fatal(err)
	}
	other := e.cfg
	other.Partition = "other"
	_, err = e.pd.Dial(testContext(t), DialConfig{QP: other, Made: made, Remote: ln.Addr(), Transport: tcp})
	if !errors.Is(err, ErrPartition) || !errors.Is(err, errOtherPartition) {
		t.Errorf("dial in another partition: %v", err)
	}
}

// TestMadeQueuePairGetsNoStreamWithoutALink: one that was made when no peer was known is asked about again when it gets its stream.
func TestMadeQueuePairGetsNoStreamWithoutALink(t *testing.T) {
	r := newRules("hpc lab")
	e := inLab(t, r)
	e.tc = tcp
	ln := listen(t, e, ListenConfig{})
	made, err := e.pd.CreateQP(e.cfg)
	if err != nil {
		t.Fatal(err)
	}
	_, err = e.pd.Dial(testContext(t), DialConfig{QP: e.cfg, Made: made, Remote: ln.Addr(), Transport: tcp})
	wantDenied(t, "dial a host without a link", err, "no link with loopback")
	if st := made.State(); st == QPRTS {
		t.Errorf("the queue pair is in %v", st)
	}
}

// TestAssociationWithoutStreamsEndsWithItsPartition: an SCTP association on which nothing has been asked for yet ends at once, as no queue pair
// does it for it, when its label may not use its listener's partition any more.
func TestAssociationWithoutStreamsEndsWithItsPartition(t *testing.T) {
	r := newRules("hpc lab", withLoopback)
	e := inLab(t, r)
	e.tc = iwarptest.SCTPInUDP(t)
	e.dev.assocs.idle.Store(int64(time.Hour))
	listen(t, e, labListener("hpc"))
	silent, err := transport.DialSCTP(testContext(t), sctpLocal, e.tc, muxOf)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	e.dev.wantAssociations(t, 1)
	if e.dev.CheckPartitions(); silent.Err() != nil {
		t.Fatalf("without a change: %v", silent.Err())
	}
	r.publish("viewer lab", withLoopback)
	e.dev.CheckPartitions()
	e.dev.wantAssociations(t, 0)
	select {
	case <-silent.Done():
	case <-testContext(t).Done():
		t.Error("the peer still has the association")
	}
}

// TestWhatIsUnsentIsNotSentWhenThePolicyChanges: the peer's host takes nothing for a while, so that the kernel has bytes of a queue pair to send when
// its label may not use the partition any more. They are forgotten: the connection ends by a reset, and not behind them.
func TestWhatIsUnsentIsNotSentWhenThePolicyChanges(t *testing.T) {
	r := newRules("hpc lab", withLoopback)
	a, b := inLab(t, r), inLab(t, newRules("hpc lab", withLoopback))
	a.tc, b.tc = tcp, tcp
	ln := listen(t, b, labListener("hpc"))
	accepted := acceptAll(t, b, ln)
	between, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer between.Close()
	resume, ended := make(chan struct{}), make(chan error, 1)
	up := make(chan struct{})
	go func() {
		ended <- func() error {
			from, err := between.Accept()
			if err != nil {
				return err
			}
			defer from.Close()
			to, err := net.Dial("tcp4", ln.Addr().String())
			if err != nil {
				return err
			}
			defer to.Close()
			go func() { _, _ = io.Copy(from, to) }() // until one of them is closed
			buf := make([]byte, 1<<16)
			for n := 0; ; {
				select {
				case <-up: // from now on the host is slow
					<-resume
				default:
				}
				if n, err = from.Read(buf); err != nil {
					return err
				}
				if _, err := to.Write(buf[:n]); err != nil {
					return err
				}
			}
		}()
	}()
	if a.qp, err = a.dial(between.Addr().(*net.TCPAddr).AddrPort()); err != nil {
		t.Fatal(err)
	}
	b.qp = <-accepted
	target, src := b.mr(1<<20, RemoteWrite|LocalWrite), a.mr(1<<20, 0)
	close(up)
	for range 32 {
		if err := a.qp.PostSend(&SendWR{Op: OpWrite, SGL: whole(src, 1<<20), RemoteSTag: target.STag()}); err != nil {
			break // its queue is full, too
		}
	}
	waiting := func() int {
		n, err := a.qp.link().(interface{ Outq() (int, error) }).Outq()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for before := 0; before == 0 || before != waiting(); { // until the peer's kernel takes nothing more
		before = waiting()
		<-time.After(200 * time.Millisecond)
	}
	r.publish("viewer lab", withLoopback)
	if n := a.dev.CheckPartitions(); n != 1 {
		t.Fatalf("%d queue pairs are ended", n)
	}
	<-a.qp.Done()
	close(resume)
	select {
	case err := <-ended:
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the connection ends by %v, with what was unsent", err)
		}
	case <-testContext(t).Done():
		t.Error("the connection does not end")
	}
}
