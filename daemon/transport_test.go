package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/ipsec"
	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/transport/ksctp"
)

// declare writes a peer's file on a host and reloads it.
func (h *host) declare(name string, other *host, how string) {
	h.t.Helper()
	h.write("peers.d/"+name+".yaml", fmt.Sprintf("name: %s\naddress: 127.0.0.1\nport: %d\nprotection: loopback\n%s", name, other.port, how))
	if _, err := h.api.Reload(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
}

// over says what a peer's transport is, and where it awaits SCTP in UDP.
func over(transport string, other *host) string {
	how := "transport: " + transport + "\n"
	if transport == "sctp-udp" || transport == "auto" {
		how += fmt.Sprintf("udp_port: %d\n", other.udp)
	}
	return how
}

// pairOver is two hosts that are linked over transports, of which beta exports a
// disk to alpha.
func pairOver(t *testing.T, here, there string) (alpha, beta *host) {
	t.Helper()
	alpha, beta = newHost(t, ""), newHost(t, "")
	beta.declare("alpha", alpha, over(there, alpha))
	alpha.declare("beta", beta, over(here, beta))
	beta.export("disk", beta.image("disk.img", 1<<20), false)
	return alpha, beta
}

// streamsOver are the transports of a host's streams to attached disks.
func (h *host) streamsOver() (kinds []string) {
	for _, s := range h.status().Streams {
		if s.Service == "attachments" {
			kinds = append(kinds, s.Transport)
		}
	}
	return kinds
}

func (h *host) peer(name string) api.Peer {
	h.t.Helper()
	p, err := h.api.Peer(h.t.Context(), name)
	if err != nil {
		h.t.Fatal(err)
	}
	return p
}

func TestDiskOverSCTPInUDP(t *testing.T) {
	alpha, beta := pairOver(t, "sctp-udp", "sctp-udp")
	c := alpha.attach("disk")
	data := bytes.Repeat([]byte("over SCTP in UDP"), 4096)
	ok(t, c, cmdWrite, 8192, uint32(len(data)), data)
	if got := ok(t, c, cmdRead, 8192, uint32(len(data)), nil); !bytes.Equal(got, data) {
		t.Error("what was read is not what was written")
	}
	if kinds := fmt.Sprint(alpha.streamsOver()); kinds != "[sctp-udp sctp-udp]" {
		t.Errorf("streams over %s", kinds)
	}
	if got := alpha.peer("beta").Carrier; got.Transport != "sctp-udp" || got.Why != "configured" {
		t.Errorf("carrier %+v", got)
	}
	for _, l := range beta.status().Listeners {
		if l.Transport != "sctp-udp" || l.UDPPort != beta.udp || l.State != "listening" {
			t.Errorf("listener %+v", l)
		}
	}
	res, err := alpha.api.Ping(t.Context(), api.PingRequest{Peer: "beta", Count: 2}, nil)
	if err != nil || res.Transport != "sctp-udp" || res.Received != 2 {
		t.Errorf("ping %+v, %v", res, err)
	}
	if c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", beta.port)); err == nil {
		c.Close()
		t.Error("TCP is awaited, which no peer uses")
	}
	_, err = alpha.api.Ping(t.Context(), api.PingRequest{Peer: "beta", Transport: "tcp"}, nil)
	says(t, err, api.CodeInvalid, `no transport "tcp"`, "it has: sctp-udp")
	_, err = alpha.api.Bench(t.Context(), api.BenchRequest{Peer: "beta", Transport: "udp"}, nil)
	says(t, err, api.CodeInvalid, `no transport "udp"`)
}

