package transport

import (
	"fmt"
	"net/netip"
)

// Protocol is the number of a transport protocol, as in the IP header where it
// has one of its own.
type Protocol uint8

// The protocols that carry RDMA streams.
const (
	ProtoTCP  Protocol = 6   // RFC 5044
	ProtoUDP  Protocol = 17  // SCTP encapsulated in UDP, RFC 6951
	ProtoSCTP Protocol = 132 // RFC 5043
)

func (p Protocol) String() string {
	switch p {
	case ProtoTCP:
		return "tcp"
	case ProtoUDP:
		return "udp"
	case ProtoSCTP:
		return "sctp"
	}
	return fmt.Sprintf("protocol %d", uint8(p))
}

// Flow names the packets of one stream, both directions: the unit of protection. IPv4
// addresses are always in their 4-byte form. Before an outgoing flow starts, its local
// address may be invalid and its local port 0.
type Flow struct {
	Protocol      Protocol
	Local, Remote netip.AddrPort
}

// String returns the flow as "tcp 192.0.2.1:40000 -> 192.0.2.2:7471". An unknown local
// address is a star; an unknown remote one is left out.
func (f Flow) String() string {
	local := "*"
	if f.Local.IsValid() {
		local = f.Local.String()
	}
	if !f.Remote.IsValid() {
		return fmt.Sprintf("%s %s", f.Protocol, local)
	}
	return fmt.Sprintf("%s %s -> %s", f.Protocol, local, f.Remote)
}

// Identity is what the key exchange authenticated the peer as ("fqdn:beta",
// an address, a distinguished name). It is never an address or a name that
// the peer merely claims.
type Identity string
