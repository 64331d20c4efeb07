package sctp

import (
	"fmt"
	"net/netip"

	"github.com/ironwarp/ironwarp/transport/assoc"
)

// Config configures an Endpoint's associations. The zero value is useful, but admits and
// accepts nobody. Config is never modified.
type Config struct {
	assoc.Params

	// Admit decides between which UDP addresses packets are exchanged: before the first
	// packet of an outgoing association, and before a packet from an address without an
	// association is looked at. local is the address that the packet came to; if
	// outgoing, it is the socket's, which may be unspecified. An error blocks the packet,
	// silently if it is incoming. Admit is called by the goroutine that reads the socket
	// and must not block. Nil admits nobody.
	Admit func(local, remote netip.AddrPort, outgoing bool) error

	// Accept makes the Receiver of an association that a peer sets up. It is called by
	// the goroutine that reads the socket and must not block. The association is then
	// returned by Endpoint.Accept. If Accept is nil, peers may set up none.
	Accept func(*Assoc) assoc.Receiver

	// Port is the SCTP port for associations that peers set up, 0 for 9899. It is not the
	// UDP port.
	Port uint16

	// MTU is the longest IP packet in bytes that is tried, 640 to 65,535; 0 for the
	// route's MTU, up to 9,000. The path's MTU is discovered (RFC 8899), starting at 640;
	// MaxMessage follows it.
	MTU int

	// RecvWindow is the receive window of each association in bytes: how much the peer
	// may send before the Receiver releases it. 0 derives it from the socket's buffer.
	RecvWindow int

	// SendBuffer bounds what each association has queued and in flight, in bytes, 0 for 4
	// MiB.
	SendBuffer int

	// NoOffload avoids UDP_SEGMENT and UDP_GRO even if the kernel has them.
	NoOffload bool
}

func (c *Config) port() uint16 { return or(c.Port, DefaultPort) }

func or[T int | uint16](v, otherwise T) T {
	if v > 0 {
		return v
	}
	return otherwise
}

// settings returns the settings of an association with remote, without tags and ports.
// route is the MTU of the route, 0 if unknown.
func (c *Config) settings(remote netip.Addr, window, route int) settings {
	s := settings{
		Params:     c.Params.Filled(),
		window:     window,
		sendBuffer: or(c.SendBuffer, assoc.DefaultBuffer),
		v6:         remote.Is6() && !remote.Is4In6(),
		control:    newStandard,
	}
	s.overhead = udpHeaderLen + ipv4HeaderLen
	if s.v6 {
		s.overhead = udpHeaderLen + ipv6HeaderLen
	}
	mtu := min(or(c.MTU, longestMTU), max(or(route, DefaultMTU), minMTU))
	s.mostSize = s.packetSize(or(c.MTU, longestMTU))
	s.maxSize = s.packetSize(mtu)
	s.safeSize = s.packetSize(min(mtu, safeMTU))
	s.minSize = s.packetSize(minMTU)
	s.size = s.minSize
	return s
}

// packetSize returns the longest SCTP packet in an IP packet of mtu bytes.
func (s *settings) packetSize(mtu int) int { return (mtu - s.overhead) &^ 3 }

func (c *Config) check() error {
	if c.MTU != 0 && (c.MTU < minMTU || c.MTU > maxMTU) {
		return fmt.Errorf("sctp: MTU %d: want %d to %d", c.MTU, minMTU, maxMTU)
	}
	if c.RecvWindow != 0 && c.RecvWindow < or(c.MTU, DefaultMTU) {
		return fmt.Errorf("sctp: RecvWindow %d is less than a packet", c.RecvWindow)
	}
	if c.RecvWindow > maxRecvWindow {
		return fmt.Errorf("sctp: RecvWindow %d: at most %d", c.RecvWindow, maxRecvWindow)
	}
	return nil
}
