package transport

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Addresses of this host, and all of them.
var (
	one   = netip.MustParseAddr("127.0.0.1")
	other = netip.MustParseAddr("127.0.0.2")
	any4  = netip.IPv4Unspecified()
	any6  = netip.IPv6Unspecified()
	six   = netip.IPv6Loopback()
)

// hops are the listeners of one host, one after the other, and all their associations.
type hops struct {
	t     *testing.T
	cfg   *Config
	es    Endpoints
	open  []*SCTPListener
	pairs [][2]*Assoc
	names map[*SCTPListener]Identity // of all that there were
}

// listen opens a listener. It calls its peers by a name of its own.
func (h *hops) listen(at netip.Addr) (*SCTPListener, error) {
	name := Identity(fmt.Sprintf("of listener %d", len(h.names)))
	l, err := h.es.ListenSCTP(h.t.Context(), netip.AddrPortFrom(at, linkPort), with(h.cfg, admits(fixed{peer: name})), inboxes)
	if err != nil {
		return nil, err
	}
	if h.names == nil {
		h.names = make(map[*SCTPListener]Identity)
	}
	h.names[l] = name
	h.t.Cleanup(func() { l.Close() })
	h.open = append(h.open, l)
	return l, nil
}

func (h *hops) close(l *SCTPListener) {
	l.Close()
	h.open = slices.DeleteFunc(h.open, func(o *SCTPListener) bool { return o == l })
}

// hop closes what is open and listens elsewhere.
func (h *hops) hop(at netip.Addr) *SCTPListener {
	h.t.Helper()
	for _, l := range h.open {
		l.Close()
	}
	h.open = nil
	l, err := h.listen(at)
	if err != nil {
		h.t.Fatalf("listening at %v: %v", at, err)
	}
	return l
}

// meet sets up an association with an address, which l has to accept.
func (h *hops) meet(l *SCTPListener, at netip.Addr) {
	h.t.Helper()
	a, err := DialSCTP(h.t.Context(), netip.AddrPortFrom(at, linkPort), h.cfg, inboxes)
	if err != nil {
		h.t.Fatalf("dialling %v where %v is listened on: %v", at, l.Addr(), err)
	}
	h.t.Cleanup(func() { a.Close() })
	b, err := l.Accept(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { b.Close() })
	if got := b.Protection().Peer(); got != h.names[l] || b.Flow().Local.Addr() != at {
		h.t.Fatalf("the association with %v is %v with the peer %q, not %q", at, b.Flow(), got, h.names[l])
	}
	h.pairs = append(h.pairs, [2]*Assoc{a, b})
}

// exchange has every association carry a message each way.
func (h *hops) exchange() {
	h.t.Helper()
	for _, p := range h.pairs {
		send(h.t, p[0], "there")
		send(h.t, p[1], "back")
		if got := texts(h.t, p[1].box(), 1)[0] + texts(h.t, p[0].box(), 1)[0]; got != "thereback" {
			h.t.Fatalf("got %q", got)
		}
	}
}

// end closes everything and looks whether the port is free.
func (h *hops) end() {
	h.t.Helper()
	for _, l := range slices.Clone(h.open) {
		h.close(l)
	}
	for _, p := range h.pairs {
		p[0].Close()
		p[1].Close()
	}
	conn, err := net.ListenUDP("udp", &net.UDPAddr{Port: int(h.cfg.UDPPort)})
	if err != nil {
		h.t.Fatalf("the UDP port after the last association: %v", err)
	}
	conn.Close()
	if len(h.es.all) > 0 {
		h.t.Errorf("%d sockets are left", len(h.es.all))
	}
}

// A listener whose address changes, from one to all, to another one and back, has new
// associations at once wherever it listens, and those before go on.
func TestTheNextListenerTakesOverAtOtherAddresses(t *testing.T) {
	for _, path := range [][]netip.Addr{
		{one, any4}, {any4, one}, {other, any6}, {any6, other},
		{one, any4, one, other, any6, any4, other, one, any6},
		{any4, one, any4, other, one},
	} {
		t.Run(fmt.Sprint(path), func(t *testing.T) {
			h := &hops{t: t, cfg: udpConfig(t, LoopbackOnly())}
			for _, at := range path {
				l := h.hop(at)
				for _, a := range []netip.Addr{one, other, six} {
					if a == at || at.IsUnspecified() {
						h.meet(l, a)
					}
				}
				h.exchange()
			}
			h.end()
		})
	}
}

