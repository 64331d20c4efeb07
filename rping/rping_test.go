package rping

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newULP(t *testing.T) (*verbs.Device, *verbs.ULP) {
	t.Helper()
	dev, err := verbs.Open(verbs.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		u := dev.Usage()
		u.HalfOpen = 0 // an SCTP association outlives its last stream for a while
		if u != (verbs.Limits{}) {
			t.Errorf("still in use at the end: %+v", u)
		}
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
		if u := dev.Usage(); u != (verbs.Limits{}) {
			t.Errorf("still in use after the end: %+v", u)
		}
	})
	ulp, err := dev.NewULP("rping", verbs.ULPConfig{Trust: verbs.NSNT})
	if err != nil {
		t.Fatal(err)
	}
	return dev, ulp
}

var loopback = &transport.Config{Protector: transport.LoopbackOnly()}

func testContext(t testing.TB) context.Context { return iwarptest.Context(t) }

type served struct {
	n   int
	err error
}

// serveOne serves one client.
func serveOne(t *testing.T, cfg Config, setup verbs.Setup, addr string) (netip.AddrPort, <-chan served) {
	t.Helper()
	return serveOneOn(t, loopback, cfg, setup, addr)
}

func serveOneOn(t *testing.T, tc *transport.Config, cfg Config, setup verbs.Setup, addr string) (netip.AddrPort, <-chan served) {
	t.Helper()
	ctx := testContext(t)
	dev, ulp := newULP(t)
	ln, err := dev.Listen(ctx, netip.MustParseAddrPort(addr), verbs.ListenConfig{Transport: tc, Setup: setup})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	out := make(chan served, 1)
	go func() {
		var s served
		req, err := ln.Accept(ctx)
		if s.err = err; err == nil {
			s.n, s.err = Serve(ctx, ulp, req, cfg)
		}
		out <- s
	}()
	return ln.Addr(), out
}

func TestPingsComeBackWhole(t *testing.T) {
	for _, c := range []struct {
		name, addr string
		size       int
		setup      verbs.Setup
		sctp       bool // in UDP
	}{
		{"smallest", "127.0.0.1:0", MinSize, verbs.Setup{}, false},
		{"default size", "127.0.0.1:0", 0, verbs.Setup{}, false},
		{"largest", "127.0.0.1:0", MaxSize, verbs.Setup{}, false},
		{"IPv6", "[::1]:0", 5000, verbs.Setup{}, false},
		{"without CRC", "127.0.0.1:0", 5000, verbs.Setup{NoCRC: true}, false},
		{"MPA revision 1", "127.0.0.1:0", 100, verbs.Setup{Plain: true}, false},
		{"peer to peer by Write", "127.0.0.1:0", 100, verbs.Setup{PeerToPeer: verbs.RTRWrite}, false},
		{"peer to peer by Read", "127.0.0.1:0", 100, verbs.Setup{PeerToPeer: verbs.RTRRead}, false},
		{"SCTP smallest", "127.0.0.1:7471", MinSize, verbs.Setup{}, true},
		{"SCTP largest", "127.0.0.1:7471", MaxSize, verbs.Setup{}, true},
		{"SCTP IPv6", "[::1]:7471", 5000, verbs.Setup{}, true},
		{"SCTP without IRD and ORD", "127.0.0.1:7471", 100, verbs.Setup{Plain: true}, true},
		{"SCTP peer to peer by Write", "127.0.0.1:7471", 100, verbs.Setup{PeerToPeer: verbs.RTRWrite}, true},
		{"SCTP peer to peer by Read", "127.0.0.1:7471", 100, verbs.Setup{PeerToPeer: verbs.RTRRead}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			tc := loopback
			if c.sctp {
				tc = iwarptest.SCTPInUDP(t)
			}
			var sent, seen []string
			addr, out := serveOneOn(t, tc, Config{Each: func(b []byte) { seen = append(seen, string(b)) }}, verbs.Setup{NoCRC: c.setup.NoCRC}, c.addr)
			_, ulp := newULP(t)
			n, err := Client(testContext(t), ulp, verbs.DialConfig{Remote: addr, Transport: tc, Setup: c.setup},
				Config{Size: c.size, Count: 3, Validate: true, Each: func(b []byte) { sent = append(sent, string(b)) }})
			if err != nil || n != 3 {
				t.Fatalf("%d pings: %v", n, err)
			}
			s := <-out
			if s.err != nil || s.n != 3 {
				t.Errorf("served %d pings: %v", s.n, s.err)
			}
			if strings.Join(sent, "\n") != strings.Join(seen, "\n") || len(sent) != 3 {
				t.Errorf("the client saw %q, the server %q", sent, seen)
			}
			if want := max(c.size, DefaultSize) - 1; c.size != MinSize && len(sent[2]) != want {
				t.Errorf("a text of %d bytes, want %d", len(sent[2]), want)
			}
			if !strings.HasPrefix(sent[2], "rdma-ping-2: CDEF") {
				t.Errorf("the third text is %.40q", sent[2])
			}
		})
	}
}

