package sctp

import (
	"fmt"
	"net/netip"
	"time"
)

// Config says how an Endpoint's associations are. The zero value is useful, but
// admits and accepts nobody. It is read only.
type Config struct {
	// Admit says between which UDP addresses packets are exchanged: before the first
	// packet of an outgoing association, and before anything from an address that
	// has no association is looked at. local is the address that the packet came
	// to; if outgoing it is the socket's, which may be unspecified. An error keeps
	// the packet out, silently if it came from outside. Admit is called by the
	// goroutine that reads the socket and must not block. Nil admits nobody.
	Admit func(local, remote netip.AddrPort, outgoing bool) error

	// Accept makes the Receiver of an association that a peer sets up, called by
	// the goroutine that reads the socket; it must not block. Afterwards the
	// association comes from Endpoint.Accept. Nil: peers may set up none.
	Accept func(*Assoc) Receiver

	// Port is the SCTP port that peers set up associations with, 0 for 9899. It is
	// not the UDP port.
	Port uint16

	// Adaptation is the Adaptation Layer Indication that is sent and demanded of the
	// peer (RFC 5061 section 4.2.6; 0x00000001 is DDP's, RFC 5043), 0 for none.
	Adaptation uint32

	// Streams is how many streams are asked for and allowed, in each direction,
	// 0 for 1,024 (RFC 5043 section 8).
	Streams uint16

	// MTU is the longest IP packet in bytes that is tried, 640 to 65,535, 0 for that
	// of the route, up to 9,000. What the path carries is found out (RFC 8899),
	// beginning with 640; MaxMessage follows.
	MTU int

	// RecvWindow is the receive window of each association in bytes: how much the
	// peer may send before the Receiver has released it. 0 fits it to the
	// socket's buffer.
	RecvWindow int

	// SendBuffer bounds what is queued and in flight, in bytes, for each
	// association, 0 for 4 MiB.
	SendBuffer int

	// Backlog bounds the associations that wait for Accept, 0 for 128.
	Backlog int

	// RTOInitial, RTOMin and RTOMax bound the retransmission timeout (RFC 9260
	// section 6.3.1), 0 for 1 s, 250 ms and 60 s.
	RTOInitial, RTOMin, RTOMax time.Duration

	// Heartbeat is HB.interval, 0 for 30 s, negative for none (RFC 9260 section
	// 8.3).
	Heartbeat time.Duration

	// DeadAfter is how long nothing of what is sent is answered before the
	// association is given up, whatever the count of retransmissions, 0: the count
	// decides. Where a shutdown is not answered, the count decides in any case.
	DeadAfter time.Duration

	// AssocMaxRetrans is how many retransmissions in a row go unanswered before the
	// association is given up, 0 for 10; PathMaxRetrans how many before
	// EventPathDown, 0 for 5 (RFC 9260 sections 8.1 and 8.2); MaxInitRetrans bounds
	// those of the handshake, 0 for 8.
	AssocMaxRetrans, PathMaxRetrans, MaxInitRetrans int

	// NoOffload leaves UDP_SEGMENT and UDP_GRO alone even if the kernel has them.
	NoOffload bool
}

func (c *Config) port() uint16 {
	if c.Port != 0 {
		return c.Port
	}
	return DefaultPort
}

func or[T int | uint16 | time.Duration](v, otherwise T) T {
	if v > 0 {
		return v
	}
	return otherwise
}

// settings are those of an association with remote, but its tags and ports. route
// is the MTU of the route, 0 if it is not known.
func (c *Config) settings(remote netip.Addr, window, route int) settings {
	s := settings{
		rtoInitial:      or(c.RTOInitial, defaultRTOInitial),
		rtoMin:          or(c.RTOMin, defaultRTOMin),
		rtoMax:          or(c.RTOMax, defaultRTOMax),
		heartbeat:       or(c.Heartbeat, defaultHeartbeat),
		deadAfter:       c.DeadAfter,
		assocMaxRetrans: or(c.AssocMaxRetrans, defaultAssocMaxRetrans),
		pathMaxRetrans:  or(c.PathMaxRetrans, defaultPathMaxRetrans),
		maxInitRetrans:  or(c.MaxInitRetrans, defaultMaxInitRetrans),
		streams:         or(c.Streams, DefaultStreams),
		window:          window,
		sendBuffer:      or(c.SendBuffer, DefaultSendBuffer),
		v6:              remote.Is6() && !remote.Is4In6(),
		adaptation:      c.Adaptation,
		wantAdaptation:  c.Adaptation != 0,
	}
	if c.Heartbeat < 0 {
		s.heartbeat = 0
	}
	s.rtoInitial = max(s.rtoInitial, s.rtoMin)
	s.rtoMax = max(s.rtoMax, s.rtoInitial)
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

// packetSize is the longest SCTP packet in an IP packet of mtu bytes.
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
