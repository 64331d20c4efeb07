package ipsectest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec"
	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/ipsec/guard"
)

// sh runs a shell line on a host.
func sh(t *testing.T, h *lab.Host, line string) {
	t.Helper()
	if _, err := h.Run(t.Context(), "sh", "-c", line); err != nil {
		t.Fatal(err)
	}
}

// breaches are ways to make a guard useless, each with its repair.
var breaches = []struct{ what, open, shut string }{
	{"a policy that allows the peer wins", "ip xfrm policy add src $ANY dst $PEER dir out action allow priority 10", "ip xfrm policy delete src $ANY dst $PEER dir out"},
	{"the wire is exempt", "sysctl -qw net.ipv4.conf.wire0.disable_xfrm=1", "sysctl -qw net.ipv4.conf.wire0.disable_xfrm=0"},
	{"the policies are gone", "ip xfrm policy flush", ""},
}

func TestSelfTestFindsWhatMakesTheGuardUseless(t *testing.T) {
	p := newPair(t, lab.Config{NoCharon: true})
	spec := p.alpha.spec(p.beta, esp.Auto)
	if err := guard.Probe(spec); !errors.Is(err, guard.ErrLeaks) {
		t.Errorf("without a guard: %v", err)
	}
	if err := guard.Install(spec); err != nil {
		t.Fatal(err)
	}
	fill := strings.NewReplacer("$ANY", "0.0.0.0/0", "$PEER", p.beta.Addr().String()+"/32")
	for _, b := range breaches {
		wire := capture(t, p.beta)
		if err := guard.Probe(spec); err != nil {
			t.Errorf("before %s: %v", b.what, err)
		}
		if c := counted(t, wire); c.Clear(port) != 0 {
			t.Errorf("a probe of a whole guard is on the wire: %v", c)
		}
		sh(t, p.alpha.Host, fill.Replace(b.open))
		if err := guard.Probe(spec); !errors.Is(err, guard.ErrLeaks) || !strings.Contains(err.Error(), "doctor") {
			t.Errorf("%s: the self-test says %v", b.what, err)
		}
		if b.shut != "" {
			sh(t, p.alpha.Host, fill.Replace(b.shut))
		}
	}
}

func TestSelfTestOfIPv6WithRulesInsteadOfPolicies(t *testing.T) {
	p := newPair(t, lab.Config{NoCharon: true})
	spec := guard.Spec{NetNS: p.alpha.NetNS(), Remote: p.beta.Addr6(), Port: port, DataPlane: esp.Userland}
	if err := guard.Probe(spec); !errors.Is(err, guard.ErrLeaks) {
		t.Errorf("without a guard: %v", err)
	}
	// As a daemon does it: the blocks first, before it knows what does ESP.
	early := spec
	early.DataPlane = esp.Auto
	for _, s := range []guard.Spec{early, spec, early} {
		if err := guard.Install(s); err != nil {
			t.Fatal(err)
		}
		if err := guard.Probe(s); err != nil {
			t.Errorf("guard of %v: %v", s.DataPlane, err)
		}
	}
	if h, err := guard.Holes(spec); err != nil || len(h) != 0 {
		t.Errorf("a whole guard has holes: %v, %v", h, err)
	}
	// Routes of charon's table that do not lead into a tun, as bypass-lan makes them.
	peer, net := p.beta.Addr6().String(), "fd99::/64"
	for _, dst := range []string{peer, net} {
		sh(t, p.alpha.Host, "ip -6 route add "+dst+" dev wire0 table 220")
	}
	if err := guard.Probe(spec); err != nil {
		t.Errorf("with clear routes in charon's table: %v", err)
	}
	for _, b := range []struct{ what, open, shut string }{
		{"the rules are gone", "ip -6 rule del pref 218; ip -6 rule del pref 218", ""},
		{"a rule leads to clear routes of charon's table", "ip -6 rule add pref 216 to " + peer + " ipproto tcp dport 7471 lookup 220", "ip -6 rule del pref 216"},
		{"another rule comes first", "ip -6 rule add pref 100 to " + p.beta.Addr6().String() + " lookup main", "ip -6 rule del pref 100"},
	} {
		sh(t, p.alpha.Host, b.open)
		if err := guard.Probe(spec); !errors.Is(err, guard.ErrLeaks) {
			t.Errorf("%s: the self-test says %v", b.what, err)
		}
		h, err := guard.Holes(spec)
		if err != nil || len(h) == 0 || h[0].Shut {
			t.Errorf("%s: holes %v, %v", b.what, h, err)
		}
		if b.shut != "" {
			sh(t, p.alpha.Host, b.shut)
		}
		if err := guard.Install(spec); err != nil {
			t.Fatal(err)
		}
		if err := guard.Probe(spec); err != nil {
			t.Errorf("after %s was mended: %v", b.what, err)
		}
	}
	if err := guard.Remove(spec); err != nil {
		t.Fatal(err)
	}
	out, err := p.alpha.Run(t.Context(), "sh", "-c", "ip -6 rule; ip xfrm policy")
	if err != nil || strings.Contains(out, p.beta.Addr6().String()) {
		t.Errorf("left of the guard: %v\n%s", err, out)
	}
}

