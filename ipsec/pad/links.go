package pad

import (
	"errors"
	"fmt"
	"slices"

	"github.com/ironwarp/ironwarp/transport"
)

// ikePort and natPort are the UDP ports of IKE and of ESP in UDP (RFC 7296 2, RFC
// 3948 2.1), which no link may have.
const (
	ikePort = 500
	natPort = 4500
)

// Link is a port of a peer that carries streams: each has a guard and child SAs
// of its own.
type Link struct {
	Protocol transport.Protocol // TCP, UDP (SCTP in UDP, RFC 6951) or SCTP
	Port     uint16             // the same on both hosts
}

func (k Link) String() string { return fmt.Sprintf("%v port %d", k.Protocol, k.Port) }

// suffix distinguishes a link's child SAs from those of the peer's TCP link.
func (p *Peer) suffix(k Link) string {
	switch {
	case p.Stands(k):
		return fmt.Sprintf("-tcp%d", k.Port)
	case k.Protocol == transport.ProtoTCP:
		return ""
	}
	return "-" + k.Protocol.String()
}

// Stands reports whether a link is the one whose child SAs are up at all times.
func (p *Peer) Stands(k Link) bool { return p.Standing != 0 && k == p.standing() }

func (p *Peer) standing() Link { return Link{transport.ProtoTCP, p.Standing} }

// Carries reports whether a flow is one of the link, from the host that dials to
// the one that is dialled.
func (k Link) Carries(f transport.Flow, outgoing bool) bool {
	at := f.Local
	if outgoing {
		at = f.Remote
	}
	return f.Protocol == k.Protocol && at.Port() == k.Port
}

// AllLinks are the peer's links; by default it has one.
func (p *Peer) AllLinks() []Link {
	links := p.Links
	if len(links) == 0 {
		links = []Link{{transport.ProtoTCP, p.Port}}
	}
	if p.Standing != 0 {
		links = append(slices.Clone(links), p.standing())
	}
	return links
}

// Words name the link where it is clear that a port is meant.
func (k Link) Words() string {
	if k.Protocol == transport.ProtoTCP {
		return fmt.Sprintf("port %d", k.Port)
	}
	return k.String()
}

// Only returns the peer with the link of one of its children alone.
func (p *Peer) Only(child string) *Peer {
	for _, s := range p.ChildSAs() {
		if s.Name == child {
			q := *p
			q.Links, q.Standing = []Link{s.Link}, 0
			return &q
		}
	}
	return p
}

func (p *Peer) checkLinks() []error {
	if len(p.Links) == 0 && p.Port == 0 {
		return []error{errors.New("the port is missing")}
	}
	var faults []error
	if links := p.AllLinks(); p.Standing != 0 && slices.Contains(links[:len(links)-1], p.standing()) {
		faults = append(faults, fmt.Errorf("link %v: it has two uses", p.standing()))
	}
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
