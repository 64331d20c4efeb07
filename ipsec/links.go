package ipsec

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/transport"
)

// Link is a port of a peer that carries streams: each has a guard and child SAs
// of its own.
type Link struct {
	Protocol transport.Protocol // TCP, UDP (SCTP in UDP, RFC 6951) or SCTP
	Port     uint16             // the same on both hosts
}

func (k Link) String() string { return fmt.Sprintf("%v port %d", k.Protocol, k.Port) }

// suffix tells a link's child SAs from those of the peer's TCP link.
func (k Link) suffix() string {
	if k.Protocol == transport.ProtoTCP {
		return ""
	}
	return "-" + k.Protocol.String()
}

// carries tells whether a flow is one of the link, from the host that dials to
// the one that is dialled.
func (k Link) carries(f transport.Flow, outgoing bool) bool {
	at := f.Local
	if outgoing {
		at = f.Remote
	}
	return f.Protocol == k.Protocol && at.Port() == k.Port
}

// links are the peer's, its only one by default.
func (p *Peer) links() []Link {
	if len(p.Links) == 0 {
		return []Link{{transport.ProtoTCP, p.Port}}
	}
	return p.Links
}

// words name the link where it is clear that a port is meant.
func (k Link) words() string {
	if k.Protocol == transport.ProtoTCP {
		return fmt.Sprintf("port %d", k.Port)
	}
	return k.String()
}

// only returns the peer with the link of one of its children alone.
func (p *Peer) only(child string) *Peer {
	for _, s := range p.laneSpecs() {
		if s.child == child {
			q := *p
			q.Links = []Link{s.link}
			return &q
		}
	}
	return p
}

func linkWords(links []Link) string {
	var words []string
	for _, k := range links {
		words = append(words, k.String())
	}
	return strings.Join(words, ", ")
}

func (p *Peer) checkLinks() []error {
	if len(p.Links) == 0 {
		if p.Port == 0 {
			return []error{errors.New("the port is missing")}
		}
		return nil
	}
	var faults []error
	for i, k := range p.Links {
		switch {
		case k.Protocol != transport.ProtoTCP && k.Protocol != transport.ProtoUDP && k.Protocol != transport.ProtoSCTP:
			faults = append(faults, fmt.Errorf("link %v: tcp, udp and sctp are possible", k))
		case k.Port == 0:
			faults = append(faults, fmt.Errorf("link %v: the port is missing", k.Protocol))
		case k.Protocol == transport.ProtoUDP && (k.Port == ikePort || k.Port == natPort):
			faults = append(faults, fmt.Errorf("link %v: IKE and ESP have UDP ports %d and %d (RFC 7296 2, RFC 3948 2.1)", k, ikePort, natPort))
		case slices.ContainsFunc(p.Links[:i], func(o Link) bool { return o.Protocol == k.Protocol }):
			faults = append(faults, fmt.Errorf("link %v: there is another one of that protocol", k))
		}
	}
	return faults
}

// guards are the guards of a peer, one for each link.
func (p *peer) guards(plane esp.Plane, tun string) []guard.Spec {
	var specs []guard.Spec
	for _, k := range p.links {
		specs = append(specs, p.guardOf(k, plane, tun))
	}
	return specs
}

func (p *peer) guardOf(k Link, plane esp.Plane, tun string) guard.Spec {
	return guard.Spec{NetNS: p.m.cfg.NetNS, Remote: p.remote, Port: k.Port, Protocol: k.Protocol, DataPlane: plane, Tun: tun}
}

// host is a guard spec for what concerns all links of a peer.
func (p *peer) host(plane esp.Plane, tun string) guard.Spec {
	return p.guardOf(p.links[0], plane, tun)
}

// sharedLink returns a link that two peers have with the same address, in whatever
// form: the guards of both would be of the same packets.
func (p *Peer) sharedLink(o *Peer) (Link, bool) {
	if !slices.Contains(guard.Spec{Remote: p.Remote}.Addresses(), o.Remote) {
		return Link{}, false
	}
	for _, k := range p.links() {
		if slices.Contains(o.links(), k) {
			return k, true
		}
	}
	return Link{}, false
}
