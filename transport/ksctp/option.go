package ksctp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"
	"unsafe"

	lksctp "github.com/ishidawataru/sctp"
	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/transport/assoc"
)

// Socket options of linux/sctp.h that the library lacks.
const (
	optPartialDeliveryPoint = 19
	optRecvRcvinfo          = 32
	optAssocStats           = 112
	optEvent                = 127
	optASCONF               = 128
	optEncapsPort           = 132
)

var native = binary.NativeEndian

// setOption is setsockopt(2). The library's own calls are not used: they hide from the Go
// runtime that the kernel uses the memory, which may be on a stack that moves.
func setOption(fd int, opt uintptr, b []byte) error {
	_, _, e := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.IPPROTO_SCTP, opt, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0)
	if e != 0 {
		return e
	}
	return nil
}

func getOption(fd int, level, opt uintptr, b []byte) (n int, err error) {
	l := uint32(len(b))
	_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), level, opt, uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&l)), 0)
	if e != 0 {
		return 0, e
	}
	return int(l), nil
}

func ms(d time.Duration) uint32 { return uint32(max(d/time.Millisecond, 1)) }

// prepare sets the options that must be set before the handshake.
func prepare(fd int, c *Config) error {
	send, recv := c.buffers()
	init := native.AppendUint16(nil, c.Streams)
	init = native.AppendUint16(init, c.Streams)
	init = native.AppendUint16(init, uint16(min(c.MaxInitRetrans, 1<<16-1)))
	init = native.AppendUint16(init, uint16(min(ms(c.RTOMax), 1<<16-1)))

	params := make([]byte, 20) // struct sctp_assocparams
	native.PutUint16(params[4:], uint16(c.assocMaxRetrans()))

	events := []byte{
		0: 0, // data: SCTP_RECVRCVINFO gives more
		1: 1, // association
		2: 1, // address
		4: 1, // peer error
		5: 1, // shutdown
		6: 1, // partial delivery
		7: 1, // adaptation layer
	}
	events = append(events, make([]byte, 14-len(events))...)

	for _, o := range []struct {
		name string
		opt  uintptr
		b    []byte
		may  bool // optional
	}{
		{"SCTP_INITMSG", lksctp.SCTP_INITMSG, init, false},
		{"SCTP_RTOINFO", lksctp.SCTP_RTOINFO, rtoInfo(c.RTOInitial, c.RTOMin, c.RTOMax), false},
		{"SCTP_ASSOCINFO", lksctp.SCTP_ASSOCINFO, params, false},
		{"SCTP_PEER_ADDR_PARAMS", lksctp.SCTP_PEER_ADDR_PARAMS, pathParams(c), false},
		{"SCTP_ADAPTATION_LAYER", lksctp.SCTP_ADAPTATION_LAYER, native.AppendUint32(nil, c.Adaptation), false},
		{"SCTP_NODELAY", lksctp.SCTP_NODELAY, native.AppendUint32(nil, 1), false},
		{"SCTP_DISABLE_FRAGMENTS", lksctp.SCTP_DISABLE_FRAGMENTS, native.AppendUint32(nil, 1), false},
		{"SCTP_EVENTS", lksctp.SCTP_EVENTS, events, false},
		{"SCTP_RECVRCVINFO", optRecvRcvinfo, native.AppendUint32(nil, 1), false},
		// So that the first fragment of a message is seen even if another is missing.
		{"SCTP_PARTIAL_DELIVERY_POINT", optPartialDeliveryPoint, native.AppendUint32(nil, 1), false},
		// Addresses must not change after the handshake, when they were checked.
		{"SCTP_ASCONF_SUPPORTED", optASCONF, append(make([]byte, 4), 0, 0, 0, 0), true},
	} {
		if err := setOption(fd, o.opt, o.b); err != nil && !(o.may && err == unix.ENOPROTOOPT) {
			return fmt.Errorf("set %s: %w", o.name, err)
		}
	}
	// After a program is killed, the kernel must not go on sending. Accepted sockets
	// inherit this from the listener.
	if err := abortive(fd, true); err != nil {
		return fmt.Errorf("set SO_LINGER: %w", err)
	}
	if c.EncapPort != 0 {
		b := make([]byte, 144) // struct sctp_udpencaps
		binary.BigEndian.PutUint16(b[136:], c.EncapPort)
		if err := setOption(fd, optEncapsPort, b); err != nil {
			return fmt.Errorf("set SCTP_REMOTE_UDP_ENCAPS_PORT: %w", err)
		}
	}
	for _, b := range []struct{ force, plain, size int }{
		{unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, send},
		{unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, recv},
	} {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, b.force, b.size) == nil {
			continue
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, b.plain, b.size); err != nil {
			return fmt.Errorf("set the socket's buffers: %w", err)
		}
	}
	return nil
}

