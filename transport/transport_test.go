package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var loopbackAny = netip.MustParseAddrPort("127.0.0.1:0")

// fake is a Protector whose answers the test gives.
type fake struct {
	prepare func(ctx context.Context, f Flow) error
	admit   func(ctx context.Context, f Flow, outgoing bool, c Monitored) (Protection, error)
}

func (p *fake) Prepare(ctx context.Context, f Flow) error {
	if p.prepare == nil {
		return nil
	}
	return p.prepare(ctx, f)
}

func (p *fake) Admit(ctx context.Context, f Flow, outgoing bool, c Monitored) (Protection, error) {
	if p.admit == nil {
		return fixed{peer: "fake", kind: "fake"}, nil
	}
	return p.admit(ctx, f, outgoing, c)
}

// counted is a Protection that counts its releases.
type counted struct {
	fixed
	mu sync.Mutex
	n  int
}

func (c *counted) Release() {
	c.mu.Lock()
	c.n++
	c.mu.Unlock()
}

func (c *counted) released() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

func listen(t *testing.T, cfg *Config) *Listener {
	t.Helper()
	l, err := Listen(t.Context(), loopbackAny, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// pair dials and accepts one connection.
func pair(t *testing.T, ccfg, scfg *Config) (client, server *Conn) {
	t.Helper()
	l := listen(t, scfg)
	client, err := Dial(t.Context(), l.Addr(), ccfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	server, err = l.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	return client, server
}

func TestNoProtectorNoConnection(t *testing.T) {
	for _, cfg := range []*Config{nil, {}} {
		if _, err := Dial(t.Context(), netip.MustParseAddrPort("127.0.0.1:1"), cfg); err != ErrNoProtector {
			t.Errorf("Dial: %v", err)
		}
		if _, err := Listen(t.Context(), loopbackAny, cfg); err != ErrNoProtector {
			t.Errorf("Listen: %v", err)
		}
	}
}

func TestBothEndsSeeTheSameFlow(t *testing.T) {
	cfg := &Config{Protector: LoopbackOnly()}
	a, b := pair(t, cfg, cfg)
	fa, fb := a.Flow(), b.Flow()
	if fa.Protocol != ProtoTCP || fa.Local != fb.Remote || fa.Remote != fb.Local || fa.Local.Port() == 0 {
		t.Errorf("client %v, server %v", fa, fb)
	}
	if a.Protection().Peer() != "loopback" || a.Protection().Kind() != "loopback" || a.Protection().Paused() {
		t.Errorf("protection %v %v", a.Protection().Peer(), a.Protection().Kind())
	}
	if want := fmt.Sprintf("tcp %v -> %v", fa.Local, fa.Remote); fa.String() != want {
		t.Errorf("%q, want %q", fa, want)
	}
	if s := (Flow{Protocol: ProtoSCTP, Remote: fa.Remote}).String(); !strings.HasPrefix(s, "sctp * -> ") {
		t.Errorf("%q", s)
	}
}

// A peer that resets what it has had is no host that never had it.
func TestResetOfAConnectionThatWasUp(t *testing.T) {
	cfg := &Config{Protector: LoopbackOnly()}
	a, b := pair(t, cfg, cfg)
	if _, err := a.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(b, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if err := b.NetConn().(*net.TCPConn).SetLinger(0); err != nil {
		t.Fatal(err)
	}
	b.Close()
	if _, err := a.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) || errors.Is(err, ErrHalfOpen) {
		t.Errorf("error %v", err)
	}
}

func TestConnCarriesBytes(t *testing.T) {
	cfg := &Config{Protector: LoopbackOnly()}
	a, b := pair(t, cfg, cfg)
	if _, err := a.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if err := a.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(b)
	if err != nil || string(got) != "hello" {
		t.Fatalf("%q, %v", got, err)
	}
}

func TestOrderOfAPreparedDial(t *testing.T) {
	var steps []string
	p := &fake{
		prepare: func(_ context.Context, f Flow) error {
			if f.Local.IsValid() && f.Local.Port() != 0 {
				t.Errorf("Prepare knows the local port: %v", f)
			}
			steps = append(steps, "prepare")
			return nil
		},
		admit: func(_ context.Context, f Flow, outgoing bool, c Monitored) (Protection, error) {
			if !outgoing || f.Local.Port() == 0 {
				t.Errorf("Admit of %v, outgoing %v", f, outgoing)
			}
			if n, err := c.Outq(); n != 0 || err != nil {
				t.Errorf("Outq %d, %v before the first byte", n, err)
			}
			steps = append(steps, "admit")
			return fixed{peer: "fqdn:beta", kind: "test"}, nil
		},
	}
	for _, local := range []netip.Addr{{}, netip.MustParseAddr("127.0.0.9"), netip.MustParseAddr("::ffff:127.0.0.9")} {
		steps = nil
		c, _ := pair(t, &Config{Protector: p, Local: local}, &Config{Protector: &fake{}})
		if strings.Join(steps, " ") != "prepare admit" {
			t.Errorf("steps: %v", steps)
		}
		if local.IsValid() && c.Flow().Local.Addr() != local.Unmap() {
			t.Errorf("local address %v", c.Flow().Local)
		}
		if c.Protection().Peer() != "fqdn:beta" {
			t.Errorf("peer %q", c.Protection().Peer())
		}
	}
}

func TestFailedPrepareSendsNothing(t *testing.T) {
	l := listen(t, &Config{Protector: &fake{admit: func(context.Context, Flow, bool, Monitored) (Protection, error) {
		t.Error("a connection arrived")
		return nil, ErrNotProtected
	}}})
	want := errors.New("no SA")
	_, err := Dial(t.Context(), l.Addr(), &Config{Protector: &fake{prepare: func(context.Context, Flow) error { return want }}})
	var fe *FlowError
	if !errors.Is(err, want) || !errors.As(err, &fe) || fe.Op != "prepare" {
		t.Fatalf("Dial: %v", err)
	}
}

func TestRefusedDialClosesWithoutAByte(t *testing.T) {
	refuse := map[string]*fake{
		"error": {admit: func(context.Context, Flow, bool, Monitored) (Protection, error) { return nil, ErrNotProtected }},
		"nil":   {admit: func(context.Context, Flow, bool, Monitored) (Protection, error) { return nil, nil }},
	}
	for name, p := range refuse {
		t.Run(name, func(t *testing.T) {
			l := listen(t, &Config{Protector: &fake{}})
			if _, err := Dial(t.Context(), l.Addr(), &Config{Protector: p}); !errors.Is(err, ErrNotProtected) {
				t.Fatalf("Dial: %v", err)
			}
			c, err := l.Accept(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if got, err := io.ReadAll(c); len(got) != 0 || err != nil {
				t.Fatalf("%q, %v", got, err)
			}
		})
	}
}

func TestRefusedConnectionsAreReportedAndDoNotBlockOthers(t *testing.T) {
	type refusal struct {
		f   Flow
		err error
	}
	refusals := make(chan refusal, 1)
	hanging := make(chan struct{})
	// The first connection's admission hangs, the second is refused, the third passes.
	var mu sync.Mutex
	n := 0
	p := &fake{admit: func(ctx context.Context, f Flow, outgoing bool, _ Monitored) (Protection, error) {
		if outgoing {
			t.Error("an accepted flow is called outgoing")
		}
		mu.Lock()
		n++
		turn := n
		mu.Unlock()
		switch turn {
		case 1:
			close(hanging)
			<-ctx.Done()
			return nil, ErrNotProtected
		case 2:
			return nil, fmt.Errorf("%w: no SA covers it", ErrNotProtected)
		}
		return fixed{peer: "third"}, nil
	}}
	l := listen(t, &Config{Protector: p, OnRefused: func(f Flow, err error) { refusals <- refusal{f, err} }})
	dial := func() net.Conn {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	dial()
	<-hanging
	second := dial()
	r := <-refusals
	if !errors.Is(r.err, ErrNotProtected) || r.f.Remote != addrPort(second.LocalAddr()) {
		t.Errorf("refused %v: %v", r.f, r.err)
	}
	if got, _ := io.ReadAll(second); len(got) != 0 {
		t.Errorf("a refused connection got %q", got)
	}
	dial()
	c, err := l.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if c.Protection().Peer() != "third" {
		t.Errorf("accepted %v", c.Protection().Peer())
	}
}

func TestPendingConnectionsAreBounded(t *testing.T) {
	refusals := make(chan error, 10)
	l := listen(t, &Config{Protector: &fake{}, MaxPending: 4, OnRefused: func(_ Flow, err error) { refusals <- err }})
	// One address may hold half of the four.
	for i := range 3 {
		c, err := net.Dial("tcp", l.Addr().String())
		if err == nil {
			defer c.Close()
		} else if i < 2 { // the third is reset, which may show at once
			t.Fatal(err)
		}
	}
	if err := <-refusals; !errors.Is(err, ErrBusy) {
		t.Fatalf("the third pending connection of one address: %v", err)
	}
	for range 2 {
		c, err := l.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	// Room again.
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := l.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
}

func TestAdmissionTimesOut(t *testing.T) {
	slow := &fake{admit: func(ctx context.Context, _ Flow, _ bool, _ Monitored) (Protection, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	refusals := make(chan error, 1)
	l := listen(t, &Config{Protector: slow, AdmitTimeout: time.Millisecond, OnRefused: func(_ Flow, err error) { refusals <- err }})
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var fe *FlowError
	if err := <-refusals; !errors.As(err, &fe) || !fe.Timeout() || fe.Op != "admit" {
		t.Fatalf("%v", err)
	}
}

func TestListenerCloseIsPromptAndComplete(t *testing.T) {
	entered := make(chan struct{}, 2)
	prot := &counted{}
	var n int
	var mu sync.Mutex
	p := &fake{admit: func(ctx context.Context, _ Flow, _ bool, _ Monitored) (Protection, error) {
		mu.Lock()
		n++
		first := n == 1
		mu.Unlock()
		entered <- struct{}{}
		if first {
			return prot, nil // and waits for an Accept that does not come
		}
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	l, err := Listen(t.Context(), loopbackAny, &Config{Protector: p, OnRefused: func(f Flow, err error) { t.Errorf("refused %v: %v", f, err) }})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		<-entered
	}
	for range 2 {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if prot.released() != 1 {
		t.Errorf("the protection of the connection that was not accepted was released %d times", prot.released())
	}
	if _, err := l.Accept(t.Context()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept after Close: %v", err)
	}
}

func TestAcceptHonoursItsContext(t *testing.T) {
	l := listen(t, &Config{Protector: &fake{}})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Accept(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("Accept: %v", err)
	}
}

func TestCloseReleasesTheProtectionOnce(t *testing.T) {
	prot := &counted{}
	c, _ := pair(t, &Config{Protector: &fake{admit: func(context.Context, Flow, bool, Monitored) (Protection, error) { return prot, nil }}},
		&Config{Protector: &fake{}})
	if prot.released() != 0 {
		t.Fatal("released early")
	}
	if err := errors.Join(c.Close(), c.Close()); err != nil || prot.released() != 1 {
		t.Fatalf("released %d times, %v", prot.released(), err)
	}
	if _, err := c.Outq(); err == nil {
		t.Error("Outq of a closed connection")
	}
	if c.EMSS() == 0 || c.RefreshEMSS() == 0 {
		t.Error("a closed connection forgot its EMSS")
	}
}

func TestSocketOptions(t *testing.T) {
	cfg := &Config{Protector: LoopbackOnly(), SendBuffer: 100 << 10, RecvBuffer: 50 << 10}
	for _, c := range func() []*Conn { a, b := pair(t, cfg, cfg); return []*Conn{a, b} }() {
		rc, err := c.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		get := func(level, opt int) (n int) {
			rc.Control(func(fd uintptr) { n, err = unix.GetsockoptInt(int(fd), level, opt) })
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		if get(unix.IPPROTO_TCP, unix.TCP_NODELAY) == 0 {
			t.Error("Nagle is on")
		}
		if get(unix.SOL_SOCKET, unix.SO_KEEPALIVE) == 0 {
			t.Error("keepalive is off")
		}
		idle, every, count := get(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE), get(unix.IPPROTO_TCP, unix.TCP_KEEPINTVL), get(unix.IPPROTO_TCP, unix.TCP_KEEPCNT)
		if s := idle + every*count; s < 15*60 {
			t.Errorf("keepalive gives up after %d s", s)
		}
		if ms := get(unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT); ms < 15*60*1000 {
			t.Errorf("unacknowledged data ends the connection after %d ms", ms)
		}
		if n := get(unix.SOL_SOCKET, unix.SO_SNDBUF); n != 200<<10 {
			t.Errorf("send buffer %d", n)
		}
		if n := get(unix.SOL_SOCKET, unix.SO_RCVBUF); n != 100<<10 {
			t.Errorf("receive buffer %d", n)
		}
		if n := get(unix.SOL_SOCKET, unix.SO_PROTOCOL); n != unix.IPPROTO_TCP {
			t.Errorf("protocol %d: a multipath connection has flows that were not admitted", n)
		}
	}
}

func TestEMSSAndOutq(t *testing.T) {
	cfg := &Config{Protector: LoopbackOnly()}
	a, b := pair(t, cfg, cfg)
	if n := a.EMSS(); n < 536 || n > 65535 {
		t.Errorf("EMSS %d", n)
	}
	if n := testing.AllocsPerRun(100, func() { a.RefreshEMSS() }); n != 0 {
		t.Errorf("RefreshEMSS allocates %v times", n)
	}
	// Fill the path until the kernel holds bytes that the peer has no room for.
	rc, err := a.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1<<20)
	rc.Control(func(fd uintptr) {
		for {
			if _, err := syscall.Write(int(fd), buf); err != nil {
				return
			}
		}
	})
	if n, err := a.Outq(); err != nil || n == 0 {
		t.Errorf("Outq %d, %v with a full path", n, err)
	}
	if n, err := b.Outq(); err != nil || n != 0 {
		t.Errorf("Outq %d, %v of the other direction", n, err)
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	l := listen(t, &Config{Protector: &fake{}})
	busy := l.Addr()
	_, inUse := Listen(t.Context(), busy, &Config{Protector: &fake{}})
	l.Close()
	_, refused := Dial(t.Context(), busy, &Config{Protector: &fake{}})
	_, noAddr := Dial(t.Context(), busy, &Config{Protector: &fake{}, Local: netip.MustParseAddr("198.51.100.7")})
	_, noPort := Dial(t.Context(), netip.AddrPort{}, &Config{Protector: &fake{}})
	ctx, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancel()
	_, late := Dial(ctx, busy, &Config{Protector: &fake{}})
	tests := []struct {
		err   error
		is    error
		parts []string
	}{
		{inUse, syscall.EADDRINUSE, []string{"listen", busy.String(), "ss -ltnp"}},
		{refused, syscall.ECONNREFUSED, []string{"dial", busy.String(), "daemon running"}},
		{noAddr, syscall.EADDRNOTAVAIL, []string{"198.51.100.7", "no interface"}},
		{noPort, nil, []string{"missing"}},
		{late, context.DeadlineExceeded, []string{"no answer"}},
		{flowError("dial", Flow{Protocol: ProtoTCP, Remote: busy}, &net.OpError{Op: "dial", Err: syscall.EPERM}), syscall.EPERM,
			[]string{"ip xfrm policy", "SA"}},
		{flowError("listen", Flow{Local: busy}, syscall.EACCES), syscall.EACCES, []string{"CAP_NET_BIND_SERVICE"}},
	}
	for _, tt := range tests {
		var fe *FlowError
		if !errors.As(tt.err, &fe) || tt.is != nil && !errors.Is(tt.err, tt.is) {
			t.Errorf("%v is not a FlowError of %v", tt.err, tt.is)
			continue
		}
		for _, part := range tt.parts {
			if !strings.Contains(tt.err.Error(), part) {
				t.Errorf("%q lacks %q", tt.err, part)
			}
		}
	}
}

func TestStaticProtectors(t *testing.T) {
	ap := netip.MustParseAddrPort
	var log bytes.Buffer
	plain := Plaintext(slog.New(slog.NewTextHandler(&log, nil)), netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("::ffff:192.0.2.2"))
	boom := errors.New("boom")
	per := PerPeer(func(a netip.Addr) (Protector, error) {
		switch a.String() {
		case "127.0.0.1":
			return LoopbackOnly(), nil
		case "192.0.2.1":
			return plain, nil
		case "192.0.2.9":
			return nil, boom
		}
		return nil, nil
	})
	tests := []struct {
		name          string
		p             Protector
		local, remote string
		peer          Identity
		err           error
	}{
		{"loopback", LoopbackOnly(), "127.0.0.1:1", "127.0.0.9:2", "loopback", nil},
		{"loopback v6", LoopbackOnly(), "[::1]:1", "[::1]:2", "loopback", nil},
		{"loopback mapped", LoopbackOnly(), "[::ffff:127.0.0.1]:1", "[::ffff:127.0.0.1]:2", "loopback", nil},
		{"loopback to elsewhere", LoopbackOnly(), "127.0.0.1:1", "192.0.2.1:2", "", ErrNotProtected},
		{"loopback from elsewhere", LoopbackOnly(), "192.0.2.1:1", "127.0.0.1:2", "", ErrNotProtected},
		{"plaintext", plain, "192.0.2.5:1", "192.0.2.1:2", "plaintext:192.0.2.1", nil},
		{"plaintext mapped", plain, "192.0.2.5:1", "192.0.2.2:2", "plaintext:192.0.2.2", nil},
		{"plaintext with another", plain, "192.0.2.1:1", "192.0.2.3:2", "", ErrNotProtected},
		{"per peer", per, "192.0.2.5:1", "192.0.2.1:2", "plaintext:192.0.2.1", nil},
		{"per peer loopback", per, "127.0.0.1:1", "127.0.0.1:2", "loopback", nil},
		{"per peer unknown", per, "192.0.2.5:1", "192.0.2.8:2", "", ErrNotProtected},
		{"per peer error", per, "192.0.2.5:1", "192.0.2.9:2", "", boom},
	}
	for _, tt := range tests {
		f := Flow{Protocol: ProtoTCP, Local: ap(tt.local), Remote: ap(tt.remote)}
		log.Reset()
		perr := tt.p.Prepare(t.Context(), f)
		p, err := tt.p.Admit(t.Context(), f, true, nil)
		if !errors.Is(err, tt.err) || !errors.Is(perr, tt.err) {
			t.Errorf("%s: Prepare %v, Admit %v, want %v", tt.name, perr, err, tt.err)
			continue
		}
		if err != nil {
			if p != nil {
				t.Errorf("%s: a protection with an error", tt.name)
			}
			continue
		}
		if p.Peer() != tt.peer || p.Paused() {
			t.Errorf("%s: peer %q, want %q", tt.name, p.Peer(), tt.peer)
		}
		p.Release()
		if loud := strings.Contains(log.String(), "INSECURE"); loud != (p.Kind() == "plaintext") {
			t.Errorf("%s: logged %q", tt.name, log.String())
		}
	}
	if err := LoopbackOnly().Prepare(t.Context(), Flow{Remote: ap("127.0.0.1:1")}); err != nil {
		t.Errorf("Prepare without a local address: %v", err)
	}
}
