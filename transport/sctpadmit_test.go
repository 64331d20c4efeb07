package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/transport/assoc"
	"github.com/ironwarp/ironwarp/transport/assoc/assoctest"
	"github.com/ironwarp/ironwarp/transport/sctp"
	"github.com/ironwarp/ironwarp/transport/sctp/sctptest"
)

func TestNoProtectorNoAssociation(t *testing.T) {
	at := netip.AddrPortFrom(loopbackAny.Addr(), linkPort)
	for _, kind := range []Kind{SCTP, SCTPUDP} {
		for _, cfg := range []*Config{nil, {Kind: kind}} {
			if _, err := DialSCTP(t.Context(), at, cfg, inboxes); err != ErrNoProtector {
				t.Errorf("%v: DialSCTP: %v", kind, err)
			}
			if _, err := ListenSCTP(t.Context(), at, cfg, inboxes); err != ErrNoProtector {
				t.Errorf("%v: ListenSCTP: %v", kind, err)
			}
		}
	}
}

// quiet is a UDP socket that answers nothing; heard tells how many packets it got.
// On loopback a packet is there when the call that sends it returns.
func quiet(t *testing.T) (cfg *Config, heard func() int) {
	t.Helper()
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	return &Config{Kind: SCTPUDP, UDPPort: c.LocalAddr().(*net.UDPAddr).AddrPort().Port()}, func() (n int) {
		raw.Control(func(fd uintptr) {
			for buf := make([]byte, 2048); ; n++ {
				if _, _, err := syscall.Recvfrom(int(fd), buf, syscall.MSG_DONTWAIT); err != nil {
					return
				}
			}
		})
		return n
	}
}

func TestNothingIsSentBeforeTheFlowIsPrepared(t *testing.T) {
	cfg, heard := quiet(t)
	remote := netip.AddrPortFrom(loopbackAny.Addr(), linkPort)
	want := errors.New("no SA")
	for _, tc := range []struct {
		name    string
		prepare func(context.Context, Flow) error
		packets bool
	}{
		{"refused", func(context.Context, Flow) error { return want }, false},
		{"control: prepared", nil, true},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		p := &fake{prepare: func(ctx context.Context, f Flow) error {
			if n := heard(); n > 0 {
				t.Errorf("%s: %d packets before Prepare", tc.name, n)
			}
			if f.Protocol != ProtoUDP || f.Remote.Port() != cfg.UDPPort {
				t.Errorf("%s: Prepare of %v", tc.name, f)
			}
			if tc.prepare != nil {
				return tc.prepare(ctx, f)
			}
			return nil
		}}
		// The context ends when the INIT has been there.
		done := make(chan struct{})
		var got atomic.Int64
		go func() {
			defer close(done)
			if tc.packets {
				waitFor(t, func() bool { return got.Add(int64(heard())) > 0 || ctx.Err() != nil })
			}
			cancel()
		}()
		if !tc.packets {
			<-done
			ctx = t.Context()
		}
		_, err := DialSCTP(ctx, remote, with(cfg, p), inboxes)
		cancel()
		<-done
		got.Add(int64(heard()))
		var fe *FlowError
		if !errors.As(err, &fe) || tc.packets != (fe.Op == "dial") || !tc.packets && !errors.Is(err, want) {
			t.Errorf("%s: %v", tc.name, err)
		}
		if (got.Load() > 0) != tc.packets {
			t.Errorf("%s: %d packets", tc.name, got.Load())
		}
	}
}

func TestOrderOfAPreparedAssociation(t *testing.T) {
	eachKind(t, func(t *testing.T, cfg *Config) {
		var steps []string
		p := &fake{
			prepare: func(_ context.Context, f Flow) error {
				if f.Local.Port() != 0 {
					t.Errorf("Prepare knows the local port: %v", f)
				}
				steps = append(steps, "prepare")
				return nil
			},
			admit: func(_ context.Context, f Flow, outgoing bool, _ Monitored) (Protection, error) {
				if !outgoing || f.Local.Port() == 0 || !f.Local.Addr().IsLoopback() {
					t.Errorf("Admit of %v, outgoing %v", f, outgoing)
				}
				steps = append(steps, "admit")
				return fixed{peer: "fqdn:beta", kind: "test"}, nil
			},
		}
		l := listenSCTP(t, cfg)
		a, err := DialSCTP(t.Context(), l.Addr(), with(cfg, p), func(assoc.Association) assoc.Receiver {
			steps = append(steps, "receiver")
			return assoctest.NewInbox()
		})
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		if got := strings.Join(steps, " "); got != "prepare admit receiver" || a.Protection().Peer() != "fqdn:beta" {
			t.Errorf("steps: %v, peer %q", got, a.Protection().Peer())
		}
	})
}

