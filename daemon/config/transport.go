package config

import (
	"fmt"
	"slices"

	"github.com/goccy/go-yaml/ast"

	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/transport"
)

// Transport is what carries a peer's streams.
type Transport string

// The kinds of Transport.
const (
	TransportTCP     Transport = "tcp"
	TransportSCTP    Transport = "sctp"     // the kernel's
	TransportSCTPUDP Transport = "sctp-udp" // SCTP in UDP, which needs no support from the kernel
	TransportAuto    Transport = "auto"     // the fastest that both hosts have
)

// Transports are the words for a Transport.
func Transports() []string {
	return []string{string(TransportTCP), string(TransportSCTP), string(TransportSCTPUDP), string(TransportAuto)}
}

// Kinds are the carriers that streams of a peer may have. TransportAuto asks over
// the first.
func (t Transport) Kinds() []transport.Kind {
	switch t {
	case TransportSCTP:
		return []transport.Kind{transport.SCTP}
	case TransportSCTPUDP:
		return []transport.Kind{transport.SCTPUDP}
	case TransportAuto:
		return []transport.Kind{transport.TCP, transport.SCTP, transport.SCTPUDP}
	}
	return []transport.Kind{transport.TCP}
}

// Has reports whether streams of a peer may have a carrier.
func (t Transport) Has(k transport.Kind) bool { return slices.Contains(t.Kinds(), k) }

// Links are the ports that packets of the peer's streams have on the wire by its first path,
// one for each of its carriers.
func (p Peer) Links() []pad.Link {
	var links []pad.Link
	for _, k := range p.Transport.Kinds() {
		port := p.Port
		if k == transport.SCTPUDP {
			port = p.UDPPort
		}
		links = append(links, pad.Link{Protocol: k.Protocol(), Port: port})
	}
	return links
}

// udpPort reads a UDP port for SCTP.
func (d *decoder) udpPort(set func(uint64)) func(ast.Node) {
	return func(n ast.Node) {
		d.integer("udp_port", 1, 65535, func(v uint64) {
			if err := CheckUDPPort(uint16(v)); err != nil {
				d.fail(n, fmt.Sprintf("udp_port %v", err), "")
				return
			}
			set(v)
		})(n)
	}
}

// CheckUDPPort fails if SCTP in UDP cannot have a port. The error is the reason.
func CheckUDPPort(port uint16) error {
	if port == 500 || port == 4500 {
		return fmt.Errorf("is %d, which is IKE's own; %d is the usual one", port, DefaultUDPPort)
	}
	return nil
}

// transportFault is fault for a peer's transport.
func (p *Peer) transportFault() (msg, fix string) {
	tcp := p.has(transport.TCP)
	switch {
	case p.UDPPort != 0 && !p.has(transport.SCTPUDP):
		return fmt.Sprintf("peer %s has udp_port and transport: %s", p.Name, p.Transport), "udp_port is for transport: sctp-udp and auto: remove it, or set one of them"
	case !p.CRC && !tcp:
		return fmt.Sprintf("peer %s has crc: off and transport: %s", p.Name, p.Transport), "remove crc: SCTP has a CRC32c of its own, which is always on (RFC 9260 section 6.8)"
	case !p.LargeFPDU && !tcp:
		return fmt.Sprintf("peer %s has fpdu: emss and transport: %s", p.Name, p.Transport), "remove fpdu: it is about TCP; over SCTP each segment fits a packet (RFC 5043 section 5)"
	}
	return p.addressesFault()
}
