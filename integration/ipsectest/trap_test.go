package ipsectest

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/ipsec/profile"
)

// trapHosts are two hosts without a Manager: strongSwan configured by hand, and
// the guard of the port on both, as a crash of this program would leave it.
// priority is that of strongSwan's policies.
func trapHosts(t *testing.T, mode profile.Mode, start string, priority int) (alpha, beta *lab.Host) {
	t.Helper()
	requireKernelESP(t)
	l := lab.Start(t, lab.Config{DataPlane: esp.Kernel, Canary: canary})
	alpha, beta = l.Host("alpha"), l.Host("beta")
	key := auth.GenerateSecret()
	for _, h := range []*lab.Host{alpha, beta} {
		o := alpha
		if h == alpha {
			o = beta
		}
		if err := guard.Install(guard.Spec{NetNS: h.NetNS(), Remote: o.Addr(), Port: port, DataPlane: esp.Kernel}); err != nil {
			t.Fatal(err)
		}
		swanctlConf{local: h.Addr(), remote: o.Addr(), localID: h.Name(), remoteID: o.Name(), mode: mode, start: start, priority: priority, key: key}.load(t, h)
	}
	return alpha, beta
}

// echoServer answers plain TCP connections to the guarded port.
func echoServer(t *testing.T, h *lab.Host) netip.AddrPort {
	t.Helper()
	return clearEcho(t, h, netip.AddrPortFrom(h.Addr(), port))
}

func clearEcho(t *testing.T, h *lab.Host, at netip.AddrPort) netip.AddrPort {
	t.Helper()
	ln := clearListener(t, h, at)
	var all sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	all.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				defer context.AfterFunc(ctx, func() { c.Close() })()
				_, _ = io.Copy(c, c)
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		cancel()
		all.Wait()
	})
	return at
}

func plainPing(c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	b := canary.Bytes(64)
	if _, err := c.Write(b); err != nil {
		return err
	}
	_, err := io.ReadFull(c, b)
	return err
}

// trapPriority puts strongSwan's policies before the guard's.
const trapPriority = 1000

func TestKernelESPIsAcquiredByTrapsBesideTheGuard(t *testing.T) {
	for _, mode := range []profile.Mode{profile.Tunnel, profile.Transport} {
		t.Run(mode.String(), func(t *testing.T) {
			row(t, "trap policies of strongSwan beside the guard, "+mode.String()+" mode: the first packet acquires the SA, and so does the first after a delete")
			alpha, beta := trapHosts(t, mode, "trap", trapPriority)
			wire, err := beta.Capture(t.Context(), lab.CaptureOptions{})
			if err != nil {
				t.Fatal(err)
			}
			at := echoServer(t, beta)
			if s := espStates(t, alpha); len(s) != 0 {
				t.Fatalf("there is an SA before there is traffic: %v", s)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			begin := time.Now()
			c, err := alpha.Dial(ctx, at)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if err := plainPing(c); err != nil {
				t.Fatal(err)
			}
			first, again := time.Since(begin), time.Duration(0)
			for _, h := range []*lab.Host{alpha, beta} {
				if out, err := swanctl(t, h, "--terminate", "--child", swanctlChild); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
				eventually(t, "the SA is gone", func() bool { return len(espStates(t, alpha)) == 0 })
				begin = time.Now()
				if err := plainPing(c); err != nil {
					t.Fatal(err)
				}
				again = max(again, time.Since(begin))
			}
			counts := counted(t, wire)
			detail(t, "%d ms to the first answer, %d ms after a delete; on the wire %d packets in ESP, %d in clear",
				first.Milliseconds(), again.Milliseconds(), counts.ESP, counts.Clear(port))
			if counts.Clear(port) != 0 || counts.ESP == 0 {
				t.Errorf("on the wire: %v", counts)
			}
		})
	}
}

func TestKernelESPIsNotAcquiredWithoutTrapsOrBehindTheGuard(t *testing.T) {
	for _, tc := range []struct {
		what, start string
		priority    int
	}{
		{"without traps", "none", trapPriority},
		{"with traps of the priority that strongSwan computes", "trap", 0},
	} {
		t.Run(tc.what, func(t *testing.T) {
			row(t, "control: "+tc.what+" the guard stops the packet and nothing is acquired")
			alpha, beta := trapHosts(t, profile.Tunnel, tc.start, tc.priority)
			wire, err := beta.Capture(t.Context(), lab.CaptureOptions{})
			if err != nil {
				t.Fatal(err)
			}
			at := echoServer(t, beta)
			if err := tryClear(t, alpha, at, 10*time.Second); !errors.Is(err, syscall.EPERM) {
				t.Errorf("a connection: %v, want %v", err, syscall.EPERM)
			}
			if s := espStates(t, alpha); len(s) != 0 {
				t.Errorf("an SA was acquired: %v", s)
			}
			if counts := counted(t, wire); counts.Clear(port) != 0 || counts.ESP != 0 || counts.IKE != 0 {
				t.Errorf("on the wire: %v", counts)
			}
		})
	}
}
