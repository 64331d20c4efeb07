package charon

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/ironwarp/ironwarp/transport"
)

// Selector is a traffic selector (RFC 7296 section 3.13.1): a range of
// addresses, a protocol and a range of ports.
type Selector struct {
	From, To         netip.Addr
	Protocol         transport.Protocol // 0: any
	PortFrom, PortTo uint16             // 0 and 65535: any
}

// HostSelector is the selector of one host's port; port 0 is any port.
func HostSelector(a netip.Addr, p transport.Protocol, port uint16) Selector {
	s := Selector{From: a, To: a, Protocol: p, PortFrom: port, PortTo: port}
	if port == 0 {
		s.PortTo = 65535
	}
	return s
}

// Covers reports whether packets of that protocol with that address and port
// fall into the selector.
func (s Selector) Covers(p transport.Protocol, at netip.AddrPort) bool {
	a := at.Addr().Unmap().WithZone("")
	return s.From.IsValid() && a.IsValid() && a.BitLen() == s.From.BitLen() &&
		s.From.Compare(a) <= 0 && a.Compare(s.To) <= 0 &&
		(s.Protocol == 0 || s.Protocol == p) &&
		s.PortFrom <= at.Port() && at.Port() <= s.PortTo
}

// Contains reports whether every packet of o falls into the selector.
func (s Selector) Contains(o Selector) bool {
	return s.From.IsValid() && o.From.IsValid() && s.From.BitLen() == o.From.BitLen() &&
		s.From.Compare(o.From) <= 0 && o.To.Compare(s.To) <= 0 &&
		(s.Protocol == 0 || s.Protocol == o.Protocol) &&
		s.PortFrom <= o.PortFrom && o.PortTo <= s.PortTo
}

// AnyContains reports whether every packet of o falls into one of the selectors.
func AnyContains(sels []Selector, o Selector) bool {
	return slices.ContainsFunc(sels, func(s Selector) bool { return s.Contains(o) })
}

// Overlap reports whether some packet falls into one of the selectors and into o.
func Overlap(sels []Selector, o Selector) bool {
	for _, s := range sels {
		if s.From.IsValid() && o.From.IsValid() && s.From.BitLen() == o.From.BitLen() &&
			s.From.Compare(o.To) <= 0 && o.From.Compare(s.To) <= 0 &&
			(s.Protocol == 0 || o.Protocol == 0 || s.Protocol == o.Protocol) &&
			s.PortFrom <= o.PortTo && o.PortFrom <= s.PortTo {
			return true
		}
	}
	return false
}

// HasPort reports whether the port is one of the selector's.
func (s Selector) HasPort(port uint16) bool { return s.PortFrom <= port && port <= s.PortTo }

// SingleHost reports whether the selector names one address (RFC 3723 2.3.3:
// Phase 2 identities should carry a single address).
func (s Selector) SingleHost() bool { return s.From == s.To }

// AnyPort reports whether all ports are.
func (s Selector) AnyPort() bool { return s.PortFrom == 0 && s.PortTo == 65535 }

// String writes the selector as strongSwan lists it, "192.0.2.1/32[tcp/7471]".
func (s Selector) String() string {
	switch s.Protocol {
	case 0:
		return s.text("any")
	case transport.ProtoTCP, transport.ProtoUDP, transport.ProtoSCTP:
		return s.text(s.Protocol.String())
	}
	return s.Numeric()
}

// Numeric writes the selector as strongSwan reads it where it has no /etc/protocols
// to look names up, "192.0.2.1/32[6/7471]".
func (s Selector) Numeric() string {
	if s.Protocol == 0 {
		return s.text("any") // strongSwan's own word
	}
	return s.text(strconv.Itoa(int(s.Protocol)))
}

func (s Selector) text(proto string) string {
	addr := s.From.String() + "-" + s.To.String()
	if s.SingleHost() {
		addr = netip.PrefixFrom(s.From, s.From.BitLen()).String()
	} else if p, ok := asPrefix(s.From, s.To); ok {
		addr = p.String()
	}
	if s.Protocol == 0 && s.AnyPort() {
		return addr
	}
	switch {
	case s.AnyPort():
	case s.PortFrom == s.PortTo:
		proto += "/" + strconv.Itoa(int(s.PortFrom))
	default:
		proto += fmt.Sprintf("/%d-%d", s.PortFrom, s.PortTo)
	}
	return addr + "[" + proto + "]"
}