func TestARefusedDialEndsTheAssociation(t *testing.T) {
	eachKind(t, func(t *testing.T, cfg *Config) {
		for name, p := range map[string]*fake{
			"error": {admit: func(context.Context, Flow, bool, Monitored) (Protection, error) { return nil, ErrNotProtected }},
			"nil":   {admit: func(context.Context, Flow, bool, Monitored) (Protection, error) { return nil, nil }},
		} {
			t.Run(name, func(t *testing.T) {
				l := listenSCTP(t, cfg)
				_, err := DialSCTP(t.Context(), l.Addr(), with(cfg, p), func(assoc.Association) assoc.Receiver {
					t.Error("there is a Receiver")
					return assoctest.NewInbox()
				})
				var fe *FlowError
				if !errors.Is(err, ErrNotProtected) || !errors.As(err, &fe) || fe.Op != "admit" {
					t.Fatalf("DialSCTP: %v", err)
				}
				// Accept may have got it before it was over, or not at all.
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				if b, err := l.Accept(ctx); err == nil {
					<-b.Done()
					if len(texts(t, b.box(), 0)) != 0 {
						t.Errorf("it got %v", b.box().Messages())
					}
					b.Close()
				}
			})
		}
	})
}

// TestNoMessageIsHandedOverBeforeAdmission has a peer that sends at once. Its
// messages wait for the Protector's answer.
func TestNoMessageIsHandedOverBeforeAdmission(t *testing.T) {
	eachKind(t, func(t *testing.T, cfg *Config) {
		for _, answer := range []error{nil, ErrNotProtected} {
			t.Run(fmt.Sprint(answer), func(t *testing.T) {
				asked, go_ := make(chan struct{}), make(chan struct{})
				var admitted atomic.Bool
				p := &fake{admit: func(ctx context.Context, _ Flow, _ bool, m Monitored) (Protection, error) {
					close(asked)
					<-go_
					admitted.Store(answer == nil)
					return fixed{peer: "fqdn:alpha"}, answer
				}}
				refused := make(chan error, 1)
				s := with(cfg, p)
				s.OnRefused = func(_ Flow, err error) { refused <- err }
				box := assoctest.NewInbox()
				l, err := ListenSCTP(t.Context(), netip.AddrPortFrom(loopbackAny.Addr(), linkPort), s, func(assoc.Association) assoc.Receiver {
					if !admitted.Load() {
						t.Error("a Receiver before admission")
					}
					return box
				})
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				a, err := DialSCTP(t.Context(), l.Addr(), cfg, inboxes)
				if err != nil {
					t.Fatal(err)
				}
				defer a.Close()
				<-asked
				send(t, a, "early")
				send(t, a, "bird")
				if cfg.Kind == SCTPUDP {
					waitFor(t, func() bool { return a.Outstanding(0) == 0 }) // they are there
				}
				close(go_)
				if answer != nil {
					if err := <-refused; !errors.Is(err, answer) {
						t.Errorf("refused: %v", err)
					}
					<-a.Done()
					if len(texts(t, box, 0)) > 0 {
						t.Errorf("got %v", box.Got)
					}
					return
				}
				b, err := l.Accept(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer b.Close()
				send(t, a, "late")
				if got := strings.Join(texts(t, box, 3), " "); got != "early bird late" {
					t.Errorf("got %q", got)
				}
				box.Lock()
				defer box.Unlock()
				if len(box.Events) == 0 || box.Events[0].Kind != assoc.EventUp {
					t.Errorf("events %v", box.Events)
				}
			})
		}
	})
}

// waitFor waits until ok is true; the test's own deadline bounds it.
func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	every := time.NewTicker(time.Millisecond)
	defer every.Stop()
	for !ok() {
		<-every.C
	}
}

