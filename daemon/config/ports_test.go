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

// withPrograms is a configuration with peers by IPsec, of which one has iscsi_port, and one that rest names has IKEv1.
func withPrograms(t *testing.T, rest string) (*Config, error) {
	t.Helper()
	dir := t.TempDir()
	key := write(t, dir, "key", "0123456789abcdef0123456789abcdef\n")
	peer := func(name, address, more string) string {
		return fmt.Sprintf("  - {name: %s, address: %s, local_address: 192.0.2.1, local_id: here, remote_id: %s, psk_file: %s%s}\n", name, address, name, key, more)
	}
	peers := peer("beta", "192.0.2.2", "") + peer("disks", "192.0.2.3", ", iscsi_port: 3260")
	if strings.Contains(rest, "old") {
		peers += peer("old", "192.0.2.4", ", profile: rfc3723")
	}
	return Load(write(t, dir, "ironwarp.yaml", "peers:\n"+peers+rest), true)
}

func TestBlocksOfPortsAreRead(t *testing.T) {
	for s, want := range map[string]PortBlock{"18432/512": {First: 18432, Size: 512}, "18512/16": {First: 18512, Size: 16}, "1024/1": {First: 1024, Size: 1}, "28672/4096": {First: 28672, Size: 4096}, "32767/1": {First: 32767, Size: 1}} {
		b, err := ParsePortBlock(s)
		if err != nil || b != want || b.String() != s {
			t.Errorf("%s: %v, %v", s, b, err)
		}
		if b.Contains(b.First-1) || !b.Contains(b.First) || !b.Contains(b.Last()) || b.Contains(b.Last()+1) {
			t.Errorf("%v has other ports than %d to %d", b, b.First, b.Last())
		}
	}
	if a, b, c := (PortBlock{First: 18432, Size: 512}), (PortBlock{First: 18512, Size: 16}), (PortBlock{First: 18944, Size: 16}); !a.Overlaps(b) || !b.Overlaps(a) || a.Overlaps(c) || c.Overlaps(a) {
		t.Error("blocks that overlap")
	}
	if k := (PortBlock{First: 18432, Size: 512}).Link(); k != (pad.Link{Protocol: transport.ProtoTCP, Port: 18432, Size: 512}) {
		t.Errorf("%+v", k)
	}
	if k := (PortBlock{First: 18432, Size: 1}).Link(); k != (pad.Link{Protocol: transport.ProtoTCP, Port: 18432}) {
		t.Errorf("of one port: %+v", k)
	}
}

// TestPeersHaveTheBlocksOfTheirULPs: of those that may use the peer as a whole, a disabled one and one
// for root's programs as well.
func TestPeersHaveTheBlocksOfTheirULPs(t *testing.T) {
	c, err := withPrograms(t, `ulps:
  - {name: hpc, users: [1001], peers: [beta, disks], ports: [18944/16, 18432/512], listen: true}
  - {name: gone, users: [no-such-user], peers: [beta], ports: 20480/1024}
  - {name: root-programs, peers: [beta], ports: [4096/1]}
  - {name: some, users: [1003], exports: [old/docs]}
`)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]PortBlock{"beta": {{First: 4096, Size: 1}, {First: 18432, Size: 512}, {First: 18944, Size: 16}, {First: 20480, Size: 1024}}, "disks": {{First: 18432, Size: 512}, {First: 18944, Size: 16}}, "old": nil} {
		p, _ := c.Peer(name)
		if !slices.Equal(p.Programs, want) {
			t.Errorf("peer %s: %v, want %v", name, p.Programs, want)
		}
	}
	u, _ := c.ULP("hpc")
	if !u.Listen || !slices.Equal(u.Ports, []PortBlock{{First: 18432, Size: 512}, {First: 18944, Size: 16}}) || u.Nobody() {
		t.Errorf("%+v", u)
	}
	if u, _ := c.ULP("root-programs"); u.Listen || !u.Nobody() || u.HasUser(0) {
		t.Errorf("%+v", u)
	}
	if u, _ := c.ULP("gone"); u.Disabled == nil || u.Nobody() {
		t.Errorf("%+v", u)
	}
	links := c.GuardedLinks(netip.MustParseAddr("192.0.2.3"))
	tcp := func(port, size uint16) pad.Link {
		return pad.Link{Protocol: transport.ProtoTCP, Port: port, Size: size}
	}
	if want := []pad.Link{tcp(7471, 0), tcp(3260, 0), tcp(18432, 512), tcp(18944, 16)}; !slices.Equal(links, want) {
		t.Errorf("links %v, want %v", links, want)
	}
	all, err := withPrograms(t, "ulps:\n  - {name: admins, users: [1002], privileged: true, ports: [4096/1]}\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all.Peers {
		if !slices.Equal(p.Programs, []PortBlock{{First: 4096, Size: 1}}) {
			t.Errorf("peer %s has not the ports of a privileged ULP: %v", p.Name, p.Programs)
		}
	}
}

