package sockio

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"
)

// Sockaddr returns an address as package unix takes it. The zone of an unknown interface is
// left out.
func Sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	scope, _ := scopeID(a.Addr().Zone())
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16(), ZoneId: scope}
}

// PutSockaddr writes an address in the kernel's form for a socket of either family, and
// returns its length in bytes. It fails for an IPv6 address on a socket of IPv4, and for the
// zone of an unknown interface.
func PutSockaddr(b []byte, a netip.AddrPort, v6 bool) (int, error) {
	binary.BigEndian.PutUint16(b[2:], a.Port())
	if !v6 {
		if !a.Addr().Is4() {
			return 0, fmt.Errorf("send to %v: the socket is of IPv4", a)
		}
		v := a.Addr().As4()
		binary.NativeEndian.PutUint16(b, unix.AF_INET)
		copy(b[4:], v[:])
		clear(b[8:unix.SizeofSockaddrInet4])
		return unix.SizeofSockaddrInet4, nil
	}
	v := a.Addr().As16()
	binary.NativeEndian.PutUint16(b, unix.AF_INET6)
	binary.NativeEndian.PutUint32(b[4:], 0)
	copy(b[8:], v[:])
	scope, err := scopeID(a.Addr().Zone())
	binary.NativeEndian.PutUint32(b[24:], scope)
	return unix.SizeofSockaddrInet6, err
}

func scopeID(zone string) (uint32, error) {
	if zone == "" {
		return 0, nil
	}
	if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
		return uint32(n), nil
	}
	i, err := net.InterfaceByName(zone)
	if err != nil {
		return 0, err
	}
	return uint32(i.Index), nil
}
