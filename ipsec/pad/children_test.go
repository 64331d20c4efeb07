package pad_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/ipsec/pad/padtest"
	"github.com/ironwarp/ironwarp/transport"
)

func TestEachLinkHasChildrenOfItsOwn(t *testing.T) {
	p := padtest.Linked(padtest.TCP, padtest.UDP, padtest.SCTP)
	var got []string
	for _, s := range p.ChildSAs() {
		got = append(got, fmt.Sprintf("%s %v %v", s.Name, s.Local, s.Remote))
	}
	want := []string{
		"beta-out 192.0.2.1/32[tcp] 198.51.100.2/32[tcp/7471]",
		"beta-in 192.0.2.1/32[tcp/7471] 198.51.100.2/32[tcp]",
		"beta-out-udp 192.0.2.1/32[udp] 198.51.100.2/32[udp/9899]",
		"beta-in-udp 192.0.2.1/32[udp/9899] 198.51.100.2/32[udp]",
		"beta-out-sctp 192.0.2.1/32[sctp] 198.51.100.2/32[sctp/7471]",
		"beta-in-sctp 192.0.2.1/32[sctp/7471] 198.51.100.2/32[sctp]",
	}
	if !slices.Equal(got, want) {
		t.Errorf("children %q, want %q", got, want)
	}
	p = padtest.Linked(padtest.UDP)
	p.Children = 2
	if s := p.ChildSAs(); len(s) != 4 || s[1].Name != "beta-out-udp-1" || s[3].Name != "beta-in-udp-1" || s[1].Local.PortFrom != 57344 {
		t.Errorf("two children of a link: %+v", s)
	}
}

func TestLinksAreChecked(t *testing.T) {
	for _, tc := range []struct {
		links []pad.Link
		words string // "": they are fine
	}{
		{nil, ""},
		{[]pad.Link{padtest.TCP, padtest.UDP, padtest.SCTP}, ""},
		{[]pad.Link{{Protocol: transport.ProtoUDP, Port: 7471}, {Protocol: transport.ProtoTCP, Port: 7471}}, ""},
		{[]pad.Link{{Protocol: transport.ProtoTCP, Port: 500}, {Protocol: transport.ProtoSCTP, Port: 4500}}, ""},
		{[]pad.Link{{Protocol: transport.ProtoUDP, Port: 0}}, "port is missing"},
		{[]pad.Link{{Protocol: transport.ProtoUDP, Port: 500}}, "IKE and ESP"},
		{[]pad.Link{{Protocol: transport.ProtoUDP, Port: 4500}}, "IKE and ESP"},
		{[]pad.Link{{Protocol: 50, Port: 7471}}, "tcp, udp and sctp are possible"},
		{[]pad.Link{padtest.UDP, {Protocol: transport.ProtoUDP, Port: 9900}}, "another one of that protocol"},
	} {
		_, err := padtest.Linked(tc.links...).WithDefaults()
		if (err == nil) != (tc.words == "") || err != nil && !strings.Contains(err.Error(), tc.words) {
			t.Errorf("links %v: error %v, want one with %q", tc.links, err, tc.words)
		}
	}
	p := padtest.Linked()
	p.Port = 0
	if _, err := p.WithDefaults(); err == nil {
		t.Error("a peer without any port is accepted")
	}
}

func TestPeerWithOneChildHasItsNamesAndPortsAsEver(t *testing.T) {
	specs := padtest.Peer("beta", 2).ChildSAs()
	if len(specs) != 2 || specs[0].Name != "beta-out" || specs[1].Name != "beta-in" || !specs[0].Local.AnyPort() || !specs[1].Remote.AnyPort() {
		t.Errorf("children %+v", specs)
	}
}

// TestStandingLinkHasOneChildForAllPorts: programs that know nothing of the blocks dial its flows.
func TestStandingLinkHasOneChildForAllPorts(t *testing.T) {
	p := padtest.Linked(padtest.TCP)
	p.Children, p.Standing = 2, 3260
	p, err := p.WithDefaults()
	if err != nil {
		t.Fatal(err)
	}
	k := pad.Link{Protocol: transport.ProtoTCP, Port: 3260}
	if links := p.AllLinks(); len(links) != 2 || links[1] != k || !p.Stands(k) || p.Stands(padtest.TCP) {
		t.Errorf("%v", links)
	}
	var names []string
	for _, c := range p.ChildSAs() {
		names = append(names, c.Name)
		dialled, dials := c.Remote, c.Local
		if c.Role == pad.Listener {
			dialled, dials = dials, dialled
		}
		if c.Link == k && (dialled.PortFrom != 3260 || dialled.PortTo != 3260 || !dials.AnyPort()) {
			t.Errorf("%s: %v - %v", c.Name, c.Local, c.Remote)
		}
	}
	if got := strings.Join(names, " "); got != "beta-out-0 beta-out-1 beta-in-0 beta-in-1 beta-out-tcp3260 beta-in-tcp3260" {
		t.Errorf("%s", got)
	}
	p.Standing = padtest.TCP.Port
	if _, err := p.WithDefaults(); err == nil {
		t.Error("a standing link with the port of another")
	}
}
