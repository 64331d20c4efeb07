package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/internal/otheruser"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/transport/assoc"
	"github.com/ironwarp/ironwarp/transport/assoc/assoctest"
	"github.com/ironwarp/ironwarp/transport/delegate"
)

// ownAssoc is a program's association in UDP and its other end.
type ownAssoc struct {
	*transport.Assoc
	other *transport.Assoc
	prot  transport.Protection
}

// associate dials a UDP port of this host; taken has the daemon asked for the end that was dialled.
func (p *program) associate(port uint16, taken bool) (*ownAssoc, error) {
	p.t.Helper()
	inboxes := func(assoc.Association) assoc.Receiver { return assoctest.NewInbox() }
	cfg := &transport.Config{Protector: transport.LoopbackOnly(), Kind: transport.SCTPUDP, UDPPort: port, OwnSockets: true}
	l, err := transport.ListenSCTP(p.t.Context(), netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port), cfg, inboxes)
	if err != nil {
		p.t.Fatal(err)
	}
	a, err := transport.DialSCTP(p.t.Context(), l.Addr(), cfg, inboxes)
	if err != nil {
		p.t.Fatal(err)
	}
	b, err := l.Accept(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	s := &ownAssoc{Assoc: a, other: b}
	if taken {
		s.Assoc, s.other = b, a
	}
	p.t.Cleanup(func() { a.Close(); b.Close() })
	defer l.Close()
	if !taken {
		ctx, cancel := context.WithTimeout(p.t.Context(), waitTime)
		defer cancel()
		if err := p.Prepare(ctx, transport.Flow{Protocol: transport.ProtoUDP, Remote: s.Flow().Remote}); err != nil {
			a.Close()
			b.Close()
			return s, err
		}
	}
	s.prot, err = p.Admit(p.t.Context(), s.Flow(), !taken, s.Assoc)
	if err != nil {
		a.Close()
		b.Close()
		return s, err
	}
	go func() { <-s.Done(); s.prot.Release() }()
	return s, nil
}

func (p *program) mustAssociate(port uint16) *ownAssoc {
	p.t.Helper()
	s, err := p.associate(port, false)
	if err != nil {
		p.t.Fatal(err)
	}
	return s
}

func (s *ownAssoc) works(t *testing.T) bool {
	t.Helper()
	box := s.other.Receiver().(*assoctest.Inbox)
	n := len(box.Messages())
	if s.SendNow(assoc.Outgoing{PPID: 16, Bufs: [][]byte{[]byte("message")}}) != nil {
		return false
	}
	box.WaitFor(t, n+1)
	return true
}

// isOver waits for the end at the other end, which is told.
func (s *ownAssoc) isOver() bool {
	select {
	case <-s.other.Done():
		return errors.Is(s.other.Err(), &assoc.AbortError{})
	case <-time.After(waitTime):
		return false
	}
}

// withAssociations is a host with programs of alice, whose ports are of SCTP in UDP, and of bob, who takes connections there.
func withAssociations(t *testing.T) *host {
	t.Helper()
	otheruser.Need(t)
	alpha, beta := newHost(t, ""), newHost(t, "")
	link(t, alpha, beta)
	alpha.ulps(associationUsers(""))
	return alpha
}

func associationUsers(more string) string {
	return strings.ReplaceAll(programUsers(more), "peers: [beta]", "peers: [beta], transport: sctp-udp")
}

