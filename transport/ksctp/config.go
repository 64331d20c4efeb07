package ksctp

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"

	"github.com/ironwarp/ironwarp/transport/assoc"
)

// Config says how associations are. The zero value of each field is useful,
// but a Listener needs Local. It is read only.
type Config struct {
	assoc.Params

	// Local are the addresses of this end, all of which the peer learns and may send
	// to (RFC 9260 section 5.1.2). None, for Dial only: the one that routes to the
	// peer. An unspecified address would stand for all the host has: it is refused.
	Local []netip.Addr

	// Port is the SCTP port of this end, 0 for any. PortFrom and PortTo, if not 0,
	// have Dial take a free one of this range, both ends included.
	Port             uint16
	PortFrom, PortTo uint16

	// SendBuffer and RecvBuffer are the kernel's buffers in bytes, 0 for 4 MiB, at
	// most 8 MiB. What is less than 128 KiB stands for that: where the path's MTU is
	// as large as it can be, no message would fit otherwise. Without CAP_NET_ADMIN it gives no more than net.core.wmem_max and
	// net.core.rmem_max. RecvBuffer also bounds what a Receiver may hold before
	// reading stops.
	SendBuffer, RecvBuffer int

	// Narrow remembers paths that drop long packets from association to association, nil:
	// nothing does.
	Narrow *Narrow

	// Refused is told of associations that a Listener ends before Accept, and why.
	// It must not block.
	Refused func(remote netip.AddrPort, err error)

	// EncapPort is the UDP port at which Dial reaches a peer whose SCTP is
	// encapsulated in UDP (RFC 6951), 0 for none. The kernel's own UDP port is the
	// sysctl net.sctp.udp_port. A Listener needs nothing: the kernel finds out.
	EncapPort uint16
}

// buffers are the sizes that the kernel is asked for.
func (c *Config) buffers() (send, recv int) {
	return max(cmp.Or(c.SendBuffer, assoc.DefaultBuffer), minBuffer), max(cmp.Or(c.RecvBuffer, assoc.DefaultBuffer), minBuffer)
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
	return min(c.AssocMaxRetrans, 1<<16-1)
}
