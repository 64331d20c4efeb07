package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/local"
	"github.com/ironwarp/ironwarp/internal/otheruser"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/transport/delegate"
)

// program is a user's program, at the daemon.
type program struct {
	*delegate.Client
	t *testing.T
}

// dialFlows connects a program of a user.
func (h *host) dialFlows(uid uint32) func(context.Context) (*net.UnixConn, error) {
	path := filepath.Join(h.dir, "run", "ironwarp.sock")
	return func(ctx context.Context) (*net.UnixConn, error) {
		c, err := otheruser.Dial(path, uid)
		if err != nil {
			return nil, err
		}
		u := c.(*net.UnixConn)
		if err := api.UpgradeFlows(ctx, u); err != nil {
			u.Close()
			var refused *api.Error
			if errors.As(err, &refused) && refused.Code == api.CodeForbidden {
				err = fmt.Errorf("%w: %w", transport.ErrNotProtected, err)
			}
			return nil, err
		}
		return u, nil
	}
}

func (h *host) program(uid uint32) *program {
	h.t.Helper()
	c, err := delegate.New(h.t.Context(), h.dialFlows(uid), nil)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(c.Close)
	return &program{c, h.t}
}

// ownStream is a program's TCP connection and its other end.
type ownStream struct {
	*net.TCPConn
	other *net.TCPConn
	prot  transport.Protection
}

func (ownStream) Outq() (int, error) { return 0, nil }

// connect dials a port of this host; taken has the daemon asked for the end that was dialled.
func (p *program) connect(port uint16, taken bool) (*ownStream, error) {
	p.t.Helper()
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(p.t.Context(), "tcp4", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		p.t.Fatal(err)
	}
	defer l.Close()
	c, err := net.DialTCP("tcp4", nil, l.Addr().(*net.TCPAddr))
	if err != nil {
		p.t.Fatal(err)
	}
	a, err := l.Accept()
	if err != nil {
		p.t.Fatal(err)
	}
	s := &ownStream{TCPConn: c, other: a.(*net.TCPConn)}
	if taken {
		s.TCPConn, s.other = s.other, s.TCPConn
	}
	p.t.Cleanup(func() { s.TCPConn.Close(); s.other.Close() })
	if !taken {
		ctx, cancel := context.WithTimeout(p.t.Context(), waitTime)
		defer cancel()
		if err := p.Prepare(ctx, transport.Flow{Protocol: transport.ProtoTCP, Remote: s.RemoteAddr().(*net.TCPAddr).AddrPort()}); err != nil {
			return s, err
		}
	}
	s.prot, err = p.Admit(p.t.Context(), transport.Flow{}, !taken, s)
	return s, err
}

func (p *program) mustConnect(port uint16) *ownStream {
	p.t.Helper()
	s, err := p.connect(port, false)
	if err != nil {
		p.t.Fatal(err)
	}
	return s
}

// isOver waits for the stream's end at its other end.
func (s *ownStream) isOver() bool {
	s.other.SetReadDeadline(time.Now().Add(waitTime))
	_, err := s.other.Read(make([]byte, 1))
	return errors.Is(err, io.EOF)
}

func (s *ownStream) works() bool {
	s.other.SetReadDeadline(time.Now().Add(waitTime))
	_, err := s.Write([]byte{1})
	if err == nil {
		_, err = io.ReadFull(s.other, make([]byte, 1))
	}
	return err == nil
}

// firstPort is where blocks of ports of these tests begin, below the ports that tests give to hosts.
const firstPort = 9728

// withPrograms is a host with programs of alice and bob, each with ports of its own, of whom bob takes connections.
func withPrograms(t *testing.T) *host {
	t.Helper()
	otheruser.Need(t)
	alpha, beta := newHost(t, ""), newHost(t, "")
	link(t, alpha, beta)
	alpha.ulps(programUsers(""))
	return alpha
}

// programUsers are the ULPs of withPrograms, with more of alice's.
func programUsers(more string) string {
	return fmt.Sprintf(`
  - {name: alice, users: [%d], peers: [beta], ports: [%d/16]%s}
  - {name: bob, users: [%d], peers: [beta], ports: [%d/16], listen: true}
`, alice, firstPort, more, bob, firstPort+16)
}

