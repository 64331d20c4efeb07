package lab

import (
	"fmt"
	"slices"

	"github.com/ironwarp/ironwarp/transport"
)

// Kind is what a packet outside ESP and IKE was.
type Kind struct {
	What   string // "ARP", "TCP port 7471", "ICMP type 3 code 3"
	Quotes string // the kind of packet that an ICMP error quotes, "" for other packets
}

func (k Kind) String() string {
	if k.Quotes == "" {
		return k.What
	}
	return k.What + " quoting " + k.Quotes
}

// What any host sends on a wire. All of it comes from the kernel and has no payload.
const (
	kindARP       = "ARP"
	kindNeighbour = "neighbour discovery" // RFC 4861, without redirects
	kindMLD       = "multicast listener"  // RFC 3810
	kindIGMP      = "IGMP"

	kindESP = "ESP"
	kindIKE = "IKE"
)

// harmless are the kinds that every test permits. An ICMP error that quotes ESP or IKE
// reveals nothing that was not on the wire before.
var harmless = []string{kindARP, kindNeighbour, kindMLD, kindIGMP, kindESP, kindIKE}

// PortKind is the kind of packets in clear of a port of TCP, UDP or SCTP.
func PortKind(proto transport.Protocol, port uint16) string {
	return fmt.Sprintf("%v port %d", proto, port)
}

// known reports whether a capture may have a kind. Where a packet is permitted, an
// error that quotes it is, too.
func (k Kind) known(allow []string) bool {
	what := k.What
	if k.Quotes != "" {
		what = k.Quotes
	}
	return slices.Contains(harmless, what) || slices.Contains(allow, what)
}

func (k Kind) ofESP() bool { return k.What == kindESP || k.Quotes == kindESP }

// icmpKind reads an ICMP message of either version. quote is what an error quotes
// (RFC 792; RFC 4443 2.1): an IP packet, which may be cut.
func icmpKind(p ipPacket) (what string, quote []byte) {
	name := "ICMP"
	if p.proto == protoICMP6 {
		name = "ICMPv6"
	}
	switch {
	case p.later:
		return name + " fragment", nil
	case len(p.payload) < 2:
		return name + " without a type", nil
	}
	kind, code := p.payload[0], p.payload[1]
	what = fmt.Sprintf("%s type %d code %d", name, kind, code)
	fault := kind < 128
	if p.proto == protoICMP {
		fault = slices.Contains([]uint8{3, 4, 5, 11, 12}, kind)
	} else {
		switch kind {
		case 130, 131, 132, 143:
			what = kindMLD
		case 133, 134, 135, 136:
			what = kindNeighbour
		}
	}
	if fault {
		quote = p.payload[min(8, len(p.payload)):]
	}
	return what, quote
}
