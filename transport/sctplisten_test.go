package transport

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/transport/assoc"
)

// tryDial sets up an association that the listener may refuse.
func tryDial(t *testing.T, l *SCTPListener, cfg *Config) *Assoc {
	t.Helper()
	a, err := DialSCTP(t.Context(), l.Addr(), cfg, inboxes)
	if err != nil {
		if errors.Is(err, &assoc.AbortError{}) {
			return nil // so fast that this end saw it in the handshake
		}
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	return a
}

func TestRefusedAssociationsAreReportedAndDoNotBlockOthers(t *testing.T) {
	eachKind(t, func(t *testing.T, cfg *Config) {
		type refusal struct {
			f   Flow
			err error
		}
		refusals := make(chan refusal, 1)
		hanging := make(chan struct{})
		// The first one's admission hangs, the second is refused, the third passes.
		var n atomic.Int32
		p := &fake{admit: func(ctx context.Context, f Flow, outgoing bool, _ Monitored) (Protection, error) {
			if outgoing {
				t.Error("an accepted flow is called outgoing")
			}
			switch n.Add(1) {
			case 1:
				close(hanging)
				<-ctx.Done()
				return nil, ErrNotProtected
			case 2:
				return nil, ErrNotProtected
			}
			return fixed{peer: "third"}, nil
		}}
		s := with(cfg, p)
		s.OnRefused = func(f Flow, err error) { refusals <- refusal{f, err} }
		l := listenSCTP(t, s)
		tryDial(t, l, cfg)
		<-hanging
		second := tryDial(t, l, cfg)
		r := <-refusals
		if !errors.Is(r.err, ErrNotProtected) || second != nil && r.f.Remote != second.Flow().Local {
			t.Errorf("refused %v: %v", r.f, r.err)
		}
		if second != nil {
			<-second.Done()
			if !errors.Is(second.Err(), &assoc.AbortError{}) {
				t.Errorf("the refused end sees %v", second.Err())
			}
		}
		tryDial(t, l, cfg)
		a, err := l.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		if a.Protection().Peer() != "third" {
			t.Errorf("accepted %v", a.Protection().Peer())
		}
	})
}

func TestPendingAssociationsAreBounded(t *testing.T) {
	eachKind(t, func(t *testing.T, cfg *Config) {
		refusals := make(chan error, 10)
		s := *cfg
		s.MaxPending = 4
		s.OnRefused = func(_ Flow, err error) { refusals <- err }
		l := listenSCTP(t, &s)
		// One address may hold half of the four.
		for range 2 {
			tryDial(t, l, cfg)
		}
		third := tryDial(t, l, cfg)
		if err := <-refusals; !errors.Is(err, ErrBusy) {
			t.Fatalf("the third pending association of one address: %v", err)
		}
		if third != nil {
			<-third.Done()
		}
		for range 2 {
			a, err := l.Accept(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer a.Close()
		}
		// Room again.
		tryDial(t, l, cfg)
		a, err := l.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		a.Close()
	})
}

func TestAdmissionOfAnAssociationTimesOut(t *testing.T) {
	eachKind(t, func(t *testing.T, cfg *Config) {
		slow := &fake{admit: func(ctx context.Context, _ Flow, _ bool, _ Monitored) (Protection, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}}
		refusals := make(chan error, 1)
		s := with(cfg, slow)
		s.OnRefused = func(_ Flow, err error) { refusals <- err }
		for s.AdmitTimeout = time.Millisecond; ; s.AdmitTimeout *= 2 { // a slow machine may need more to ask the Protector
			l := listenSCTP(t, s)
			tryDial(t, l, cfg)
			var fe *FlowError
			if err := <-refusals; !errors.As(err, &fe) || !fe.Timeout() || fe.Op != "admit" && s.AdmitTimeout > 20*time.Second {
				t.Fatalf("%v", err)
			}
			if fe.Op == "admit" {
				return
			}
			l.Close()
		}
	})
}

func TestSCTPListenerCloseIsPromptAndComplete(t *testing.T) {
	eachKind(t, func(t *testing.T, cfg *Config) {
		entered := make(chan struct{}, 2)
		prot := &counted{}
		var n atomic.Int32
		p := &fake{admit: func(ctx context.Context, f Flow, outgoing bool, c Monitored) (Protection, error) {
			first := n.Add(1) == 1
			entered <- struct{}{}
			if first {
				return prot, nil // and waits for an Accept that does not come
			}
			<-ctx.Done()
			return nil, ctx.Err()
		}}
		s := with(cfg, p)
		s.OnRefused = func(f Flow, err error) { t.Errorf("refused %v: %v", f, err) }
		l := listenSCTP(t, s)
		var dialled []*Assoc
		for range 2 {
			dialled = append(dialled, tryDial(t, l, cfg))
			<-entered
		}
		for range 2 {
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if prot.released() != 1 {
			t.Errorf("the protection of the association that was not accepted was released %d times", prot.released())
		}
		if _, err := l.Accept(t.Context()); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept after Close: %v", err)
		}
		for _, a := range dialled {
			<-a.Done()
		}
		// The port is free.
		again, err := ListenSCTP(t.Context(), l.Addr(), s, inboxes)
		if err != nil {
			t.Fatal(err)
		}
		again.Close()
	})
}

func TestAcceptedAssociationsOutliveTheirListener(t *testing.T) {
	eachKind(t, func(t *testing.T, cfg *Config) {
		l := listenSCTP(t, cfg)
		a := tryDial(t, l, cfg)
		b, err := l.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		send(t, a, "still")
		send(t, b, "here")
		if got := texts(t, b.box(), 1)[0] + texts(t, a.box(), 1)[0]; got != "stillhere" {
			t.Errorf("got %q", got)
		}
		if c, err := DialSCTP(t.Context(), l.Addr(), cfg, inboxes); err == nil {
			c.Close()
			if got := c.Err(); !errors.Is(got, &assoc.AbortError{}) {
				t.Errorf("a closed listener took an association, which ended by %v", got)
			}
		}
		a.Close()
		b.Close()
		again, err := ListenSCTP(t.Context(), l.Addr(), cfg, inboxes)
		if err != nil {
			t.Fatalf("the port after the last association: %v", err)
		}
		again.Close()
	})
}

// A listener that is closed does not keep the next one from its address while its
// associations live on: the same again, or with another SCTP port.
func TestTheNextListenerTakesOver(t *testing.T) {
	eachKind(t, func(t *testing.T, cfg *Config) {
		var es Endpoints
		listen := func(port uint16, cfg *Config) *SCTPListener {
			l, err := es.ListenSCTP(t.Context(), netip.AddrPortFrom(loopbackAny.Addr(), port), cfg, inboxes)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
			return l
		}
		first := listen(linkPort, with(cfg, admits(fixed{peer: "first"})))
		a, b := meet(t, first, cfg)
		if _, err := es.ListenSCTP(t.Context(), first.Addr(), cfg, inboxes); cfg.Kind == SCTPUDP && !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("a second listener at an address that is listened on: %v", err)
		}
		first.Close()
		second := listen(linkPort, with(cfg, admits(fixed{peer: "second"})))
		first.Close() // once more, which is not the second's end
		c, d := meet(t, second, cfg)
		if d.Protection().Peer() != "second" {
			t.Errorf("the second listener's association was admitted for %q", d.Protection().Peer())
		}
		second.Close()
		third := listen(linkPort+1, cfg)
		e, f := meet(t, third, cfg)
		if old, err := DialSCTP(t.Context(), second.Addr(), cfg, inboxes); err == nil {
			old.Close()
			t.Error("the port before is still listened on")
		}
		for _, x := range [][2]*Assoc{{a, b}, {c, d}, {e, f}} {
			send(t, x[0], "there")
			send(t, x[1], "back")
			if got := texts(t, x[1].box(), 1)[0] + texts(t, x[0].box(), 1)[0]; got != "thereback" {
				t.Errorf("got %q", got)
			}
		}
		third.Close()
		for _, x := range []*Assoc{a, b, c, d, e, f} {
			x.Close()
		}
		if cfg.Kind == SCTPUDP {
			conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(cfg.UDPPort)})
			if err != nil {
				t.Fatalf("the UDP port after the last association: %v", err)
			}
			conn.Close()
		}
	})
}