func TestSelfTestWithoutAWayToThePeerTellsSo(t *testing.T) {
	p := newPair(t, lab.Config{NoCharon: true})
	spec := guard.Spec{NetNS: p.alpha.NetNS(), Remote: netip.MustParseAddr("198.51.100.7"), Port: port}
	if err := guard.Install(spec); err != nil {
		t.Fatal(err)
	}
	if err := guard.Probe(spec); !errors.Is(err, guard.ErrUntested) || errors.Is(err, guard.ErrLeaks) {
		t.Errorf("without a route: %v", err)
	}
}

// TestPeerWhoseGuardLeaksIsNotUsed adds the peer while another program's policy takes
// precedence over the guard, and later removes that policy.
func TestPeerWhoseGuardLeaksIsNotUsed(t *testing.T) {
	p := newPair(t, lab.Config{})
	bypass := fmt.Sprintf("ip xfrm policy %%s src 0.0.0.0/0 dst %v/32 dir out", p.beta.Addr())
	sh(t, p.alpha.Host, fmt.Sprintf(bypass, "add")+" action allow priority 10")
	err := p.alpha.m.AddPeer(t.Context(), p.peerOf(p.alpha))
	if !errors.Is(err, guard.ErrLeaks) {
		t.Fatalf("adding a peer whose guard leaks: %v", err)
	}
	t.Log(err)
	if _, err := p.alpha.m.PeerStatus("beta"); !errors.Is(err, ipsec.ErrUnknownPeer) {
		t.Errorf("its status: %v", err)
	}
	// All that can be blocked is.
	checkBlocks(t, p.alpha, p.beta.Addr())
	sh(t, p.alpha.Host, fmt.Sprintf(bypass, "delete"))
	p.addPeers(t)
	p.beta.echo(t, nil)
	if err := ping(p.alpha.mustDial(t, p.beta), "mended"); err != nil {
		t.Error(err)
	}
	if err := p.alpha.m.SelfTest(t.Context()); err != nil {
		t.Errorf("the self-test while a stream runs: %v", err)
	}
	if st, err := p.alpha.m.PeerStatus("beta"); err != nil || !st.Guarded {
		t.Errorf("status %+v, %v", st, err)
	}
}

