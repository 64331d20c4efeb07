package ipsectest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec"
	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/transport"
)

func (h *host) spec(o *host, plane esp.Plane) guard.Spec {
	return guard.Spec{NetNS: h.NetNS(), Remote: o.Addr(), Port: port, DataPlane: plane}
}

// tryClear tries a clear connection.
func tryClear(t *testing.T, from *lab.Host, to netip.AddrPort, d time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	c, err := from.Dial(ctx, to)
	if err == nil {
		c.Close()
	}
	return err
}

func stat(t *testing.T, h *host, name string) uint64 {
	t.Helper()
	s, err := guard.XfrmStats(h.NetNS())
	if err != nil {
		t.Fatal(err)
	}
	return s[name]
}

// stoppedInbound counts clear packets that the guard has dropped, or a policy of the SA
// itself that demands ESP.
func stoppedInbound(t *testing.T, h *host) uint64 {
	t.Helper()
	return stat(t, h, "XfrmInPolBlock") + stat(t, h, "XfrmInTmplMismatch")
}

func clearListener(t *testing.T, h *lab.Host, at netip.AddrPort) *net.TCPListener {
	t.Helper()
	ln, err := h.Listen(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln
}

func TestGuardStopsClearTrafficBeforeThereIsACharon(t *testing.T) {
	row(t, "the guard before there is a charon: EPERM, nothing on the wire")
	p := newPair(t, lab.Config{NoCharon: true})
	for _, h := range []*host{p.alpha, p.beta} {
		if err := h.m.AddPeer(t.Context(), p.peerOf(h)); err != nil {
			t.Fatal(err)
		}
	}
	wire := capture(t, p.beta, lab.PortKind(transport.ProtoTCP, port+1))
	clearListener(t, p.beta.Host, netip.AddrPortFrom(p.beta.Addr(), port))
	if err := tryClear(t, p.alpha.Host, netip.AddrPortFrom(p.beta.Addr(), port), time.Minute); !errors.Is(err, syscall.EPERM) {
		t.Errorf("a clear connection to the port: %v, want %v", err, syscall.EPERM)
	}
	clearListener(t, p.beta.Host, netip.AddrPortFrom(p.beta.Addr(), port+1))
	if err := tryClear(t, p.alpha.Host, netip.AddrPortFrom(p.beta.Addr(), port+1), time.Minute); err != nil {
		t.Errorf("another port of the peer: %v", err)
	}
	if n := stat(t, p.alpha, "XfrmOutPolBlock"); n == 0 {
		t.Error("the kernel counted no blocked packet")
	}
	if k := counted(t, wire); k.Clear(port) != 0 || k.Clear(port+1) == 0 {
		t.Errorf("on the wire: %v", k)
	}
	_, err := p.alpha.dial(t, p.beta)
	if !errors.Is(err, ipsec.ErrNotConnected) || !strings.Contains(err.Error(), "systemctl start strongswan") {
		t.Errorf("dialling without strongSwan: %v", err)
	}
}

func TestGuardHoldsWhateverTheRouteAndDevice(t *testing.T) {
	p := newPair(t, lab.Config{})
	p.addPeers(t)
	for _, args := range [][]string{
		{"tuntap", "add", "sink0", "mode", "tun"},
		{"link", "set", "sink0", "up"},
		{"route", "add", p.beta.Addr().String() + "/32", "dev", "sink0"},
	} {
		if _, err := p.alpha.Run(t.Context(), "ip", args...); err != nil {
			t.Fatal(err)
		}
	}
	before := stat(t, p.alpha, "XfrmOutPolBlock")
	if err := tryClear(t, p.alpha.Host, netip.AddrPortFrom(p.beta.Addr(), port), time.Minute); !errors.Is(err, syscall.EPERM) {
		t.Errorf("a clear connection through a new device: %v, want %v", err, syscall.EPERM)
	}
	if n := stat(t, p.alpha, "XfrmOutPolBlock"); n == before {
		t.Error("the kernel counted no blocked packet")
	}
}

func TestInboundClearTrafficIsNeverAccepted(t *testing.T) {
	row(t, "clear TCP from a neighbour with the peer's address, while the SA is up: never accepted, counted by the kernel")
	l := lab.Config{Hosts: []string{"alpha", "beta", "mallory"}}
	p := newPair(t, l)
	p.addPeers(t)
	var refused atomic.Int32
	p.beta.echo(t, func(err error) { refused.Add(1) })
	k := talk(p.alpha.mustDial(t, p.beta))
	k.moves(t, 10)
	mallory := p.lab.Host("mallory")
	// A neighbour with alpha's address, while the SA is up.
	if _, err := mallory.Run(t.Context(), "ip", "addr", "replace", p.alpha.Addr().String()+"/24", "dev", mallory.Dev()); err != nil {
		t.Fatal(err)
	}
	before := stoppedInbound(t, p.beta)
	clear := func() error {
		d := net.Dialer{Timeout: 400 * time.Millisecond, LocalAddr: &net.TCPAddr{IP: p.alpha.Addr().AsSlice()}}
		c, err := d.DialContext(t.Context(), "tcp", netip.AddrPortFrom(p.beta.Addr(), port).String())
		if err == nil {
			c.Close()
		}
		return err
	}
	eventually(t, "the kernel has counted a blocked packet", func() bool {
		if err := mallory.Do(clear); err == nil {
			t.Fatal("a clear connection with a peer's address was accepted")
		}
		return stoppedInbound(t, p.beta) > before
	})
	if refused.Load() > 0 {
		t.Error("the clear connection got as far as the listener")
	}
	if _, err := mallory.Run(t.Context(), "ip", "addr", "del", p.alpha.Addr().String()+"/24", "dev", mallory.Dev()); err != nil {
		t.Fatal(err)
	}
	// Beta has learnt mallory's link address for alpha.
	if _, err := p.beta.Run(t.Context(), "ip", "neigh", "flush", "all"); err != nil {
		t.Fatal(err)
	}
	k.moves(t, 10)
	k.end(t)
}

func TestWithoutTheGuardTheSameCheckFindsClearPackets(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run(map[bool]string{false: "IPv4", true: "IPv6"}[v6], func(t *testing.T) {
			p := newPair(t, lab.Config{})
			p.alpha.v6, p.beta.v6 = v6, v6
			p.addPeers(t)
			p.beta.echo(t, nil)
			c := p.alpha.mustDial(t, p.beta)
			for _, h := range []*host{p.alpha, p.beta} {
				if err := h.m.RemoveGuard(t.Context(), p.other(h).Name()); err != nil {
					t.Fatal(err)
				}
			}
			wire := captureWith(t, p.beta, lab.CaptureOptions{Unjudged: "the control"})
			k := talk(c)
			k.moves(t, 10)
			// Not by SIGKILL, after which the kernel would go on with the SAs it has.
			for _, h := range []*host{p.alpha, p.beta} {
				if err := h.StopCharon(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			k.moves(t, 50)
			k.end(t)
			counts := counted(t, wire)
			t.Log(counts)
			if counts.Clear(port) == 0 || counts.Leaked() == "" {
				t.Errorf("no clear packet without guard and SA: the check cannot fail: %v", counts)
			}
		})
	}
}

func TestOtherTrafficToThePeerGoesOnWhileTheSAIsUp(t *testing.T) {
	p := newPair(t, lab.Config{})
	p.addPeers(t)
	p.beta.echo(t, nil)
	if err := ping(p.alpha.mustDial(t, p.beta), "up"); err != nil {
		t.Fatal(err)
	}
	clearListener(t, p.beta.Host, netip.AddrPortFrom(p.beta.Addr(), 8080))
	if err := tryClear(t, p.alpha.Host, netip.AddrPortFrom(p.beta.Addr(), 8080), time.Minute); err != nil {
		t.Errorf("another port of the peer while the SA is up: %v", err)
	}
	// The same in the other direction.
	clearListener(t, p.alpha.Host, netip.AddrPortFrom(p.alpha.Addr(), 8080))
	if err := tryClear(t, p.beta.Host, netip.AddrPortFrom(p.alpha.Addr(), 8080), time.Minute); err != nil {
		t.Errorf("another port in the other direction: %v", err)
	}
}

func TestGuardIsPutBackWhenSomebodyFlushesIt(t *testing.T) {
	p := newPair(t, lab.Config{})
	p.addPeers(t)
	p.beta.echo(t, nil)
	c := p.alpha.mustDial(t, p.beta)
	want := guardSize(t, p.alpha)
	if _, err := p.alpha.Run(t.Context(), "ip", "xfrm", "policy", "flush"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the guard is back", func() bool { return guardSize(t, p.alpha) == want })
	if err := ping(c, "still here"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the repair is counted", func() bool {
		st, err := p.alpha.m.PeerStatus("beta")
		return err == nil && st.Counters.GuardRepairs > 0 && st.Guarded
	})
}

// TestTableOfTheGuardIsFoundMissingAndPutBack flushes nf_tables, as a firewall's reload
// does: with a daemon, and without one.
func TestTableOfTheGuardIsFoundMissingAndPutBack(t *testing.T) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			p := newPair(t, lab.Config{NoCharon: true})
			p.alpha.v6, p.beta.v6 = f.v6, f.v6
			if err := p.alpha.m.AddPeer(t.Context(), p.peerOf(p.alpha)); err != nil {
				t.Fatal(err)
			}
			spec := p.alpha.specOf(p.beta, transport.TCP, esp.Auto)
			whole := func() bool {
				t.Helper()
				h, err := guard.Holes(spec)
				if err != nil {
					t.Fatal(err)
				}
				return len(h) == 0
			}
			for n := range uint64(3) {
				dropGuardTable(t, p.alpha.Host)
				// Counted before the next one, as a single repair can follow two removals.
				eventually(t, "the guard is whole again, and the repair counted", func() bool {
					st, err := p.alpha.m.PeerStatus("beta")
					return err == nil && st.Counters.GuardRepairs > n && st.Guarded && whole()
				})
			}
			if err := guard.Probe(spec); err != nil {
				t.Error(err)
			}
			p.alpha.stop()
			for what, harm := range map[string]func(c *nftables.Conn, table *nftables.Table){
				"the table is gone": func(c *nftables.Conn, table *nftables.Table) { c.DelTable(table) },
				"a chain is empty": func(c *nftables.Conn, table *nftables.Table) {
					c.FlushChain(&nftables.Chain{Name: "quoted4", Table: table})
					c.FlushChain(&nftables.Chain{Name: "quoted6", Table: table})
				},
				"sets are empty": func(c *nftables.Conn, table *nftables.Table) {
					c.FlushSet(&nftables.Set{Name: "links4", Table: table})
					c.FlushSet(&nftables.Set{Name: "links6", Table: table})
				},
			} {
				changeTables(t, p.alpha.Host, harm)
				h, err := guard.Holes(spec)
				if err != nil || len(h) != 1 || h[0].Shut || !strings.Contains(h[0].What, "may quote in clear") {
					t.Errorf("%s: holes %v, %v", what, h, err)
				}
				if err := guard.Probe(spec); !errors.Is(err, guard.ErrLeaks) || !strings.Contains(err.Error(), "doctor") {
					t.Errorf("%s: the self-test says %v", what, err)
				}
				if err := guard.Install(spec); err != nil {
					t.Fatal(err)
				}
				if err := guard.Probe(spec); err != nil || !whole() {
					t.Errorf("after it was mended: %v", err)
				}
			}
			if err := guard.Remove(spec); err != nil {
				t.Fatal(err)
			}
			changeTables(t, p.alpha.Host, func(c *nftables.Conn, table *nftables.Table) {
				if all, err := c.ListTables(); err != nil || len(all) > 0 {
					t.Errorf("left of the guard are tables %v, %v", all, err)
				}
			})
		})
	}
}

