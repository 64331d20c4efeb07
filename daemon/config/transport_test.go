package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/ipsec/pad"
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
			Paths: []Path{{addr("198.51.100.2"), addr("198.51.100.1")}, {addr("2001:db8::2"), addr("2001:db8::1")}}}, []transport.Kind{transport.SCTP}, DefaultPort},
	} {
		t.Run(tc.name, func(t *testing.T) {
			main := write(t, t.TempDir(), "ironwarp.yaml", "")
			p := defaultPeer()
			p.Name, p.Address, p.PSKFile, p.Port, p.Auth = "beta", addr("192.0.2.2"), "/x", DefaultPort, AuthPSK
			p.Transport, p.UDPPort, p.LocalAddress, p.Paths = tc.peer.Transport, tc.peer.UDPPort, tc.peer.LocalAddress, tc.peer.Paths
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

func TestPathsHaveAddressesAndNames(t *testing.T) {
	c, err := load(t, "", `
name: beta
address: 192.0.2.2
local_address: 192.0.2.1
transport: sctp
psk_file: /x
paths:
  - {address: 198.51.100.2, local_address: 198.51.100.1}
`)
	if err != nil {
		t.Fatal(err)
	}
	p, _ := c.Peer("beta")
	if s := fmt.Sprintln(p.Addresses(), p.Locals(), p.PathName(0), p.PathName(1)); s != "[192.0.2.2 198.51.100.2] [192.0.2.1 198.51.100.1] beta beta.path2\n" {
		t.Error(s)
	}
}

func TestFaultsOfTransportsAndPaths(t *testing.T) {
	const (
		good = "name: beta\naddress: 192.0.2.2\npsk_file: /x\n"
		sctp = good + "transport: sctp\nlocal_address: 192.0.2.1\n"
	)
	path := func(remote, local string) string {
		return fmt.Sprintf("paths: [{address: %q, local_address: %q}]\n", remote, local)
	}
	many := "paths:\n"
	for i := range MaxPaths + 1 {
		many += fmt.Sprintf("  - {address: 198.51.100.%d, local_address: 198.51.101.%d}\n", i+1, i+1)
	}
	for name, tc := range map[string]struct{ main, peer, want string }{
		"unknown transport":   {"", good + "transport: udp\n", `p.yaml:4:12: transport is "udp"; allowed: tcp, sctp, sctp-udp, auto`},
		"UDP port of TCP":     {"", good + "udp_port: 9000\n", "peer beta has udp_port and transport: tcp; udp_port is for transport: sctp-udp and auto"},
		"another UDP port":    {"listen: {udp_port: 9000}\n", good + "transport: sctp-udp\nudp_port: 9001\n", "peer beta has UDP port 9001 and this host 9000; the SAs of a link are for one port"},
		"IKE's UDP port":      {"", good + "transport: auto\nudp_port: 4500\n", "udp_port is 4500, which is IKE's own; 9899 is the usual one"},
		"IKE's port here":     {"listen: {udp_port: 500}\n", "", "udp_port is 500, which is IKE's own"},
		"no CRC":              {"", good + "transport: sctp-udp\ncrc: off\n", "crc: off and transport: sctp-udp; remove crc"},
		"FPDU":                {"", good + "transport: sctp\nfpdu: emss\n", "fpdu: emss and transport: sctp; remove fpdu"},
		"paths of TCP":        {"", good + "local_address: 192.0.2.1\n" + path("198.51.100.2", "198.51.100.1"), "peer beta has paths and transport: tcp; several addresses need the kernel's SCTP"},
		"paths in UDP":        {"", good + "local_address: 192.0.2.1\ntransport: sctp-udp\n" + path("198.51.100.2", "198.51.100.1"), "paths and transport: sctp-udp"},
		"half a path":         {"", sctp + "paths: [{address: 198.51.100.2}]\n", "p.yaml:6:9: a path without address or local_address"},
		"unknown key in path": {"", sctp + "paths: [{adress: 198.51.100.2}]\n", `unknown key "adress" in a path; did you mean "address"`},
		"no local address":    {"", good + "transport: sctp\n" + path("198.51.100.2", "198.51.100.1"), "peer beta has paths but no local_address"},
		"mixed families":      {"", sctp + path("2001:db8::2", "198.51.100.1"), "mixes IPv4 and IPv6 in a path"},
		"address twice":       {"", sctp + path("192.0.2.2", "198.51.100.1"), "peer beta has the address 192.0.2.2 twice"},
		"local twice":         {"", sctp + path("198.51.100.2", "192.0.2.1"), "peer beta has the local_address 192.0.2.1 twice"},
		"loopback":            {"", sctp + path("127.0.0.2", "127.0.0.1"), "of which one is on this host"},
		"gateway":             {"", sctp + "gateway: 192.0.2.254\n" + path("198.51.100.2", "198.51.100.1"), "a gateway and paths"},
		"too many":            {"", sctp + many, "8 paths beside its first; allowed: up to 7"},
		"another's address":   {"peers: [{name: eta, address: 198.51.100.2, psk_file: /x}]\n", sctp + path("198.51.100.2", "198.51.100.1"), "peers eta and beta have the same address 198.51.100.2"},
		"a path's name":       {"peers: [{name: beta.path2, address: 192.0.2.9, psk_file: /x}]\n", sctp + path("198.51.100.2", "198.51.100.1"), "peer beta.path2 has the name of path 2 of peer beta"},
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
		"all":                     "local_address: 198.51.100.1, paths: [{address: 192.0.2.9, local_address: 192.0.2.1}]",
		"none":                    "local_address: 203.0.113.1",
		"not known, by the route": "",
	} {
		main := fmt.Sprintf("peers: [{name: eta, address: 198.51.100.9, psk_file: /x, transport: sctp, %s}]\n", local)
		if _, err := load(t, main, "name: beta\naddress: 192.0.2.2\npsk_file: /x\ntransport: sctp\nlocal_address: 192.0.2.1\npaths: [{address: 198.51.100.2, local_address: 198.51.100.1}]\n"); err != nil {
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
		"UDP port":  func(p *Peer) { p.UDPPort = 9000 },
		"paths":     func(p *Peer) { p.Paths = []Path{{addr("198.51.100.2"), addr("198.51.100.1")}} },
	} {
		q := p
		change(&q)
		if p.SameEnds(q) || p.Equal(q) {
			t.Errorf("%s: streams would go on", name)
		}
	}
	q := p
	q.Connections = 7
	if !p.SameEnds(q) {
		t.Error("another number of connections ends streams")
	}
}
