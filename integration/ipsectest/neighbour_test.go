package ipsectest

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/transport"
)

// hostile is a pair with a neighbour that attacks beta.
func hostile(t *testing.T, cfg lab.Config) (*pair, *neighbour) {
	t.Helper()
	cfg.Hosts = []string{"alpha", "beta", "mallory"}
	p := newPair(t, cfg)
	return p, newNeighbour(t, p.lab.Host("mallory"), p.beta)
}

// knownStream is a stream whose sequence numbers the neighbour knows, as if it had
// guessed them.
type knownStream struct {
	c    *transport.Conn
	from netip.AddrPort // alpha's end
	to   netip.AddrPort
	last segment // that alpha has sent
}

func newKnownStream(t *testing.T, p *pair) *knownStream {
	t.Helper()
	s := sniff(t, p.beta)
	l := &knownStream{c: p.alpha.mustDial(t, p.beta)}
	l.from, l.to = l.c.Flow().Local, l.c.Flow().Remote
	if err := ping(l.c, "before"); err != nil {
		t.Fatal(err)
	}
	// Kernel ESP shows only what beta receives: when alpha has acknowledged the echo,
	// nothing is on its way any more.
	eventually(t, "the stream is quiet", func() bool {
		first, ok := s.first(func(g segment) bool { return g.from == l.from && g.flags == flagACK })
		if ok {
			l.last, ok = s.last(func(g segment) bool { return g.from == l.from && g.ack == first.ack+pingSize })
		}
		return ok
	})
	return l
}

// attacks are single clear packets, each with what shows that it got in.
var attacks = []struct {
	name   string
	packet func(l *knownStream) segment
	// answered: beta's TCP answers to it. Otherwise it has destroyed the stream.
	answered bool
}{
	{"a new connection", func(l *knownStream) segment {
		return segment{from: netip.AddrPortFrom(l.from.Addr(), l.from.Port()^1), to: l.to, seq: 0x01020304, flags: flagSYN}
	}, true},
	{"data in sequence", func(l *knownStream) segment {
		return segment{from: l.from, to: l.to, seq: l.last.next(), ack: l.last.ack, flags: flagACK | flagPSH, data: []byte("evil")}
	}, false},
	{"a reset in sequence", func(l *knownStream) segment {
		return segment{from: l.from, to: l.to, seq: l.last.next(), flags: flagRST}
	}, false},
	{"an end in sequence", func(l *knownStream) segment {
		return segment{from: l.from, to: l.to, seq: l.last.next(), ack: l.last.ack, flags: flagACK | flagFIN}
	}, false},
}

func TestNeighbourWithThePeersAddressGetsNothingIn(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		name := map[bool]string{false: "IPv4", true: "IPv6"}[v6]
		t.Run(name, func(t *testing.T) {
			p, mallory := hostile(t, lab.Config{})
			p.alpha.v6, p.beta.v6 = v6, v6
			p.addPeers(t)
			p.beta.echo(t, func(err error) { t.Errorf("a clear packet got as far as the listener: %v", err) })
			l := newKnownStream(t, p)
			for _, state := range []string{"with an SA", "without an SA"} {
				if state == "without an SA" {
					deleteIKE(t, p.alpha, "beta")
					eventually(t, "the stream is paused", l.c.Protection().Paused)
				}
				s := sniff(t, p.beta)
				for _, a := range attacks {
					before := stoppedInbound(t, p.beta)
					g := a.packet(l)
					mallory.send(g.packet())
					eventually(t, a.name+" "+state+" is stopped and counted", func() bool { return stoppedInbound(t, p.beta) > before })
					if s.has(func(r segment) bool { return r.from == l.to && r.to == g.from }) {
						t.Errorf("%s %s: beta has answered", a.name, state)
					}
				}
				b, err := p.beta.m.Blocked()
				if err != nil || b.In < uint64(len(attacks)) {
					t.Errorf("the Manager reports %d packets that were stopped, %v", b.In, err)
				}
			}
			if err := ping(l.c, "after"); err != nil {
				t.Errorf("the stream: %v", err)
			}
		})
	}
}

