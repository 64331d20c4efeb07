package guard

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/transport"
)

// Spec names what a guard protects: the clear traffic of one port, or of one block of
// ports, with one peer, both directions, both roles (local port and remote port).
//
// The block policies name no device and no local address, so that no change of
// routing, device or address opens a way around them. What may pass is named
// by policies of a better priority:
//
//   - kernel ESP: charon's own policies, which require ESP. Their priority is
//     fixed by the child's configuration (esp.ChildPriority), since the numbers that
//     strongSwan computes are worse than the block's.
//   - userland ESP: an allow policy bound to the tun of kernel-libipsec, towards
//     which clear packets go to be encrypted; it names the device by its index,
//     and so dies with that device. In IPv6, where outbound policies cannot be
//     bound to a device, routing rules stand in their place: the port's packets
//     have a way into the tun, or none.
//
// Beside that, no ICMP message leaves the host that quotes a packet of the link: a
// kernel answers by these to what ESP has brought and nobody takes, and they are
// of no port. That is rules of nf_tables, which look at the quote.
//
// All of it lives in the kernel, and stays when this process or charon is killed.
type Spec struct {
	NetNS     string             // path of a network namespace; "": our own
	Remote    netip.Addr         // the peer
	Port      uint16             // the link's port; of a block the first
	Size      uint16             // ports of the block: a power of two that Port is a multiple of; 0 and 1: Port alone
	Protocol  transport.Protocol // default: TCP
	DataPlane esp.Plane          // esp.Auto: the block alone, nothing may pass yet
	// Tun is the device of userland ESP; "" is every tun device named ipsecN.
	Tun string
}

// ErrNoIPv6 means that this kernel lacks what a guard needs to tell the tun of
// userland ESP from the wire in IPv6.
var ErrNoIPv6 = errors.New("IPv6 cannot be guarded with userland ESP on this kernel, which lacks the ingress filter (CONFIG_NET_SCH_INGRESS, CONFIG_NET_CLS_BPF); use IPv4, or a kernel with ESP (CONFIG_INET6_ESP)")

func (g Spec) String() string {
	if g.Size > 1 {
		return fmt.Sprintf("%v ports %d-%d with %v", g.protocol(), g.Port, g.last(), g.Remote)
	}
	return fmt.Sprintf("%v port %d with %v", g.protocol(), g.Port, g.Remote)
}

// last is the highest port of the link.
func (g Spec) last() uint16 { return g.Port + max(g.Size, 1) - 1 }

func (g Spec) hasPort(port uint16) bool { return g.Port <= port && port <= g.last() }

// wellKnownNAT64 begins the addresses that IPv6 has for IPv4 hosts (RFC 6052
// section 2.1).
var wellKnownNAT64 = netip.MustParsePrefix("64:ff9b::/96")

// Addresses are those by which the peer's address is known in packets, itself
// first: an IPv4 host is reached over IPv6 by a translator (RFC 6052). Sockets that
// have its IPv4-mapped address (RFC 4291 section 2.5.5.2) send IPv4. Other
// addresses of the same machine are no addresses of the peer: nothing is dialled
// there, and a flow from there is of an unknown peer.
func (g Spec) Addresses() []netip.Addr {
	if !g.Remote.Is4() {
		if wellKnownNAT64.Contains(g.Remote) {
			b := g.Remote.As16()
			return []netip.Addr{g.Remote, netip.AddrFrom4([4]byte(b[12:]))}
		}
		return []netip.Addr{g.Remote}
	}
	b := wellKnownNAT64.Addr().As16()
	v4 := g.Remote.As4()
	copy(b[12:], v4[:])
	return []netip.Addr{g.Remote, netip.AddrFrom16(b)}
}

func (g Spec) protocol() transport.Protocol {
	if g.Protocol == 0 {
		return transport.ProtoTCP
	}
	return g.Protocol
}

func (g Spec) validate() error {
	switch {
	case !g.Remote.IsValid() || g.Remote.IsUnspecified() || g.Remote.Is4In6() || g.Remote.Zone() != "":
		return fmt.Errorf("guard: %q is no address of a peer", g.Remote)
	case g.Port == 0:
		return errors.New("guard: the port is missing")
	case g.Size&(g.Size-1) != 0 || g.Size > 1 && g.Port%g.Size != 0:
		return fmt.Errorf("guard: %d ports from %d on are no block: a power of two, and aligned to it", g.Size, g.Port)
	}
	return nil
}

// blockPriority is the XFRM priority of the block policies. It is better than
// anything strongSwan computes by itself, so that no bypass policy of another
// connection opens a hole, and worse than that of our children (esp.ChildPriority), which
// the policies that let the tun of userland ESP pass have as well.
const blockPriority = 2000

// Policy is a policy of a guard that was found in the kernel.
type Policy struct {
	Direction string             `json:"direction"` // in, out, fwd
	Action    string             `json:"action"`    // block, allow
	Remote    netip.Addr         `json:"remote"`
	Protocol  transport.Protocol `json:"protocol"`
	LocalPort uint16             `json:"local_port,omitempty"`
	PeerPort  uint16             `json:"peer_port,omitempty"`
	Size      uint16             `json:"size,omitempty"` // of a block, of which that is the first port
	Device    string             `json:"device,omitempty"`
	Mark      uint32             `json:"mark,omitempty"`
	Priority  int                `json:"priority,omitempty"`
	Rule      int                `json:"rule,omitempty"` // preference of the routing rule that it is
}

// StopsICMP reports whether a policy is one of those that stop ICMP errors, of the type
// that LocalPort has, on a kernel that cannot see what they quote.
func (p Policy) StopsICMP() bool { return p.Protocol == protoICMP || p.Protocol == protoICMP6 }

const (
	protoICMP  = 1
	protoICMP6 = 58
)

func (p Policy) String() string {
	s := fmt.Sprintf("%-3s %-5s %v with %v", p.Direction, p.Action, p.Protocol, p.Remote)
	if p.StopsICMP() {
		return fmt.Sprintf("%-3s %-5s ICMP errors of type %d to %v", p.Direction, p.Action, p.LocalPort, p.Remote)
	}
	ports := func(of string, first uint16) {
		switch {
		case first != 0 && p.Size > 1:
			s += fmt.Sprintf(", %s port %d-%d", of, first, first+p.Size-1)
		case first != 0:
			s += fmt.Sprintf(", %s port %d", of, first)
		}
	}
	ports("local", p.LocalPort)
	ports("remote", p.PeerPort)
	if p.Device != "" {
		s += ", dev " + p.Device
	}
	if p.Rule != 0 {
		s += fmt.Sprintf(", routing rule %d", p.Rule)
	}
	if p.Mark != 0 {
		s += fmt.Sprintf(", mark %#x", p.Mark)
	}
	return s
}

// Hole is a way around a guard, or a fault of it.
type Hole struct {
	Spec Spec   `json:"-"`
	What string `json:"what"`
	Fix  string `json:"fix"`
	// Shut means that nothing gets out by it: the link's own packets are stopped,
	// or led astray.
	Shut bool `json:"shut,omitempty"`
}

func (h Hole) String() string { return h.What + "; " + h.Fix }
