package ipsectest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/transport/sctp"
)

const udpPort = sctp.DefaultPort

var families = []struct {
	name string
	v6   bool
}{{"IPv4", false}, {"IPv6", true}}

func (h *host) specOf(o *host, kind transport.Kind, plane esp.Plane) guard.Spec {
	k := linkOf(kind)
	return guard.Spec{NetNS: h.NetNS(), Remote: o.at(), Port: k.Port, Protocol: k.Protocol, DataPlane: plane}
}

// sendDatagram sends a datagram from a host, from a given port or any, in clear as far
// as the sender knows.
func sendDatagram(h *lab.Host, from, to netip.AddrPort) error {
	return h.Do(func() error {
		c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(from), net.UDPAddrFromAddrPort(to))
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte("CLEARTEXT-CANARY"))
		return err
	})
}

// refusedByGuard is the error that a sender gets from the guard: for IPv6 with userland
// ESP that is routing rules, with another error.
func refusedByGuard(err error) bool {
	return errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES)
}

func TestGuardStopsClearDatagrams(t *testing.T) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			row(t, "SCTP in UDP, "+f.name+": the guard before there is a charon stops datagrams of either role, and no other port's")
			p := newPair(t, lab.Config{NoCharon: true})
			p.kind = transport.SCTPUDP
			p.alpha.v6, p.beta.v6 = f.v6, f.v6
			from := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(p.alpha.at(), port) }
			to := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(p.beta.at(), port) }
			clear := func(want bool) {
				t.Helper()
				allow := []string{lab.PortKind(transport.ProtoUDP, udpPort+1)}
				if want {
					allow = append(allow, lab.PortKind(transport.ProtoUDP, udpPort), lab.PortKind(transport.ProtoUDP, 4711))
				}
				wire := capture(t, p.beta, allow...)
				before := stat(t, p.alpha, "XfrmOutPolBlock")
				for what, err := range map[string]error{
					"to the port":         sendDatagram(p.alpha.Host, from(0), to(udpPort)),
					"from the port":       sendDatagram(p.alpha.Host, from(udpPort), to(4711)),
					"to a mapped address": sendDatagram(p.alpha.Host, netip.AddrPort{}, netip.AddrPortFrom(netip.AddrFrom16(to(udpPort).Addr().As16()), udpPort)),
				} {
					if want && err != nil || !want && !refusedByGuard(err) {
						t.Errorf("a datagram %s: %v", what, err)
					}
				}
				if err := sendDatagram(p.alpha.Host, from(0), to(udpPort+1)); err != nil {
					t.Errorf("a datagram to another port: %v", err)
				}
				if n := stat(t, p.alpha, "XfrmOutPolBlock") - before; (n == 3) == want {
					t.Errorf("the kernel has counted %d blocked packets", n)
				}
				k := counted(t, wire)
				if (p.clear(k) > 0) != want || k.ClearOf(transport.ProtoUDP, udpPort+1) == 0 {
					t.Errorf("on the wire: %v", k)
				}
			}
			clear(true) // without the guard the check finds them
			if err := p.alpha.m.AddPeer(t.Context(), p.peerOf(p.alpha)); err != nil {
				t.Fatal(err)
			}
			clear(false)
			// What comes in is stopped as well.
			if err := p.beta.m.AddPeer(t.Context(), p.peerOf(p.beta)); err != nil {
				t.Fatal(err)
			}
			if err := p.alpha.m.RemovePeer(t.Context(), "beta"); err != nil {
				t.Fatal(err)
			}
			got := make(chan struct{}, 100)
			receive(t, p.beta.Host, to(udpPort), got)
			before := stoppedInbound(t, p.beta)
			if err := sendDatagram(p.alpha.Host, from(0), to(udpPort)); err != nil {
				t.Fatal(err)
			}
			eventually(t, "beta has stopped it", func() bool { return stoppedInbound(t, p.beta) > before })
			if len(got) > 0 {
				t.Error("a clear datagram was taken in")
			}
			if err := p.beta.m.RemovePeer(t.Context(), "alpha"); err != nil {
				t.Fatal(err)
			}
			if err := sendDatagram(p.alpha.Host, from(0), to(udpPort)); err != nil {
				t.Fatal(err)
			}
			<-got // without the guard it comes
			for _, h := range []*host{p.alpha, p.beta} {
				if n := guardSize(t, h); n != 0 {
					t.Errorf("%s has %d policies left", h.Name(), n)
				}
			}
		})
	}
}