// TestControlWithoutTheGuardTheSamePacketsGetIn mounts the same attacks with beta's
// guard removed.
func TestControlWithoutTheGuardTheSamePacketsGetIn(t *testing.T) {
	p, mallory := hostile(t, lab.Config{})
	p.addPeers(t)
	p.beta.echo(t, nil)
	for _, a := range attacks {
		l := newKnownStream(t, p)
		p.unguard(t, p.beta)
		s := sniff(t, p.beta)
		g := a.packet(l)
		mallory.send(g.packet())
		if a.answered {
			eventually(t, "beta answers to "+a.name, func() bool {
				return s.has(func(r segment) bool { return r.from == l.to && r.to == g.from && r.ack == g.next() })
			})
			continue
		}
		eventually(t, "beta has seen "+a.name, func() bool {
			return s.has(func(r segment) bool { return r.from == g.from && r.seq == g.seq && r.flags == g.flags })
		})
		if err := pingWithin(l.c, "after", 3*time.Second); err == nil {
			t.Errorf("%s has not harmed the stream without the guard: the check cannot fail", a.name)
		} else {
			t.Logf("%s: %v", a.name, err)
		}
		l.c.Close()
	}
}

// received counts the UDP datagrams that a host has received.
func received(t *testing.T, h *host) (n uint64) {
	t.Helper()
	out, err := h.Run(t.Context(), "cat", "/proc/net/snmp")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		switch {
		case f[0] != "Udp:":
		case names == nil:
			names = f
		default:
			for i, name := range names {
				if name == "InDatagrams" || name == "InErrors" {
					var v uint64
					_, _ = fmt.Sscan(f[i], &v)
					n += v
				}
			}
		}
	}
	return n
}

// ikeInit is an IKE_SA_INIT that costs charon work (RFC 7296 section 1.2): it asks for
// the default profile's algorithms with a group of 2048 bits.
func ikeInit(r *rand.Rand) []byte {
	be := binary.BigEndian
	blob := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return b
	}
	transform := func(last bool, kind byte, id uint16, attr ...byte) []byte {
		b := []byte{3, 0, 0, byte(8 + len(attr)), kind, 0, byte(id >> 8), byte(id)}
		if last {
			b[0] = 0
		}
		return append(b, attr...)
	}
	payload := func(next byte, body []byte) []byte {
		return append(be.AppendUint16([]byte{next, 0}, uint16(4+len(body))), body...)
	}
	proposal := bytes.Join([][]byte{
		transform(false, 1, 20, 0x80, 14, 0, 128), // AES-GCM-16 with 128 bits
		transform(false, 2, 5),                    // PRF-HMAC-SHA2-256
		transform(true, 4, 14),                    // MODP-2048
	}, nil)
	sa := append([]byte{0, 0, 0, byte(8 + len(proposal)), 1, 1, 0, 3}, proposal...)
	body := bytes.Join([][]byte{payload(34, sa), payload(40, append([]byte{0, 14, 0, 0}, blob(256)...)), payload(0, blob(32))}, nil)
	h := append(blob(8), make([]byte, 8)...)
	h = append(h, 33, 0x20, 34, 0x08, 0, 0, 0, 0)
	return append(be.AppendUint32(h, uint32(28+len(body))), body...)
}

