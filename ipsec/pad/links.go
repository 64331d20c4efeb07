package pad

import (
	"errors"
	"fmt"
	"regexp"
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
	// Name is that of the partition whose link it is, and names its child SAs: NAME-out-PARTITION. "": they are
	// named after the protocol and the port.
	Name string
	// Label is the security label that IKE negotiates for the link's child SAs (RFC 9478): both hosts must have
	// the same. "": none is negotiated, and a child with one is not the link's.
	Label string
	// Standing keeps the link's SAs up at all times, one per direction, as those of Peer.Standing.
	Standing bool
}

// SamePorts reports whether two links are of the same protocol and ports, whatever is negotiated for them.
func (k Link) SamePorts(o Link) bool {
	return k.Protocol == o.Protocol && k.Port == o.Port && max(k.Size, 1) == max(o.Size, 1)
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
	of := ""
	if k.Name != "" {
		of = " of partition " + k.Name
	}
	if k.IsBlock() {
		return fmt.Sprintf("%v ports %d-%d%s", k.Protocol, k.Port, k.Last(), of)
	}
	return fmt.Sprintf("%v port %d%s", k.Protocol, k.Port, of)
}

// MaxLabel bounds a security label, in bytes: strongSwan's VICI takes 511, and a policy's contexts are far shorter.
const MaxLabel = 255

// ErrLabelIKEv1 means that a link with a label is to have SAs of IKEv1, which negotiates none: an initiator would get an SA
// that strongSwan shows with the label, and of which the peer knows nothing.
var ErrLabelIKEv1 = errors.New("IKEv1 negotiates no security labels: use a profile with IKEv2")

// linkName is what child SAs can be named after, and protocolName what they are named after without: -udp, -tcp18432.
var (
	linkName     = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]{0,30}$`)
	protocolName = regexp.MustCompile(`^(tcp|udp|sctp)[0-9]*$`)
)

// CheckLabel fails if a text cannot be a security label: 1 to MaxLabel printable characters of ASCII without a space, as a
// context of SELinux has, user:role:type or user:role:type:range. The error is the reason.
func CheckLabel(s string) error {
	switch {
	case s == "":
		return errors.New("is empty")
	case len(s) > MaxLabel:
		return fmt.Errorf("has %d bytes; %d are possible", len(s), MaxLabel)
	case strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }):
		return errors.New("has a character that is no printable one of ASCII, or a space")
	}
	return nil
}

// CheckLinkName fails if a text cannot name a partition's link. The error is the reason.
func CheckLinkName(s string) error {
	if protocolName.MatchString(s) || !linkName.MatchString(s) {
		return errors.New("is no name of a partition: such a one is a letter and up to 30 letters, digits and underscores, and not tcp, udp or sctp with or without a number")
	}
	return nil
}

// suffix distinguishes a link's child SAs from those of the peer's TCP link.
func (p *Peer) suffix(k Link) string {
	switch {
	case k.Name != "" && k.Protocol == transport.ProtoTCP:
		return "-" + k.Name
	case k.Name != "":
		return "-" + k.Name + "-" + k.Protocol.String()
	case p.Stands(k), k.IsBlock(), slices.Contains(p.Blocks, k):
		return fmt.Sprintf("-%v%d", k.Protocol, k.Port)
	case k.Protocol == transport.ProtoTCP:
		return ""
	}
	return "-" + k.Protocol.String()
}

// Stands reports whether a link is one whose child SAs are up at all times.
func (p *Peer) Stands(k Link) bool { return k.Standing || p.Standing != 0 && k == p.standing() }

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
		if err := p.checkLabelled(k); err != nil {
			faults = append(faults, fmt.Errorf("link %v: %w", k, err))
		}
	}
	return faults
}

// checkLabelled fails if a link cannot have its name or its label.
func (p *Peer) checkLabelled(k Link) error {
	if k.Name != "" {
		if err := CheckLinkName(k.Name); err != nil {
			return fmt.Errorf("%q %w", k.Name, err)
		}
	}
	if k.Label == "" {
		return nil
	}
	if err := CheckLabel(k.Label); err != nil {
		return fmt.Errorf("the label %q %w", k.Label, err)
	}
	if p.Profile.Version == 1 {
		return ErrLabelIKEv1
	}
	return nil
}
