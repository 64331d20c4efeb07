package ipsectest

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/transport"
)

func rawAddr(a netip.AddrPort) (family int, sa unix.Sockaddr) {
	if a.Addr().Is6() {
		return unix.AF_INET6, &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
	}
	return unix.AF_INET, &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
}

// rawAssociation makes two hosts' kernels set up an association that belongs to no
// Assoc of ours.
func rawAssociation(t *testing.T, from, to *host) (dialled, taken *os.File) {
	t.Helper()
	patience := unix.Timeval{Sec: 60}
	listening, serving := -1, -1
	err := to.Do(func() (err error) {
		family, sa := rawAddr(netip.AddrPortFrom(to.at(), port))
		if listening, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP); err != nil {
			return err
		}
		return errors.Join(unix.Bind(listening, sa), unix.Listen(listening, 1), unix.SetsockoptTimeval(listening, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience))
	})
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(listening)
	err = from.Do(func() error {
		family, sa := rawAddr(netip.AddrPortFrom(to.at(), port))
		fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
		if err != nil {
			return err
		}
		dialled = os.NewFile(uintptr(fd), "dialled")
		return errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &patience), unix.Connect(fd, sa))
	})
	if dialled != nil {
		t.Cleanup(func() { dialled.Close() })
	}
	if err == nil {
		serving, _, err = unix.Accept4(listening, unix.SOCK_CLOEXEC)
	}
	if err != nil {
		t.Fatal(err)
	}
	taken = os.NewFile(uintptr(serving), "taken")
	t.Cleanup(func() { taken.Close() })
	return dialled, taken
}

// queuedAssociation leaves an association of alpha's with data that beta, whose wire is
// cut, does not acknowledge. listening: alpha is the dialled end.
func queuedAssociation(t *testing.T, p *pair, text pattern, listening bool) *os.File {
	t.Helper()
	from, to := p.alpha, p.beta
	if listening {
		from, to = p.beta, p.alpha
	}
	if err := from.m.Prepare(t.Context(), transport.Flow{Protocol: transport.ProtoSCTP, Remote: netip.AddrPortFrom(to.at(), port)}); err != nil {
		t.Fatal(err)
	}
	own, taken := rawAssociation(t, from, to)
	if listening {
		own = taken
	}
	mac, _ := linkAddr(t, p.beta.Host)
	sh(t, p.alpha.Host, fmt.Sprintf("ip neigh replace %v lladdr %v dev wire0 nud permanent", p.beta.at(), mac))
	if err := p.beta.Sever(t.Context(), 0, true); err != nil {
		t.Fatal(err)
	}
	if _, err := own.Write(text.fill(8 << 10)); err != nil {
		t.Fatal(err)
	}
	return own
}

// TestKernelSCTPAssociationKeepsItsGuard removes a peer to which the kernel's SCTP
// still has data to send. Another program's socket cannot be closed, so the guard stays
// until the association is gone: in a program that finally aborts it, or without one.
// The control removes the guard meanwhile.
func TestKernelSCTPAssociationKeepsItsGuard(t *testing.T) {
	for _, tc := range []struct {
		v6, listening, orphan, control bool
	}{
		{},
		{v6: true, listening: true},
		{listening: true, orphan: true},
		{v6: true, orphan: true},
		{control: true, orphan: true},
		{v6: true, listening: true, control: true},
	} {
		name := map[bool]string{false: "IPv4", true: "IPv6"}[tc.v6] + map[bool]string{false: ", dialled here", true: ", dialled there"}[tc.listening] +
			map[bool]string{true: ", of no program"}[tc.orphan] + map[bool]string{true: ", control"}[tc.control]
		t.Run(name, func(t *testing.T) {
			if !tc.control {
				row(t, "kernel SCTP, a removed peer, "+name+": the guard stays while the kernel has the association")
			}
			p := newPairOf(t, transport.SCTP, lab.Config{})
			p.alpha.v6, p.beta.v6 = tc.v6, tc.v6
			p.addPeers(t)
			wire := record(t, p.alpha)
			text := newPattern()
			own := queuedAssociation(t, p, text, tc.listening)
			state := "ESTABLISHED"
			if tc.orphan {
				own.Close()
				state = "SHUTDOWN-PENDING"
			}
			spec := p.alpha.specOf(p.beta, transport.SCTP, esp.Auto)
			left, err := guard.LinkSockets(spec)
			if err != nil || len(left) != 1 || left[0].State != state || left[0].Orphan != tc.orphan || left[0].Queued < 8<<10 {
				t.Fatalf("the kernel has %+v, %v; wanted is one association, %s, with 8 KiB", left, err, state)
			}
			if tc.control {
				if err := p.alpha.StopCharon(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := p.alpha.m.RemoveGuard(t.Context(), "beta"); err != nil {
					t.Fatal(err)
				}
				eventually(t, "the data leaves in clear", func() bool { return text.in(t, wire) > 0 })
				return
			}
			before := guardSize(t, p.alpha)
			var held *guard.HeldError
			if err := p.alpha.m.RemovePeer(t.Context(), "beta"); !errors.As(err, &held) || len(held.Sockets) != 1 || held.Sockets[0].Queued < 8<<10 {
				t.Fatalf("RemovePeer: %v", err)
			}
			if n := guardSize(t, p.alpha); n != before {
				t.Errorf("%d policies are left of %d", n, before)
			}
			if !tc.orphan {
				err := unix.SetsockoptLinger(int(own.Fd()), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
				if err := errors.Join(err, own.Close()); err != nil {
					t.Fatal(err)
				}
				if err := guard.Remove(spec); err != nil {
					t.Errorf("the association is aborted: %v", err)
				}
				if left, err := guard.LinkSockets(spec); err != nil || len(left) != 0 {
					t.Errorf("the kernel has %v, %v", left, err)
				}
				if n := guardSize(t, p.alpha); n != 0 {
					t.Errorf("%d policies are left", n)
				}
			}
			if n := text.in(t, wire); n != 0 {
				t.Errorf("the data is on the wire, %d times", n)
			}
			if c := counted(t, wire.Capture); p.clear(c) != 0 || c.ESP == 0 {
				t.Errorf("on the wire: %v", c)
			}
		})
	}
}
