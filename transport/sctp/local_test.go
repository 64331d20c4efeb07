package sctp

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironwarp/ironwarp/transport/assoc"
	"github.com/ironwarp/ironwarp/transport/assoc/assoctest"
)

// An endpoint on all addresses answers from the one that a packet came to, tells
// it and asks Admit with it.
func TestSocketOfAllAddresses(t *testing.T) {
	for listen, dial := range map[string][]string{
		"0.0.0.0": {"127.0.0.1", "127.0.0.2"},
		"::":      {"127.0.0.1", "127.0.0.3", "::1"},
	} {
		conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(listen), 0)))
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		asked := make(map[netip.AddrPort]bool)
		in := assoctest.NewInbox()
		e, err := Listen(conn, Config{Accept: to(in), Admit: func(local, _ netip.AddrPort, _ bool) error {
			mu.Lock()
			asked[local] = true
			mu.Unlock()
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		for _, d := range dial {
			target := netip.AddrPortFrom(netip.MustParseAddr(d), e.Addr().Port())
			other := "127.0.0.1"
			if target.Addr().Is6() {
				other = "::1"
			}
			de := dialler(t, other, target)
			a, err := de.Dial(patient(t), target, DialConfig{Receiver: to(assoctest.NewInbox())})
			if err != nil {
				t.Fatalf("listens on %s, dial %s: %v", listen, d, err)
			}
			b, err := e.Accept(patient(t))
			if err != nil {
				t.Fatal(err)
			}
			if b.Local() != target || b.Remote() != a.Local() || a.Local() != de.Addr() {
				t.Errorf("listens on %s, dialled %s: the ends are %v and %v, %v and %v", listen, d, a.Local(), a.Remote(), b.Local(), b.Remote())
			}
			// Messages of the acceptor, batches of them too, leave from there.
			ms := make([]assoc.Outgoing, 20)
			for i := range ms {
				ms[i].Bufs = [][]byte{make([]byte, 500)}
			}
			if _, err := b.Send(patient(t), ms); err != nil {
				t.Error(err)
			}
			if err := a.Shutdown(patient(t)); err != nil {
				t.Error(err)
			}
			mu.Lock()
			if !asked[target] {
				t.Errorf("Admit was not asked with %v: %v", target, asked)
			}
			mu.Unlock()
		}
	}
}

// dialler is an endpoint that hears one address only.
func dialler(t *testing.T, addr string, peer netip.AddrPort) *Endpoint {
	return listen(t, addr, Config{Admit: func(_, remote netip.AddrPort, _ bool) error {
		if remote != peer {
			return errors.New("somebody else")
		}
		return nil
	}})
}

// A dialler on all addresses learns its own from the first packet.
func TestDiallerOfAllAddresses(t *testing.T) {
	in := assoctest.NewInbox()
	e := listen(t, "127.0.0.1", Config{Accept: to(in)})
	d := listen(t, "0.0.0.0", Config{})
	a, err := d.Dial(patient(t), e.Addr(), DialConfig{Receiver: to(assoctest.NewInbox())})
	if err != nil {
		t.Fatal(err)
	}
	if want := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), d.Addr().Port()); a.Local() != want {
		t.Errorf("the local address is %v, want %v", a.Local(), want)
	}
}

