package delegate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/transport/assoc"
	"github.com/ironwarp/ironwarp/transport/assoc/assoctest"
)

// associated are two associations of a listener within this host: the ends that dialled, and the others.
func associated(t *testing.T) (ours, peers [2]*transport.Assoc) {
	t.Helper()
	inboxes := func(assoc.Association) assoc.Receiver { return assoctest.NewInbox() }
	cfg := &transport.Config{Protector: transport.LoopbackOnly(), Kind: transport.SCTPUDP, UDPPort: iwarptest.FreeUDPPort(t), OwnSockets: true}
	l, err := transport.ListenSCTP(t.Context(), netip.MustParseAddrPort("127.0.0.1:7471"), cfg, inboxes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	for i := range ours {
		if ours[i], err = transport.DialSCTP(t.Context(), l.Addr(), cfg, inboxes); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ours[i].Close() })
		if peers[i], err = l.Accept(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { peers[i].Close() })
	}
	return ours, peers
}

// carries sends a message on an association, and waits for it at the other end.
func carries(t *testing.T, from, to *transport.Assoc) {
	t.Helper()
	box := to.Receiver().(*assoctest.Inbox)
	n := len(box.Messages())
	if err := from.SendNow(assoc.Outgoing{PPID: 16, Bufs: [][]byte{[]byte("message")}}); err != nil {
		t.Error(err)
		return
	}
	box.WaitFor(t, n+1)
}

// ended waits for the end of an association.
func ended(t *testing.T, a *transport.Assoc, what string) {
	t.Helper()
	select {
	case <-a.Done():
	case <-time.After(20 * time.Second):
		t.Fatalf("%s goes on", what)
	}
}

// seen is the association that the daemon was asked for last.
func (d *daemon) seen() *Association {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.last.Monitored().(*Association)
}

// TestAssociationIsWhatTheKernelSaysOfItsSocket, and what it carries is what the program says.
func TestAssociationIsWhatTheKernelSaysOfItsSocket(t *testing.T) {
	d := newDaemon(t)
	c := client(t, d)
	ours, peers := associated(t)
	lie := transport.Flow{Protocol: transport.ProtoUDP, Local: netip.MustParseAddrPort("192.0.2.1:1"), Remote: netip.MustParseAddrPort("192.0.2.2:7471")}
	p, err := c.Admit(t.Context(), lie, true, ours[0])
	if err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	outgoing, ok := d.flows[ours[0].Flow()]
	d.mu.Unlock()
	if !ok || !outgoing || ours[0].Flow().Protocol != transport.ProtoUDP {
		t.Errorf("the daemon was told of %v", d.flows)
	}
	a := d.seen()
	for range 3 {
		carries(t, ours[0], peers[0])
		carries(t, peers[0], ours[0])
	}
	await(t, "the count of bytes", func() bool { out, in := a.sock.Bytes(); return out == 21 && in == 21 && a.Bytes() == 42 })
	if n, err := a.Outq(); n != 0 || err != nil {
		t.Errorf("%d bytes are queued, %v", n, err)
	}
	ours[0].Close()
	p.Release()
	await(t, "the release", func() bool { n, r := d.count(); return n == 0 && r == 1 })
	if _, err := a.Outq(); !errors.Is(err, errClosed) {
		t.Errorf("of a flow that has ended: %v", err)
	}
}