// TestStrangersGetNoAnswer counts what a listener sends back to an address that
// the Protector does not know.
func TestStrangersGetNoAnswer(t *testing.T) {
	stranger := fmt.Errorf("%w: nobody knows this address", ErrNotProtected)
	for _, tc := range []struct {
		name string
		p    Protector
		ok   bool
	}{
		{"screened", &screened{screen: func(Flow) error { return stranger }}, false},
		{"screened per peer", PerPeer(func(netip.Addr) (Protector, error) {
			return &screened{screen: func(Flow) error { return stranger }}, nil
		}), false},
		{"unknown to PerPeer", PerPeer(func(netip.Addr) (Protector, error) { return nil, nil }), false},
		{"plaintext with another", Plaintext(nil, netip.MustParseAddr("192.0.2.9")), false},
		{"control: known", &screened{screen: func(Flow) error { return nil }}, true},
		{"control: no Screener", &fake{}, true},
		{"control: loopback", PerPeer(func(netip.Addr) (Protector, error) { return LoopbackOnly(), nil }), true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := udpConfig(t, tc.p)
			refused := make(chan Flow, 10)
			cfg.OnRefused = func(f Flow, err error) {
				if !errors.Is(err, ErrNotProtected) {
					t.Errorf("refused: %v", err)
				}
				refused <- f
			}
			l := listenSCTP(t, cfg)
			var answers atomic.Int64
			relay, err := sctptest.NewRelay(netip.AddrPortFrom(l.Addr().Addr(), cfg.UDPPort), sctptest.Faults{Drop: func(fromClient bool, _ []byte) bool {
				if !fromClient {
					answers.Add(1)
				}
				return false
			}}, 1)
			if err != nil {
				t.Fatal(err)
			}
			defer relay.Close()
			c := &Config{Protector: LoopbackOnly(), Kind: SCTPUDP, UDPPort: relay.Addr().Port()}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if !tc.ok {
				go func() {
					f := <-refused
					if f.Protocol != ProtoUDP || f.Local.Port() != cfg.UDPPort || !f.Remote.Addr().IsLoopback() {
						t.Errorf("refused flow %v", f)
					}
					cancel()
				}()
			}
			a, err := DialSCTP(ctx, l.Addr(), c, inboxes)
			if err == nil {
				a.Close()
			}
			if (err == nil) != tc.ok {
				t.Errorf("DialSCTP: %v", err)
			}
			l.Close() // whatever it sends is sent
			if n := answers.Load(); (n > 0) != tc.ok {
				t.Errorf("%d packets came back", n)
			}
		})
	}
}

// TestADialThatIsGivenUpTellsOfPacketsThatCouldNotLeave sends from a loopback
// address to another network, which the kernel refuses, as it does what a guard
// stops.
func TestADialThatIsGivenUpTellsOfPacketsThatCouldNotLeave(t *testing.T) {
	remote := netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), linkPort)
	cfg := &Config{Kind: SCTPUDP, Protector: &fake{}, Local: loopbackAny.Addr(), UDPPort: 9}
	for wait := 50 * time.Millisecond; ; wait *= 2 { // until that is after the first INIT, however slow the machine is
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(wait, cancel)
		_, err := DialSCTP(ctx, remote, cfg, inboxes)
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("%v", err)
		}
		if errno := syscall.Errno(0); errors.As(err, &errno) {
			return
		}
		if wait > 20*time.Second {
			t.Fatalf("%v", err)
		}
	}
}