func TestAutoTakesTheBestThatBothHostsHave(t *testing.T) {
	none := func() error { return ksctp.ErrUnavailable }
	for _, tc := range []struct{ there, want, why string }{
		{"auto", "sctp-udp", "the best that both hosts have; no sctp: this host's kernel has none"},
		{"tcp", "tcp", "the best that both hosts have; no sctp: this host's kernel has none; no sctp-udp: beta has none for this host"},
	} {
		t.Run(tc.there, func(t *testing.T) {
			alpha, beta := newHost(t, ""), newHost(t, "")
			alpha.kernel, beta.kernel = none, none
			alpha.again()
			beta.again()
			beta.declare("alpha", alpha, over(tc.there, alpha))
			alpha.declare("beta", beta, over("auto", beta))
			beta.export("disk", beta.image("disk.img", 1<<20), false)
			if got := alpha.peer("beta").Carrier; got.Transport != "" || !strings.Contains(got.Why, "before the first stream") {
				t.Errorf("carrier before any stream: %+v", got)
			}
			ok(t, alpha.attach("disk"), cmdRead, 0, 512, nil)
			if kinds := fmt.Sprint(alpha.streamsOver()); kinds != fmt.Sprintf("[%s %[1]s]", tc.want) {
				t.Errorf("streams over %s, want %s", kinds, tc.want)
			}
			if got := alpha.peer("beta").Carrier; got.Transport != tc.want || got.Why != tc.why {
				t.Errorf("carrier %+v, want %s: %s", got, tc.want, tc.why)
			}
			for _, k := range []string{"tcp", tc.want} {
				res, err := alpha.api.Ping(t.Context(), api.PingRequest{Peer: "beta", Count: 1, Transport: k}, nil)
				if err != nil || res.Transport != k {
					t.Errorf("ping over %s: %+v, %v", k, res, err)
				}
			}
			if st := beta.status(); st.Refused != 0 {
				t.Errorf("the question counts as a refused connection: %+v", st.LastRefused)
			}
		})
	}
}

// again ends the daemon of a host and starts it.
func (h *host) again() {
	h.t.Helper()
	h.stop()
	h.start()
}

// TestAutoFallsBackAndComesBack has a UDP port at which nobody answers, as behind
// a firewall, until it is the right one.
func TestAutoFallsBackAndComesBack(t *testing.T) {
	alpha, beta := newHost(t, ""), newHost(t, "")
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	beta.declare("alpha", alpha, over("auto", alpha))
	alpha.declare("beta", beta, fmt.Sprintf("transport: auto\nudp_port: %d\n", silent.LocalAddr().(*net.UDPAddr).Port))
	beta.export("disk", beta.image("disk.img", 1<<20), false)
	c := alpha.attach("disk")
	ok(t, c, cmdRead, 0, 512, nil)
	if kinds := fmt.Sprint(alpha.streamsOver()); kinds != "[tcp tcp]" {
		t.Errorf("streams over %s", kinds)
	}
	got := alpha.peer("beta").Carrier
	if got.Transport != "tcp" || !strings.Contains(got.Why, "no sctp-udp: it failed") || got.Fallbacks != 1 ||
		len(got.Tried) != 1 || got.Tried[0].Transport != "sctp-udp" || got.Tried[0].AgainSeconds <= 0 {
		t.Errorf("carrier %+v", got)
	}
	if log := alpha.log.String(); !strings.Contains(log, "a transport does not work; the next best is taken") {
		t.Errorf("the log does not tell:\n%s", log)
	}
	// While the failure is fresh the carrier is not tried again.
	if _, err := alpha.api.Ping(t.Context(), api.PingRequest{Peer: "beta", Count: 1}, nil); err != nil {
		t.Error(err)
	}
	if got := alpha.peer("beta").Carrier; got.Fallbacks != 1 {
		t.Errorf("it was tried again at once: %+v", got)
	}
	alpha.declare("beta", beta, over("auto", beta))
	eventually(t, "the disk is there over SCTP in UDP", func() bool { return fmt.Sprint(alpha.streamsOver()) == "[sctp-udp sctp-udp]" })
}

// TestAutoDecidesAnewWhenAPathIsMadeAnew has a peer that gets SCTP in UDP while a
// disk is attached over TCP. Only its streams end, not the session.
func TestAutoDecidesAnewWhenAPathIsMadeAnew(t *testing.T) {
	alpha, beta := pairOver(t, "auto", "tcp")
	c := alpha.attach("disk")
	ok(t, c, cmdWrite, 0, 512, make([]byte, 512))
	if kinds := fmt.Sprint(alpha.streamsOver()); kinds != "[tcp tcp]" {
		t.Fatalf("streams over %s", kinds)
	}
	beta.declare("alpha", alpha, over("auto", alpha))
	eventually(t, "the disk is there over SCTP in UDP", func() bool { return fmt.Sprint(alpha.streamsOver()) == "[sctp-udp sctp-udp]" })
	ok(t, c, cmdRead, 0, 512, nil)
	if log := alpha.log.String(); strings.Count(log, "transport is picked") != 2 {
		t.Errorf("the log does not tell of two picks:\n%s", log)
	}
}