func TestAssociationsOfProgramsAreListedAndEnded(t *testing.T) {
	h := withAssociations(t)
	p := h.program(alice)
	s, other := p.mustAssociate(firstPort+3), p.mustAssociate(firstPort+4)
	if !s.works(t) {
		t.Fatal("it carries nothing")
	}
	var mine api.Stream
	eventually(t, "its bytes are counted", func() bool {
		list, err := h.api.Streams(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range list {
			if x.Flow == s.Flow().String() {
				mine = x
			}
		}
		return mine.BytesOut == 7
	})
	if mine.Peer != "beta" || mine.Service != "alice" || mine.Transport != "sctp-udp" || mine.Protection != "loopback" || mine.BytesIn != 0 {
		t.Errorf("%+v", mine)
	}
	if _, err := h.api.KillStream(t.Context(), mine.ID); err != nil {
		t.Fatal(err)
	}
	if !s.isOver() {
		t.Error("an association that was killed goes on, or its peer is not told")
	}
	if !other.works(t) {
		t.Error("another one was ended")
	}
	eventually(t, "one is left", func() bool { return h.uses(t, "alice", "streams") == 1 })
}

func TestWhatAProgramMayNotHaveOverSCTP(t *testing.T) {
	h := withAssociations(t)
	p := h.program(alice)
	dial := func(port uint16) error { _, err := p.associate(port, false); return err }
	_, taken := p.associate(firstPort, true)
	_, tcp := p.connect(firstPort, false)
	for _, tc := range []struct {
		name string
		err  error
		want string // "": it may
	}{
		{"its first port", dial(firstPort), ""},
		{"its last port", dial(firstPort + 15), ""},
		{"a port of bob's", dial(firstPort + 16), fmt.Sprintf("port %d over sctp-udp is none of those that ULP alice has with peer beta: %d to %d over sctp-udp", firstPort+16, firstPort, firstPort+15)},
		{"a port of nobody's", dial(firstPort - 1), "is none of those"},
		{"TCP", tcp, fmt.Sprintf("port %d over tcp is none of those that ULP alice has with peer beta: %d to %d over sctp-udp", firstPort, firstPort, firstPort+15)},
		{"connections", taken, "ULP alice takes no connections"},
	} {
		if tc.want == "" && tc.err != nil || tc.want != "" && (!errors.Is(tc.err, transport.ErrNotProtected) || !strings.Contains(tc.err.Error(), tc.want)) {
			t.Errorf("%s: %v, want %q", tc.name, tc.err, tc.want)
		}
	}
	b := h.program(bob)
	if _, err := b.associate(firstPort+16, true); err != nil {
		t.Errorf("bob may take connections: %v", err)
	}
	got := b.Terms()
	if len(got.Peers) != 1 || !got.Has(transport.ProtoUDP, firstPort+16) || got.Has(transport.ProtoTCP, firstPort+16) {
		t.Errorf("%+v", got)
	}
}

func TestAssociationsOfProgramsCountAgainstTheirULP(t *testing.T) {
	h := withAssociations(t)
	h.ulps(associationUsers(", limits: {streams: 2}"))
	p := h.program(alice)
	first := p.mustAssociate(firstPort)
	p.mustAssociate(firstPort + 1)
	if _, err := p.associate(firstPort+2, false); !errors.Is(err, delegate.ErrShort) {
		t.Errorf("a third one: %v", err)
	}
	first.Close()
	eventually(t, "room for another", func() bool { return h.uses(t, "alice", "streams") == 1 })
	p.mustAssociate(firstPort + 3)
}

func TestAssociationsOfProgramsEndWithTheirRights(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  func(*host) error
	}{
		{"the ports are of TCP", func(h *host) error { h.ulps(programUsers("")); return nil }},
		{"the ULP is removed", func(h *host) error { h.ulps(""); return nil }},
		{"the peer is blocked", func(h *host) error { _, err := h.api.Block(h.t.Context(), api.BlockRequest{Peer: "beta"}); return err }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := withAssociations(t)
			p := h.program(alice)
			s := p.mustAssociate(firstPort + 1)
			if err := tc.end(h); err != nil {
				t.Fatal(err)
			}
			if !s.isOver() {
				t.Error("the association goes on")
			}
			if _, err := p.associate(firstPort+2, false); !errors.Is(err, transport.ErrNotProtected) {
				t.Errorf("another one: %v", err)
			}
		})
	}
}

func TestAssociationsOfProgramsOutliveTheDaemon(t *testing.T) {
	h := withAssociations(t)
	p := h.program(alice)
	s := p.mustAssociate(firstPort + 2)
	h.stop()
	if !s.works(t) {
		t.Fatal("it has ended with the daemon")
	}
	h.start()
	eventually(t, "the next daemon has it", func() bool { return h.uses(t, "alice", "streams") == 1 })
	if !s.works(t) {
		t.Error("it has ended with the next daemon")
	}
	p.Close()
	if !s.isOver() {
		t.Error("it goes on without its program")
	}
}

// TestAssociationOfAProgramThatDoesNotAnswer is shut down all the same, when `stream kill` returns or soon after, and its
// peer is told.
func TestAssociationOfAProgramThatDoesNotAnswer(t *testing.T) {
	h := withAssociations(t)
	c, err := h.dialFlows(alice)(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	peer, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: firstPort + 5})
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	own, err := net.DialUDP("udp4", nil, peer.LocalAddr().(*net.UDPAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	raw, err := own.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err != nil { // before its terms have come the daemon takes no socket
		t.Fatal(err)
	}
	body := `{"op":"admit","id":1,"outgoing":true,"will":"d2lsbA=="}`
	raw.Control(func(fd uintptr) {
		_, _, err = c.WriteMsgUnix(append([]byte{0, 0, 0, byte(len(body))}, body...), unix.UnixRights(int(fd)), nil)
	})
	if err != nil {
		t.Fatal(err)
	}
	id := ""
	eventually(t, "it is listed", func() bool {
		list, err := h.api.Streams(t.Context())
		for _, x := range list {
			if x.Program != "" {
				id = x.ID
			}
		}
		return err == nil && id != ""
	})
	soon(t, "stream kill", func() error { _, err := h.api.KillStream(t.Context(), id); return err })
	var b [64]byte
	peer.SetReadDeadline(time.Now().Add(waitTime))
	if n, err := peer.Read(b[:]); err != nil || string(b[:n]) != "will" {
		t.Errorf("its peer hears %q, %v", b[:n], err)
	}
	eventually(t, "its socket is shut down", func() bool { _, err := own.Write([]byte{1}); return errors.Is(err, unix.EPIPE) })
}
