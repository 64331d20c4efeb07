package probe

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// host is a device with a listener whose requests all go to the service.
type host struct {
	dev    *verbs.Device
	client *verbs.ULP
	server *Server
	addr   netip.AddrPort
	tc     *transport.Config
}

// overEachCarrier runs f with a host that listens on each carrier.
func overEachCarrier(t *testing.T, f func(t *testing.T, h *host)) {
	t.Run("TCP", func(t *testing.T) { f(t, newHost(t)) })
	t.Run("SCTP in UDP", func(t *testing.T) {
		local := netip.MustParseAddrPort("127.0.0.1:7471")
		f(t, newHostOn(t, iwarptest.SCTPInUDP(t), local))
	})
}

func newHost(t *testing.T) *host {
	t.Helper()
	return newHostOn(t, &transport.Config{Protector: transport.LoopbackOnly()}, netip.MustParseAddrPort("127.0.0.1:0"))
}

func newHostOn(t *testing.T, tc *transport.Config, local netip.AddrPort) *host {
	t.Helper()
	dev, err := verbs.Open(verbs.Config{})
	if err != nil {
		t.Fatal(err)
	}
	h := &host{dev: dev, tc: tc}
	ulp, err := dev.NewULP("probe server", verbs.ULPConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if h.client, err = dev.NewULP("probe client", verbs.ULPConfig{}); err != nil {
		t.Fatal(err)
	}
	h.server = NewServer(ulp, slog.New(slog.NewTextHandler(io.Discard, nil)))
	ln, err := dev.Listen(t.Context(), local, verbs.ListenConfig{Transport: tc})
	if err != nil {
		t.Fatal(err)
	}
	h.addr = ln.Addr()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			cr, err := ln.Accept(context.Background())
			if err != nil {
				return
			}
			h.server.Handle(cr)
		}
	}()
	t.Cleanup(func() {
		ln.Close()
		<-done
		h.server.Close()
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
		if u := dev.Usage(); u != (verbs.Limits{}) {
			t.Errorf("left behind: %+v", u)
		}
	})
	return h
}

func (h *host) dial(t *testing.T) (*Client, error) {
	return Dial(t.Context(), h.client, verbs.DialConfig{Remote: h.addr, Transport: h.tc})
}

// A benchmark whose time is over at whatever moment ends: it waits for nothing that
// it has not asked for.
func TestBenchEndsAtWhateverMomentItsTimeIsOver(t *testing.T) {
	c, err := newHost(t).dial(t)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, op := range []string{"read", "write"} {
		for i := range 4000 {
			r := Row{Op: op, Size: 64, Depth: 1}
			if err := c.Bench(t.Context(), &r, time.Duration(i)*25*time.Nanosecond, 10*time.Second); err != nil {
				t.Fatalf("%s, %d operations: %v", op, r.Operations, err)
			}
		}
	}
}