// TestFailedCarrierIsPassedOverForAWhileOnly looks at the rule without waiting.
func TestFailedCarrierIsPassedOverForAWhileOnly(t *testing.T) {
	alpha, _ := pairOver(t, "auto", "auto")
	p := alpha.d.peerAt(netip.MustParseAddr("127.0.0.1"))
	picked := func() transport.Kind {
		k, err := alpha.d.pick(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	alpha.d.tried(p, transport.SCTPUDP, errors.New("no route"))
	if k := picked(); k != transport.TCP {
		t.Errorf("picked %v just after it failed", k)
	}
	p.carrier.tried[transport.SCTPUDP] = failure{time.Now().Add(-avoidFor), "no route"}
	if k := picked(); k != transport.SCTPUDP {
		t.Errorf("picked %v long after it failed", k)
	}
	alpha.d.tried(p, transport.SCTPUDP, errors.New("no route"))
	alpha.d.tried(p, transport.SCTPUDP, nil)
	if k := picked(); k != transport.SCTPUDP {
		t.Errorf("picked %v after it has worked", k)
	}
}

func TestAnotherTransportEndsTheStreamsAndTheDiskComesBack(t *testing.T) {
	alpha, beta := pairOver(t, "tcp", "auto")
	ok(t, alpha.attach("disk"), cmdRead, 0, 512, nil)
	alpha.declare("beta", beta, over("sctp-udp", beta))
	eventually(t, "the disk is ready over SCTP in UDP", func() bool {
		at := alpha.status().Attachments
		return len(at) == 1 && at[0].State == api.AttachReady && fmt.Sprint(alpha.streamsOver()) == "[sctp-udp sctp-udp]"
	})
	ok(t, alpha.nbd("disk"), cmdRead, 0, 512, nil)
}

// TestNothingOfAPeerOutlivesItsProtection: an SCTP association lives on for a while
// without streams, but not beyond its peer's guard. That its socket is gone shows
// in that the UDP port is free for the next listener.
func TestNothingOfAPeerOutlivesItsProtection(t *testing.T) {
	alpha, beta := pairOver(t, "sctp-udp", "sctp-udp")
	ok(t, alpha.attach("disk"), cmdRead, 0, 512, nil)
	beta.declare("alpha", alpha, over("tcp", alpha))
	u, err := net.ListenPacket("udp", fmt.Sprintf("127.0.0.1:%d", beta.udp))
	if err != nil {
		t.Fatalf("an association still has the port: %v", err)
	}
	u.Close()
	beta.declare("alpha", alpha, over("sctp-udp", alpha))
	if l := beta.status().Listeners; len(l) != 1 || l[0].State != "listening" {
		t.Errorf("listeners %+v", l)
	}
	eventually(t, "the disk is back", func() bool { return fmt.Sprint(alpha.streamsOver()) == "[sctp-udp sctp-udp]" })
}

// TestTransportsThatDoNotMeet shows what is said when the hosts have none in common.
func TestTransportsThatDoNotMeet(t *testing.T) {
	alpha, beta := pairOver(t, "tcp", "sctp-udp")
	_, err := alpha.api.Ping(t.Context(), api.PingRequest{Peer: "beta"}, nil)
	says(t, err, api.CodeUnavailable, "connection refused", "the same transport")
	alpha.declare("beta", beta, over("auto", beta))
	_, err = alpha.api.Ping(t.Context(), api.PingRequest{Peer: "beta"}, nil)
	says(t, err, api.CodeUnavailable, "connection refused", "the same transport")
}

func TestKernelWithoutSCTPIsSaid(t *testing.T) {
	if ksctp.Available() == nil {
		t.Skip("this kernel has SCTP; the test is about those that have none")
	}
	alpha, beta := newHost(t, ""), newHost(t, "")
	alpha.declare("beta", beta, "transport: sctp\n")
	l := alpha.status().Listeners
	if len(l) != 1 || l[0].Transport != "sctp" || l[0].State != api.PeerProblem {
		t.Fatalf("listeners %+v", l)
	}
	says(t, l[0].Problem, api.CodeUnavailable, "this host's kernel has no SCTP", "modprobe sctp", "sctp-udp")
	_, err := alpha.api.Ping(t.Context(), api.PingRequest{Peer: "beta"}, nil)
	says(t, err, api.CodeUnavailable, "this host's kernel has no SCTP", "modprobe sctp")
}

func TestPathsThatFailAreShown(t *testing.T) {
	h := newHost(t, "")
	h.declare("beta", h, "local_address: 127.0.0.1\ntransport: sctp\npaths: [{address: 127.0.0.3, local_address: 127.0.0.2}]\n")
	first, second := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.3")
	flow := func(a netip.Addr) transport.Flow {
		return transport.Flow{Protocol: transport.ProtoSCTP, Local: netip.MustParseAddrPort("127.0.0.2:1"), Remote: netip.AddrPortFrom(a, 2)}
	}
	states := func() []api.PathState { return h.d.pathStates(h.d.peerAt(second), true) }
	for _, ev := range []struct {
		at   netip.Addr
		up   bool
		want string
	}{
		{first, true, "[yes ]"}, {second, true, "[yes yes]"}, {second, false, "[yes no]"}, {second, false, "[yes no]"}, {second, true, "[yes yes]"}, {first, false, "[no yes]"},
		{netip.MustParseAddr("192.0.2.9"), false, "[no yes]"}, // of nobody
	} {
		h.d.onPath(flow(ev.at), ev.up)
		if s := states(); fmt.Sprint([]string{s[0].Reachable, s[1].Reachable}) != ev.want {
			t.Errorf("after %+v: %+v", ev, s)
		}
	}
	s := states()
	if s[0].Failures != 1 || s[1].Failures != 1 || s[1].Address != "127.0.0.3" || s[1].LocalAddress != "127.0.0.2" || s[0].LocalAddress != "127.0.0.1" {
		t.Errorf("%+v", s)
	}
	if p := h.peer("beta"); len(p.PathStates) != 2 || p.PathStates[1].Reachable != "" || p.PathStates[1].Failures != 1 {
		t.Errorf("without streams: %+v", p.PathStates)
	}
	if n := strings.Count(h.log.String(), "a path of SCTP does not answer"); n != 2 {
		t.Errorf("%d failures in the log, want 2", n)
	}
}

// TestEachAddressOfAPeerIsGuardedAndAuthenticatedAlike holds what the IPsec
// manager is told of a peer with several addresses and several carriers.
func TestEachAddressOfAPeerIsGuardedAndAuthenticatedAlike(t *testing.T) {
	addr := netip.MustParseAddr
	local := addr("192.0.2.1")
	c := config.Peer{Name: "beta", Address: addr("192.0.2.2"), LocalAddress: local, Port: 7471, Transport: config.TransportSCTP,
		Paths: []config.Path{{Address: addr("198.51.100.2"), LocalAddress: addr("198.51.100.1")}}}
	one, two := ipsecPeer(c, 0, c.Address, local, credentials{}), ipsecPeer(c, 1, c.Paths[0].Address, local, credentials{})
	if one.Name != "beta" || one.Local != local || one.Remote != c.Address || one.LocalID != "" || one.RemoteID != "" {
		t.Errorf("the first path: %+v", one)
	}
	if two.Name != "beta.path2" || two.Local != addr("198.51.100.1") || two.Remote != addr("198.51.100.2") || two.LocalID != "192.0.2.1" || two.RemoteID != "192.0.2.2" {
		t.Errorf("the second path: %+v", two)
	}
	for child, want := range map[string]string{"": "[beta beta.path2]", "beta-out-sctp": "[beta]", "beta.path2-in-sctp": "[beta.path2]", "nonsense": "[beta]"} {
		if got := fmt.Sprint(connectionsOf(c, child)); got != want {
			t.Errorf("child %q is looked for in %s, want %s", child, got, want)
		}
	}
	guard := func(a string, p transport.Protocol, port uint16) ipsec.GuardSpec {
		return ipsec.GuardSpec{Remote: addr(a), Protocol: p, Port: port}
	}
	if got, want := guardsOf(c), []ipsec.GuardSpec{guard("192.0.2.2", transport.ProtoSCTP, 7471), guard("198.51.100.2", transport.ProtoSCTP, 7471)}; !reflect.DeepEqual(got, want) {
		t.Errorf("guards %v, want %v", got, want)
	}
	c.Transport, c.UDPPort, c.Paths = config.TransportAuto, 9899, nil
	want := []ipsec.GuardSpec{guard("192.0.2.2", transport.ProtoTCP, 7471), guard("192.0.2.2", transport.ProtoSCTP, 7471), guard("192.0.2.2", transport.ProtoUDP, 9899)}
	if got := guardsOf(c); !reflect.DeepEqual(got, want) {
		t.Errorf("guards %v, want %v", got, want)
	}
	if links := ipsecPeer(c, 0, c.Address, local, credentials{}).Links; len(links) != 3 || links[0] != (ipsec.Link{Protocol: transport.ProtoTCP, Port: 7471}) {
		t.Errorf("links %v: the first one is brought up at once, and auto asks over it", links)
	}
}

func TestAddressesThatShareASocketOfTheKernelsSCTP(t *testing.T) {
	set := func(s string) (out []netip.Addr) {
		for _, a := range strings.Fields(s) {
			out = append(out, netip.MustParseAddr(a))
		}
		return out
	}
	for _, tc := range []struct {
		sets []string
		want string
	}{
		{nil, "[]"},
		{[]string{"10.0.0.1"}, "[[10.0.0.1]]"},
		{[]string{"10.0.0.1", "10.0.0.1", "10.0.0.2"}, "[[10.0.0.1] [10.0.0.2]]"},
		{[]string{"10.0.0.2 10.0.0.1", "10.0.0.3", "10.0.0.3 10.0.0.2"}, "[[10.0.0.1 10.0.0.2 10.0.0.3]]"},
		{[]string{"10.0.0.1", "10.0.0.2", "10.0.0.2 10.0.0.1"}, "[[10.0.0.1 10.0.0.2]]"},
	} {
		var sets [][]netip.Addr
		for _, s := range tc.sets {
			sets = append(sets, set(s))
		}
		if got := fmt.Sprint(joined(sets)); got != tc.want {
			t.Errorf("%v: %s, want %s", tc.sets, got, tc.want)
		}
	}
}

// TestWhatThePeersFileDoesNotNameIsRefused: the listener of another peer's
// transport is no way in.
func TestWhatThePeersFileDoesNotNameIsRefused(t *testing.T) {
	at := netip.MustParseAddrPort("127.0.0.1:1")
	for carrier, want := range map[config.Transport]string{config.TransportTCP: "[tcp]", config.TransportSCTPUDP: "[udp]", config.TransportSCTP: "[sctp]", config.TransportAuto: "[tcp udp sctp]"} {
		p := newPeer(config.Peer{Name: "beta", Address: at.Addr(), Protection: config.ProtectLoopback, Transport: carrier})
		n := p.named(transport.LoopbackOnly())
		var admitted []string
		for _, proto := range []transport.Protocol{transport.ProtoTCP, transport.ProtoUDP, transport.ProtoSCTP} {
			f := transport.Flow{Protocol: proto, Local: at, Remote: at}
			_, err := n.Admit(t.Context(), f, false, nil)
			if serr := n.Screen(f); (serr == nil) != (err == nil) {
				t.Errorf("%s over %s: Admit says %v, Screen %v", carrier, proto, err, serr)
			}
			if err == nil {
				admitted = append(admitted, proto.String())
			} else if !errors.Is(err, transport.ErrNotProtected) {
				t.Errorf("%s over %s: %v", carrier, proto, err)
			}
		}
		if fmt.Sprint(admitted) != want {
			t.Errorf("%s admits %v, want %s", carrier, admitted, want)
		}
	}
}

// TestNextBestCarrierHasItsTurnInTheSameAttempt, when one fails that the peer has
// answered on; other failures are nobody's reason to go on.
func TestNextBestCarrierHasItsTurnInTheSameAttempt(t *testing.T) {
	h := newHost(t, "")
	p := newPeer(config.Peer{Name: "beta", Transport: config.TransportAuto})
	broken := errors.New("broken")
	byCarrier := func() error { h.d.tried(p, transport.SCTPUDP, broken); return broken }
	for name, tc := range map[string]struct {
		attempts []func() error
		n        int
		err      error
	}{
		"works":                  {[]func() error{func() error { return nil }}, 1, nil},
		"the second works":       {[]func() error{byCarrier, func() error { return nil }}, 2, nil},
		"not the carrier's":      {[]func() error{func() error { return broken }}, 1, broken},
		"refused in words":       {[]func() error{func() error { h.d.tried(p, transport.SCTPUDP, &rtrs.RefusedError{}); return broken }}, 1, broken},
		"every one of them":      {[]func() error{byCarrier, byCarrier, byCarrier, byCarrier}, 3, broken},
		"the second for another": {[]func() error{byCarrier, func() error { return broken }}, 2, broken},
	} {
		n := 0
		err := p.eachCarrier(t.Context(), func() error { n++; return tc.attempts[n-1]() })
		if n != tc.n || !errors.Is(err, tc.err) {
			t.Errorf("%s: %d attempts, %v; want %d, %v", name, n, err, tc.n, tc.err)
		}
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	n := 0
	if err := p.eachCarrier(over, func() error { n++; return byCarrier() }); n != 1 || !errors.Is(err, broken) {
		t.Errorf("with nobody who waits: %d attempts, %v", n, err)
	}
}