// TestPortsAreOfTheULPsTransport, also in what peers have of them.
func TestPortsAreOfTheULPsTransport(t *testing.T) {
	c, err := withPrograms(t, `ulps:
  - {name: rdma, peers: [beta], ports: [18432/16]}
  - {name: udp, transport: sctp-udp, peers: [beta], ports: [18448/16]}
  - {name: tcp, peers: [beta], ports: [18464/16], transport: tcp}
`)
	if err != nil {
		t.Fatal(err)
	}
	p, _ := c.Peer("beta")
	var got []string
	for _, b := range p.Programs {
		got = append(got, b.Words()+" "+b.Link().String())
	}
	want := []string{"18432/16 tcp ports 18432-18447", "18448/16 over sctp-udp udp ports 18448-18463", "18464/16 tcp ports 18464-18479"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if b := p.Programs[1]; !b.Carries(transport.ProtoUDP, 18463) || b.Carries(transport.ProtoUDP, 18464) || b.Carries(transport.ProtoTCP, 18448) {
		t.Errorf("%+v", b)
	}
	for name, want := range map[string]Transport{"rdma": "", "udp": TransportSCTPUDP, "tcp": ""} {
		if u, _ := c.ULP(name); u.Transport != want {
			t.Errorf("%s: %q", name, u.Transport)
		}
	}
}

// TestBlocksOfPortsAreLinksOfEachPath, and other blocks make another peer of it.
func TestBlocksOfPortsAreLinksOfEachPath(t *testing.T) {
	p := defaultPeer()
	p.Name, p.Port, p.Paths, p.Multihoming = "beta", 7471, []Path{{Name: "lan", Transport: TransportTCP, Port: 7471}}, []Addresses{{}}
	p.Programs = []PortBlock{{First: 18432, Size: 512}}
	for i, q := range p.Pairs() {
		want := 2
		if i == 1 {
			want = 1 // associations alone go there
		}
		if l := q.AllLinks(); len(l) != want || want == 2 && l[1] != (pad.Link{Protocol: transport.ProtoTCP, Port: 18432, Size: 512}) {
			t.Errorf("%s: %v", q.Path, l)
		}
	}
	q := p
	q.Programs = []PortBlock{{First: 18432, Size: 256}}
	if p.SameEndpoints(q) || p.Equal(q) {
		t.Error("a peer with another block of ports is the same")
	}
	if p.Protection, q.Protection = ProtectLoopback, ProtectLoopback; !p.SameEndpoints(q) || p.Equal(q) {
		t.Error("without SAs streams end for another block of ports")
	}
}

func TestFaultsOfPorts(t *testing.T) {
	hpc := func(more string) string {
		return "ulps:\n  - {name: hpc, users: [1001], peers: [beta], " + more + "}\n"
	}
	var many []string
	for i := range MaxPortBlocks + 1 {
		many = append(many, fmt.Sprintf("%d/2", 18432+2*i))
	}
	for _, tc := range []struct{ name, rest, want string }{
		{"a transport that programs have not", hpc("ports: [18432/16], transport: sctp"), `transport "sctp" is none that programs have: allowed are tcp and sctp-udp`},
		{"a transport without ports", hpc("transport: sctp-udp"), "ULP hpc has transport: sctp-udp without ports; add ports"},
		{"one port without a size", hpc("ports: [18432]"), `block of ports "18432" is not FIRST/SIZE; write its first port and how many there are, such as 18512/16`},
		{"words", hpc("ports: [all]"), `block of ports "all" is not FIRST/SIZE`},
		{"a list in a list", hpc("ports: [[18432/16]]"), "block of ports is a list; write its first port"},
		{"a mapping", hpc("ports: {first: 18432}"), "ports is a mapping; write it as a list"},
		{"no power of two", hpc("ports: [18432/500]"), `block of ports "18432/500" has 500 ports; a selector of the kernel has a power of two`},
		{"none", hpc("ports: [18432/0]"), `has 0 ports; a selector of the kernel has a power of two`},
		{"not aligned", hpc("ports: [18440/16]"), `block of ports "18440/16" does not begin at a multiple of 16; the first has to be a multiple of the size: 18432/16 or 18448/16`},
		{"of the system", hpc("ports: [512/16]"), `block of ports "512/16" has ports below 1024`},
		{"of those who dial", hpc("ports: [32768/16]"), `block of ports "32768/16" reaches port 32783; from 32768 on Linux takes the ports of those who dial`},
		{"too large", hpc("ports: [8192/8192]"), `block of ports "8192/8192" has 8192 ports; up to 4096 are possible`},
		{"far too large", hpc("ports: [0/65536]"), `has 65536 ports; up to 4096`},
		{"beyond 16 bits", hpc("ports: [65536/16]"), "is not FIRST/SIZE"},
		{"too many", hpc("ports: [" + strings.Join(many, ", ") + "]"), "17 blocks of ports; allowed: up to 16"},
		{"overlap with itself", hpc("ports: [18432/512, 18512/16]"), "blocks of ports 18432/512 and 18512/16 overlap; write each port once"},
		{"overlap with another ULP", hpc("ports: [18432/512]") + "  - {name: other, users: [1002], peers: [disks], ports: [18512/16]}\n", "ULP other has the block of ports 18512/16, and ULP hpc has 18432/512; a port is of one ULP"},
		{"the port of RDMA streams", hpc("ports: [7424/64]"), "ULP hpc has the block of ports 7424/64, in which port 7471 is that of RDMA streams between the daemons"},
		{"the port of SCTP in UDP", hpc("ports: [9888/32]"), "in which port 9899 is that of SCTP in UDP"},
		{"another port of RDMA streams", hpc("ports: [18432/512]") + "listen: {port: 18500}\n", "in which port 18500 is that of RDMA streams"},
		{"an iscsi_port", "ulps:\n  - {name: hpc, users: [1001], peers: [disks], ports: [3248/16]}\n", "in which port 3260 is the iscsi_port of peer disks"},
		{"an iscsi_port, privileged", "ulps:\n  - {name: hpc, users: [1001], privileged: true, ports: [3260/1]}\n", "in which port 3260 is the iscsi_port of peer disks"},
		{"a target's", hpc("ports: [3260/1]") + "targets:\n  - {name: t, iqn: 'iqn.2026-01.org.example:t', peers: [disks], luns: [{number: 0, path: /tmp/x}]}\n", "in which port 3260 is that of target t"},
		{"no peer as a whole", "ulps:\n  - {name: hpc, users: [1001], exports: [beta/docs], ports: [18432/512]}\n", "ULP hpc has ports, and may use no peer as a whole; add peers: [NAME]"},
		{"listen without ports", hpc("listen: true"), "ULP hpc has listen: true without ports"},
		{"listen", hpc("ports: [18432/512], listen: yes"), `listen is "yes"; allowed: true, false`},
		{"nobody with exports", "ulps:\n  - {name: hpc, exports: [beta/docs], ports: [18432/512]}\n", "ULP hpc without users and groups; add users: [...] or groups: [...] of this host; a ULP without has ports: and peers:, for root's programs"},
		{"nobody without ports", "ulps:\n  - {name: hpc, peers: [beta]}\n", "ULP hpc without users and groups"},
		{"nobody privileged", "ulps:\n  - {name: hpc, privileged: true, ports: [18432/512]}\n", "ULP hpc without users and groups"},
		{"IKEv1", "ulps:\n  - {name: hpc, users: [1001], peers: [old], ports: [18432/512]}\n", "and peer old the profile rfc3723 with IKEv1; IKEv1's selectors have no port ranges"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := withPrograms(t, tc.rest)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got  %v\nwant %s", err, tc.want)
			}
		})
	}
	// An iscsi_port of a peer that the ULP may not use is no matter.
	if _, err := withPrograms(t, hpc("ports: [3260/1]")); err != nil {
		t.Error(err)
	}
}