// receive reports the datagrams that come to an address of a host.
func receive(t *testing.T, h *lab.Host, at netip.AddrPort, got chan<- struct{}) {
	t.Helper()
	var c *net.UDPConn
	err := h.Do(func() (err error) {
		c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 2048)
		for {
			if _, _, err := c.ReadFromUDPAddrPort(b); err != nil {
				return
			}
			got <- struct{}{}
		}
	}()
	t.Cleanup(func() { c.Close(); <-done })
}

// TestGuardOfEachLinkIsWholeAndTested covers the guards of SCTP, also on kernels
// without SCTP: what counts is what the kernel would let pass.
func TestGuardOfEachLinkIsWholeAndTested(t *testing.T) {
	for _, k := range associations {
		for _, f := range families {
			for _, plane := range []esp.Plane{esp.Auto, esp.Userland, esp.Kernel} {
				t.Run(fmt.Sprint(k.name, " ", f.name, " ", plane), func(t *testing.T) { testGuardOf(t, k.kind, f.v6, plane) })
			}
		}
	}
}

func testGuardOf(t *testing.T, kind transport.Kind, v6 bool, plane esp.Plane) {
	p := newPair(t, lab.Config{NoCharon: true})
	p.alpha.v6, p.beta.v6 = v6, v6
	spec := p.alpha.specOf(p.beta, kind, plane)
	other := spec // that of TCP, which must not be touched
	other.Protocol, other.Port = transport.ProtoTCP, port
	if err := guard.Install(other); err != nil {
		t.Fatal(err)
	}
	alone := guardOf(t, p.alpha)
	if err := guard.Probe(spec); !errors.Is(err, guard.ErrLeaks) {
		t.Errorf("without a guard: %v", err)
	}
	holes := func() []guard.Hole {
		t.Helper()
		h, err := guard.Holes(spec, other)
		if err != nil {
			t.Fatal(err)
		}
		return slices.DeleteFunc(h, func(h guard.Hole) bool { return h.Shut })
	}
	if len(holes()) == 0 {
		t.Error("without a guard no hole is found")
	}
	if err := guard.Install(spec); err != nil {
		t.Fatal(err)
	}
	if h := holes(); len(h) != 0 {
		t.Errorf("a whole guard has holes: %v", h)
	}
	wire := capture(t, p.beta)
	for _, s := range []guard.Spec{spec, other} {
		if err := guard.Probe(s); err != nil {
			t.Error(err)
		}
	}
	if c := counted(t, wire); c.ClearOf(spec.Protocol, spec.Port) != 0 {
		t.Errorf("a probe of a whole guard is on the wire: %v", c)
	}
	family, any := "", "0.0.0.0/0"
	if v6 {
		family, any = "-6 ", "::/0"
	}
	proto := spec.Protocol.String()
	bypass := "ip xfrm policy %s src " + any + " dst " + p.beta.at().String() + " proto " + proto + " dir out"
	for _, b := range []struct {
		what, open, shut string
		only4, only6     bool
	}{
		{what: "a policy that allows the peer wins", open: fmt.Sprintf(bypass, "add") + " action allow priority 10", shut: fmt.Sprintf(bypass, "delete"), only4: plane == esp.Userland},
		{what: "the wire is exempt", open: "sysctl -qw net.ipv4.conf.wire0.disable_xfrm=1", shut: "sysctl -qw net.ipv4.conf.wire0.disable_xfrm=0", only4: true},
		{what: "the rules are gone", open: "while ip -6 rule del pref 218 ipproto " + proto + "; do :; done 2>/dev/null; true", only6: true},
		{what: "the policies are gone", open: "ip xfrm policy flush"},
	} {
		switch {
		case b.only4 && v6, b.only6 && (!v6 || plane != esp.Userland):
			continue
		case v6 && plane == esp.Userland && b.what == "the policies are gone":
			continue // the rules still stop what goes out
		}
		sh(t, p.alpha.Host, b.open)
		if err := guard.Probe(spec); !errors.Is(err, guard.ErrLeaks) {
			t.Errorf("%s: the self-test says %v", b.what, err)
		}
		if len(holes()) == 0 {
			t.Errorf("%s: no hole is found", b.what)
		}
		if b.shut != "" {
			sh(t, p.alpha.Host, b.shut)
		}
		for _, s := range []guard.Spec{spec, other} {
			if err := guard.Install(s); err != nil {
				t.Fatal(err)
			}
		}
		if err := guard.Probe(spec); err != nil {
			t.Errorf("after %s was mended: %v", b.what, err)
		}
	}
	if err := guard.Remove(spec); err != nil {
		t.Fatal(err)
	}
	if left := guardOf(t, p.alpha); !slices.Equal(left, alone) {
		t.Errorf("left of the guards are %v, want those of TCP: %v", left, alone)
	}
	out, err := p.alpha.Run(t.Context(), "sh", "-c", "ip "+family+"rule; ip xfrm policy")
	if err != nil || strings.Contains(out, "proto "+proto) || strings.Contains(out, "ipproto "+proto) {
		t.Errorf("left of the guard: %v\n%s", err, out)
	}
}