// TestGuardedHostDoesNotForwardThePortInClear uses a router between two hosts without
// IPsec; the router has one of them as its peer.
func TestGuardedHostDoesNotForwardThePortInClear(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run(map[bool]string{false: "IPv4", true: "IPv6"}[v6], func(t *testing.T) {
			l := lab.Start(t, lab.Config{Hosts: []string{"left", "router", "right"}, NoCharon: true})
			left, router, right := l.Host("left"), l.Host("router"), l.Host("right")
			at := func(h *lab.Host) netip.Addr {
				if v6 {
					return h.Addr6()
				}
				return h.Addr()
			}
			sh(t, router, "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv4.conf.all.send_redirects=0 net.ipv4.conf.wire0.send_redirects=0")
			for _, h := range []*lab.Host{left, right} {
				o := left
				if h == left {
					o = right
				}
				sh(t, h, "sysctl -qw net.ipv4.conf.all.accept_redirects=0 net.ipv4.conf.wire0.accept_redirects=0 net.ipv6.conf.wire0.accept_redirects=0")
				sh(t, h, fmt.Sprintf("ip route add %v via %v", netip.PrefixFrom(at(o), at(o).BitLen()), at(router)))
				clearListener(t, h, netip.AddrPortFrom(at(h), port))
			}
			// A router that stops a packet reports that only now and then: ICMP is rate-limited,
			// and what quotes the link is stopped as well.
			stopped := func() uint64 {
				r := &host{Host: router}
				n := stat(t, r, "XfrmOutPolBlock") + stat(t, r, "XfrmInPolBlock")
				if v6 {
					return n + counter(t, r, "/proc/net/snmp6", "Ip6InNoRoutes")
				}
				return n + counter(t, r, "/proc/net/netstat", "IpExt", "InNoRoutes")
			}
			both := func(want bool) {
				t.Helper()
				for _, h := range []*lab.Host{left, right} {
					o := left
					if h == left {
						o = right
					}
					before := stopped()
					eventually(t, fmt.Sprintf("%s to %s by way of the router: passes %v", h.Name(), o.Name(), want), func() bool {
						err := tryClear(t, h, netip.AddrPortFrom(at(o), port), 300*time.Millisecond)
						if want {
							return err == nil
						}
						if err == nil {
							t.Fatalf("the router forwards from %s to %s in clear", h.Name(), o.Name())
						}
						var late net.Error // else the router has reported that there is no route
						return stopped() > before || errors.As(err, &late) && !late.Timeout()
					})
				}
			}
			both(true) // without a guard the router forwards it
			for _, plane := range []esp.Plane{esp.Auto, esp.Userland} {
				spec := guard.Spec{NetNS: router.NetNS(), Remote: at(right), Port: port, DataPlane: plane}
				if err := guard.Install(spec); err != nil {
					t.Fatal(err)
				}
				both(false)
			}
		})
	}
}

// TestLeftoversOfACharonGoWithTheGuard makes, by ip-xfrm(8), the policies that a killed
// charon leaves; other policies stay.
func TestLeftoversOfACharonGoWithTheGuard(t *testing.T) {
	p := newPair(t, lab.Config{NoCharon: true})
	spec := p.alpha.spec(p.beta, esp.Kernel)
	if err := guard.Install(spec); err != nil {
		t.Fatal(err)
	}
	a, b := p.alpha.Addr(), p.beta.Addr()
	tunnel := fmt.Sprintf("tmpl src %v dst %v proto esp reqid 1 mode tunnel", a, b)
	sh(t, p.alpha.Host, fmt.Sprintf("ip xfrm policy add src %v/32 dst %v/32 proto tcp dport %d dir out priority 1000 %s", a, b, port, tunnel))
	sh(t, p.alpha.Host, fmt.Sprintf("ip xfrm policy add src %v/32 dst %v/32 proto tcp sport %d dir in priority 1000 tmpl src %v dst %v proto esp reqid 1 mode tunnel", b, a, port, b, a))
	others := []string{
		fmt.Sprintf("src %v/32 dst %v/32 proto tcp dport %d dir out priority 1000 %s", a, b, port+1, tunnel),
		fmt.Sprintf("src %v/32 dst %v/32 proto udp dport %d dir out priority 1000 %s", a, b, port, tunnel),
		fmt.Sprintf("src %v/32 dst %v/32 proto tcp sport %d dir out priority 500 %s", a, b, port, tunnel),
	}
	for _, o := range others {
		sh(t, p.alpha.Host, "ip xfrm policy add "+o)
	}
	if h, err := guard.Holes(spec); err != nil || len(h) != 0 {
		t.Errorf("policies that demand ESP are called holes: %v, %v", h, err)
	}
	if err := guard.Remove(spec); err != nil {
		t.Fatal(err)
	}
	out, err := p.alpha.Run(t.Context(), "ip", "xfrm", "policy")
	if err != nil || strings.Count(out, "tmpl") != len(others) || strings.Contains(out, "block") {
		t.Errorf("left are, of %d of others: %v\n%s", len(others), err, out)
	}
}