func TestStreamsOfProgramsAreListedAndEnded(t *testing.T) {
	h := withPrograms(t)
	p := h.program(alice)
	s := p.mustConnect(firstPort + 3)
	if !s.works() {
		t.Fatal("it carries nothing")
	}
	own := func(c *api.Client) []api.Stream {
		list, err := c.Streams(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return slices.DeleteFunc(list, func(s api.Stream) bool { return s.Program == "" })
	}
	comm, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	list := own(h.api)
	eventually(t, "what it has sent is acknowledged", func() bool {
		list = own(h.api)
		return len(list) != 1 || list[0].BytesOut == 1
	})
	if len(list) != 1 || list[0].Peer != "beta" || list[0].Service != "alice" || list[0].Transport != "tcp" || list[0].Protection != "loopback" ||
		list[0].Program != strings.TrimSpace(string(comm)) || list[0].PID != int32(os.Getpid()) || list[0].BytesOut != 1 {
		t.Errorf("%+v", list)
	}
	if got := own(h.as(alice)); len(got) != 1 {
		t.Errorf("alice sees %+v", got)
	}
	if got := own(h.as(bob)); len(got) != 0 {
		t.Errorf("bob sees %+v", got)
	}
	if peers := h.status().Peers; len(peers) != 1 || peers[0].Streams != 1 {
		t.Errorf("%+v", peers)
	}
	other := p.mustConnect(firstPort + 4)
	if _, err := h.api.KillStream(t.Context(), list[0].ID); err != nil {
		t.Fatal(err)
	}
	if !s.isOver() {
		t.Error("a stream that was killed goes on")
	}
	if !other.works() {
		t.Error("another one was ended")
	}
	s.Close()
	s.prot.Release()
	eventually(t, "the stream is listed no more", func() bool { return len(own(h.api)) == 1 })
}

func TestWhatAProgramMayNotHave(t *testing.T) {
	h := withPrograms(t)
	p := h.program(alice)
	dial := func(port uint16) error { _, err := p.connect(port, false); return err }
	taken := func(port uint16) error { _, err := p.connect(port, true); return err }
	for _, tc := range []struct {
		name string
		err  error
		want string // "": it may
	}{
		{"its first port", dial(firstPort), ""},
		{"its last port", dial(firstPort + 15), ""},
		{"a port of bob's", dial(firstPort + 16), fmt.Sprintf("port %d is none of those that ULP alice has with peer beta: %d to %d", firstPort+16, firstPort, firstPort+15)},
		{"a port of nobody's", dial(firstPort - 1), "is none of those"},
		{"connections", taken(firstPort), "ULP alice takes no connections: `ironwarp ulp set --listen`"},
		{"an unknown host", p.Prepare(t.Context(), transport.Flow{Protocol: transport.ProtoTCP, Remote: netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), firstPort)}), "192.0.2.1 is not the address of a peer that ULP alice may use"},
		{"another transport", p.Prepare(t.Context(), transport.Flow{Protocol: transport.ProtoUDP, Remote: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), firstPort)}), fmt.Sprintf("port %d over sctp-udp is none of those", firstPort)},
		{"the kernel's SCTP", p.Prepare(t.Context(), transport.Flow{Protocol: transport.ProtoSCTP, Remote: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), firstPort)}), "over TCP and SCTP in UDP"},
	} {
		if tc.want == "" && tc.err != nil || tc.want != "" && (!errors.Is(tc.err, transport.ErrNotProtected) || !strings.Contains(tc.err.Error(), tc.want)) {
			t.Errorf("%s: %v, want %q", tc.name, tc.err, tc.want)
		}
	}
	b := h.program(bob)
	if _, err := b.connect(firstPort+16, true); err != nil {
		t.Errorf("bob may take connections: %v", err)
	}
	if _, err := b.connect(firstPort, true); !errors.Is(err, transport.ErrNotProtected) {
		t.Errorf("bob takes one at alice's port: %v", err)
	}
	if got := b.Terms(); !got.Listen || got.Account != "bob" || !slices.Equal(got.Ports, []delegate.Ports{{Low: firstPort + 16, High: firstPort + 31}}) {
		t.Errorf("%+v", got)
	}
	if _, err := delegate.New(t.Context(), h.dialFlows(carol), nil); !errors.Is(err, transport.ErrNotProtected) {
		t.Errorf("who is no ULP: %v", err)
	}
	root := h.program(0)
	if got := root.Terms(); !got.Listen || len(got.Ports) != 2 {
		t.Errorf("root has %+v", got)
	}
	if _, err := root.connect(firstPort+1, true); err != nil {
		t.Errorf("root: %v", err)
	}
}