// TestGuardedHostForwardsNoClearDatagramsOfThePort uses a guarded router between two
// hosts without IPsec.
func TestGuardedHostForwardsNoClearDatagramsOfThePort(t *testing.T) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			l := lab.Start(t, lab.Config{Hosts: []string{"left", "router", "right"}, NoCharon: true})
			left, router, right := &host{Host: l.Host("left"), v6: f.v6}, &host{Host: l.Host("router"), v6: f.v6}, &host{Host: l.Host("right"), v6: f.v6}
			routeBy(t, left, router, right)
			got := map[*host]chan struct{}{left: make(chan struct{}, 100), right: make(chan struct{}, 100)}
			for h, c := range got {
				receive(t, h.Host, netip.AddrPortFrom(h.at(), udpPort), c)
				receive(t, h.Host, netip.AddrPortFrom(h.at(), udpPort+1), c)
			}
			// send sends three datagrams of the port and returns how many have come, of which want are waited for.
			send := func(from, to *host, want int) int {
				t.Helper()
				for range 3 {
					if err := sendDatagram(from.Host, netip.AddrPort{}, netip.AddrPortFrom(to.at(), udpPort)); err != nil {
						t.Fatal(err)
					}
				}
				// One of another port shows when they would have come.
				if err := sendDatagram(from.Host, netip.AddrPort{}, netip.AddrPortFrom(to.at(), udpPort+1)); err != nil {
					t.Fatal(err)
				}
				<-got[to]
				eventually(t, fmt.Sprintf("%d datagrams come", want), func() bool { return len(got[to]) >= want })
				pause(t, 50*time.Millisecond)
				n := len(got[to])
				for range n {
					<-got[to]
				}
				return n
			}
			both := func(want int) {
				t.Helper()
				for _, d := range [][2]*host{{left, right}, {right, left}} {
					if n := send(d[0], d[1], want); n != want {
						t.Errorf("%s to %s by way of the router: %d datagrams came, want %d", d[0].Name(), d[1].Name(), n, want)
					}
				}
			}
			both(3) // without a guard the router forwards them
			for _, plane := range []esp.Plane{esp.Auto, esp.Userland} {
				if err := guard.Install(router.specOf(right, transport.SCTPUDP, plane)); err != nil {
					t.Fatal(err)
				}
				both(0)
			}
		})
	}
}

// routeBy makes a host a router between two others on its wire.
func routeBy(t *testing.T, left, router, right *host) {
	t.Helper()
	sh(t, router.Host, "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv4.conf.all.send_redirects=0 net.ipv4.conf.wire0.send_redirects=0")
	for _, d := range [][2]*host{{left, right}, {right, left}} {
		sh(t, d[0].Host, "sysctl -qw net.ipv4.conf.all.accept_redirects=0 net.ipv4.conf.wire0.accept_redirects=0 net.ipv6.conf.wire0.accept_redirects=0")
		sh(t, d[0].Host, fmt.Sprintf("ip route add %v via %v", netip.PrefixFrom(d[1].at(), d[1].at().BitLen()), router.at()))
	}
}

// TestKernelSCTPMeetsTheGuard makes the kernel's own SCTP try to send in clear.
func TestKernelSCTPMeetsTheGuard(t *testing.T) {
	lab.RequireKernelSCTP(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			row(t, "kernel SCTP, "+f.name+": the guard stops its packets, of either role")
			p := newPair(t, lab.Config{NoCharon: true})
			p.kind = transport.SCTP
			p.alpha.v6, p.beta.v6 = f.v6, f.v6
			tries := func(allow ...string) (clear int) {
				t.Helper()
				wire := capture(t, p.beta, allow...)
				for _, try := range []struct{ from, to uint16 }{{0, port}, {port, 4711}} {
					tryClearSCTP(t, p.alpha, netip.AddrPortFrom(p.alpha.at(), try.from), netip.AddrPortFrom(p.beta.at(), try.to))
				}
				c := counted(t, wire)
				t.Log(c)
				return p.clear(c)
			}
			if tries(lab.PortKind(transport.ProtoSCTP, port), lab.PortKind(transport.ProtoSCTP, 4711)) == 0 {
				t.Error("without a guard the check finds nothing")
			}
			if err := p.alpha.m.AddPeer(t.Context(), p.peerOf(p.alpha)); err != nil {
				t.Fatal(err)
			}
			before := stat(t, p.alpha, "XfrmOutPolBlock")
			if n := tries(); n != 0 {
				t.Errorf("%d clear packets", n)
			}
			if stat(t, p.alpha, "XfrmOutPolBlock") == before && !f.v6 {
				t.Error("the kernel counted no blocked packet")
			}
		})
	}
}

