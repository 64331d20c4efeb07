package ksctp

import (
	"fmt"
	"net/netip"
	"time"
)

// Config says how associations are. The zero value of each field is useful,
// but a Listener needs Local. It is read only.
type Config struct {
	// Local are the addresses of this end, all of which the peer learns and may send
	// to (RFC 9260 section 5.1.2). None, for Dial only: the one that routes to the
	// peer. An unspecified address would stand for all the host has: it is refused.
	Local []netip.Addr

	// Port is the SCTP port of this end, 0 for any. PortFrom and PortTo, if not 0,
	// have Dial take a free one of this range, both ends included.
	Port             uint16
	PortFrom, PortTo uint16

	// Adaptation is the Adaptation Layer Indication that is sent and demanded of the
	// peer (RFC 5061 section 4.2.6; 0x00000001 is DDP's, RFC 5043), 0 for none.
	Adaptation uint32

	// Streams is how many streams are asked for and allowed, in each direction,
	// 0 for 1,024 (RFC 5043 section 8).
	Streams uint16

	// SendBuffer and RecvBuffer are the kernel's buffers in bytes, 0 for 4 MiB, at
	// most 8 MiB. What is less than 128 KiB stands for that: where the path's MTU is
	// as large as it can be, no message would fit otherwise. Without CAP_NET_ADMIN it gives no more than net.core.wmem_max and
	// net.core.rmem_max. RecvBuffer also bounds what a Receiver may hold before
	// reading stops.
	SendBuffer, RecvBuffer int

	// RTOInitial, RTOMin and RTOMax bound the retransmission timeout (RFC 9260
	// section 6.3.1), 0 for 1 s, 250 ms and 60 s.
	RTOInitial, RTOMin, RTOMax time.Duration

	// Heartbeat is HB.interval, 0 for 30 s, negative for none (RFC 9260 section
	// 8.3).
	Heartbeat time.Duration

	// AssocMaxRetrans is how many retransmissions in a row go unanswered before the
	// association is given up, 0 for 10; PathMaxRetrans how many before
	// EventPathDown, 0 for 5 (RFC 9260 sections 8.1 and 8.2); MaxInitRetrans bounds
	// those of the handshake, 0 for 8.
	AssocMaxRetrans, PathMaxRetrans, MaxInitRetrans int

	// DeadAfter, if not 0, gives the association up by the clock instead of by
	// AssocMaxRetrans: when no path has worked for so long.
	DeadAfter time.Duration

	// Narrow remembers paths that drop long packets from association to association, nil:
	// nothing does.
	Narrow *Narrow

	// Backlog bounds the associations that wait for Accept, 0 for 128.
	Backlog int

	// Refused is told of associations that a Listener ends before Accept, and why.
	// It must not block.
	Refused func(remote netip.AddrPort, err error)

	// EncapPort is the UDP port at which Dial reaches a peer whose SCTP is
	// encapsulated in UDP (RFC 6951), 0 for none. The kernel's own UDP port is the
	// sysctl net.sctp.udp_port. A Listener needs nothing: the kernel finds out.
	EncapPort uint16
}

func or[T int | uint16 | time.Duration](v, otherwise T) T {
	if v > 0 {
		return v
	}
	return otherwise
}

// buffers are the sizes that the kernel is asked for.
func (c *Config) buffers() (send, recv int) {
	return max(or(c.SendBuffer, defaultBuffer), minBuffer), max(or(c.RecvBuffer, defaultBuffer), minBuffer)
}

func (c *Config) check() error {
	for _, b := range []int{c.SendBuffer, c.RecvBuffer} {
		if b < 0 || b > maxBuffer {
			return fmt.Errorf("a buffer of %d bytes: at most %d are possible", b, maxBuffer)
		}
	}
	for _, a := range c.Local {
		switch {
		case !a.IsValid():
			return fmt.Errorf("a local address is missing")
		case a.IsUnspecified():
			return fmt.Errorf("the local address %v stands for all of this host's, and the peer would learn and use each of them: name those that are meant", a)
		case a.IsMulticast():
			return fmt.Errorf("the local address %v is a multicast one", a)
		}
	}
	return nil
}

// assocMaxRetrans is Association.Max.Retrans. With DeadAfter the kernel must not
// give up first, at any timeout that Hurry sets.
func (c *Config) assocMaxRetrans() int {
	if c.DeadAfter > 0 {
		return min(int(c.DeadAfter/hurryMin)+int(c.DeadAfter/time.Minute)+100, 1<<16-1)
	}
	return min(or(c.AssocMaxRetrans, defaultAssocMaxRetrans), 1<<16-1)
}