// A listener at one address that has the socket of all takes nothing at the others: a
// dialler hears as much as from an address where nobody listens.
func TestOtherAddressesStaySilent(t *testing.T) {
	h := &hops{t: t, cfg: udpConfig(t, LoopbackOnly())}
	l := h.hop(any4)
	h.meet(l, other)
	first := h.hop(one)
	second, err := h.listen(six)
	if err != nil {
		t.Fatal(err)
	}
	h.meet(first, one)
	h.meet(second, six)
	if len(h.es.all) != 1 {
		t.Fatalf("%d sockets, where one has all addresses", len(h.es.all))
	}
	var socket *udpSocket
	for _, socket = range h.es.all {
	}
	before := socket.ep.Stats()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	over := make(chan error)
	go func() {
		a, err := DialSCTP(ctx, netip.AddrPortFrom(other, linkPort), h.cfg, inboxes)
		if err == nil {
			a.Close()
		}
		over <- err
	}()
	waitFor(t, func() bool { return socket.ep.Stats().NotAdmitted > before.NotAdmitted })
	cancel()
	if err := <-over; !errors.Is(err, context.Canceled) {
		t.Errorf("dialling an address that nobody listens at: %v", err)
	}
	if after := socket.ep.Stats(); after.Inits != before.Inits {
		t.Error("an INIT to an address that nobody listens at was answered")
	}
	h.close(second) // with which the first one goes on
	h.meet(first, one)
	h.exchange()
	h.end()
}

// Whoever listens keeps others away, whichever sockets it has.
func TestListenersThatAreOpenDoNotShare(t *testing.T) {
	h := &hops{t: t, cfg: udpConfig(t, LoopbackOnly())}
	h.meet(h.hop(one), one)
	h.meet(h.hop(any4), other)
	for _, at := range []netip.Addr{one, other, any4, any6} {
		if _, err := h.listen(at); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("listening at %v beside all: %v", at, err)
		}
	}
	h.hop(one)
	for _, at := range []netip.Addr{one, any4, any6} {
		if _, err := h.listen(at); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("listening at %v beside %v: %v", at, one, err)
		}
	}
	// Nor may another program join in, of which the kernel would give it packets.
	for _, at := range []netip.Addr{one, other, any4} {
		lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
			cerr := c.Control(func(fd uintptr) {
				err = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1), unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
			})
			return errors.Join(cerr, err)
		}}
		c, err := lc.ListenPacket(t.Context(), "udp", netip.AddrPortFrom(at, h.cfg.UDPPort).String())
		if err == nil {
			c.Close()
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("another program at %v: %v", at, err)
		}
	}
	h.exchange()
	h.end()
}

// TestListenersComeAndGo has listeners open and close in any order while associations
// begin and end: at any time who listens at an address gets its associations.
func TestListenersComeAndGo(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 0))
			h := &hops{t: t, cfg: udpConfig(t, LoopbackOnly())}
			addrs := []netip.Addr{one, other, six, any4, any6}
			overlap := func(a, b netip.Addr) bool { return a == b || a.IsUnspecified() || b.IsUnspecified() }
			for range 40 {
				at := addrs[rnd.IntN(len(addrs))]
				i := slices.IndexFunc(h.open, func(l *SCTPListener) bool { return overlap(l.Addr().Addr(), at) })
				switch n := rnd.IntN(10); {
				case n < 3:
					if _, err := h.listen(at); (i < 0) != (err == nil) || err != nil && !errors.Is(err, syscall.EADDRINUSE) {
						t.Fatalf("listening at %v beside %d others: %v", at, len(h.open), err)
					}
				case n < 5 && len(h.open) > 0:
					h.close(h.open[rnd.IntN(len(h.open))])
				case n < 8 && i >= 0 && !at.IsUnspecified():
					h.meet(h.open[i], at)
				case len(h.pairs) > 0:
					j := rnd.IntN(len(h.pairs))
					i := rnd.IntN(2)
					h.pairs[j][i].Close()
					<-h.pairs[j][1-i].Done()
					h.pairs[j][1-i].Close() // waits for its socket
					h.pairs = slices.Delete(h.pairs, j, j+1)
				}
				h.exchange()
			}
			h.end()
		})
	}
}
