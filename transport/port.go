package transport

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// choosePorts asks a Protector for the local ports of an outgoing flow. The flow it
// returns has the first of them, which tells Prepare which SA is meant.
func choosePorts(ctx context.Context, p Protector, f Flow) (_ Flow, lo, hi uint16, err error) {
	c, ok := p.(PortChooser)
	if !ok {
		return f, 0, 0, nil
	}
	lo, hi, err = c.LocalPorts(ctx, f)
	switch {
	case err != nil || lo == 0 && hi == 0:
		return f, 0, 0, err
	case lo == 0 || lo > hi:
		return f, 0, 0, fmt.Errorf("the Protector asks for local ports %d to %d, which are none", lo, hi)
	}
	f.Local = netip.AddrPortFrom(f.Local.Addr(), lo)
	return f, lo, hi, nil
}

// bindWithin binds a socket to a free port of a range, starting at a random one.
// IP_LOCAL_PORT_RANGE would not do: the kernel ignores a range outside
// net.ipv4.ip_local_port_range.
func bindWithin(fd int, local netip.Addr, v6 bool, lo, hi uint16) error {
	n := int(hi) - int(lo) + 1
	first := rand.IntN(n)
	for i := range n {
		port := int(lo) + (first+i)%n
		err := unix.Bind(fd, sockaddr(local, v6, port))
		if !errors.Is(err, syscall.EADDRINUSE) {
			return err
		}
	}
	return fmt.Errorf("local ports %d to %d: %w", lo, hi, syscall.EADDRINUSE)
}

func sockaddr(a netip.Addr, v6 bool, port int) unix.Sockaddr {
	if v6 {
		s := &unix.SockaddrInet6{Port: port}
		if a.IsValid() {
			s.Addr = a.As16()
		}
		return s
	}
	s := &unix.SockaddrInet4{Port: port}
	if a.IsValid() {
		s.Addr = a.As4()
	}
	return s
}