func TestStreamsOfProgramsCountAgainstTheirULP(t *testing.T) {
	h := withPrograms(t)
	h.ulps(programUsers(", limits: {streams: 2}"))
	p := h.program(alice)
	first := p.mustConnect(firstPort)
	p.mustConnect(firstPort)
	if got := h.uses(t, "alice", "streams"); got != 2 {
		t.Errorf("%d streams are counted", got)
	}
	if _, err := p.connect(firstPort, false); !errors.Is(err, delegate.ErrShort) || !strings.Contains(err.Error(), "ULP alice has 2 of the 2 streams") {
		t.Errorf("a third one: %v", err)
	}
	first.Close()
	first.prot.Release()
	eventually(t, "room for another", func() bool { return h.uses(t, "alice", "streams") == 1 })
	p.mustConnect(firstPort)
}

func TestStreamsOfProgramsEndWithTheirRights(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  func(*host) error
	}{
		{"the ports are others'", func(h *host) error {
			h.ulps(strings.Replace(programUsers(""), fmt.Sprint(firstPort), fmt.Sprint(firstPort+64), 1))
			return nil
		}},
		{"the ULP is removed", func(h *host) error { h.ulps(""); return nil }},
		{"the peer is blocked", func(h *host) error { _, err := h.api.Block(h.t.Context(), api.BlockRequest{Peer: "beta"}); return err }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := withPrograms(t)
			p := h.program(alice)
			s := p.mustConnect(firstPort + 1)
			if err := tc.end(h); err != nil {
				t.Fatal(err)
			}
			if !s.isOver() {
				t.Error("the stream goes on")
			}
			if _, err := p.connect(firstPort+1, false); !errors.Is(err, transport.ErrNotProtected) {
				t.Errorf("another stream: %v", err)
			}
		})
	}
}

func TestStreamsOfProgramsOutliveTheDaemon(t *testing.T) {
	h := withPrograms(t)
	p := h.program(alice)
	s := p.mustConnect(firstPort + 2)
	h.stop()
	if !s.works() {
		t.Fatal("the stream has ended with the daemon")
	}
	h.start()
	eventually(t, "the next daemon has it", func() bool { return h.uses(t, "alice", "streams") == 1 })
	if !s.works() {
		t.Error("the stream has ended with the next daemon")
	}
}

// TestStreamsOfProgramsOutliveAShutSocket: the control socket is root's alone while a daemon starts or ends, and while
// systemd has it and no daemon runs.
func TestStreamsOfProgramsOutliveAShutSocket(t *testing.T) {
	h := withPrograms(t)
	dial, refused := h.dialFlows(alice), make(chan struct{}, 64)
	c, err := delegate.New(t.Context(), func(ctx context.Context) (*net.UnixConn, error) {
		conn, err := dial(ctx)
		if errors.Is(err, os.ErrPermission) {
			select {
			case refused <- struct{}{}:
			default:
			}
		}
		return conn, err
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	p := &program{c, t}
	s := p.mustConnect(firstPort + 2)
	h.stop()
	l, err := local.Listen(t.Context(), filepath.Join(h.dir, "run", "ironwarp.sock"))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		<-refused
	}
	if !s.works() {
		t.Error("the stream has ended before there is another daemon")
	}
	l.Close()
	h.start()
	eventually(t, "the next daemon has it", func() bool { return h.uses(t, "alice", "streams") == 1 })
	if !s.works() {
		t.Error("the stream has ended with the next daemon")
	}
}

func TestStreamsOfAProgramEndWithItsConnection(t *testing.T) {
	h := withPrograms(t)
	p := h.program(alice)
	s := p.mustConnect(firstPort + 2)
	p.Close()
	if !s.isOver() {
		t.Error("the stream goes on")
	}
	eventually(t, "nothing is counted", func() bool { return h.uses(t, "alice", "streams") == 0 })
}

// TestProgramsAndReloads: what does not concern a program leaves its streams alone.
func TestProgramsAndReloads(t *testing.T) {
	h := withPrograms(t)
	p := h.program(alice)
	s := p.mustConnect(firstPort + 2)
	h.ulps(programUsers(", limits: {attachments: 3}, listen: true"))
	if !s.works() {
		t.Error("the stream has ended")
	}
	eventually(t, "the program is told", func() bool { return p.Terms().Listen })
}