// TestPausedAssociation: the program learns that the SA is away, sends again patiently, and reports soon what waits.
func TestPausedAssociation(t *testing.T) {
	d := newDaemon(t)
	c := client(t, d)
	ours, _ := associated(t)
	m := &paused{Assoc: ours[0], limits: make(chan time.Duration, 16), kicks: make(chan struct{}, 16)}
	p, err := c.Admit(t.Context(), ours[0].Flow(), true, m)
	if err != nil {
		t.Fatal(err)
	}
	a := d.seen()
	if p.Paused() {
		t.Error("it is paused from the beginning")
	}
	a.LimitRTO(time.Second)
	if got := <-m.limits; got != time.Second {
		t.Errorf("limited to %v", got)
	}
	await(t, "the pause", p.Paused)
	m.waits.Store(5000)
	if every := c.reportAll(); every != pausedEvery {
		t.Errorf("it looks for what waits every %v", every)
	}
	await(t, "the daemon knows that data wait", func() bool { n, _ := a.Outq(); return n == 5000 })
	if !a.Kick() {
		t.Error("what was sent in vain is not stuck")
	}
	a.LimitRTO(0)
	if got := <-m.limits; got != 0 {
		t.Errorf("limited to %v", got)
	}
	<-m.kicks
	await(t, "the end of the pause", func() bool { return !p.Paused() })
	if every := c.reportAll(); every != reportEvery {
		t.Errorf("it looks for what waits every %v", every)
	}
	for range maxUntold + 10 { // what is new is told once
		a.Kick()
		a.LimitRTO(0)
	}
	m.waits.Store(0)
	await(t, "the connection is in use", func() bool { n, err := a.Outq(); return n == 0 && err == nil })
	p.Release()
}

// TestDaemonEndsAnAssociation: that one, and its peer learns of it.
func TestDaemonEndsAnAssociation(t *testing.T) {
	d := newDaemon(t)
	c := client(t, d)
	ours, peers := associated(t)
	for _, a := range ours {
		if _, err := c.Admit(t.Context(), a.Flow(), true, a); err != nil {
			t.Fatal(err)
		}
	}
	d.current().End(func(s *Socket) error {
		if s.Flow() == ours[0].Flow() {
			return errors.New("by request")
		}
		return nil
	})
	ended(t, ours[0], "the association")
	ended(t, peers[0], "its other end")
	carries(t, ours[1], peers[1])
}

// TestNextDaemonLearnsOfAssociations, all of it, and knows better whether there is an SA.
func TestNextDaemonLearnsOfAssociations(t *testing.T) {
	d := newDaemon(t)
	d.leave.Store(true)
	c := client(t, d)
	ours, peers := associated(t)
	p, err := c.Admit(t.Context(), ours[0].Flow(), true, ours[0])
	if err != nil {
		t.Fatal(err)
	}
	carries(t, ours[0], peers[0])
	first := d.seen()
	await(t, "the count of bytes", func() bool { return first.Bytes() == 7 })
	first.LimitRTO(time.Second)
	await(t, "the pause", p.Paused)
	d.current().Close()
	await(t, "the next daemon", func() bool { n, _ := d.count(); return n == 1 && d.seen() != first })
	await(t, "the count of bytes", func() bool { return d.seen().Bytes() == 7 })
	await(t, "the end of the pause", func() bool { return !p.Paused() })
	carries(t, ours[0], peers[0])
	d.set(nil, errors.New("not this one"))
	d.current().Close()
	ended(t, peers[0], "what no daemon protects")
}

// bare is a program that speaks the protocol itself, with a UDP socket that is connected to another.
type bare struct {
	*link
	own, peer *net.UDPConn
	ran       chan struct{}
	serving   *Serving
}

func newBare(t *testing.T, d *daemon, will []byte) *bare {
	t.Helper()
	peer, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	own, err := net.DialUDP("udp4", nil, peer.LocalAddr().(*net.UDPAddr))
	if err != nil {
		t.Fatal(err)
	}
	a, b := pair(t)
	x := &bare{link: &link{UnixConn: a}, own: own, peer: peer, ran: make(chan struct{}), serving: NewServing(b, d, new(Account))}
	go func() {
		_ = x.serving.Run(context.Background(), func() bool { return false })
		close(x.ran)
	}()
	t.Cleanup(func() {
		x.link.Close()
		<-x.ran
		own.Close()
		peer.Close()
	})
	raw, err := own.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) { err = x.send(&message{Op: opAdmit, ID: 1, Outgoing: true, Will: will}, int(fd)) })
	if m, rerr := x.receive(); err != nil || rerr != nil || m.err() != nil {
		t.Fatal(m, err, rerr)
	}
	return x
}

// isShut waits until its socket sends nothing any more.
func (x *bare) isShut(t *testing.T) {
	t.Helper()
	await(t, "its socket is shut down", func() bool { _, err := x.own.Write([]byte("more")); return errors.Is(err, unix.EPIPE) })
}

