package delegate

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/internal/nsdo"
	"github.com/ironwarp/ironwarp/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// daemon is the other end, as often as it is dialled.
type daemon struct {
	t     *testing.T
	terms Terms
	leave atomic.Bool

	mu       sync.Mutex
	refuse   error // of dials
	admits   error
	serving  *Serving
	flows    map[transport.Flow]bool // outgoing
	released int
	last     *Socket // that it was asked for
	prepared chan context.Context
	wg       sync.WaitGroup
}

func newDaemon(t *testing.T) *daemon {
	d := &daemon{t: t, flows: map[transport.Flow]bool{}, prepared: make(chan context.Context, 16), terms: Terms{Account: "alice", Ports: []Ports{{Low: 100, High: 199}, {Low: 300, High: 399, UDP: true}}, Peers: []netip.Addr{netip.MustParseAddr("192.0.2.2")}, Listen: true}}
	t.Cleanup(d.wg.Wait)
	return d
}

// pair is a Unix connection and its two ends.
func pair(t *testing.T) (a, b *net.UnixConn) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	conn := func(fd int) *net.UnixConn {
		f := os.NewFile(uintptr(fd), "")
		defer f.Close()
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		return c.(*net.UnixConn)
	}
	return conn(fds[0]), conn(fds[1])
}

func (d *daemon) dial(context.Context) (*net.UnixConn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refuse != nil {
		return nil, d.refuse
	}
	a, b := pair(d.t)
	s := NewServing(b, d, new(Account))
	d.serving = s
	d.wg.Go(func() {
		s.Tell(d.terms)
		if err := s.Run(context.Background(), d.leave.Load); err != nil {
			d.t.Log(err)
		}
	})
	return a, nil
}

func (d *daemon) current() *Serving {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.serving
}

func (d *daemon) set(refuse, admits error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refuse, d.admits = refuse, admits
}

func (d *daemon) LocalPorts(context.Context, transport.Flow) (lo, hi uint16, err error) {
	return 7, 9, nil
}

func (d *daemon) Prepare(ctx context.Context, f transport.Flow) error {
	if f.Remote.Port() == 1 {
		return errors.Join(transport.ErrAway, transport.ErrNotProtected)
	}
	d.prepared <- ctx
	return nil
}

func (d *daemon) Admit(_ context.Context, outgoing bool, s *Socket) (transport.Protection, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.admits != nil {
		return nil, d.admits
	}
	d.flows[s.Flow()], d.last = outgoing, s
	return given{d, s}, nil
}

type given struct {
	d *daemon
	s *Socket
}

func (g given) Peer() transport.Identity { return "fqdn:beta" }
func (g given) Kind() string             { return "of a test" }
func (g given) Paused() bool             { return false }
func (g given) Release() {
	g.d.mu.Lock()
	defer g.d.mu.Unlock()
	g.d.released++
	delete(g.d.flows, g.s.Flow())
}

func (d *daemon) count() (flows, released int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.flows), d.released
}

// await waits until what is true.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for late := time.After(20 * time.Second); !is(); {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("not in time: %s", what)
		}
	}
}

func client(t *testing.T, d *daemon) *Client {
	t.Helper()
	c, err := New(t.Context(), d.dial, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// connected is a TCP connection within this host: the end that dialled, as transport has it, and the other.
func connected(t *testing.T) (ours mon, peer *net.TCPConn) {
	t.Helper()
	ln, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c, err := net.DialTCP("tcp4", nil, ln.Addr().(*net.TCPAddr))
	if err != nil {
		t.Fatal(err)
	}
	p, err := ln.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); p.Close() })
	return mon{c}, p
}

type mon struct{ *net.TCPConn }

func (mon) Outq() (int, error) { return 0, nil }

func (m mon) flow() transport.Flow {
	return transport.Flow{Protocol: transport.ProtoTCP, Local: m.LocalAddr().(*net.TCPAddr).AddrPort(), Remote: m.RemoteAddr().(*net.TCPAddr).AddrPort()}
}

// isOver waits for the end of a connection, and reports whether it has come.
func isOver(t *testing.T, c net.Conn) bool {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(20 * time.Second))
	_, err := c.Read(make([]byte, 1))
	return errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET)
}

// isAlive sends a byte through a connection.
func isAlive(t *testing.T, from, to net.Conn) bool {
	t.Helper()
	if _, err := from.Write([]byte{1}); err != nil {
		return false
	}
	to.SetReadDeadline(time.Now().Add(20 * time.Second))
	_, err := io.ReadFull(to, make([]byte, 1))
	return err == nil
}