// floods are what the neighbour sends to the ports of IKE and ESP in UDP.
var floods = []struct {
	name    string
	packets int
	to      uint16
	payload func(r *rand.Rand, c charon.Child) []byte
}{
	{"ESP garbage with the SPI in use", 2000, 4500, func(r *rand.Rand, c charon.Child) []byte {
		b := noise(r, 32+r.IntN(1200))
		var spi uint32
		_, _ = fmt.Sscanf(c.SPIIn, "%x", &spi)
		binary.BigEndian.PutUint32(b, spi)
		binary.BigEndian.PutUint32(b[4:], r.Uint32N(1<<16))
		return b
	}},
	{"ESP garbage with any SPI", 2000, 4500, func(r *rand.Rand, _ charon.Child) []byte {
		b := noise(r, 8+r.IntN(1200))
		b[0] |= 1
		return b
	}},
	{"IKE garbage", 2000, 500, func(r *rand.Rand, _ charon.Child) []byte { return noise(r, r.IntN(600)) }},
	{"IKE headers and garbage", 2000, 4500, func(r *rand.Rand, _ charon.Child) []byte {
		b := append(make([]byte, 4), ikeInit(r)...) // the non-ESP marker of RFC 3948
		for range 8 {
			b[4+r.IntN(len(b)-4)] = byte(r.Uint32())
		}
		return b
	}},
	{"a flood of IKE_SA_INIT", 2000, 500, func(r *rand.Rand, _ charon.Child) []byte { return ikeInit(r) }},
}

func noise(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// TestFloodsOfANeighbourDoNotHarmALiveStream sends them with alpha's address
// while a stream runs.
func TestFloodsOfANeighbourDoNotHarmALiveStream(t *testing.T) {
	p, mallory := hostile(t, lab.Config{})
	p.addPeers(t)
	p.beta.echo(t, func(err error) { t.Errorf("refused: %v", err) })
	k := talk(p.alpha.mustDial(t, p.beta))
	k.moves(t, 20)
	wire := capture(t, p.beta)
	for _, f := range floods {
		t.Run(f.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(7, uint64(f.to)))
			child := childOf(t, p.beta, "alpha-in")
			before := received(t, p.beta)
			k.longest()
			for range f.packets {
				mallory.send(datagram{from: netip.AddrPortFrom(p.alpha.Addr(), f.to), to: netip.AddrPortFrom(p.beta.Addr(), f.to), data: f.payload(r, child)}.packet())
			}
			k.moves(t, 50)
			eventually(t, "the flood arrived", func() bool { return received(t, p.beta) >= before+uint64(f.packets)/2 })
			t.Logf("longest gap %v", k.longest().Round(time.Millisecond))
		})
	}
	// strongSwan has processed it, until it asked for cookies (RFC 7296 2.6).
	log, err := os.ReadFile(p.beta.CharonLog())
	if err != nil || !bytes.Contains(log, []byte("N(COOKIE)")) {
		t.Errorf("the flood of IKE_SA_INIT did not get as far as strongSwan: %v", err)
	}
	// The genuine alpha is still served.
	deleteChild(t, p.alpha, "beta")
	k.moves(t, 50)
	deleteIKE(t, p.alpha, "beta")
	k.moves(t, 50)
	k.end(t)
	if c := counted(t, wire); c.Clear(port) != 0 {
		t.Errorf("on the wire: %v", c)
	}
	if _, err := p.beta.m.SAs(t.Context()); err != nil {
		t.Errorf("strongSwan after the floods: %v", err)
	}
}

// deleteChild deletes a host's children to a peer. Bytes that flow do not prove that there is one: those of two hosts
// that have begun at once are sorted out, and one of them deleted, while the stream goes on.
func deleteChild(t *testing.T, h *host, peer string) {
	t.Helper()
	eventually(t, "there is a child to delete", func() bool {
		n, err := h.m.DeleteChild(t.Context(), peer, "")
		if err != nil {
			t.Fatal(err)
		}
		return n > 0
	})
}

func childOf(t *testing.T, h *host, name string) (c charon.Child) {
	t.Helper()
	eventually(t, "child "+name+" is installed", func() bool {
		sas, err := h.m.SAs(t.Context())
		for _, sa := range sas {
			for _, found := range sa.Children {
				if found.Name == name && found.IsInstalled() {
					c = found
				}
			}
		}
		return err == nil && c.Name == name
	})
	return c
}