func TestSCTPAcceptHonoursItsContext(t *testing.T) {
	eachKind(t, func(t *testing.T, cfg *Config) {
		l := listenSCTP(t, cfg)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := l.Accept(ctx); !errors.Is(err, context.Canceled) {
			t.Fatalf("Accept: %v", err)
		}
	})
}

func TestAcceptLeavesOutAssociationsThatAreOver(t *testing.T) {
	eachKind(t, func(t *testing.T, cfg *Config) {
		var one counted
		admitted := make(chan struct{}, 2)
		l := listenSCTP(t, with(cfg, &fake{admit: func(context.Context, Flow, bool, Monitored) (Protection, error) {
			admitted <- struct{}{}
			return &one, nil
		}}))
		first := tryDial(t, l, cfg)
		<-admitted // one that ends before has nothing to release
		first.Close()
		waitFor(t, func() bool { return one.released() == 1 && l.waiting() == 0 })
		second := tryDial(t, l, cfg)
		b, err := l.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		if b.Flow().Remote != second.Flow().Local || b.Err() != nil {
			t.Errorf("accepted %v, %v", b.Flow(), b.Err())
		}
	})
}

// waiting is how many associations are pending.
func (l *SCTPListener) waiting() int {
	l.pending.mu.Lock()
	defer l.pending.mu.Unlock()
	return l.pending.n
}

// TestOneUDPSocketServesManyAssociations has several of one peer at the same
// time.
func TestOneUDPSocketServesManyAssociations(t *testing.T) {
	cfg := udpConfig(t, LoopbackOnly())
	l := listenSCTP(t, cfg)
	seen := map[netip.AddrPort]bool{}
	var as, bs []*Assoc
	for range 20 {
		a := tryDial(t, l, cfg)
		b, err := l.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		as, bs = append(as, a), append(bs, b)
		seen[a.Flow().Local] = true
	}
	for i, a := range as {
		send(t, a, a.Flow().Local.String())
		if got := texts(t, bs[i].box(), 1)[0]; got != bs[i].Flow().Remote.String() {
			t.Errorf("association %d got %q", i, got)
		}
	}
	if len(seen) != len(as) {
		t.Errorf("%d flows for %d associations", len(seen), len(as))
	}
	for _, b := range bs {
		b.Close()
	}
}
