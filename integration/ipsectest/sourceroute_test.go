package ipsectest

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/transport"
)

// TestSourceRouteIsNoWayAroundTheGuard has a local program send to the link by a source
// route: the packet has the address of another host on the way, and the kernel looks for
// policies and routes by that one, except for the policies of IPv6, which it looks for by
// the last address. The control takes the guard's table away, and where the guard is made
// of those policies them, too: then the same datagrams are on the wire, with the canary in
// them.
func TestSourceRouteIsNoWayAroundTheGuard(t *testing.T) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			p := newPair(t, lab.Config{Hosts: []string{"alpha", "beta", "gamma"}})
			p.kind = transport.SCTPUDP
			p.alpha.v6, p.beta.v6 = f.v6, f.v6
			p.addPeers(t)
			hop := (&host{Host: p.lab.Host("gamma"), v6: f.v6}).at().AsSlice()
			routes := map[string]string{}
			if f.v6 { // the first address is filled in by the kernel
				routes["a segment routing header"] = string([]byte{0, 4, 4, 1, 1, 0, 0, 0}) + string(make([]byte, 16)) + string(hop)
			} else {
				for option, name := range map[byte]string{131: "a loose route", 137: "a strict route"} {
					for n := 1; n <= 9; n += 4 {
						route := []byte{1, option, byte(3 + 4*n), 4}
						for range n {
							route = append(route, hop...)
						}
						routes[fmt.Sprintf("%s of %d", name, n)] = string(route)
					}
				}
			}
			// send sends datagrams to a port by each route, and returns why the guard has refused some.
			send := func(port uint16) (refused error) {
				t.Helper()
				for name, route := range routes {
					err := p.alpha.Do(func() error {
						if f.v6 {
							return sendRouted(unix.AF_INET6, unix.IPPROTO_IPV6, unix.IPV6_RTHDR, route, &unix.SockaddrInet6{Port: int(port), Addr: p.beta.at().As16()})
						}
						return sendRouted(unix.AF_INET, unix.IPPROTO_IP, unix.IP_OPTIONS, route, &unix.SockaddrInet4{Port: int(port), Addr: p.beta.at().As4()})
					})
					if err != nil && !refusedByGuard(err) {
						t.Fatalf("%s: %v", name, err)
					}
					refused = errors.Join(refused, err)
				}
				return refused
			}
			send(udpPort + 1) // so that gamma's link address is known
			wire := captureWith(t, p.alpha, lab.CaptureOptions{Unjudged: "another port's datagrams have the canary, too"})
			send(udpPort)
			send(udpPort + 1)
			k := counted(t, wire)
			if p.clear(k) != 0 {
				t.Errorf("by a source route the guard lets pass: %v", k)
			}
			if n := k.ClearOf(transport.ProtoUDP, udpPort+1); n != len(routes) {
				t.Errorf("%d of %d datagrams of another port were sent", n, len(routes))
			}
			p.alpha.stop()
			dropGuardTable(t, p.alpha.Host)
			if f.v6 && p.lab.DataPlane() == esp.Kernel {
				sh(t, p.alpha.Host, "ip xfrm policy flush")
			}
			wire = captureWith(t, p.alpha, lab.CaptureOptions{Unjudged: "the control"})
			refused := send(udpPort)
			if k := counted(t, wire); p.clear(k) != len(routes) || k.Leaked() == "" {
				t.Errorf("without the table %v, refused: %v: the check cannot fail", k, refused)
			}
		})
	}
}

// sendRouted sends a datagram with an option.
func sendRouted(family, level, option int, value string, to unix.Sockaddr) error {
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptString(fd, level, option, value); err != nil {
		return err
	}
	return unix.Sendto(fd, canary.Bytes(pingSize), 0, to)
}