// MarshalText writes the selector as String does. It does not fail.
func (s Selector) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText and strongSwan write. It fails as ParseSelector
// does.
func (s *Selector) UnmarshalText(b []byte) (err error) {
	*s, err = ParseSelector(string(b))
	return err
}

// ParseSelector reads a selector as strongSwan writes it: an address, a prefix or a
// range of addresses, then perhaps a protocol and a port in brackets, both as numbers
// or as the names in /etc/services and /etc/protocols. It fails at any other text.
func ParseSelector(text string) (Selector, error) {
	bad := func(why string) (Selector, error) {
		return Selector{}, fmt.Errorf("traffic selector %q: %s", text, why)
	}
	addr, rest, bracket := strings.Cut(text, "[")
	s := Selector{PortTo: 65535}
	if bracket {
		inside, tail, closed := strings.Cut(rest, "]")
		if !closed || tail != "" {
			return bad("the bracket is not closed")
		}
		proto, port, hasPort := strings.Cut(inside, "/")
		var ok bool
		if s.Protocol, ok = parseProtocol(proto); !ok {
			return bad("unknown protocol")
		}
		if hasPort {
			if s.PortFrom, s.PortTo, ok = parsePorts(s.Protocol, port); !ok {
				return bad("the port is no number, and no service's name in this machine's /etc/services: apt-get install netbase")
			}
		}
	}
	var ok bool
	if s.From, s.To, ok = parseAddrs(addr); !ok {
		return bad("no address, prefix or range")
	}
	return s, nil
}

func parseProtocol(s string) (transport.Protocol, bool) {
	switch s {
	case "tcp":
		return transport.ProtoTCP, true
	case "udp":
		return transport.ProtoUDP, true
	case "sctp":
		return transport.ProtoSCTP, true
	case "icmp":
		return 1, true
	case "ipv6-icmp":
		return 58, true
	case "", "any", "0":
		return 0, true
	}
	n, err := strconv.ParseUint(s, 10, 8)
	return transport.Protocol(n), err == nil
}

func parsePorts(p transport.Protocol, s string) (from, to uint16, ok bool) {
	if s == "any" {
		return 0, 65535, true
	}
	// strongSwan writes the name of a service where it finds one, and names may
	// contain a hyphen.
	if n, err := strconv.ParseUint(s, 10, 16); err == nil {
		return uint16(n), uint16(n), true
	}
	lo, hi, isRange := strings.Cut(s, "-")
	if isRange {
		a, err1 := strconv.ParseUint(lo, 10, 16)
		b, err2 := strconv.ParseUint(hi, 10, 16)
		if err1 == nil && err2 == nil {
			return uint16(a), uint16(b), a <= b
		}
	}
	network := p.String()
	if p != transport.ProtoTCP && p != transport.ProtoUDP {
		network = "tcp"
	}
	n, err := (&net.Resolver{PreferGo: true}).LookupPort(context.Background(), network, s)
	return uint16(n), uint16(n), err == nil && n > 0
}

func parseAddrs(s string) (from, to netip.Addr, ok bool) {
	if p, err := netip.ParsePrefix(s); err == nil {
		return p.Masked().Addr(), lastOf(p), p.Masked().Addr() == p.Addr()
	}
	if a, err := netip.ParseAddr(s); err == nil {
		return a, a, a.Zone() == ""
	}
	lo, hi, found := strings.Cut(s, "..")
	if !found {
		lo, hi, found = strings.Cut(s, "-")
	}
	a, err1 := netip.ParseAddr(lo)
	b, err2 := netip.ParseAddr(hi)
	return a, b, found && err1 == nil && err2 == nil && a.BitLen() == b.BitLen() && a.Compare(b) <= 0
}

func lastOf(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

func asPrefix(from, to netip.Addr) (netip.Prefix, bool) {
	for bits := from.BitLen(); bits >= 0; bits-- {
		p := netip.PrefixFrom(from, bits)
		if p.Masked().Addr() == from && lastOf(p) == to {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

// Covers reports whether a child with these selectors carries the flow.
func Covers(local, remote []Selector, f transport.Flow) bool {
	return anyCovers(local, f.Protocol, f.Local) && anyCovers(remote, f.Protocol, f.Remote)
}

func anyCovers(sels []Selector, p transport.Protocol, at netip.AddrPort) bool {
	return slices.ContainsFunc(sels, func(s Selector) bool { return s.Covers(p, at) })
}
