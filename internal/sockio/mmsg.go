package sockio

import (
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Mmsghdr is struct mmsghdr of Linux, for sendmmsg and recvmmsg.
type Mmsghdr struct {
	Hdr unix.Msghdr
	Len uint32 // bytes of the message
}

// Source returns the address from which the kernel sends to remote. No packet is sent. It
// fails if there is no route.
func Source(remote netip.AddrPort) (netip.Addr, error) {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(remote))
	if err != nil {
		return netip.Addr{}, err
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}
