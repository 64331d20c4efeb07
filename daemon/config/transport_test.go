package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/transport"
)

func TestTransportOfAPeerReadsBack(t *testing.T) {
	addr := netip.MustParseAddr
	for _, tc := range []struct {
		name  string
		peer  Peer
		kinds []transport.Kind
		port  uint16 // of the last kind, on the wire
	}{
		{"tcp", Peer{Transport: TransportTCP}, []transport.Kind{transport.TCP}, DefaultPort},
		{"sctp-udp", Peer{Transport: TransportSCTPUDP, UDPPort: DefaultUDPPort}, []transport.Kind{transport.SCTPUDP}, DefaultUDPPort},
		{"auto", Peer{Transport: TransportAuto, UDPPort: DefaultUDPPort}, []transport.Kind{transport.TCP, transport.SCTP, transport.SCTPUDP}, DefaultUDPPort},
		{"sctp", Peer{Transport: TransportSCTP, LocalAddress: addr("192.0.2.1"),
			Multihoming: []Addresses{{addr("198.51.100.2"), addr("198.51.100.1")}, {addr("2001:db8::2"), addr("2001:db8::1")}},
			Paths:       []Path{{"third", Addresses{addr("203.0.113.2"), addr("203.0.113.1")}, DefaultPort, 0, TransportSCTP}}}, []transport.Kind{transport.SCTP}, DefaultPort},
		{"paths", Peer{Transport: TransportTCP, Policy: rtrs.Preferred, Heartbeat: rtrs.HeartbeatConfig{Interval: time.Second, Missed: 3},
			NoPath: rtrs.NoPath{Fail: true, After: time.Minute}, ReconnectAttempts: 7, OpenChunks: true, LocalAddress: addr("192.0.2.1"), UDPPort: DefaultUDPPort,
			Paths: []Path{{"198.51.100.2", Addresses{addr("198.51.100.2"), addr("198.51.100.1")}, DefaultPort, 0, TransportTCP}, {"six", Addresses{addr("2001:db8::2"), addr("2001:db8::1")}, DefaultPort, DefaultUDPPort, TransportSCTPUDP}}}, []transport.Kind{transport.TCP}, DefaultPort},
	} {
		t.Run(tc.name, func(t *testing.T) {
			main := write(t, t.TempDir(), "ironwarp.yaml", "services: {exports: {trust: NS-RT}}\n")
			p := defaultPeer()
			p.Name, p.Address, p.PSKFile, p.Port, p.Auth = "beta", addr("192.0.2.2"), "/x", DefaultPort, AuthPSK
			p.Transport, p.UDPPort, p.LocalAddress, p.Multihoming, p.Paths = tc.peer.Transport, tc.peer.UDPPort, tc.peer.LocalAddress, tc.peer.Multihoming, tc.peer.Paths
			p.Policy, p.Heartbeat, p.NoPath, p.ReconnectAttempts, p.OpenChunks = tc.peer.Policy, tc.peer.Heartbeat, tc.peer.NoPath, tc.peer.ReconnectAttempts, tc.peer.OpenChunks
			if _, err := AddPeer(main, p); err != nil {
				t.Fatal(err)
			}
			c, err := Load(main, true)
			if err != nil {
				t.Fatal(err)
			}
			got, _ := c.Peer("beta")
			if got.Resolved = nil; !got.Equal(p) {
				t.Errorf("\n got %+v\nwant %+v", got, p)
			}
			if !slices.Equal(got.Transport.Kinds(), tc.kinds) || got.Links()[len(tc.kinds)-1] != (pad.Link{Protocol: tc.kinds[len(tc.kinds)-1].Protocol(), Port: tc.port}) {
				t.Errorf("kinds %v, links %v", got.Transport.Kinds(), got.Links())
			}
		})
	}
}