// TestTheDiallersSocketIsForItsPeerAlone has somebody else send an INIT to it,
// which an endpoint that takes none answers by an ABORT.
func TestTheDiallersSocketIsForItsPeerAlone(t *testing.T) {
	cfg := udpConfig(t, LoopbackOnly())
	a, _ := associate(t, cfg, cfg)
	knock := func(at netip.AddrPort, params assoc.Params) error {
		conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		ep, err := sctp.Listen(conn, sctp.Config{
			Params: params,
			Admit:  func(_, _ netip.AddrPort, _ bool) error { return nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		defer ep.Close()
		_, err = ep.Dial(t.Context(), at, sctp.DialConfig{Receiver: func(*sctp.Assoc) assoc.Receiver { return refusedReceiver{} }})
		return err
	}
	short := assoc.Params{RTOInitial: 20 * time.Millisecond, RTOMin: 20 * time.Millisecond, MaxInitRetrans: 2}
	if err := knock(a.Flow().Local, short); !errors.Is(err, assoc.ErrPeerUnreachable) {
		t.Errorf("the dialler's socket: %v", err)
	}
	if err := knock(a.Flow().Remote, assoc.Params{}); !errors.Is(err, &assoc.AbortError{}) { // as long as that takes
		t.Errorf("control, the listener's socket: %v", err)
	}
}

func TestAStrangerIsReportedOnceInAWhile(t *testing.T) {
	cfg := udpConfig(t, &screened{screen: func(Flow) error { return ErrNotProtected }})
	reports := make(chan struct{}, 1000)
	cfg.OnRefused = func(Flow, error) { reports <- struct{}{} }
	l := listenSCTP(t, cfg)
	for range 500 {
		l.refusedUnknown(testFlow, ErrNotProtected)
	}
	if n := len(reports); n < 1 || n > 20 { // a second each
		t.Errorf("%d reports of 500 packets", n)
	}
}

func TestAnAssociationIsBoundToAPortThatTheProtectorAsksFor(t *testing.T) {
	eachKind(t, func(t *testing.T, cfg *Config) {
		l := listenSCTP(t, cfg)
		c := &chooser{lo: 61440, hi: 62463}
		var prepared []uint16
		c.prepare = func(_ context.Context, f Flow) error { prepared = append(prepared, f.Local.Port()); return nil }
		for _, cfg := range []*Config{with(cfg, c), with(cfg, PerPeer(func(netip.Addr) (Protector, error) { return c, nil }))} {
			for range 10 {
				a, b := meet(t, l, cfg)
				if p := a.Flow().Local.Port(); p < c.lo || p > c.hi {
					t.Errorf("local port %d, %d to %d are wanted", p, c.lo, c.hi)
				}
				if b.Flow().Remote != a.Flow().Local {
					t.Errorf("flows %v and %v", a.Flow(), b.Flow())
				}
				a.Close()
				b.Close()
			}
		}
		for _, port := range prepared {
			if port != c.lo {
				t.Errorf("Prepare was asked about port %d", port)
			}
		}
		// Of a single port the second association finds none.
		c.lo, c.hi = 62464, 62464
		a, err := DialSCTP(t.Context(), l.Addr(), with(cfg, c), inboxes)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		_, err = DialSCTP(t.Context(), l.Addr(), with(cfg, c), inboxes)
		if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "62464") {
			t.Errorf("with all ports taken: %v", err)
		}
		broken := errors.New("no lane")
		c.err = broken
		if _, err = DialSCTP(t.Context(), l.Addr(), with(cfg, c), inboxes); !errors.Is(err, broken) {
			t.Errorf("without a port: %v", err)
		}
	})
}

func TestErrorsOfAssociationsSayWhatToDo(t *testing.T) {
	cfg := udpConfig(t, LoopbackOnly())
	l := listenSCTP(t, cfg)
	at := l.Addr()
	dial := func(c Config, remote netip.AddrPort) error {
		a, err := DialSCTP(t.Context(), remote, &c, inboxes)
		if err == nil {
			a.Close()
		}
		return err
	}
	base := *cfg
	_, inUse := ListenSCTP(t.Context(), at, cfg, inboxes)
	tcp := base
	tcp.Kind = TCP
	_, listenTCP := ListenSCTP(t.Context(), at, &tcp, inboxes)
	more := base
	more.MoreRemote = []netip.Addr{netip.MustParseAddr("127.0.0.2")}
	elsewhere := base
	elsewhere.Local = netip.MustParseAddr("198.51.100.7")
	elsewhere.Protector = &fake{}
	other := base
	tests := []struct {
		name  string
		err   error
		is    error
		parts []string
	}{
		{"listen", inUse, syscall.EADDRINUSE, []string{"listen udp", fmt.Sprint(cfg.UDPPort), "ss -lunp"}},
		{"listen tcp", listenTCP, nil, []string{"Dial and Listen"}},
		{"dial tcp", dial(tcp, at), nil, []string{"Dial and Listen"}},
		{"no port", dial(base, netip.AddrPort{}), nil, []string{"missing"}},
		{"several addresses", dial(more, at), nil, []string{"kernel's SCTP"}},
		{"no such address", dial(elsewhere, at), syscall.EADDRNOTAVAIL, []string{"198.51.100.7", "no interface"}},
		{"another SCTP port", dial(other, netip.AddrPortFrom(at.Addr(), at.Port()+1)), &assoc.AbortError{}, []string{"aborted"}},
		{"adaptation", flowError("dial", testFlow, &assoc.AdaptationError{Want: 1, None: true}), assoc.ErrAdaptation, []string{"something else than RDMA"}},
		{"guard", flowError("dial", testFlow, errEPERM), syscall.EPERM, []string{"guard"}},
	}
	for _, tt := range tests {
		var fe *FlowError
		if !errors.As(tt.err, &fe) || tt.is != nil && !errors.Is(tt.err, tt.is) {
			t.Errorf("%s: %v is not a FlowError of %v", tt.name, tt.err, tt.is)
			continue
		}
		for _, part := range tt.parts {
			if !strings.Contains(tt.err.Error(), part) {
				t.Errorf("%s: %q lacks %q", tt.name, tt.err, part)
			}
		}
	}
}
