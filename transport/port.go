package transport

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/internal/sockio"
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

// bindWithin binds a socket of the address' family to a free port of a range.
// IP_LOCAL_PORT_RANGE would not do: the kernel ignores a range outside
// net.ipv4.ip_local_port_range.
func bindWithin(rc syscall.RawConn, local netip.Addr, lo, hi uint16) (err error) {
	cerr := rc.Control(func(fd uintptr) {
		err = eachPort(lo, hi, func(port uint16) error {
			return unix.Bind(int(fd), sockio.Sockaddr(netip.AddrPortFrom(local, port)))
		})
	})
	return errors.Join(cerr, err)
}

// eachPort calls bind with the ports of a range, starting at a random one, until one is
// free. If both ends are 0, any port will do.
func eachPort(lo, hi uint16, bind func(port uint16) error) error {
	if hi == 0 {
		return bind(0)
	}
	n := int(hi) - int(lo) + 1
	first := rand.IntN(n)
	for i := range n {
		err := bind(lo + uint16((first+i)%n))
		if !errors.Is(err, syscall.EADDRINUSE) {
			return err
		}
	}
	return fmt.Errorf("local ports %d to %d: %w", lo, hi, syscall.EADDRINUSE)
}