// TestWrittenPeersHaveNoPortsOfULPs: those are the main file's, which stays as it is.
func TestWrittenPeersHaveNoPortsOfULPs(t *testing.T) {
	c, err := withPrograms(t, "ulps:\n  - {name: hpc, users: [1001], privileged: true, ports: [18432/512, 18944/16], listen: true} # of the cluster\n")
	if err != nil {
		t.Fatal(err)
	}
	before, err := readFile(c.Path)
	if err != nil {
		t.Fatal(err)
	}
	p, _ := c.Peer("beta")
	p.Name, p.Address, p.RemoteID = "gamma", netip.MustParseAddr("192.0.2.9"), "gamma"
	file, err := AddPeer(c.Path, p)
	if err != nil {
		t.Fatal(err)
	}
	p.ISCSIPort = 3260
	if _, err := SetPeer(c.Path, p); err != nil {
		t.Fatal(err)
	}
	next, err := Load(c.Path, true)
	if err != nil {
		t.Fatal(err)
	}
	q, _ := next.Peer("gamma")
	if !slices.Equal(q.Programs, p.Programs) || q.ISCSIPort != 3260 || !next.ULPs[0].Equal(c.ULPs[0]) {
		t.Errorf("%+v, %+v", q, next.ULPs[0])
	}
	if data, err := readFile(c.Path); err != nil || string(data) != string(before) {
		t.Errorf("%v\n%s", err, data)
	}
	if data, err := readFile(file); err != nil || strings.Contains(string(data), "18432") {
		t.Errorf("%v\n%s", err, data)
	}
	// A port that a program has cannot become one of iSCSI.
	p.ISCSIPort = 18500
	if _, err := SetPeer(c.Path, p); err == nil || !strings.Contains(err.Error(), "in which port 18500 is the iscsi_port of peer gamma") {
		t.Errorf("%v", err)
	}
}
