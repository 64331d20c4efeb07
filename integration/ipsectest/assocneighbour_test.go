package ipsectest

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec"
	"github.com/ironwarp/ironwarp/transport"
)

// Chunk types (RFC 9260 section 3.2).
const (
	chunkDATA     = 0
	chunkINIT     = 1
	chunkINITACK  = 2
	chunkABORT    = 6
	chunkSHUTDOWN = 7
)

// sctpPacket is a packet up to its first chunk: native, or in UDP, whose addresses it
// then has.
type sctpPacket struct {
	from, to netip.AddrPort
	src, dst uint16 // SCTP ports
	tag      uint32
	kind     uint8
	flags    uint8
	body     []byte
}

func (s sctpPacket) packet(kind transport.Kind) []byte {
	be := binary.BigEndian
	b := be.AppendUint16(be.AppendUint16(nil, s.src), s.dst)
	b = be.AppendUint32(b, s.tag)
	b = append(b, 0, 0, 0, 0, s.kind, s.flags)
	b = append(be.AppendUint16(b, uint16(4+len(s.body))), s.body...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	if kind == transport.SCTPUDP {
		return datagram{from: s.from, to: s.to, data: b}.packet()
	}
	return header(s.from.Addr(), s.to.Addr(), unix.IPPROTO_SCTP, b)
}

// parseSCTP reads the first chunk of a packet of a kind's link.
func parseSCTP(p []byte, kind transport.Kind) (s sctpPacket, ok bool) {
	be := binary.BigEndian
	link := linkOf(kind)
	if len(p) < 28 || p[0] != 0x45 || p[9] != byte(link.Protocol) {
		return s, false
	}
	src, dst := netip.AddrFrom4([4]byte(p[12:16])), netip.AddrFrom4([4]byte(p[16:20]))
	p = p[20:min(len(p), int(be.Uint16(p[2:])))]
	s.from, s.to = netip.AddrPortFrom(src, be.Uint16(p)), netip.AddrPortFrom(dst, be.Uint16(p[2:]))
	if s.from.Port() != link.Port && s.to.Port() != link.Port {
		return s, false
	}
	if kind == transport.SCTPUDP {
		p = p[8:]
	}
	if len(p) < 16 {
		return s, false
	}
	s.src, s.dst, s.tag, s.kind, s.flags = be.Uint16(p), be.Uint16(p[2:]), be.Uint32(p[4:]), p[12], p[13]
	s.body = slices.Clone(p[16:min(len(p), 12+int(be.Uint16(p[14:])))])
	return s, true
}

// sniffSCTP returns a function that returns what a host has seen of a link in
// clear, or after ESP has decrypted it.
func sniffSCTP(t *testing.T, h *host, kind transport.Kind) func() []sctpPacket {
	t.Helper()
	var mu sync.Mutex
	var seen []sctpPacket
	packets(t, h, func(b []byte) {
		if s, ok := parseSCTP(b, kind); ok {
			mu.Lock()
			seen = append(seen, s)
			mu.Unlock()
		}
	})
	return func() []sctpPacket {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(seen)
	}
}

// knownAssoc is an association whose tags and numbers the neighbour knows.
type knownAssoc struct {
	c    stream
	last sctpPacket // with data, that alpha has sent
}

func newKnownAssoc(t *testing.T, p *pair) *knownAssoc {
	t.Helper()
	seen := sniffSCTP(t, p.beta, p.kind)
	l := &knownAssoc{c: p.mustOpen(t, p.alpha)}
	if err := ping(l.c, "before"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "alpha's data is seen", func() bool {
		for _, s := range seen() {
			if s.from == l.c.Flow().Local && s.kind == chunkDATA {
				l.last = s
			}
		}
		return l.last.body != nil
	})
	p.acknowledged(t)
	return l
}

// assocAttacks are single clear packets, each with what shows that it got in.
var assocAttacks = []struct {
	name   string
	packet func(l *knownAssoc) sctpPacket
	// answered: beta sends an INIT ACK. Otherwise the association is harmed.
	answered bool
}{
	{"a new association", func(l *knownAssoc) sctpPacket {
		s := l.last
		s.from = netip.AddrPortFrom(s.from.Addr(), s.from.Port()^1)
		s.src, s.tag, s.kind, s.flags = s.src^1, 0, chunkINIT, 0
		be := binary.BigEndian
		s.body = be.AppendUint32(be.AppendUint32(nil, 0x01020304), 1<<16)  // tag, window
		s.body = be.AppendUint32(be.AppendUint32(s.body, 10<<16|10), 1)    // streams, TSN
		s.body = be.AppendUint32(be.AppendUint32(s.body, 0xc006<<16|8), 1) // DDP's indication (RFC 5061 section 4.2.6)
		return s
	}, true},
	{"data in sequence", func(l *knownAssoc) sctpPacket {
		s := l.last
		s.body = append(slices.Clone(s.body[:12]), "evil"...)
		binary.BigEndian.PutUint32(s.body, binary.BigEndian.Uint32(s.body)+1)
		return s
	}, false},
	{"an abort with the right tag", func(l *knownAssoc) sctpPacket {
		s := l.last
		s.kind, s.flags, s.body = chunkABORT, 0, nil
		return s
	}, false},
	{"a shutdown with the right tag", func(l *knownAssoc) sctpPacket {
		s := l.last
		s.kind, s.flags, s.body = chunkSHUTDOWN, 0, []byte{0xff, 0xff, 0xff, 0xff}
		return s
	}, false},
}

func answersTo(seen []sctpPacket, g sctpPacket) bool {
	return slices.ContainsFunc(seen, func(s sctpPacket) bool {
		return s.kind == chunkINITACK && s.to == g.from && s.dst == g.src
	})
}

func TestNeighbourGetsNothingIntoAnAssociation(t *testing.T) {
	overEach(t, "single clear packets of a neighbour with the peer's address and the right tag: stopped and counted by the kernel", lab.Config{Hosts: []string{"alpha", "beta", "mallory"}}, func(t *testing.T, p *pair) {
		mallory := newNeighbour(t, p.lab.Host("mallory"), p.beta)
		p.addPeers(t)
		p.echo(t, p.beta, func(err error) { t.Errorf("a clear packet got as far as the listener: %v", err) })
		l := newKnownAssoc(t, p)
		for _, state := range []string{"with an SA", "without an SA"} {
			if state == "without an SA" {
				deleteIKE(t, p.alpha, "beta")
				eventually(t, "the association is paused", l.c.Protection().Paused)
			}
			seen := sniffSCTP(t, p.beta, p.kind)
			for _, a := range assocAttacks {
				before := stoppedInbound(t, p.beta)
				g := a.packet(l)
				mallory.send(g.packet(p.kind))
				eventually(t, a.name+" "+state+" is stopped and counted", func() bool { return stoppedInbound(t, p.beta) > before })
				if answersTo(seen(), g) {
					t.Errorf("%s %s: beta has answered", a.name, state)
				}
			}
		}
		if err := ping(l.c, "after"); err != nil {
			t.Errorf("the association: %v", err)
		}
	})
}

// TestControlWithoutTheGuardAnAssociationIsHarmed mounts the same attacks with beta's
// guard removed.
func TestControlWithoutTheGuardAnAssociationIsHarmed(t *testing.T) {
	overEach(t, "control: without the guard the same packets get in", lab.Config{Hosts: []string{"alpha", "beta", "mallory"}}, func(t *testing.T, p *pair) {
		mallory := newNeighbour(t, p.lab.Host("mallory"), p.beta)
		p.addPeers(t)
		p.echo(t, p.beta, nil)
		for _, a := range assocAttacks {
			l := newKnownAssoc(t, p)
			p.unguard(t, p.beta)
			seen := sniffSCTP(t, p.beta, p.kind)
			g := a.packet(l)
			mallory.send(g.packet(p.kind))
			if a.answered {
				eventually(t, "beta answers to "+a.name, func() bool { return answersTo(seen(), g) })
			} else if err := pingWithin(l.c, "after", 3*time.Second); err == nil {
				t.Errorf("%s has not harmed the association without the guard: the check cannot fail", a.name)
			} else {
				t.Logf("%s: %v", a.name, err)
			}
			l.c.Close()
		}
	})
}

// TestStrangersGetNoAssociation sends an INIT from a host that is nobody's peer: there
// is no guard against it, so the Protector is asked before the first answer.
func TestStrangersGetNoAssociation(t *testing.T) {
	p := newPairOf(t, transport.SCTPUDP, lab.Config{Hosts: []string{"alpha", "beta", "mallory"}})
	p.addPeers(t)
	refused, note := refusals()
	p.echo(t, p.beta, note)
	l := newKnownAssoc(t, p)
	mallory := newNeighbour(t, p.lab.Host("mallory"), p.beta)
	seen := sniffSCTP(t, p.beta, p.kind)
	g := assocAttacks[0].packet(l)
	g.from = netip.AddrPortFrom(p.lab.Host("mallory").Addr(), 40000)
	mallory.send(g.packet(p.kind))
	select {
	case err := <-refused:
		if !errors.Is(err, ipsec.ErrUnknownPeer) || !errors.Is(err, transport.ErrNotProtected) {
			t.Errorf("refused with %v", err)
		}
	case <-time.After(2 * time.Minute):
		t.Fatal("no event reports the stranger")
	}
	if answersTo(seen(), g) {
		t.Error("a stranger is answered")
	}
	// Control: as a peer it would be.
	c := p.peerOf(p.beta)
	c.Name, c.RemoteID, c.Remote = "mallory", "mallory", g.from.Addr()
	if err := p.beta.m.AddPeer(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if err := p.beta.m.RemoveGuard(t.Context(), "mallory"); err != nil {
		t.Fatal(err)
	}
	mallory.send(g.packet(p.kind))
	eventually(t, "a peer is answered", func() bool { return answersTo(seen(), g) })
}
