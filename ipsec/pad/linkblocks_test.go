package pad_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/ipsec/pad/padtest"
	"github.com/ironwarp/ironwarp/transport"
)

func tcpBlock(first, size uint16) pad.Link {
	return pad.Link{Protocol: transport.ProtoTCP, Port: first, Size: size}
}

func udpBlock(first, size uint16) pad.Link {
	return pad.Link{Protocol: transport.ProtoUDP, Port: first, Size: size}
}

func TestBlocksOfPortsHaveChildrenOfTheirOwn(t *testing.T) {
	p := padtest.Linked(padtest.TCP)
	p.Standing, p.Blocks = 3260, []pad.Link{tcpBlock(18432, 512), tcpBlock(18944, 1), udpBlock(18432, 16)}
	p, err := p.WithDefaults()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range p.ChildSAs() {
		got = append(got, fmt.Sprintf("%s %v %v", s.Name, s.Local, s.Remote))
	}
	want := []string{
		"beta-out 192.0.2.1/32[tcp] 198.51.100.2/32[tcp/7471]",
		"beta-in 192.0.2.1/32[tcp/7471] 198.51.100.2/32[tcp]",
		"beta-out-tcp3260 192.0.2.1/32[tcp] 198.51.100.2/32[tcp/3260]",
		"beta-in-tcp3260 192.0.2.1/32[tcp/3260] 198.51.100.2/32[tcp]",
		"beta-out-tcp18432 192.0.2.1/32[tcp] 198.51.100.2/32[tcp/18432-18943]",
		"beta-in-tcp18432 192.0.2.1/32[tcp/18432-18943] 198.51.100.2/32[tcp]",
		"beta-out-tcp18944 192.0.2.1/32[tcp] 198.51.100.2/32[tcp/18944]",
		"beta-in-tcp18944 192.0.2.1/32[tcp/18944] 198.51.100.2/32[tcp]",
		"beta-out-udp18432 192.0.2.1/32[udp] 198.51.100.2/32[udp/18432-18447]",
		"beta-in-udp18432 192.0.2.1/32[udp/18432-18447] 198.51.100.2/32[udp]",
	}
	if !slices.Equal(got, want) {
		t.Errorf("children %q, want %q", got, want)
	}
	if links := p.AllLinks(); len(links) != 5 || links[3] != tcpBlock(18944, 0) {
		t.Errorf("links %v: one of a single port is not that port's", links)
	}
	if only := p.Only("beta-in-tcp18432"); len(only.AllLinks()) != 1 || only.AllLinks()[0] != tcpBlock(18432, 512) {
		t.Errorf("the peer with one of its children: %v", only.AllLinks())
	}
	p.Children = 2
	if s := p.ChildSAs(); len(s) != 18 || s[6].Name != "beta-out-tcp18432-0" || s[6].Local.PortFrom != pad.FirstBlockPort || s[6].Remote.PortTo != 18943 || s[9].Name != "beta-in-tcp18432-1" {
		t.Errorf("two children of a block: %+v", s[6:])
	}
	links := padtest.Linked(padtest.TCP, tcpBlock(18432, 512))
	if s := links.ChildSAs(); len(s) != 4 || s[0].Name != "beta-out" || s[2].Name != "beta-out-tcp18432" {
		t.Errorf("a block among the links: %+v", s)
	}
}

func TestBlockHasItsPortsAlone(t *testing.T) {
	k := tcpBlock(18432, 512)
	p := padtest.Peer("beta", 2)
	for port, want := range map[uint16]bool{18431: false, 18432: true, 18500: true, 18943: true, 18944: false} {
		f := transport.Flow{Protocol: transport.ProtoTCP, Local: netip.AddrPortFrom(p.Local, 40000), Remote: netip.AddrPortFrom(p.Remote, port)}
		back := transport.Flow{Protocol: transport.ProtoTCP, Local: netip.AddrPortFrom(p.Local, port), Remote: netip.AddrPortFrom(p.Remote, 40000)}
		if k.Has(port) != want || k.Carries(f, true) != want || k.Carries(back, false) != want || k.Carries(f, false) || k.Carries(back, true) {
			t.Errorf("port %d", port)
		}
		if f.Protocol = transport.ProtoUDP; k.Carries(f, true) {
			t.Errorf("port %d of UDP", port)
		}
	}
	for _, tc := range []struct {
		a, b pad.Link
		want bool
	}{{k, k, true}, {k, tcpBlock(18512, 16), true}, {k, tcpBlock(18943, 0), true}, {k, tcpBlock(18944, 16), false}, {k, udpBlock(18432, 512), false}, {tcpBlock(7471, 0), tcpBlock(7471, 0), true}} {
		if tc.a.Overlaps(tc.b) != tc.want || tc.b.Overlaps(tc.a) != tc.want {
			t.Errorf("%v and %v", tc.a, tc.b)
		}
	}
	for _, tc := range []struct {
		k           pad.Link
		text, words string
	}{{k, "tcp ports 18432-18943", "ports 18432-18943"}, {tcpBlock(18432, 1), "tcp port 18432", "port 18432"}, {udpBlock(18432, 2), "udp ports 18432-18433", "udp ports 18432-18433"}} {
		if tc.k.String() != tc.text || tc.k.Words() != tc.words {
			t.Errorf("%q, %q", tc.k, tc.k.Words())
		}
	}
}

