package transport

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/transport/sctp/sctptest"
)

// own is a Config whose associations have sockets of their own.
func own(t *testing.T) *Config {
	t.Helper()
	cfg := udpConfig(t, LoopbackOnly())
	cfg.OwnSockets = true
	return cfg
}

// socketOf calls f with the socket of an association.
func socketOf(t *testing.T, a *Assoc, f func(fd int)) {
	t.Helper()
	raw, err := a.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { f(int(fd)) })
	}
	if err != nil {
		t.Fatal(err)
	}
}

// kernelFlow is what the kernel says of an association's socket.
func kernelFlow(t *testing.T, a *Assoc) (f Flow) {
	t.Helper()
	socketOf(t, a, func(fd int) {
		local, err1 := unix.Getsockname(fd)
		remote, err2 := unix.Getpeername(fd)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		f = Flow{ProtoUDP, sockaddr(local), sockaddr(remote)}
	})
	return f
}

func sockaddr(a unix.Sockaddr) netip.AddrPort {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port))
	}
	return netip.AddrPort{}
}

// over waits for the end of an association.
func over(t *testing.T, a *Assoc) {
	t.Helper()
	select {
	case <-a.Done():
	case <-time.After(20 * time.Second):
		t.Fatalf("%v goes on", a.Flow())
	}
}

// TestTheKernelKnowsWhoseASocketIs: each association has one that is connected to its peer, and carries its messages alone.
func TestTheKernelKnowsWhoseASocketIs(t *testing.T) {
	for _, at := range []string{"127.0.0.1", "0.0.0.0", "::", "::1"} {
		t.Run(at, func(t *testing.T) {
			cfg := own(t)
			l, err := ListenSCTP(t.Context(), netip.AddrPortFrom(netip.MustParseAddr(at), linkPort), cfg, inboxes)
			if errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT) {
				t.Skip("this host has no IPv6 loopback address")
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
			for i := range 3 {
				a, b := meet(t, l, cfg)
				for _, x := range []*Assoc{a, b} {
					if got := kernelFlow(t, x); got != x.Flow() {
						t.Errorf("the kernel says %v, it is %v", got, x.Flow())
					}
				}
				send(t, a, fmt.Sprint("there ", i))
				send(t, b, fmt.Sprint("back ", i))
				if got, back := texts(t, b.box(), 1)[0], texts(t, a.box(), 1)[0]; got != fmt.Sprint("there ", i) || back != fmt.Sprint("back ", i) {
					t.Errorf("%q, %q", got, back)
				}
			}
		})
	}
}

// TestEndOfASocketIsTheEndOfItsAssociation, whichever end has it and however it comes; the others go on.
func TestEndOfASocketIsTheEndOfItsAssociation(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  func(t *testing.T, a *Assoc)
	}{
		{"shut down", func(t *testing.T, a *Assoc) {
			socketOf(t, a, func(fd int) { _ = unix.Shutdown(fd, unix.SHUT_RDWR) })
		}},
		{"shut down to send", func(t *testing.T, a *Assoc) { // it finds out when it sends
			socketOf(t, a, func(fd int) { _ = unix.Shutdown(fd, unix.SHUT_WR) })
			send(t, a, "in vain")
		}},
		{"disconnected", func(t *testing.T, a *Assoc) { // as SOCK_DESTROY does
			socketOf(t, a, func(fd int) {
				var unspec [unix.SizeofSockaddrInet4]byte
				if _, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&unspec)), uintptr(len(unspec))); errno != 0 {
					t.Fatal(errno)
				}
			})
			send(t, a, "in vain")
		}},
	} {
		for _, dialled := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, dialled %v", tc.name, dialled), func(t *testing.T) {
				cfg := own(t)
				l := listenSCTP(t, cfg)
				a, b := meet(t, l, cfg)
				c, d := meet(t, l, cfg)
				ended, other := a, b
				if !dialled {
					ended, other = b, a
				}
				got := len(other.box().Messages())
				tc.end(t, ended)
				over(t, ended)
				if len(other.box().Messages()) != got {
					t.Error("a message has left by a socket that was shut down")
				}
				send(t, c, "x")
				send(t, d, "y")
				texts(t, d.box(), 1)
				texts(t, c.box(), 1)
			})
		}
	}
}

// TestNobodyListensBesideSocketsOfAssociations by mistake: their port is taken, though they share it.
func TestNobodyListensBesideSocketsOfAssociations(t *testing.T) {
	cfg := own(t)
	l := listenSCTP(t, cfg)
	meet(t, l, cfg)
	if _, err := ListenSCTP(t.Context(), l.Addr(), cfg, inboxes); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("another listener: %v", err)
	}
	if c, err := net.ListenPacket("udp", fmt.Sprintf("127.0.0.1:%d", cfg.UDPPort)); err == nil {
		c.Close()
		t.Error("another socket has the port")
	}
}

// TestManyAssociationsBeginAtOnce, each on its socket, and none is lost between bind and connect.
func TestManyAssociationsBeginAtOnce(t *testing.T) {
	cfg := own(t)
	l := listenSCTP(t, cfg)
	const n = 40
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			a, err := DialSCTP(t.Context(), l.Addr(), cfg, inboxes)
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(func() { a.Close() })
			send(t, a, fmt.Sprint(i))
		})
	}
	seen := map[Flow]bool{}
	for range n {
		b, err := l.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { b.Close() })
		texts(t, b.box(), 1)
		if f := kernelFlow(t, b); f != b.Flow() || seen[f] {
			t.Errorf("%v, again: %v", f, seen[f])
		}
		seen[b.Flow()] = true
	}
	wg.Wait()
}

// TestSharedSocketIsNobodysAlone: without sockets of their own associations have none to hand over.
func TestSharedSocketIsNobodysAlone(t *testing.T) {
	cfg := udpConfig(t, LoopbackOnly())
	a, b := associate(t, cfg, cfg)
	for _, x := range []*Assoc{a, b} {
		if _, err := x.SyscallConn(); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%v", err)
		}
	}
}

// TestHandshakeEndsOnASocketOfItsOwn: the COOKIE ACK was lost, and the COOKIE ECHO comes again where there is a socket by then.
func TestHandshakeEndsOnASocketOfItsOwn(t *testing.T) {
	const cookieAck = 11 // RFC 9260 section 3.2
	cfg := own(t)
	l := listenSCTP(t, cfg)
	var lost atomic.Int32
	relay, err := sctptest.NewRelay(netip.AddrPortFrom(l.Addr().Addr(), cfg.UDPPort), sctptest.Faults{Drop: func(fromClient bool, p []byte) bool {
		return !fromClient && len(p) > 12 && p[12] == cookieAck && lost.Add(1) == 1
	}}, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer relay.Close()
	c := *cfg
	c.UDPPort = relay.Addr().Port()
	for range 2 {
		a, err := DialSCTP(t.Context(), l.Addr(), &c, inboxes)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { a.Close() })
		b, err := l.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { b.Close() })
		send(t, a, "there")
		send(t, b, "back")
		texts(t, b.box(), 1)
		texts(t, a.box(), 1)
		if f := kernelFlow(t, b); f != b.Flow() {
			t.Errorf("the kernel says %v, it is %v", f, b.Flow())
		}
	}
	if lost.Load() < 2 {
		t.Errorf("%d COOKIE ACKs were sent", lost.Load())
	}
}
