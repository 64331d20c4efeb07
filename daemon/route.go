package daemon

import (
	"fmt"
	"net"
	"net/netip"
)

// localAddr is the address from which the kernel sends to remote. It looks the
// route up; no packet is sent.
func localAddr(remote netip.Addr) (netip.Addr, error) {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(remote, 9)))
	if err != nil {
		return netip.Addr{}, fmt.Errorf("no route to %s: %w", remote, err)
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}
