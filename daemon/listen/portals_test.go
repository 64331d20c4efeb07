package listen

import (
	"maps"
	"net/netip"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/transport"
)

// Hosts that are no peers may come to the portals that are declared so, and to no other at the same port.
func TestPortalForAnyone(t *testing.T) {
	p := NewPortals(PortalsConfig{Whom: "initiators", What: "target"})
	defer p.Close()
	addr := netip.MustParseAddr
	all := []Offered{
		{Port: 3260, Addresses: []netip.Addr{addr("192.0.2.1")}, Undeclared: true},
		{Port: 3260, Addresses: []netip.Addr{addr("198.51.100.1")}},
		{Port: 3261, Undeclared: true},
		{Port: 3262, Allows: func(p config.Peer) bool { return p.Name == "beta" }},
	}
	peers := []Awaited{{config.Peer{Name: "beta"}, addr("192.0.2.7")}, {config.Peer{Name: "gamma"}, addr("192.0.2.8")}}
	p.noteAnyone(all)
	got := map[string]bool{}
	for at := range wanted(all, peers) {
		if at.Kind != transport.TCP {
			t.Errorf("%v", at)
		}
		got[at.String()] = p.servesAnyone(at)
	}
	want := map[string]bool{"192.0.2.1:3260": true, "198.51.100.1:3260": false, "0.0.0.0:3261": true, "192.0.2.7:3262": false}
	if !maps.Equal(got, want) {
		t.Errorf("for anyone: %v, want %v", got, want)
	}
}