func TestBlocksOfPortsAreChecked(t *testing.T) {
	for _, tc := range []struct {
		what     string
		change   func(p *pad.Peer)
		complain string // "": it is fine
	}{
		{"some", func(p *pad.Peer) {
			p.Blocks = []pad.Link{tcpBlock(18432, 512), tcpBlock(18944, 16), udpBlock(18432, 512)}
		}, ""},
		{"among the links", func(p *pad.Peer) {
			p.Links = []pad.Link{padtest.TCP, tcpBlock(18432, 512), tcpBlock(18944, 16)}
		}, ""},
		{"beside the default link", func(p *pad.Peer) { p.Links, p.Blocks = nil, []pad.Link{tcpBlock(18432, 512)} }, ""},
		{"no power of two", func(p *pad.Peer) { p.Blocks = []pad.Link{tcpBlock(18432, 500)} }, "a power of two of ports"},
		{"not aligned", func(p *pad.Peer) { p.Blocks = []pad.Link{tcpBlock(18440, 16)} }, "begins at a multiple"},
		{"no port", func(p *pad.Peer) { p.Blocks = []pad.Link{tcpBlock(0, 16)} }, "the port is missing"},
		{"overlap", func(p *pad.Peer) { p.Blocks = []pad.Link{tcpBlock(18432, 512), tcpBlock(18512, 16)} }, "tcp ports 18512-18527: it has two uses"},
		{"the same twice", func(p *pad.Peer) { p.Blocks = []pad.Link{tcpBlock(18432, 1), tcpBlock(18432, 0)} }, "tcp port 18432: it has two uses"},
		{"the link's port", func(p *pad.Peer) { p.Blocks = []pad.Link{tcpBlock(7424, 64)} }, "it has two uses"},
		{"the default link's port", func(p *pad.Peer) { p.Links, p.Blocks = nil, []pad.Link{tcpBlock(7471, 0)} }, "it has two uses"},
		{"the standing link's port", func(p *pad.Peer) { p.Standing, p.Blocks = 18500, []pad.Link{tcpBlock(18432, 512)} }, "it has two uses"},
		{"IKE's port", func(p *pad.Peer) { p.Blocks = []pad.Link{udpBlock(496, 16)} }, "IKE and ESP"},
		{"a second port", func(p *pad.Peer) { p.Links = []pad.Link{padtest.TCP, tcpBlock(7472, 0)} }, "another one of that protocol"},
		{"IKEv1", func(p *pad.Peer) { p.Blocks = []pad.Link{tcpBlock(18432, 2)}; p.Profile.Version = 1 }, "RFC 2407 4.6.2"},
	} {
		p := padtest.Linked(padtest.TCP)
		tc.change(&p)
		_, err := p.WithDefaults()
		if (err == nil) != (tc.complain == "") || err != nil && !strings.Contains(err.Error(), tc.complain) {
			t.Errorf("%s: error %v, want one with %q", tc.what, err, tc.complain)
		}
	}
}

// TestNarrowedChildCarriesNoFlow, though the flow is one of what is left of it.
func TestNarrowedChildCarriesNoFlow(t *testing.T) {
	p := padtest.Linked(padtest.TCP)
	p.Blocks = []pad.Link{tcpBlock(18432, 512)}
	f := padtest.FlowTo(p)
	f.Remote = netip.AddrPortFrom(p.Remote, 18440)
	for size, want := range map[uint16]bool{512: true, 1024: true, 256: false} {
		remote := charon.HostSelector(p.Remote, transport.ProtoTCP, 18432)
		remote.PortTo = 18432 + size - 1
		sa := charon.SA{Peer: p.Name, State: "ESTABLISHED", RemoteID: p.RemoteID, LocalHost: p.Local, RemoteHost: p.Remote,
			Children: []charon.Child{{Name: "beta-out-tcp18432", State: charon.StateInstalled, LocalTS: []charon.Selector{charon.HostSelector(p.Local, transport.ProtoTCP, 0)}, RemoteTS: []charon.Selector{remote}}}}
		if _, _, err := p.Carrier("beta-out-tcp18432", f, []charon.SA{sa}); (err == nil) != want {
			t.Errorf("a child of %d ports: %v", size, err)
		}
	}
}