// TestKernelSCTPInUDPIsAHole lets the kernel unpack SCTP in UDP, which the guard of the
// SCTP port does not see.
func TestKernelSCTPInUDPIsAHole(t *testing.T) {
	lab.RequireKernelSCTP(t)
	row(t, "kernel SCTP: encapsulation in UDP, switched on by somebody, is found, and the link not used")
	p := newPair(t, lab.Config{Hosts: []string{"alpha", "beta", "mallory"}, NoCharon: true})
	p.kind = transport.SCTP
	spec := p.beta.specOf(p.alpha, transport.SCTP, esp.Auto)
	if err := guard.Install(spec); err != nil {
		t.Fatal(err)
	}
	if err := guard.Probe(spec); err != nil {
		t.Error(err)
	}
	mallory := newNeighbour(t, p.lab.Host("mallory"), p.beta)
	init := assocAttacks[0].packet(&knownAssoc{last: sctpPacket{from: netip.AddrPortFrom(p.alpha.Addr(), 40000),
		to: netip.AddrPortFrom(p.beta.Addr(), udpPort), src: 40000, dst: port}})
	taken := func() string {
		t.Helper()
		out, err := p.beta.Run(t.Context(), "grep", "SctpInSCTPPacks", "/proc/net/sctp/snmp")
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	before := stoppedInbound(t, p.beta)
	mallory.send(init.packet(transport.SCTP))
	eventually(t, "SCTP itself is stopped", func() bool { return stoppedInbound(t, p.beta) > before })

	sh(t, p.beta.Host, fmt.Sprintf("sysctl -qw net.sctp.udp_port=%d", udpPort))
	was := taken()
	mallory.send(init.packet(transport.SCTPUDP))
	eventually(t, "SCTP in UDP gets in", func() bool { return taken() != was })
	if h, err := guard.Holes(spec); err != nil || len(h) != 1 || h[0].Shut || !strings.Contains(h[0].What, "net.sctp.udp_port") {
		t.Errorf("holes: %v, %v", h, err)
	}
	if err := guard.Probe(spec); !errors.Is(err, guard.ErrLeaks) {
		t.Errorf("the self-test says %v", err)
	}

	// What the kernel itself encapsulates is subject to the guard of SCTP.
	sh(t, p.beta.Host, fmt.Sprintf("sysctl -qw net.sctp.encap_port=%d", udpPort))
	tryCounted := func(allow ...string) int {
		t.Helper()
		wire := capture(t, p.beta, allow...)
		tryClearSCTP(t, p.beta, netip.AddrPortFrom(p.beta.Addr(), 0), netip.AddrPortFrom(p.alpha.Addr(), port))
		return counted(t, wire).ClearOf(transport.ProtoUDP, udpPort)
	}
	if n := tryCounted(); n != 0 {
		t.Errorf("%d clear packets of SCTP in UDP", n)
	}
	if err := guard.Remove(spec); err != nil {
		t.Fatal(err)
	}
	if tryCounted(lab.PortKind(transport.ProtoUDP, udpPort)) == 0 {
		t.Error("without the guard the check finds nothing")
	}
	if err := guard.Install(spec); err != nil {
		t.Fatal(err)
	}

	// A guard of that UDP port closes the hole.
	if err := guard.Install(p.beta.specOf(p.alpha, transport.SCTPUDP, esp.Auto)); err != nil {
		t.Fatal(err)
	}
	before = stoppedInbound(t, p.beta)
	mallory.send(init.packet(transport.SCTPUDP))
	eventually(t, "SCTP in UDP is stopped", func() bool { return stoppedInbound(t, p.beta) > before })
	if h, err := guard.Holes(spec); err != nil || len(h) != 0 {
		t.Errorf("holes: %v, %v", h, err)
	}
	if err := guard.Probe(spec); err != nil {
		t.Error(err)
	}
}

// tryClearSCTP makes the kernel begin an association, and soon gives up.
func tryClearSCTP(t *testing.T, h *host, from, to netip.AddrPort) {
	t.Helper()
	family := unix.AF_INET
	if h.v6 {
		family = unix.AF_INET6
	}
	at := func(a netip.AddrPort) unix.Sockaddr {
		if h.v6 {
			return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
		}
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	err := h.Do(func() error {
		fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_SCTP)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.Bind(fd, at(from)); err != nil {
			return err
		}
		err = unix.Connect(fd, at(to))
		t.Logf("connect from %v to %v: %v", from, to, err)
		pause(t, 100*time.Millisecond)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