func guardOf(t *testing.T, h *host) []guard.Policy {
	t.Helper()
	g, err := guard.List(h.NetNS())
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func guardSize(t *testing.T, h *host) int {
	t.Helper()
	return len(guardOf(t, h))
}

// checkBlocks wants the block policies for a peer's address: every direction,
// both roles.
func checkBlocks(t *testing.T, h *host, remote netip.Addr) {
	t.Helper()
	type of struct {
		direction   string
		local, peer uint16
	}
	have := map[of]int{}
	for _, g := range guardOf(t, h) {
		if g.Action == "block" && g.Remote == remote && g.Protocol == transport.ProtoTCP {
			have[of{g.Direction, g.LocalPort, g.PeerPort}]++
		}
	}
	for _, dir := range []string{"in", "out", "fwd"} {
		for _, w := range []of{{dir, port, 0}, {dir, 0, port}} {
			if have[w] != 1 {
				t.Errorf("%s has %d policies that block %v with %v, want 1", h.Name(), have[w], w, remote)
			}
		}
	}
}

// wholeGuardOf lists a host's guard of one peer, once it lets the tun of userland ESP pass:
// charon may be up a moment before its tun is found.
func wholeGuardOf(t *testing.T, h *host, plane esp.Plane) (all []guard.Policy) {
	t.Helper()
	eventually(t, "the tun of userland ESP is let through", func() bool {
		all = guardOf(t, h)
		allows := slices.DeleteFunc(slices.Clone(all), func(g guard.Policy) bool { return g.Action != "allow" })
		return plane != esp.Userland || len(allows) == 2
	})
	return all
}

func TestGuardIsIdempotentListedAndRemovedWithThePeerOnly(t *testing.T) {
	p := newPair(t, lab.Config{})
	p.addPeers(t)
	all := wholeGuardOf(t, p.alpha, p.lab.DataPlane())
	for _, g := range all {
		t.Log(g)
	}
	checkBlocks(t, p.alpha, p.beta.Addr())
	if err := guard.Install(p.alpha.spec(p.beta, p.lab.DataPlane())); err != nil {
		t.Fatal(err)
	}
	if again, _ := guard.List(p.alpha.NetNS()); !slices.Equal(all, again) {
		t.Errorf("a second installation changed the guard: %v", again)
	}
	p.alpha.stop()
	if n := guardSize(t, p.alpha); n != len(all) {
		t.Errorf("after the manager was closed %d policies are left of %d", n, len(all))
	}
	p.alpha.start(t)
	if err := p.alpha.m.AddPeer(t.Context(), p.peerOf(p.alpha)); err != nil {
		t.Fatal(err)
	}
	p.awaitCharon(t)
	if err := p.alpha.m.RemovePeer(t.Context(), "beta"); err != nil {
		t.Fatal(err)
	}
	if n := guardSize(t, p.alpha); n != 0 {
		t.Errorf("%d policies are left after RemovePeer", n)
	}
	rules, err := p.alpha.Run(t.Context(), "ip", "rule")
	if err != nil || strings.Contains(rules, p.beta.Addr().String()) {
		t.Errorf("rules after RemovePeer: %v\n%s", err, rules)
	}
	if _, err := p.alpha.m.PeerStatus("beta"); !errors.Is(err, ipsec.ErrUnknownPeer) {
		t.Errorf("status of a removed peer: %v", err)
	}
}

func TestHolesInTheGuardAreFound(t *testing.T) {
	p := newPair(t, lab.Config{})
	p.addPeers(t)
	spec := p.alpha.spec(p.beta, p.lab.DataPlane())
	holes := func() []guard.Hole {
		t.Helper()
		h, err := guard.Holes(spec)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	if h := holes(); len(h) != 0 {
		t.Fatalf("a whole guard has holes: %v", h)
	}
	beta := p.beta.Addr().String()
	for _, tc := range []struct{ what, open, shut string }{
		{"all devices exempt", "sysctl -qw net.ipv4.conf.all.disable_policy=1", "sysctl -qw net.ipv4.conf.all.disable_policy=0"},
		{"the wire exempt outbound", "sysctl -qw net.ipv4.conf.wire0.disable_xfrm=1", "sysctl -qw net.ipv4.conf.wire0.disable_xfrm=0"},
		{"a bypass for the peer", "ip xfrm policy add src 0.0.0.0/0 dst " + beta + "/32 dir out action allow priority 10", "ip xfrm policy delete src 0.0.0.0/0 dst " + beta + "/32 dir out"},
		{"a bypass for its net", "ip xfrm policy add src 10.99.0.0/24 dst 0.0.0.0/0 proto tcp dir in action allow priority 10", "ip xfrm policy delete src 10.99.0.0/24 dst 0.0.0.0/0 proto tcp dir in"},
	} {
		if _, err := p.alpha.Run(t.Context(), "sh", "-c", tc.open); err != nil {
			t.Fatal(err)
		}
		if h := holes(); len(h) == 0 {
			t.Errorf("%s: not found", tc.what)
		} else {
			t.Log(h)
		}
		if _, err := p.alpha.Run(t.Context(), "sh", "-c", tc.shut); err != nil {
			t.Fatal(err)
		}
	}
	for _, harmless := range []string{
		"ip xfrm policy add src 0.0.0.0/0 dst 10.1.0.0/16 dir out action allow priority 10",
		"ip xfrm policy add src 0.0.0.0/0 dst " + beta + "/32 proto udp dir out action allow priority 10",
		"ip xfrm policy add src 0.0.0.0/0 dst " + beta + "/32 dir out action allow priority 100000",
	} {
		if _, err := p.alpha.Run(t.Context(), "sh", "-c", harmless); err != nil {
			t.Fatal(err)
		}
	}
	if h := holes(); len(h) != 0 {
		t.Errorf("harmless policies are called holes: %v", h)
	}
	p.alpha.stop()
	if err := guard.Remove(spec); err != nil {
		t.Fatal(err)
	}
	open := slices.DeleteFunc(holes(), func(h guard.Hole) bool { return h.Shut })
	if want := 6 + 4 + 1; len(open) != want { // the peer's address, and its form in IPv6; the table of nf_tables
		t.Errorf("without the guard %d holes are found, want %d: %v", len(open), want, open)
	}
}

// The helper process is a Manager that is going to be killed.
const helperVar = "IRONWARP_IPSECTEST_HELPER"

func helper() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	f := strings.Split(os.Getenv(helperVar), ",")
	key, err := auth.NewSecret([]byte(os.Getenv(helperVar + "_KEY")))
	if err != nil {
		fmt.Println(err)
		return 1
	}
	m, err := ipsec.New(ipsec.Config{})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	go func() { _ = m.Run(ctx) }()
	local, remote := netip.MustParseAddr(f[1]), netip.MustParseAddr(f[3])
	if err := m.AddPeer(ctx, pad.Peer{Name: f[2], Local: local, Remote: remote, LocalID: f[0], RemoteID: f[2], Port: port, PSK: key}); err != nil {
		fmt.Println(err)
		return 1
	}
	if err := m.Prepare(ctx, transport.Flow{Protocol: transport.ProtoTCP, Remote: netip.AddrPortFrom(remote, port)}); err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("ready")
	<-ctx.Done()
	return 0
}

func TestGuardStaysWhenManagerAndCharonAreKilled(t *testing.T) {
	row(t, "SIGKILL of this program and of charon: the guard stays, nothing gets through")
	p := newPair(t, lab.Config{})
	p.alpha.stop()
	if err := p.beta.m.AddPeer(t.Context(), p.peerOf(p.beta)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "beta is connected to charon", func() bool { return p.beta.m.DaemonStatus().Connected })
	wholeGuardOf(t, p.beta, p.lab.DataPlane())
	wire := capture(t, p.beta)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := p.alpha.Command(t.Context(), exe)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=alpha,%v,beta,%v", helperVar, p.alpha.Addr(), p.beta.Addr()),
		helperVar+"_KEY="+string(p.key.Reveal()))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 300)
	if n, _ := out.Read(line); strings.TrimSpace(string(line[:n])) != "ready" {
		t.Fatalf("the manager's process says %q", line[:n])
	}
	clearListener(t, p.beta.Host, netip.AddrPortFrom(p.beta.Addr(), port))
	if err := tryClear(t, p.alpha.Host, netip.AddrPortFrom(p.beta.Addr(), port), time.Minute); err != nil {
		t.Errorf("through the SA: %v", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	p.alpha.KillCharon()
	if p.lab.DataPlane() == esp.Kernel {
		// The kernel goes on with the SAs it has; here they end.
		if _, err := p.alpha.Run(t.Context(), "ip", "xfrm", "state", "flush"); err != nil {
			t.Fatal(err)
		}
	}
	if err := tryClear(t, p.alpha.Host, netip.AddrPortFrom(p.beta.Addr(), port), time.Second); err == nil {
		t.Error("a connection was made after both were killed")
	}
	checkBlocks(t, p.alpha, p.beta.Addr())
	if err := guard.Probe(p.alpha.spec(p.beta, p.lab.DataPlane())); err != nil {
		t.Errorf("the self-test after both were killed: %v", err)
	}
	if k := counted(t, wire); k.Clear(port) != 0 || k.ESP == 0 {
		t.Errorf("on the wire: %v", k)
	}
}
