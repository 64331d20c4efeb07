package daemon

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
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

// isHere reports whether this host has an address now.
func isHere(a netip.Addr) bool {
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 0)))
	if err == nil {
		c.Close()
	}
	return !errors.Is(err, syscall.EADDRNOTAVAIL)
}
