package listen

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
)

// LocalAddr is the address from which the kernel sends to remote. It looks the
// route up; no packet is sent. It fails where there is no route.
func LocalAddr(remote netip.Addr) (netip.Addr, error) {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(remote, 9)))
	if err != nil {
		return netip.Addr{}, fmt.Errorf("no route to %s: %w", remote, err)
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}

// IsHere reports whether this host has an address now.
func IsHere(a netip.Addr) bool {
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 0)))
	if err == nil {
		c.Close()
	}
	return !errors.Is(err, syscall.EADDRNOTAVAIL)
}
