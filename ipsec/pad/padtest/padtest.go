// Package padtest makes peers for tests.
package padtest

import (
	"net/netip"
	"testing"

	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/ipsec/profile"
	"github.com/ironwarp/ironwarp/transport"
)

// Peer makes a peer with a pre-shared key, at the nth address of a lab.
func Peer(name string, n byte) pad.Peer {
	p := pad.Peer{Name: name, Local: netip.AddrFrom4([4]byte{192, 0, 2, 1}), Remote: netip.AddrFrom4([4]byte{198, 51, 100, n}),
		LocalID: "here", RemoteID: name, Port: 7471, PSK: auth.GenerateSecret(), OnDemand: true}
	p, err := p.WithDefaults()
	if err != nil {
		panic(err)
	}
	return p
}

// Links of each carrier.
var (
	TCP  = pad.Link{Protocol: transport.ProtoTCP, Port: 7471}
	UDP  = pad.Link{Protocol: transport.ProtoUDP, Port: 9899}
	SCTP = pad.Link{Protocol: transport.ProtoSCTP, Port: 7471}
)

// Linked makes a peer "beta" with these links.
func Linked(links ...pad.Link) pad.Peer {
	p := Peer("beta", 2)
	p.Links = links
	return p
}

// FlowTo makes a flow that this host dials to a peer.
func FlowTo(p pad.Peer) transport.Flow {
	return transport.Flow{Protocol: transport.ProtoTCP, Local: netip.AddrPortFrom(p.Local, 40000), Remote: netip.AddrPortFrom(p.Remote, p.Port)}
}

// Profile returns a built-in profile.
func Profile(t *testing.T, name string) *profile.Profile {
	t.Helper()
	p, err := profile.ByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
