package ksctp

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"

	"github.com/ironwarp/ironwarp/transport/assoc"
)

// Config configures associations. The zero value of each field is useful, but a Listener
// needs Local. Config is never modified.
type Config struct {
	assoc.Params

	// Local are the addresses of this end; the peer learns all of them and may send to
	// any (RFC 9260 section 5.1.2). For Dial only, none means the one that routes to the
	// peer. An unspecified address would mean all addresses of the host and is refused.
	Local []netip.Addr

	// Port is the SCTP port of this end, 0 for any.
	Port uint16

	// SendBuffer and RecvBuffer are the kernel's buffers in bytes, 0 for 4 MiB, at most 8
	// MiB. Less than 128 KiB is raised to that: at the largest path MTU no message would
	// fit otherwise. Without CAP_NET_ADMIN the kernel gives no more than
	// net.core.wmem_max and net.core.rmem_max. RecvBuffer also bounds what a Receiver may
	// hold before reading stops.
	SendBuffer, RecvBuffer int

	// Narrow remembers across associations which paths drop long packets. It may be nil.
	Narrow *Narrow

	// Refused is called for each association that a Listener ends before Accept, with the
	// reason. It must not block.
	Refused func(remote netip.AddrPort, err error)

	// EncapPort is the UDP port at which Dial reaches a peer whose SCTP is encapsulated
	// in UDP (RFC 6951), 0 for none. The kernel's own UDP port is the sysctl
	// net.sctp.udp_port. A Listener does not need it: the kernel learns the port from
	// packets.
	EncapPort uint16
}

// buffers returns the buffer sizes to request from the kernel.
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
// give up first, at any timeout that LimitRTO sets.
func (c *Config) assocMaxRetrans() int {
	if c.DeadAfter > 0 {
		return min(int(c.DeadAfter/minRTOLimit)+int(c.DeadAfter/time.Minute)+100, 1<<16-1)
	}
	return min(c.AssocMaxRetrans, 1<<16-1)
}
