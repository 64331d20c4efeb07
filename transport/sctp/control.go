package sctp

import (
	"encoding/binary"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// controlLen is room for the control messages of a sent or received datagram, in bytes:
// UDP_SEGMENT or UDP_GRO and a local address.
const controlLen = 96

// addControl appends the header of a control message with n bytes of data to those that m
// has in c, and returns where the data goes.
func addControl(m *unix.Msghdr, c []byte, level, typ int32, n int) []byte {
	at := int(m.Controllen)
	h := (*unix.Cmsghdr)(unsafe.Pointer(&c[at]))
	h.Level, h.Type = level, typ
	h.SetLen(unix.CmsgLen(n))
	m.Control = &c[0]
	m.SetControllen(at + unix.CmsgSpace(n))
	d := c[at+unix.CmsgLen(0):][:n]
	clear(d)
	return d
}

// segmented tells the kernel to split m into packets of this size.
func segmented(m *unix.Msghdr, c []byte, size int) {
	binary.NativeEndian.PutUint16(addControl(m, c, unix.IPPROTO_UDP, unix.UDP_SEGMENT, 2), uint16(size))
}

// sentFrom sets the local address that m is sent from (struct in6_pktinfo, in_pktinfo).
func (k *socket) sentFrom(m *unix.Msghdr, c []byte, a netip.Addr) {
	if k.v6 {
		v := a.As16()
		copy(addControl(m, c, unix.IPPROTO_IPV6, unix.IPV6_PKTINFO, unix.SizeofInet6Pktinfo), v[:])
		return
	}
	v := a.As4()
	copy(addControl(m, c, unix.IPPROTO_IP, unix.IP_PKTINFO, unix.SizeofInet4Pktinfo)[4:], v[:])
}

// control parses the control messages of a received datagram: the size of the packets
// joined by UDP_GRO, 0 if none were, and the local address it came to, if that was
// requested.
func control(c []byte) (segment int, to netip.Addr) {
	for len(c) >= unix.SizeofCmsghdr {
		h := (*unix.Cmsghdr)(unsafe.Pointer(&c[0]))
		n := int(h.Len)
		if n < unix.SizeofCmsghdr || n > len(c) {
			break
		}
		d := c[unix.CmsgLen(0):n]
		switch {
		case h.Level == unix.IPPROTO_UDP && h.Type == unix.UDP_GRO && len(d) >= 4:
			segment = int(int32(binary.NativeEndian.Uint32(d)))
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_PKTINFO && len(d) >= unix.SizeofInet4Pktinfo:
			to = netip.AddrFrom4([4]byte(d[8:12]))
		case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_PKTINFO && len(d) >= unix.SizeofInet6Pktinfo:
			to = netip.AddrFrom16([16]byte(d[:16])).Unmap()
		}
		c = c[min(unix.CmsgSpace(n-unix.CmsgLen(0)), len(c)):]
	}
	return max(segment, 0), to
}
