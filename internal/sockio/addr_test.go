package sockio

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

func TestSocketAddressesOfBothFamilies(t *testing.T) {
	for _, x := range []struct {
		addr   string
		v6     bool
		family uint16
		n      int
	}{
		{"192.0.2.1:7471", false, unix.AF_INET, unix.SizeofSockaddrInet4},
		{"192.0.2.1:7471", true, unix.AF_INET6, unix.SizeofSockaddrInet6}, // mapped
		{"[2001:db8::1]:7471", true, unix.AF_INET6, unix.SizeofSockaddrInet6},
		{"[fe80::1%7]:7471", true, unix.AF_INET6, unix.SizeofSockaddrInet6},
		{"[2001:db8::1]:7471", false, 0, 0},
		{"[fe80::1%nosuch]:7471", true, 0, 0},
	} {
		a := netip.MustParseAddrPort(x.addr)
		b := make([]byte, unix.SizeofSockaddrInet6)
		n, err := PutSockaddr(b, a, x.v6)
		if (err != nil) != (x.n == 0) || err == nil && (n != x.n || binary.NativeEndian.Uint16(b) != x.family || binary.BigEndian.Uint16(b[2:]) != a.Port()) {
			t.Errorf("%s, v6 %v: %d bytes %x, %v", x.addr, x.v6, n, b, err)
		}
		if a.Addr().Zone() == "7" && binary.NativeEndian.Uint32(b[24:]) != 7 {
			t.Errorf("%s: interface %d", x.addr, binary.NativeEndian.Uint32(b[24:]))
		}
		switch s := Sockaddr(a).(type) {
		case *unix.SockaddrInet4:
			if netip.AddrPortFrom(netip.AddrFrom4(s.Addr), uint16(s.Port)) != a {
				t.Errorf("%s became %v", x.addr, s)
			}
		case *unix.SockaddrInet6:
			if netip.AddrPortFrom(netip.AddrFrom16(s.Addr), uint16(s.Port)) != netip.AddrPortFrom(a.Addr().WithZone(""), a.Port()) || a.Addr().Zone() == "7" && s.ZoneId != 7 {
				t.Errorf("%s became %v", x.addr, s)
			}
		}
	}
}
