package pad

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ironwarp/ironwarp/transport"
)

// ikePort and natPort are the UDP ports of IKE and of ESP in UDP (RFC 7296 2, RFC
// 3948 2.1), which no link may have.
const (
	ikePort = 500
	natPort = 4500
)

// Link is a port of a peer that carries streams, or a block of ports: each has a guard
// and child SAs of its own.
type Link struct {
	Protocol transport.Protocol // TCP, UDP (SCTP in UDP, RFC 6951) or SCTP
	Port     uint16             // the same on both hosts; of a block the first
	// Size is how many ports the block has: a power of two, of which Port is a multiple, so that a
	// kernel's selector (port and mask) expresses it. 0, and 1 before Normal: it is Port alone.
	Size uint16
}

// Normal is the link as others are compared with it.
func (k Link) Normal() Link {
	if k.Size == 1 {
		k.Size = 0
	}
	return k
}

// IsBlock reports whether the link has several ports.
func (k Link) IsBlock() bool { return k.Size > 1 }

// Last is the link's highest port.
func (k Link) Last() uint16 { return k.Port + max(k.Size, 1) - 1 }

// Has reports whether a port is one of the link.
func (k Link) Has(port uint16) bool { return k.Port <= port && port <= k.Last() }

// Overlaps reports whether two links have a port in common.
func (k Link) Overlaps(o Link) bool {
	return k.Protocol == o.Protocol && (k.Has(o.Port) || o.Has(k.Port))
}

func (k Link) String() string {
	if k.IsBlock() {
		return fmt.Sprintf("%v ports %d-%d", k.Protocol, k.Port, k.Last())
	}
	return fmt.Sprintf("%v port %d", k.Protocol, k.Port)
}

// suffix distinguishes a link's child SAs from those of the peer's TCP link.
func (p *Peer) suffix(k Link) string {
	switch {
	case p.Stands(k), k.IsBlock(), slices.Contains(p.Blocks, k):
		return fmt.Sprintf("-%v%d", k.Protocol, k.Port)
	case k.Protocol == transport.ProtoTCP:
		return ""
	}
	return "-" + k.Protocol.String()
}

// Stands reports whether a link is the one whose child SAs are up at all times.
func (p *Peer) Stands(k Link) bool { return p.Standing != 0 && k == p.standing() }

func (p *Peer) standing() Link { return Link{Protocol: transport.ProtoTCP, Port: p.Standing} }

// Carries reports whether a flow is one of the link, from the host that dials to
// the one that is dialled.
func (k Link) Carries(f transport.Flow, outgoing bool) bool {
	at := f.Local
	if outgoing {
		at = f.Remote
	}
	return f.Protocol == k.Protocol && k.Has(at.Port())
}

// AllLinks are the peer's links; by default it has one.
func (p *Peer) AllLinks() []Link {
	links := p.Links
	if len(links) == 0 {
		links = []Link{{Protocol: transport.ProtoTCP, Port: p.Port}}
	}
	if p.Standing != 0 {
		links = append(slices.Clone(links), p.standing())
	}
	return slices.Concat(links, p.Blocks)
}

// Words name the link where it is clear that a port is meant.
func (k Link) Words() string {
	if k.Protocol == transport.ProtoTCP {
		return strings.TrimPrefix(k.String(), k.Protocol.String()+" ")
	}
	return k.String()
}

// Only returns the peer with the link of one of its children alone.
func (p *Peer) Only(child string) *Peer {
	for _, s := range p.ChildSAs() {
		if s.Name == child {
			q := *p
			q.Links, q.Standing, q.Blocks = []Link{s.Link}, 0, nil
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
	all := p.AllLinks()
	for i, k := range all {
		ordinary := i < len(p.Links)
		switch {
		case k.Protocol != transport.ProtoTCP && k.Protocol != transport.ProtoUDP && k.Protocol != transport.ProtoSCTP:
			faults = append(faults, fmt.Errorf("link %v: tcp, udp and sctp are possible", k))
		case k.Port == 0:
			faults = append(faults, fmt.Errorf("link %v: the port is missing", k.Protocol))
		case k.Size&(k.Size-1) != 0 || k.IsBlock() && k.Port%k.Size != 0:
			faults = append(faults, fmt.Errorf("link %v: a block has a power of two of ports, and begins at a multiple of that", k))
		case k.IsBlock() && p.Profile.Version == 1:
			faults = append(faults, fmt.Errorf("link %v: IKEv1's selectors have no port ranges (RFC 2407 4.6.2): use IKEv2", k))
		case k.Protocol == transport.ProtoUDP && (k.Has(ikePort) || k.Has(natPort)):
			faults = append(faults, fmt.Errorf("link %v: IKE and ESP have UDP ports %d and %d (RFC 7296 2, RFC 3948 2.1)", k, ikePort, natPort))
		case slices.ContainsFunc(all[:i], k.Overlaps):
			faults = append(faults, fmt.Errorf("link %v: it has two uses", k))
		case ordinary && !k.IsBlock() && slices.ContainsFunc(p.Links[:i], func(o Link) bool { return o.Protocol == k.Protocol && !o.IsBlock() }):
			faults = append(faults, fmt.Errorf("link %v: there is another one of that protocol", k))
		}
	}
	return faults
}