func TestPairsOfAddressesHaveLinksAndNames(t *testing.T) {
	c, err := load(t, "", `
name: beta
address: 192.0.2.2
local_address: 192.0.2.1
transport: sctp
psk_file: /x
multihoming:
  - {address: 198.51.100.2, local_address: 198.51.100.1}
paths:
  - {address: 203.0.113.2, local_address: 203.0.113.1, transport: sctp-udp}
  - {address: "2001:db8:1111:2222:3333:4444:5555:2", local_address: "2001:db8::1", transport: tcp}
  - {address: 203.0.113.18, local_address: 203.0.113.17, transport: sctp, name: lan}
`)
	if err != nil {
		t.Fatal(err)
	}
	p, _ := c.Peer("beta")
	want := []string{
		"beta 192.0.2.2 192.0.2.2 192.0.2.1 [sctp port 7471]",
		"beta.path2 192.0.2.2 198.51.100.2 198.51.100.1 [sctp port 7471]",
		"beta.203.0.113.2 203.0.113.2 203.0.113.2 203.0.113.1 [udp port 9899]",
		"beta.2001-db8-1111-2222-33-ba0f955a 2001:db8:1111:2222:3333:4444:5555:2 2001:db8:1111:2222:3333:4444:5555:2 2001:db8::1 [tcp port 7471]",
		"beta.lan lan 203.0.113.18 203.0.113.17 [sctp port 7471]",
	}
	var got []string
	for _, q := range p.Pairs() {
		got = append(got, fmt.Sprint(q.Connection, " ", q.Path, " ", q.Address, " ", q.LocalAddress, " ", q.Links))
	}
	if !slices.Equal(got, want) {
		t.Errorf("\n got %s\nwant %s", strings.Join(got, "\n     "), strings.Join(want, "\n     "))
	}
	if got := fmt.Sprint(p.sctpLocalAddresses()); got != "[[192.0.2.1 198.51.100.1] [203.0.113.17]]" {
		t.Errorf("the kernel's SCTP listens at %s", got)
	}
	if n := p.SessionStreams(); n != 4*p.Connections {
		t.Errorf("%d streams a session", n)
	}
}