// TestReplayedESPIsDropped sends packets of a stream a second time.
func TestReplayedESPIsDropped(t *testing.T) {
	p, mallory := hostile(t, lab.Config{})
	p.addPeers(t)
	p.beta.echo(t, nil)
	c := p.alpha.mustDial(t, p.beta)
	seen := sniffESP(t, p.beta, p.alpha.Addr())
	const n = 50
	for range n {
		if err := ping(c, "again"); err != nil {
			t.Fatal(err)
		}
	}
	var packets [][]byte
	eventually(t, "ESP of the stream was seen", func() bool {
		packets = seen()
		return len(packets) >= n
	})
	in := func() uint64 { return childOf(t, p.beta, "alpha-in").PacketsIn }
	before := in()
	if before < n {
		t.Fatalf("the SA counts %d packets, %d were sent: the check cannot fail", before, n)
	}
	counted := func() uint64 { return received(t, p.beta) + stat(t, p.beta, "XfrmInStateSeqError") }
	from := counted()
	for _, b := range packets {
		mallory.send(b)
	}
	eventually(t, "the replayed packets arrived", func() bool { return counted() >= from+uint64(len(packets))/2 })
	if err := ping(c, "after"); err != nil {
		t.Error(err)
	}
	if after := in(); after > before+n/2 {
		t.Errorf("the SA counted %d packets before %d were replayed, and %d after", before, len(packets), after)
	}
}

// TestPeersOtherFamilyIsShut uses a listener on all addresses, which IronWarp's own is
// not: clear packets reach it neither through IPv4-mapped addresses, nor by way of a
// translator (RFC 6052).
func TestPeersOtherFamilyIsShut(t *testing.T) {
	translated := func(h *host) netip.Addr {
		b := netip.MustParseAddr("64:ff9b::").As16()
		v4 := h.Addr().As4()
		copy(b[12:], v4[:])
		return netip.AddrFrom16(b)
	}
	p := newPair(t, lab.Config{})
	for _, h := range []*host{p.alpha, p.beta} {
		if _, err := h.Run(t.Context(), "ip", "addr", "add", translated(h).String()+"/96", "dev", h.Dev(), "nodad"); err != nil {
			t.Fatal(err)
		}
	}
	targets := map[string]netip.Addr{"IPv4-mapped": netip.AddrFrom16(p.beta.Addr().As16()), "translated": translated(p.beta)}
	clearListener(t, p.beta.Host, netip.AddrPortFrom(netip.IPv6Unspecified(), port))
	for what, to := range targets {
		if err := tryClear(t, p.alpha.Host, netip.AddrPortFrom(to, port), time.Minute); err != nil {
			t.Errorf("%s, without guards: %v: the check cannot fail", what, err)
		}
	}
	wire := capture(t, p.beta)
	if err := p.alpha.m.AddPeer(t.Context(), p.peerOf(p.alpha)); err != nil {
		t.Fatal(err)
	}
	for what, to := range targets {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if c, err := p.alpha.Dial(ctx, netip.AddrPortFrom(to, port)); err == nil {
			c.Close()
			t.Errorf("%s: connected", what)
		}
		cancel()
	}
	if c := counted(t, wire); c.Clear(port) != 0 {
		t.Errorf("on the wire: %v", c)
	}
	// Inbound: alpha's guard is gone, beta's stands.
	if err := p.alpha.m.RemovePeer(t.Context(), "beta"); err != nil {
		t.Fatal(err)
	}
	if err := p.beta.m.AddPeer(t.Context(), p.peerOf(p.beta)); err != nil {
		t.Fatal(err)
	}
	for what, to := range targets {
		before := stoppedInbound(t, p.beta)
		eventually(t, what+" is counted", func() bool {
			if err := tryClear(t, p.alpha.Host, netip.AddrPortFrom(to, port), 300*time.Millisecond); err == nil {
				t.Fatalf("%s: beta has accepted it", what)
			}
			return stoppedInbound(t, p.beta) > before
		})
	}
}
