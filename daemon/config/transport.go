package config

import (
	"fmt"
	"net/netip"
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

// Path is a further pair of addresses by which a peer is reached.
type Path struct {
	Address      netip.Addr // of the peer
	LocalAddress netip.Addr // of this host
}

// Links are the ports that packets of the peer's streams have on the wire, one for
// each of its carriers.
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

// Guarded are the links with an address that have a guard.
func (c *Config) Guarded(a netip.Addr) (links []pad.Link) {
	for _, p := range c.Peers {
		if p.Protection == ProtectIPsec && slices.Contains(p.Addresses(), a) {
			links = append(links, p.Links()...)
		}
	}
	return links
}

// Addresses are all of the peer's, the first one first.
func (p Peer) Addresses() []netip.Addr {
	out := []netip.Addr{p.Address}
	for _, q := range p.Paths {
		out = append(out, q.Address)
	}
	return out
}

// HasAddress reports whether an address is one of the peer's.
func (p Peer) HasAddress(a netip.Addr) bool {
	return p.Address == a || slices.ContainsFunc(p.Paths, func(q Path) bool { return q.Address == a })
}

// PathName is the name of the IKE connection of one of Addresses.
func (p Peer) PathName(i int) string {
	if i == 0 {
		return p.Name
	}
	return fmt.Sprintf("%s.path%d", p.Name, i+1)
}

// PathNames are those of all paths.
func (p Peer) PathNames() []string {
	var names []string
	for i := range p.Addresses() {
		names = append(names, p.PathName(i))
	}
	return names
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

// peerPaths reads paths, a list of mappings.
func (d *decoder) peerPaths(dst *[]Path) func(ast.Node) {
	return func(n ast.Node) {
		d.sequence(n, "paths", func(n ast.Node) {
			var p Path
			faults := len(d.errs)
			d.mapping(n, "a path", fields{
				"address":       d.addr("address", func(a netip.Addr) { p.Address = a }),
				"local_address": d.addr("local_address", func(a netip.Addr) { p.LocalAddress = a }),
			})
			if len(d.errs) > faults {
				return
			}
			if !p.Address.IsValid() || !p.LocalAddress.IsValid() {
				d.fail(n, "a path without address or local_address", "give both: the peer's further address, and the one of this host that reaches it")
				return
			}
			*dst = append(*dst, p)
		})
	}
}

// transportFault is fault for a peer's transport.
func (p *Peer) transportFault() (msg, fix string) {
	tcp := p.Transport.Has(transport.TCP)
	switch {
	case p.UDPPort != 0 && !p.Transport.Has(transport.SCTPUDP):
		return fmt.Sprintf("peer %s has udp_port and transport: %s", p.Name, p.Transport), "udp_port is for transport: sctp-udp and auto: remove it, or set one of them"
	case !p.CRC && !tcp:
		return fmt.Sprintf("peer %s has crc: off and transport: %s", p.Name, p.Transport), "remove crc: SCTP has a CRC32c of its own, which is always on (RFC 9260 section 6.8)"
	case !p.LargeFPDU && !tcp:
		return fmt.Sprintf("peer %s has fpdu: emss and transport: %s", p.Name, p.Transport), "remove fpdu: it is about TCP; over SCTP each segment fits a packet (RFC 5043 section 5)"
	}
	return p.pathsFault()
}

func (p *Peer) pathsFault() (msg, fix string) {
	switch {
	case len(p.Paths) == 0:
		return "", ""
	case p.Transport != TransportSCTP:
		return fmt.Sprintf("peer %s has paths and transport: %s", p.Name, p.Transport), "several addresses need the kernel's SCTP: set transport: sctp, or remove paths"
	case len(p.Paths) > MaxPaths:
		return fmt.Sprintf("peer %s has %d paths beside its first", p.Name, len(p.Paths)), fmt.Sprintf("allowed: up to %d", MaxPaths)
	case !p.LocalAddress.IsValid():
		return fmt.Sprintf("peer %s has paths but no local_address", p.Name), "add local_address: and the address of this host that reaches " + p.Address.String()
	case p.Gateway.IsValid():
		return fmt.Sprintf("peer %s has a gateway and paths", p.Name), "remove one of the two: a gateway is for one address"
	}
	remote, local := []netip.Addr{p.Address}, []netip.Addr{p.LocalAddress}
	for _, q := range p.Paths {
		switch {
		case q.Address.Is4() != q.LocalAddress.Is4():
			return fmt.Sprintf("peer %s mixes IPv4 and IPv6 in a path: address %s, local_address %s", p.Name, q.Address, q.LocalAddress), "use two addresses of one family"
		case q.Address.IsLoopback() != p.Address.IsLoopback():
			return fmt.Sprintf("peer %s is reached at %s and at %s, of which one is on this host", p.Name, p.Address, q.Address), "a peer is here or elsewhere"
		case slices.Contains(remote, q.Address):
			return fmt.Sprintf("peer %s has the address %s twice", p.Name, q.Address), "give each path addresses of its own, at both hosts"
		case slices.Contains(local, q.LocalAddress):
			return fmt.Sprintf("peer %s has the local_address %s twice", p.Name, q.LocalAddress), "give each path addresses of its own, at both hosts"
		}
		remote, local = append(remote, q.Address), append(local, q.LocalAddress)
	}
	return "", ""
}

// Locals are the declared addresses of this host at which a peer reaches it.
func (p Peer) Locals() []netip.Addr {
	var out []netip.Addr
	if p.LocalAddress.IsValid() {
		out = append(out, p.LocalAddress)
	}
	for _, q := range p.Paths {
		out = append(out, q.LocalAddress)
	}
	return out
}