func TestPingCountsEveryRoundTrip(t *testing.T) {
	overEachCarrier(t, func(t *testing.T, h *host) {
		for _, p := range []Ping{{Size: 1, Count: 20}, {Size: RegionSize, Count: 3}, {Send: true, Size: 1, Count: 300}, {Send: true, Size: MaxMessage, Count: 100}} {
			c, err := h.dial(t)
			if err != nil {
				t.Fatal(err)
			}
			hist, n := NewHistogram(), 0
			if err := c.Ping(t.Context(), p, time.Minute, hist, func(int, time.Duration) { n++ }); err != nil {
				t.Errorf("%+v: %v", p, err)
			}
			if n != p.Count || hist.TotalCount() != int64(p.Count) || hist.Min() <= 0 {
				t.Errorf("%+v: %d calls, %d recorded, min %d", p, n, hist.TotalCount(), hist.Min())
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// A row whose time is over before its first operation, on a busy machine, has that one all the same: without any it would say that
// nothing is carried.
func TestBenchMakesEveryRowOnOneStream(t *testing.T) {
	overEachCarrier(t, func(t *testing.T, h *host) {
		c, err := h.dial(t)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range Rows() {
			for _, d := range []time.Duration{0, 20 * time.Millisecond} {
				r := r
				if err := c.Bench(t.Context(), &r, d, time.Minute); err != nil {
					t.Fatalf("%s %d: %v", r.Op, r.Size, err)
				}
				if r.Operations == 0 || r.Elapsed <= 0 || r.Latency != nil && r.Latency.TotalCount() != int64(r.Operations) {
					t.Errorf("for %v: %+v", d, r)
				}
			}
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestOnePeerGetsABoundedNumberOfStreams(t *testing.T) {
	overEachCarrier(t, func(t *testing.T, h *host) {
		var clients []*Client
		for range MaxClientsPeer {
			c, err := h.dial(t)
			if err != nil {
				t.Fatal(err)
			}
			clients = append(clients, c)
		}
		if _, err := h.dial(t); err == nil || !strings.Contains(err.Error(), "as many clients as it allows") {
			t.Errorf("one too many: %v", err)
		}
		for _, c := range clients {
			if err := c.Ping(t.Context(), Ping{Size: 8, Count: 1}, time.Minute, NewHistogram(), nil); err != nil {
				t.Errorf("an open stream suffered: %v", err)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// Four peers that measure all the time, and four more that try, leave room for a newcomer.
func TestPeersThatHoardStreamsKeepNoOtherOut(t *testing.T) {
	at := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 0, byte(1 + i)}) }
	var all []netip.Addr
	for i := range 9 {
		all = append(all, at(i))
	}
	p := transport.Plaintext(slog.New(slog.DiscardHandler), all...)
	h := newHostOn(t, &transport.Config{Protector: p}, netip.AddrPortFrom(at(0), 0))
	as := func(i int) error {
		c, err := Dial(t.Context(), h.client, verbs.DialConfig{Remote: h.addr, Transport: &transport.Config{Protector: p, Local: at(i)}})
		if err == nil {
			t.Cleanup(func() { c.Close() })
		}
		return err
	}
	had := 0
	for i := range 8 {
		for as(i) == nil {
			had++
		}
	}
	if err := as(8); err != nil || had < 2*MaxClientsPeer {
		t.Errorf("%d streams are served, and that of another peer: %v", had, err)
	}
}

func TestPingEndsWhenThePeerGoes(t *testing.T) {
	overEachCarrier(t, func(t *testing.T, h *host) {
		c, err := h.dial(t)
		if err != nil {
			t.Fatal(err)
		}
		err = c.Ping(t.Context(), Ping{Size: 8, Count: MaxCount}, time.Minute, NewHistogram(), func(seq int, _ time.Duration) {
			if seq == 5 {
				h.server.Close()
			}
		})
		if err == nil || errors.Is(err, ErrSilent) {
			t.Errorf("got %v, want the end of the stream", err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestParametersOutOfRange(t *testing.T) {
	for _, p := range []Ping{{Size: 0, Count: 1}, {Size: RegionSize + 1, Count: 1}, {Send: true, Size: MaxMessage + 1, Count: 1}, {Size: 1}, {Size: 1, Count: MaxCount + 1}, {Size: 1, Count: 1, Interval: -1}} {
		if p.Check() == nil {
			t.Errorf("%+v passes", p)
		}
	}
}

func FuzzWire(f *testing.F) {
	f.Add(offer{Window: 64, MaxMessage: 1, STag: 2, Length: 3}.Append(nil))
	f.Add(appendRequest(nil))
	f.Add(appendRefusal(nil, refusedBusy))
	f.Fuzz(func(t *testing.T, b []byte) {
		var o offer
		if o.Parse(b) == nil && string(o.Append(nil)[6:]) != string(b[6:answerLen]) {
			t.Errorf("%x reads back as %x", b, o.Append(nil))
		}
		IsRequest(b)
		parseRequest(b)
		refusalText(b)
		parseAck(b)
	})
}

// What a client has written is gone when the memory is another's (RFC 5042 section
// 6.3.2), and not more of it is kept than one peer may have.
func TestMemoryOfClientsIsKeptAndCleared(t *testing.T) {
	var m memoryPool
	var all [][]byte
	for range MaxClients {
		mem := m.get()
		for i := 0; i < len(mem); i += 1 << 10 {
			mem[i] = 0xee
		}
		all = append(all, mem)
	}
	for _, mem := range all {
		m.put(mem)
	}
	if n := len(m.free); n != keptMemory {
		t.Errorf("the memory of %d clients is kept, want %d", n, keptMemory)
	}
	again := m.get()
	if &again[0] != &all[keptMemory-1][0] {
		t.Error("kept memory is not used again")
	}
	for i := 0; i < len(again); i += 1 << 10 {
		if again[i] != 0 {
			t.Fatalf("byte %d is left from the client before", i)
		}
	}
}

// A service that trusts its clients more, or those that come after a change, still
// has a protection domain for each.
func TestEachClientHasItsProtectionDomain(t *testing.T) {
	h := newHost(t)
	for _, m := range []verbs.TrustModel{verbs.NSNT, verbs.SNT, verbs.SLT} {
		h.server.SetTrust(m)
		c, err := h.dial(t)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Ping(t.Context(), Ping{Size: 10, Count: 1}, time.Minute, NewHistogram(), nil); err != nil {
			t.Errorf("%v: %v", m, err)
		}
		for _, qp := range h.dev.QPs() {
			if qp.PD().Trust() != verbs.NSNT {
				t.Errorf("%v: a stream is %v", m, qp.PD().Trust())
			}
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A client's region can't be read for ever (RFC 5042 section 6.3.3): the stream of one
// that stays ends by itself.
func TestClientThatStaysIsEnded(t *testing.T) {
	h := newHost(t)
	expire := make(chan time.Time, 1)
	h.server.after = func(d time.Duration) <-chan time.Time {
		if d != maxAge {
			t.Errorf("a stream may last %v, want %v", d, maxAge)
		}
		return expire
	}
	c, err := h.dial(t)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Ping(t.Context(), Ping{Size: 10, Count: 1}, time.Minute, NewHistogram(), nil); err != nil {
		t.Error(err)
	}
	expire <- time.Now()
	<-c.QP.Done()
}