// hears waits for a packet at the other end.
func (x *bare) hears(t *testing.T, want []byte) {
	t.Helper()
	var b [1500]byte
	for {
		x.peer.SetReadDeadline(time.Now().Add(20 * time.Second))
		n, err := x.peer.Read(b[:])
		if err != nil {
			t.Fatalf("its peer does not learn of the end: %v", err)
		}
		if bytes.Equal(b[:n], want) {
			return
		}
	}
}

// TestProgramThatDoesNotEndItsAssociation has it shut down, and its peer is told in its name.
func TestProgramThatDoesNotEndItsAssociation(t *testing.T) {
	x := newBare(t, newDaemon(t), []byte("that was all"))
	if _, err := x.own.Write([]byte("begin")); err != nil {
		t.Fatal(err)
	}
	x.serving.End(func(*Socket) error { return errors.New("by request") })
	x.hears(t, []byte("that was all"))
	x.isShut(t)
}

// TestProgramThatHasGone: its peer is told, though nobody is left who could.
func TestProgramThatHasGone(t *testing.T) {
	x := newBare(t, newDaemon(t), []byte("that was all"))
	x.link.Close()
	x.hears(t, []byte("that was all"))
	x.isShut(t)
}

// TestProgramThatConnectsItsSocketAnew, to somebody else or to nobody: what the daemon has is the socket.
func TestProgramThatConnectsItsSocketAnew(t *testing.T) {
	for _, to := range []unix.Sockaddr{&unix.SockaddrInet4{Port: 9, Addr: [4]byte{127, 0, 0, 7}}, nil} {
		t.Run(fmt.Sprint(to), func(t *testing.T) {
			x := newBare(t, newDaemon(t), nil)
			raw, err := x.own.SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			raw.Control(func(fd uintptr) {
				if to != nil {
					err = unix.Connect(int(fd), to)
				} else {
					_, _, errno := unix.Syscall(unix.SYS_CONNECT, fd, uintptr(unsafe.Pointer(new([16]byte))), 16)
					if errno != 0 {
						err = errno
					}
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			x.serving.End(func(*Socket) error { return errors.New("by request") })
			at := unix.SockaddrInet4{Port: x.peer.LocalAddr().(*net.UDPAddr).Port, Addr: [4]byte{127, 0, 0, 1}}
			await(t, "its socket is shut down", func() bool {
				var serr error
				raw.Control(func(fd uintptr) { serr = unix.Sendto(int(fd), []byte("x"), unix.MSG_NOSIGNAL, &at) })
				return errors.Is(serr, unix.EPIPE)
			})
		})
	}
}

// TestLiesAboutAssociations are heard of those that the program has, and bounded.
func TestLiesAboutAssociations(t *testing.T) {
	d := newDaemon(t)
	x := newBare(t, d, nil)
	other := newBare(t, d, nil)
	theirs := d.seen()
	if err := x.send(&message{Op: opReport, Reports: []report{{ID: 7, Outq: 1}, {ID: 1, Outq: 1<<32 - 1, In: 1<<64 - 1, Out: 1<<64 - 1, Silent: 1<<32 - 1, Idle: 1<<32 - 1, Unanswered: 1<<16 - 1}}}, -1); err != nil {
		t.Fatal(err)
	}
	x.serving.mu.Lock()
	a := x.serving.flows[1].sock.assoc
	x.serving.mu.Unlock()
	await(t, "it is heard", func() bool { n, err := a.Outq(); return err == nil && n > 0 })
	if s := a.Stats(); s.Silent <= 0 || s.Idle <= 0 || s.Unanswered < 0 {
		t.Errorf("%+v", s)
	}
	if n, err := theirs.Outq(); n != 0 || err != nil || theirs.Bytes() != 0 {
		t.Errorf("it has spoken for another's: %d, %v", n, err)
	}
	_ = other
}

// TestStrangersAreNoPeersOfAProgram, by the daemon's terms, which name all that it may have.
func TestStrangersAreNoPeersOfAProgram(t *testing.T) {
	d := newDaemon(t)
	c := client(t, d)
	for _, tc := range []struct {
		protocol      transport.Protocol
		local, remote string
		ok            bool
	}{
		{transport.ProtoUDP, "192.0.2.1:300", "192.0.2.2:40000", true},
		{transport.ProtoUDP, "192.0.2.1:399", "[::ffff:192.0.2.2]:40000", true},
		{transport.ProtoUDP, "192.0.2.1:300", "192.0.2.3:40000", false},
		{transport.ProtoUDP, "192.0.2.1:100", "192.0.2.2:40000", false},
		{transport.ProtoTCP, "192.0.2.1:100", "192.0.2.2:40000", true},
	} {
		err := c.Screen(transport.Flow{Protocol: tc.protocol, Local: netip.MustParseAddrPort(tc.local), Remote: netip.MustParseAddrPort(tc.remote)})
		if (err == nil) != tc.ok || err != nil && !errors.Is(err, transport.ErrNotProtected) {
			t.Errorf("%+v: %v", tc, err)
		}
	}
}

// TestReportsAreOfWhatIsNew: an idle association costs none.
func TestReportsAreOfWhatIsNew(t *testing.T) {
	ours, peers := associated(t)
	carries(t, ours[0], peers[0])
	m := &paused{Assoc: ours[0]}
	var r reporter
	now := time.Unix(1000, 0)
	if got, ok := r.next(now, 1, m); !ok || got.Out+uint64(got.Outq) != 7 {
		t.Fatalf("%+v, %v", got, ok)
	}
	quiet := r.last
	m.silent = time.Duration(quiet.Silent) * time.Millisecond
	for _, tc := range []struct {
		what   string
		after  time.Duration
		change func()
		want   bool
	}{
		{"nothing", 0, func() {}, false},
		{"as time goes by", time.Minute, func() { m.silent += time.Minute }, false},
		{"the peer was heard of", time.Minute, func() { m.silent = 0 }, true},
		{"data wait", 0, func() { m.waits.Store(7) }, true},
		{"data have been acknowledged", 0, func() { m.waits.Store(0) }, true},
	} {
		tc.change()
		now = now.Add(tc.after)
		if _, ok := r.next(now, 1, m); ok != tc.want {
			t.Errorf("%s: reported %v", tc.what, ok)
		}
	}
}

// paused is an association of which a test says what waits.
type paused struct {
	*transport.Assoc
	limits chan time.Duration
	kicks  chan struct{}
	waits  atomic.Int64
	silent time.Duration
}

func (p *paused) Outq() (int, error) { return int(p.waits.Load()), nil }

func (p *paused) Stats() assoc.Stats {
	s := p.Assoc.Stats()
	if p.limits == nil {
		s.Silent = p.silent
	}
	if p.waits.Load() > 0 {
		s.Unanswered = 1
	}
	return s
}

func (p *paused) LimitRTO(d time.Duration) {
	p.limits <- d
	p.Assoc.LimitRTO(d)
}

func (p *paused) Kick() bool {
	select {
	case p.kicks <- struct{}{}:
	default:
	}
	return p.Assoc.Kick()
}

// released is an association whose end comes while it is about to be declared to the next daemon.
type released struct {
	*transport.Assoc
	declared atomic.Int64
	end      func()
}

func (r *released) AbortPacket() []byte {
	if r.declared.Add(1) == 2 {
		r.end()
	}
	return r.Assoc.AbortPacket()
}

// TestNextDaemonKeepsNothingThatHasEnded: an association may end just when it is declared to the next daemon, which is told of
// the end first.
func TestNextDaemonKeepsNothingThatHasEnded(t *testing.T) {
	d := newDaemon(t)
	d.leave.Store(true)
	c := client(t, d)
	ours, _ := associated(t)
	m := &released{Assoc: ours[0]}
	p, err := c.Admit(t.Context(), ours[0].Flow(), true, m)
	if err != nil {
		t.Fatal(err)
	}
	m.end = p.Release
	d.current().Close()
	await(t, "the next daemon lets it go", func() bool { n, r := d.count(); return n == 0 && r == 2 })
}