func TestFaultsOfTransportsAndPaths(t *testing.T) {
	const (
		good = "name: beta\naddress: 192.0.2.2\npsk_file: /x\n"
		sctp = good + "transport: sctp\nlocal_address: 192.0.2.1\n"
	)
	path := func(remote, local string) string {
		return fmt.Sprintf("multihoming: [{address: %q, local_address: %q}]\n", remote, local)
	}
	session := func(remote, local, more string) string {
		return fmt.Sprintf("local_address: 192.0.2.1\npaths: [{address: %q, local_address: %q%s}]\n", remote, local, more)
	}
	many := "multihoming:\n"
	for i := range MaxPaths + 1 {
		many += fmt.Sprintf("  - {address: 198.51.100.%d, local_address: 198.51.101.%d}\n", i+1, i+1)
	}
	manySessions := strings.Replace(many, "multihoming", "local_address: 192.0.2.1\npaths", 1)
	for name, tc := range map[string]struct{ main, peer, want string }{
		"unknown transport":  {"", good + "transport: udp\n", `p.yaml:4:12: transport is "udp"; allowed: tcp, sctp, sctp-udp, auto`},
		"UDP port of TCP":    {"", good + "udp_port: 9000\n", "peer beta has udp_port and transport: tcp; udp_port is for transport: sctp-udp and auto"},
		"another UDP port":   {"listen: {udp_port: 9000}\n", good + "transport: sctp-udp\nudp_port: 9001\n", "peer beta has UDP port 9001 and this host 9000; the SAs of a link are for one port"},
		"IKE's UDP port":     {"", good + "transport: auto\nudp_port: 4500\n", "udp_port is 4500, which is IKE's own; 9899 is the usual one"},
		"IKE's port here":    {"listen: {udp_port: 500}\n", "", "udp_port is 500, which is IKE's own"},
		"no CRC":             {"", good + "transport: sctp-udp\ncrc: off\n", "crc: off and transport: sctp-udp; remove crc"},
		"FPDU":               {"", good + "transport: sctp\nfpdu: emss\n", "fpdu: emss and transport: sctp; remove fpdu"},
		"multihoming of TCP": {"", good + "local_address: 192.0.2.1\n" + path("198.51.100.2", "198.51.100.1"), "peer beta has multihoming and transport: tcp; associations of several addresses need the kernel's SCTP"},
		"and in UDP":         {"", good + "local_address: 192.0.2.1\ntransport: sctp-udp\n" + path("198.51.100.2", "198.51.100.1"), "multihoming and transport: sctp-udp"},
		"as it was once": {"", sctp + "paths: [{address: 198.51.100.2, local_address: 198.51.100.1}]\n",
			"peer beta has transport: sctp and paths that say none; what was paths: with the kernel's SCTP, further addresses of one association, is multihoming: now: write that; or, for sessions of several paths, say transport: of each path"},
		"half a pair":         {"", sctp + "multihoming: [{address: 198.51.100.2}]\n", "p.yaml:6:15: a pair of addresses without address or local_address"},
		"unknown key in pair": {"", sctp + "multihoming: [{adress: 198.51.100.2}]\n", `unknown key "adress" in a pair of addresses; did you mean "address"`},
		"a pair has no name":  {"", sctp + "multihoming: [{name: lan, address: 198.51.100.2, local_address: 198.51.100.1}]\n", `unknown key "name" in a pair of addresses`},
		"no local address":    {"", good + "transport: sctp\n" + path("198.51.100.2", "198.51.100.1"), "peer beta has several addresses but no local_address"},
		"mixed families":      {"", sctp + path("2001:db8::2", "198.51.100.1"), "mixes IPv4 and IPv6 in a path"},
		"address twice":       {"", sctp + path("192.0.2.2", "198.51.100.1"), "peer beta has the address 192.0.2.2 twice"},
		"local twice":         {"", sctp + path("198.51.100.2", "192.0.2.1"), "peer beta has the local_address 192.0.2.1 twice"},
		"loopback":            {"", sctp + path("127.0.0.2", "127.0.0.1"), "of which one is on this host"},
		"gateway":             {"", sctp + "gateway: 192.0.2.254\n" + path("198.51.100.2", "198.51.100.1"), "a gateway and several addresses"},
		"too many":            {"", sctp + many, "8 pairs of addresses beside its first; allowed: up to 7"},
		"another's address":   {"peers: [{name: eta, address: 198.51.100.2, psk_file: /x}]\n", sctp + path("198.51.100.2", "198.51.100.1"), "peers eta and beta have the same address 198.51.100.2"},
		"a pair's name":       {"peers: [{name: beta.path2, address: 192.0.2.9, psk_file: /x}]\n", sctp + path("198.51.100.2", "198.51.100.1"), "peer beta.path2 has the name of path 2 of peer beta"},

		"half a path":            {"", good + "paths: [{address: 198.51.100.2}]\n", "a path without address or local_address"},
		"unknown key in path":    {"", good + "paths: [{adress: 198.51.100.2}]\n", `unknown key "adress" in a path; did you mean "address"`},
		"path from nowhere":      {"", good + "paths: [{address: 198.51.100.2, local_address: 198.51.100.1}]\n", "peer beta has several addresses but no local_address"},
		"path of two families":   {"", good + session("2001:db8::2", "198.51.100.1", ""), "mixes IPv4 and IPv6 in a path"},
		"path to itself":         {"", good + session("198.51.100.1", "198.51.100.1", ""), "peer beta has the address 198.51.100.1 as its own and as this host's"},
		"the first once more":    {"", good + session("192.0.2.2", "192.0.2.1", ""), "peer beta has the path 192.0.2.2 twice"},
		"its address once more":  {"", good + session("192.0.2.2", "198.51.100.1", ", name: lan"), "peer beta has the address 192.0.2.2 twice"},
		"this host's once more":  {"", good + session("198.51.100.2", "192.0.2.1", ""), "peer beta has the local_address 192.0.2.1 twice"},
		"the same path twice":    {"", good + strings.TrimSuffix(session("198.51.100.2", "198.51.100.1", ""), "]\n") + ", {address: 198.51.100.2, local_address: 198.51.100.1}]\n", "peer beta has the path 198.51.100.2 twice"},
		"the same name twice":    {"", good + strings.TrimSuffix(session("198.51.100.2", "198.51.100.1", ", name: lan"), "]\n") + ", {address: 203.0.113.2, local_address: 203.0.113.1, name: lan}]\n", "peer beta has the path lan twice"},
		"the address of another": {"", good + session("198.51.100.2", "198.51.100.1", ", name: 198.51.100.3"), "peer beta has a path at 198.51.100.2 with the name 198.51.100.3, which is an address"},
		"path of another's":      {"peers: [{name: eta, address: 198.51.100.2, psk_file: /x}]\n", good + session("198.51.100.2", "198.51.100.1", ""), "peers eta and beta have the same address 198.51.100.2"},
		"path of this host":      {"", good + session("127.0.0.2", "127.0.0.1", ""), "of which one is on this host"},
		"path by a gateway":      {"", good + "gateway: 192.0.2.254\n" + session("198.51.100.2", "198.51.100.1", ""), "a gateway and several addresses"},
		"path to another port":   {"", good + session("198.51.100.2", "198.51.100.1", ", port: 7472"), "peer beta listens on port 7472 and this host on 7471"},
		"path of no transport":   {"", good + session("198.51.100.2", "198.51.100.1", ", transport: udp"), `transport is "udp"; allowed: tcp, sctp, sctp-udp, auto`},
		"a bad name":             {"", good + session("198.51.100.2", "198.51.100.1", `, name: "a b"`), `name of a path "a b" is not a valid name`},
		"too many paths":         {"", good + manySessions, "8 paths beside its first; allowed: up to 7"},
		"a connection's name":    {"peers: [{name: beta.lan, address: 192.0.2.9, psk_file: /x}]\n", good + session("198.51.100.2", "198.51.100.1", ", name: lan"), "peer beta.lan has the name of path 2 of peer beta"},
		"one connection of two": {"peers: [{name: beta.lan, address: 192.0.2.9, local_address: 192.0.2.1, psk_file: /x, paths: [{address: 203.0.113.9, local_address: 203.0.113.1, name: a}]}]\n",
			good + session("198.51.100.2", "198.51.100.1", ", name: lan.a"), "paths of peers beta.lan and beta would both be the IKE connection beta.lan.a"},
		"CRC off on a path of SCTP alone": {"", good + "transport: sctp-udp\ncrc: off\n" + session("198.51.100.2", "198.51.100.1", ""), "crc: off and transport: sctp-udp; remove crc"},
		"unknown policy":                  {"", good + "policy: fastest\n", `policy is "fastest"; allowed: min-inflight, round-robin, min-latency, preferred`},
		"heartbeats too soon":             {"", good + "heartbeat_interval: 10ms\n", `heartbeat_interval is "10ms"; allowed: 100ms to 1m`},
		"no path, and something else":     {"", good + "no_path: wait\n", `no_path is "wait"; allowed: queue, fail`},
		"fails too soon":                  {"", good + "no_path: fail\nfail_after: 10ms\n", `fail_after is "10ms"; allowed: 1s to 24h`},
		"waits and fails":                 {"", good + "fail_after: 10s\n", "peer beta has fail_after without no_path: fail; remove it, or say no_path: fail"},
		"attempts below none":             {"", good + "reconnect_attempts: -1\n", "reconnect_attempts is -1; allowed: 0 to 100000"},
		"open to whom nobody trusts":      {"services: {exports: {trust: S-LT}}\n", good + "always_invalidate: false\n", "peer beta has always_invalidate: false, and the trust of exports is S-LT, which trusts no peer; remove that line, or set services: {exports: {trust: NS-RT}}"},
		"heartbeats never missed":         {"", good + "heartbeat_misses: 0\n", "heartbeat_misses is 0; allowed: 1 to 100"},
		"too few streams":                 {"", good + "connections: 4\nlimits: {streams: 7}\n" + session("198.51.100.2", "198.51.100.1", ""), "peer beta may have 7 streams, and a block session with it has 8 connections"},
		"shared in part": {"peers: [{name: eta, address: 192.0.2.9, psk_file: /x, transport: sctp, local_address: 192.0.2.1}]\n", sctp + path("198.51.100.2", "198.51.100.1"),
			"peers eta and beta reach this host at some of the same addresses, but not at all of them"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := load(t, tc.main, tc.peer); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got  %v\nwant %s", err, tc.want)
			}
		})
	}
}