// With DeadAfter time decides, whatever the counts.
func TestDeadAfter(t *testing.T) {
	for _, sends := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWires(1)
			in, out := bubbleInbox(), bubbleInbox()
			cfg := Config{Params: assoc.Params{DeadAfter: 20 * time.Minute, AssocMaxRetrans: 2, RTOMax: 3 * time.Second, Heartbeat: 10 * time.Second}}
			a := w.endpoint(addrA, cfg)
			b := w.endpoint(addrB, Config{Params: assoc.Params{AssocMaxRetrans: 1000}, Accept: to(in)})
			defer b.Close()
			defer a.Close()
			x, err := a.Dial(t.Context(), b.Addr(), DialConfig{Receiver: to(out)})
			if err != nil {
				t.Fatal(err)
			}
			pass(time.Minute)
			loss := func(percent int) {
				w.mu.Lock()
				w.loss = percent
				w.mu.Unlock()
			}
			loss(100)
			if sends {
				x.TrySend([]assoc.Outgoing{{Bufs: [][]byte{[]byte("hello")}}})
			}
			pass(19 * time.Minute)
			if s := x.State(); s != "ESTABLISHED" || x.Stats().Unanswered < 20 {
				t.Fatalf("after 19 minutes: %s, %v, %+v", s, x.Err(), x.Stats())
			}
			// Heard of once, it has all the time again.
			loss(0)
			pass(30 * time.Second)
			if n := x.Stats().Unanswered; n != 0 {
				t.Errorf("%d errors though the peer is back", n)
			}
			loss(100)
			if sends {
				x.TrySend([]assoc.Outgoing{{Bufs: [][]byte{[]byte("hello")}}})
			}
			pass(19 * time.Minute)
			if s := x.State(); s != "ESTABLISHED" {
				t.Fatalf("19 minutes later: %s, %v", s, x.Err())
			}
			pass(2 * time.Minute)
			if !errors.Is(x.Err(), assoc.ErrPeerUnreachable) {
				t.Errorf("after 21 minutes: %s, %v", x.State(), x.Err())
			}
		})
	}
}

// A shutdown that is not answered ends in any case.
func TestShutdownEndsWithDeadAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWires(1)
		in, out := bubbleInbox(), bubbleInbox()
		cfg := Config{Params: assoc.Params{DeadAfter: 20 * time.Minute, RTOMax: 3 * time.Second}}
		a := w.endpoint(addrA, cfg)
		cfg.Accept = to(in)
		b := w.endpoint(addrB, cfg)
		defer b.Close()
		defer a.Close()
		if _, err := a.Dial(t.Context(), b.Addr(), DialConfig{Receiver: to(out)}); err != nil {
			t.Fatal(err)
		}
		y, err := b.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		pass(time.Second)
		w.mu.Lock()
		w.drop = func(from, _ netip.AddrPort, _ packet) bool { return from == b.Addr() }
		w.mu.Unlock()
		y.mu.Lock()
		y.t.shutdownChunk(y.ep.now(), chunk(appendShutdown(nil, y.t.tx.acked)))
		y.deliverAndUnlock(false)
		pass(time.Minute)
		select {
		case <-y.Done():
		default:
			t.Errorf("a minute later the association is %s", y.State())
		}
	})
}

// A socket of all addresses on which somebody listens at one of them answers nothing that
// comes to the others, but what belongs to an association: its packets, and those which
// have no Verification Tag of ours to be known by.
func TestAddressesThatNobodyListensAtAreSilent(t *testing.T) {
	e := listen(t, "0.0.0.0", Config{Accept: to(assoctest.NewInbox())})
	r := newRawPeer(t, e)
	r.send(0, r.init())
	c, _ := r.want(typeInitAck)
	i, _ := parseInit(c)
	p, err := parseParams(i.params)
	if err != nil {
		t.Fatal(err)
	}
	r.peerTag = i.tag
	echo := appendChunk(nil, typeCookieEcho, 0, p.cookie)
	r.send(r.peerTag, echo)
	r.want(typeCookieAck)
	if err := e.Reconfigure(map[netip.Addr]Config{netip.MustParseAddr("127.0.0.2"): {Admit: anyone, Accept: to(assoctest.NewInbox())}}); err != nil {
		t.Fatal(err)
	}
	before := e.Stats()
	stranger := newRawPeer(t, e)
	stranger.send(0, stranger.init())
	stranger.send(7, appendChunk(nil, typeShutdownAck, 0, nil))
	r.quiet("what a stranger sent")
	if after := e.Stats(); after.Inits != before.Inits || after.NotAdmitted != before.NotAdmitted+2 {
		t.Errorf("before %+v, after %+v", before, after)
	}
	stranger.c.SetReadDeadline(time.Now())
	if n, err := stranger.c.Read(make([]byte, 1<<16)); err == nil {
		t.Errorf("a stranger got an answer of %d bytes", n)
	}
	r.send(r.peerTag, echo) // the COOKIE ACK was lost
	r.want(typeCookieAck)
	r.send(0, r.init()) // the peer has restarted
	if _, p := r.want(typeInitAck); p.tag() != r.tag {
		t.Errorf("the INIT ACK has tag %x", p.tag())
	}
}