func TestClientRefusesSizesThatRpingCannotHave(t *testing.T) {
	_, ulp := newULP(t)
	for _, n := range []int{1, MinSize - 1, MaxSize + 1, -1} {
		if _, err := Client(testContext(t), ulp, verbs.DialConfig{}, Config{Size: n}); err == nil || !strings.Contains(err.Error(), "23 to 65535") {
			t.Errorf("size %d: %v", n, err)
		}
	}
}

// A peer that says how large its buffer is must not make the server read more
// than it has room for.
func TestServerRefusesABufferThatIsTooLarge(t *testing.T) {
	addr, out := serveOne(t, Config{}, verbs.Setup{}, "127.0.0.1:0")
	_, ulp := newULP(t)
	s, err := newSide(ulp, verbs.NSNT)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if s.qp, err = s.pd.Dial(testContext(t), verbs.DialConfig{QP: s.config(), Prepare: s.listen, Remote: addr, Transport: loopback}); err != nil {
		t.Fatal(err)
	}
	if err := s.say(info{STag: 1, Size: MaxSize + 1}); err != nil {
		t.Fatal(err)
	}
	if got := <-out; got.err == nil || !strings.Contains(got.err.Error(), "at most 65535") {
		t.Errorf("served: %v", got.err)
	}
}

func TestClientEndsWithItsContext(t *testing.T) {
	addr, out := serveOne(t, Config{}, verbs.Setup{}, "127.0.0.1:0")
	_, ulp := newULP(t)
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	pings := 0
	_, err := Client(ctx, ulp, verbs.DialConfig{Remote: addr, Transport: loopback}, Config{Each: func([]byte) {
		if pings++; pings == 2 {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("client: %v", err)
	}
	<-out
}

func TestInfoIsBigEndian(t *testing.T) {
	i := info{TO: 0x0102030405060708, STag: 0x090a0b0c, Size: 0x0d0e0f10}
	want := []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	if got := i.append(nil); !bytes.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
}

func FuzzParseInfo(f *testing.F) {
	f.Add(info{1, 2, 3}.append(nil))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		i, err := parseInfo(b)
		if (err == nil) != (len(b) == infoLen) {
			t.Fatalf("%d bytes: %v", len(b), err)
		}
		if err == nil && !bytes.Equal(i.append(nil), b) {
			t.Errorf("%x becomes %+v and %x", b, i, i.append(nil))
		}
	})
}

// Each buffer is open for its step of a ping, and under another STag each time.
func TestSTagsAreForOnePing(t *testing.T) {
	addr, out := serveOne(t, Config{Trust: verbs.SNT}, verbs.Setup{}, "127.0.0.1:0")
	_, ulp := newULP(t)
	seen := map[string]bool{}
	log := slog.New(slog.NewTextHandler(writer(func(line string) {
		if _, rest, ok := strings.Cut(line, "stag="); ok {
			tag, _, _ := strings.Cut(rest, " ")
			if seen[tag] {
				t.Errorf("STag %s comes twice", tag)
			}
			seen[tag] = true
		}
	}), &slog.HandlerOptions{Level: slog.LevelDebug}))
	const pings = 20
	if n, err := Client(testContext(t), ulp, verbs.DialConfig{Remote: addr, Transport: loopback}, Config{Count: pings, Validate: true, Log: log}); err != nil || n != pings {
		t.Fatalf("%d pings: %v", n, err)
	}
	if s := <-out; s.err != nil {
		t.Error(s.err)
	}
	if len(seen) != 2*pings {
		t.Errorf("%d STags for %d pings", len(seen), pings)
	}
}

type writer func(string)

func (w writer) Write(b []byte) (int, error) { w(string(b)); return len(b), nil }