// TestPeersMayShareAllOrNoLocalAddresses is the control of the last fault.
func TestPeersMayShareAllOrNoLocalAddresses(t *testing.T) {
	for name, local := range map[string]string{
		"all":                     "local_address: 198.51.100.1, multihoming: [{address: 192.0.2.9, local_address: 192.0.2.1}]",
		"none":                    "local_address: 203.0.113.1",
		"not known, by the route": "",
	} {
		main := fmt.Sprintf("peers: [{name: eta, address: 198.51.100.9, psk_file: /x, transport: sctp, %s}]\n", local)
		if _, err := load(t, main, "name: beta\naddress: 192.0.2.2\npsk_file: /x\ntransport: sctp\nlocal_address: 192.0.2.1\nmultihoming: [{address: 198.51.100.2, local_address: 198.51.100.1}]\n"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAnotherTransportMeansOtherEnds(t *testing.T) {
	addr := netip.MustParseAddr
	p := defaultPeer()
	p.Name, p.Address = "beta", addr("192.0.2.2")
	for name, change := range map[string]func(*Peer){
		"transport": func(p *Peer) { p.Transport = TransportAuto },
		"UDP port":  func(p *Peer) { p.Transport, p.UDPPort = TransportSCTPUDP, 9000 },
		"addresses": func(p *Peer) { p.Multihoming = []Addresses{{addr("198.51.100.2"), addr("198.51.100.1")}} },
	} {
		q := p
		change(&q)
		if p.SameEndpoints(q) || p.Equal(q) {
			t.Errorf("%s: streams would go on", name)
		}
	}
	for name, change := range map[string]func(*Peer){
		"connections": func(p *Peer) { p.Connections = 7 },
		"UDP port":    func(p *Peer) { p.UDPPort = 9000 }, // of a path, since its own is TCP
		"paths":       func(p *Peer) { p.Paths = []Path{{Addresses: Addresses{addr("198.51.100.2"), addr("198.51.100.1")}}} },
	} {
		q := p
		change(&q)
		if !p.SameEndpoints(q) || p.Equal(q) {
			t.Errorf("%s: all streams would end", name)
		}
	}
}