func TestFlowIsWhatTheKernelSaysOfItsSocket(t *testing.T) {
	d := newDaemon(t)
	c := client(t, d)
	ours, peer := connected(t)
	lie := transport.Flow{Protocol: transport.ProtoTCP, Local: netip.MustParseAddrPort("192.0.2.1:1"), Remote: netip.MustParseAddrPort("192.0.2.2:7471")}
	p, err := c.Admit(t.Context(), lie, true, ours)
	if err != nil {
		t.Fatal(err)
	}
	if p.Peer() != "fqdn:beta" || p.Kind() != "of a test" {
		t.Errorf("protected by %q, the peer is %q", p.Kind(), p.Peer())
	}
	d.mu.Lock()
	outgoing, ok := d.flows[ours.flow()]
	d.mu.Unlock()
	if !ok || !outgoing {
		t.Errorf("the daemon was told of %v", d.flows)
	}
	if !isAlive(t, ours, peer) {
		t.Error("the connection has ended")
	}
	ours.Close()
	p.Release()
	p.Release()
	await(t, "the release", func() bool { n, r := d.count(); return n == 0 && r == 1 })
	if !isOver(t, peer) {
		t.Error("the daemon keeps a socket that the program has closed")
	}
}

func TestCallsAreAnswered(t *testing.T) {
	d := newDaemon(t)
	c := client(t, d)
	if got := c.Terms(); got.Account != "alice" || !got.Listen || !got.Has(transport.ProtoTCP, 100) || !got.Has(transport.ProtoTCP, 199) || got.Has(transport.ProtoTCP, 200) || got.Has(transport.ProtoUDP, 100) || !got.Has(transport.ProtoUDP, 399) {
		t.Errorf("terms %+v", got)
	}
	f := transport.Flow{Protocol: transport.ProtoTCP, Remote: netip.MustParseAddrPort("192.0.2.2:150")}
	if lo, hi, err := c.LocalPorts(t.Context(), f); lo != 7 || hi != 9 || err != nil {
		t.Errorf("ports %d to %d, %v", lo, hi, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := c.Prepare(ctx, f); err != nil {
		t.Fatal(err)
	}
	asked := <-d.prepared
	if asked.Err() != nil {
		t.Error("who is dialling is taken for one who has stopped")
	}
	cancel()
	<-asked.Done()
	f.Remote = netip.MustParseAddrPort("192.0.2.2:1")
	if err := c.Prepare(t.Context(), f); !errors.Is(err, transport.ErrAway) {
		t.Errorf("%v", err)
	}
}

// TestFlowsEndWithTheConnection that declared them: a program may not have the daemon look away.
func TestFlowsEndWithTheConnection(t *testing.T) {
	d := newDaemon(t)
	c := client(t, d)
	ours, peer := connected(t)
	if _, err := c.Admit(t.Context(), ours.flow(), true, ours); err != nil {
		t.Fatal(err)
	}
	c.Close()
	if !isOver(t, peer) {
		t.Error("a flow outlives the connection that declared it")
	}
}

// TestDaemonEndsAFlow: in whatever process its socket is.
func TestDaemonEndsAFlow(t *testing.T) {
	d := newDaemon(t)
	c := client(t, d)
	var all [2]mon
	var peers [2]*net.TCPConn
	for i := range all {
		all[i], peers[i] = connected(t)
		if _, err := c.Admit(t.Context(), all[i].flow(), true, all[i]); err != nil {
			t.Fatal(err)
		}
	}
	copied, err := all[0].File() // as another process would have it
	if err != nil {
		t.Fatal(err)
	}
	defer copied.Close()
	d.current().End(func(s *Socket) error {
		if s.Flow() == all[0].flow() {
			return errors.New("by request")
		}
		return nil
	})
	if !isOver(t, peers[0]) || !isOver(t, all[0]) {
		t.Error("the flow goes on")
	}
	if !isAlive(t, all[1], peers[1]) {
		t.Error("another flow was ended, too")
	}
}

// TestProgramOutlivesItsDaemon: its flows go on, and the next daemon learns of them.
func TestProgramOutlivesItsDaemon(t *testing.T) {
	d := newDaemon(t)
	d.leave.Store(true)
	c := client(t, d)
	ours, peer := connected(t)
	if _, err := c.Admit(t.Context(), ours.flow(), true, ours); err != nil {
		t.Fatal(err)
	}
	away := errors.New("there is no daemon")
	d.set(away, nil)
	d.current().Close()
	await(t, "the end of the first daemon's part", func() bool { n, _ := d.count(); return n == 0 })
	if !isAlive(t, ours, peer) {
		t.Fatal("the flow has ended with the daemon")
	}
	// It may not have looked for a daemon yet.
	await(t, "a call without a daemon says why", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, _, err := c.LocalPorts(ctx, ours.flow())
		return errors.Is(err, context.DeadlineExceeded) && strings.Contains(err.Error(), away.Error())
	})
	d.set(nil, nil)
	await(t, "the flow at the next daemon", func() bool { n, _ := d.count(); return n == 1 })
	if !isAlive(t, ours, peer) {
		t.Error("the flow has ended with the next daemon")
	}
	// The one after that does not want it.
	d.set(nil, errors.New("not this one"))
	d.current().Close()
	if !isOver(t, peer) {
		t.Error("a flow that no daemon protects goes on")
	}
}

// TestRefusedUser: the user is not a ULP any more when the daemon is back.
func TestRefusedUser(t *testing.T) {
	d := newDaemon(t)
	d.leave.Store(true)
	c := client(t, d)
	ours, peer := connected(t)
	if _, err := c.Admit(t.Context(), ours.flow(), true, ours); err != nil {
		t.Fatal(err)
	}
	d.set(transport.ErrNotProtected, nil)
	d.current().Close()
	if err := c.Prepare(t.Context(), ours.flow()); !errors.Is(err, transport.ErrNotProtected) {
		t.Errorf("a call: %v", err)
	}
	if !isOver(t, peer) {
		t.Error("the flow goes on")
	}
}

// TestShutSocket: the daemon's socket is shut to the user for a while, as it is when a daemon starts. Flows go on, and calls wait,
// but not for ever: it may be shut for good.
func TestShutSocket(t *testing.T) {
	d := newDaemon(t)
	d.leave.Store(true)
	c := client(t, d)
	ours, peer := connected(t)
	if _, err := c.Admit(t.Context(), ours.flow(), true, ours); err != nil {
		t.Fatal(err)
	}
	d.set(fs.ErrPermission, nil)
	d.current().Close()
	if err := c.Prepare(t.Context(), ours.flow()); !errors.Is(err, transport.ErrNotProtected) || !errors.Is(err, fs.ErrPermission) {
		t.Errorf("a call: %v", err)
	}
	if !isAlive(t, ours, peer) {
		t.Fatal("the flow has ended, and no daemon has refused it")
	}
	d.set(nil, nil)
	await(t, "the flow to be declared again", func() bool { n, released := d.count(); return n == 1 && released == 1 })
	if err := c.Prepare(t.Context(), ours.flow()); err != nil {
		t.Errorf("a call, with the socket open again: %v", err)
	}
	if !isAlive(t, ours, peer) {
		t.Error("the flow has ended with the next daemon")
	}
}

func TestWhatIsNoTCPConnectionIsRefused(t *testing.T) {
	var plain, multipath net.ListenConfig
	plain.SetMultipathTCP(false)
	multipath.SetMultipathTCP(true)
	ln, err := plain.Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	mp, err := multipath.Listen(t.Context(), "tcp4", "127.0.0.1:0") // subflows would be added that nobody admits
	if err != nil {
		t.Fatal(err)
	}
	defer mp.Close()
	udp, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	local, other := pair(t)
	defer local.Close()
	defer other.Close()
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	d := newDaemon(t)
	c := client(t, d)
	for _, tc := range []struct {
		name string
		sock transport.Monitored
		want string
	}{
		{"a listener", listens{ln.(*net.TCPListener)}, "not connected"},
		{"one of multipath TCP, where there is that", listens{mp.(*net.TCPListener)}, "not "},
		{"a UDP socket that is not connected", datagrams{udp}, "not connected"},
		{"a Unix socket", streams{local}, "neither of TCP nor of UDP"},
		{"a file", files{file}, "no socket"},
	} {
		_, err := c.Admit(t.Context(), transport.Flow{}, true, tc.sock)
		if !errors.Is(err, transport.ErrNotProtected) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
	}
	if n, _ := d.count(); n > 0 {
		t.Errorf("%d were admitted", n)
	}
}

type (
	listens   struct{ *net.TCPListener }
	datagrams struct{ *net.UDPConn }
	streams   struct{ *net.UnixConn }
	files     struct{ *os.File }
)

func (listens) Outq() (int, error)   { return 0, nil }
func (datagrams) Outq() (int, error) { return 0, nil }
func (streams) Outq() (int, error)   { return 0, nil }
func (files) Outq() (int, error)     { return 0, nil }

// TestSocketOfAnotherNamespaceIsRefused: there its addresses are others', and nothing guards them.
func TestSocketOfAnotherNamespaceIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for a network namespace")
	}
	var ours mon
	err := nsdo.Fresh(func() error {
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		if err == nil {
			ours, _ = connected(t)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	d := newDaemon(t)
	c := client(t, d)
	_, err = c.Admit(t.Context(), ours.flow(), true, ours)
	if !errors.Is(err, transport.ErrNotProtected) || !strings.Contains(err.Error(), "another network namespace") {
		t.Errorf("%v", err)
	}
}

// TestHostilePrograms are cut off, and what they sent is closed.
func TestHostilePrograms(t *testing.T) {
	socks := func(n int) []byte {
		ours, _ := connected(t)
		raw, err := ours.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		var oob []byte
		raw.Control(func(fd uintptr) {
			fds := make([]int, n)
			for i := range fds {
				fds[i] = int(fd)
			}
			oob = unix.UnixRights(fds...)
		})
		return oob
	}
	for _, tc := range []struct {
		name string
		send func(c *net.UnixConn)
	}{
		{"a giant message", func(c *net.UnixConn) { c.Write([]byte{0xff, 0xff, 0xff, 0xff}) }},
		{"no JSON", func(c *net.UnixConn) { c.Write([]byte{0, 0, 0, 3, '{', '{', '{'}) }},
		{"what nobody knows", func(c *net.UnixConn) { c.Write([]byte("\x00\x00\x00\x0d{\"op\":\"open\"}")) }},
		{"no socket", func(c *net.UnixConn) { c.Write([]byte("\x00\x00\x00\x0e{\"op\":\"admit\"}")) }},
		{"many sockets", func(c *net.UnixConn) { c.WriteMsgUnix([]byte{0}, socks(100), nil) }},
		{"sockets without end", func(c *net.UnixConn) {
			for range 100 {
				if _, _, err := c.WriteMsgUnix([]byte{0}, socks(1), nil); err != nil {
					return
				}
			}
		}},
		{"half a message", func(c *net.UnixConn) { c.Write([]byte{0, 0}); c.CloseWrite() }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newDaemon(t)
			a, b := pair(t)
			s := NewServing(b, d, new(Account))
			ended := make(chan struct{})
			go func() { _ = s.Run(context.Background(), func() bool { return false }); close(ended) }()
			tc.send(a)
			select {
			case <-ended:
			case <-time.After(20 * time.Second):
				t.Error("it is listened to")
			}
			a.Close()
			<-ended
			if len(s.link.sockets) > 0 {
				t.Errorf("%d sockets are left open", len(s.link.sockets))
			}
		})
	}
}

// TestManyCallsAreRefused, and the connection goes on.
func TestManyCallsAreRefused(t *testing.T) {
	d := newDaemon(t)
	d.prepared = make(chan context.Context, maxCalls+1)
	c := client(t, d)
	f := transport.Flow{Protocol: transport.ProtoTCP, Remote: netip.MustParseAddrPort("192.0.2.2:150")}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range maxCalls {
		if err := c.Prepare(ctx, f); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Prepare(ctx, f); !errors.Is(err, ErrShort) {
		t.Errorf("one more: %v", err)
	}
	cancel()
	await(t, "room", func() bool { return c.Prepare(t.Context(), f) == nil })
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"op":"prepare","id":1,"protocol":6,"remote":"192.0.2.2:18515"}`))
	f.Add([]byte(`{"op":"report","reports":[{"id":1,"outq":7,"unanswered":3}]}`))
	f.Add([]byte(`{"op":"lane","id":1,"lane":{"limit":1000,"kick":true}}`))
	f.Add([]byte(`{"op":"terms","terms":{"ports":[{"low":1,"high":2}]}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parse(b)
		if err != nil {
			return
		}
		m.flow()
		_ = m.err()
	})
}

func TestSocketsThatComeAreClosedOnExec(t *testing.T) {
	a, b := pair(t)
	defer a.Close()
	l := &link{UnixConn: b, account: new(Account)}
	defer l.Close()
	ours, _ := connected(t)
	raw, err := ours.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) { _, _, err = a.WriteMsgUnix([]byte{0}, unix.UnixRights(int(fd)), nil) })
	if err != nil {
		t.Fatal(err)
	}
	if err := l.fill(); err != nil {
		t.Fatal(err)
	}
	defer l.closeSockets()
	if len(l.sockets) != 1 {
		t.Fatalf("%d sockets", len(l.sockets))
	}
	l.sockets[0].Control(func(fd uintptr) {
		if flags, err := unix.FcntlInt(fd, unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("flags %#x, %v: a child would keep the program's connection open", flags, err)
		}
	})
}