// rtoInfo builds struct sctp_rtoinfo. 0 leaves a value as it is.
func rtoInfo(initial, least, most time.Duration) []byte {
	b := make([]byte, 4)
	for _, d := range []time.Duration{initial, most, least} {
		v := uint32(0)
		if d > 0 {
			v = ms(d)
		}
		b = native.AppendUint32(b, v)
	}
	return b
}

// Flags of struct sctp_paddrparams.
const (
	sppHeartbeat     = 1 << 0
	sppNoHeartbeat   = 1 << 1
	sppDemand        = 1 << 2 // a heartbeat at once
	sppDiscovery     = 1 << 3 // of the path's MTU
	sppNoDiscovery   = 1 << 4
	sppSackDelay     = 1 << 5
	paddrparamsLen   = 156
	sockaddrStorage  = 128
	paddrparamsAfter = 4 + sockaddrStorage
)

// pathParams builds struct sctp_paddrparams, which is packed, for all paths.
func pathParams(c *Config) []byte {
	b := make([]byte, paddrparamsLen)
	v := b[paddrparamsAfter:]
	flags := uint32(sppHeartbeat | sppDiscovery | sppSackDelay)
	if c.Heartbeat < 0 {
		flags = flags&^sppHeartbeat | sppNoHeartbeat
	} else {
		native.PutUint32(v, ms(c.Heartbeat))
	}
	native.PutUint16(v[4:], uint16(min(c.PathMaxRetrans, 1<<16-1)))
	native.PutUint32(v[10:], ms(assoc.SACKDelay))
	native.PutUint32(v[14:], flags)
	return b
}

// sockaddrs returns addresses as bindx and connectx take them.
func sockaddrs(as []netip.Addr, port uint16) *lksctp.SCTPAddr {
	a := &lksctp.SCTPAddr{Port: int(port)}
	for _, ip := range as {
		a.IPAddrs = append(a.IPAddrs, net.IPAddr{IP: ip.AsSlice(), Zone: ip.Zone()})
	}
	return a
}

// getAddrs returns the addresses of an association or an unconnected socket: opt is
// SCTP_GET_LOCAL_ADDRS or SCTP_GET_PEER_ADDRS.
func getAddrs(fd int, opt uintptr) ([]netip.AddrPort, error) {
	const head = 8 // of struct sctp_getaddrs: association, number of addresses
	b := make([]byte, head+maxAddrs*unix.SizeofSockaddrInet6)
	if _, err := getOption(fd, unix.IPPROTO_SCTP, opt, b); err != nil {
		return nil, err
	}
	var out []netip.AddrPort
	n, b := int(native.Uint32(b[4:])), b[head:]
	for range n {
		size := unix.SizeofSockaddrInet4
		if len(b) > size && native.Uint16(b) == unix.AF_INET6 {
			size = unix.SizeofSockaddrInet6
		}
		if len(b) < size {
			return nil, errors.New("the kernel's list of addresses is cut off")
		}
		a, err := sockaddr(b[:size])
		if err != nil {
			return nil, err
		}
		out = append(out, a)
		b = b[size:]
	}
	return out, nil
}

// sockaddr reads a struct sockaddr_in or sockaddr_in6, or a struct
// sockaddr_storage with one of them.
func sockaddr(b []byte) (a netip.AddrPort, err error) {
	if len(b) < 2 {
		return a, errors.New("the kernel gives an empty address")
	}
	switch family := native.Uint16(b); {
	case family == unix.AF_INET && len(b) >= unix.SizeofSockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), binary.BigEndian.Uint16(b[2:])), nil
	case family == unix.AF_INET6 && len(b) >= unix.SizeofSockaddrInet6:
		ip := netip.AddrFrom16([16]byte(b[8:24])).Unmap()
		if ip.Is6() && ip.IsLinkLocalUnicast() {
			if i, err := net.InterfaceByIndex(int(native.Uint32(b[24:]))); err == nil {
				ip = ip.WithZone(i.Name)
			}
		}
		return netip.AddrPortFrom(ip, binary.BigEndian.Uint16(b[2:])), nil
	default:
		return a, fmt.Errorf("the kernel gives an address of family %d", family)
	}
}
