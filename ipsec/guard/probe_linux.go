package guard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/internal/sockio"
	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/transport"
)

var (
	// ErrLeaks means that a clear packet of a guarded port was not stopped.
	ErrLeaks = errors.New("the guard does not stop clear packets")
	// ErrUntested means that no packet to the peer could be tried: there is
	// no way to it, so that nothing can leave either.
	ErrUntested = errors.New("the guard could not be tested")
)

// Probes come from the first of these addresses for documentation (RFC 5737, RFC
// 3849) that neither this host nor the peer has: from one of its own an SA that is up
// would take the probe. If it gets out, nothing comes of it.
var (
	probeFrom4 = netip.MustParseAddr("192.0.2.1")
	probeFrom6 = netip.MustParseAddr("2001:db8::1")
)

// discardPort is where a probe goes that has the link's port as its own.
const discardPort = 9

// Probe proves that a guard works by what it is for: it has the kernel send
// a clear packet of the guarded port to the peer, as the host that dials and as
// the one that is dialled, on the device that leads there, and expects it to be
// stopped and counted; of a block of ports, those of the first and of the last. For SCTP, of which the kernel sends no such packet, the
// guard is compared with what it has to be. And it sends an ICMP error to the peer
// that quotes a packet of the port, where it has CAP_NET_RAW. The error wraps
// ErrLeaks when a packet was sent or would be, and ErrUntested when there
// is no way to the peer. It needs CAP_NET_ADMIN.
func Probe(g Spec) error {
	if err := g.validate(); err != nil {
		return err
	}
	err := inNS(g.NetNS, func(k *kernel) error {
		dev, err := k.wayTo(g.Remote)
		if err != nil {
			return err
		}
		from, err := k.stranger(g)
		if err != nil {
			return err
		}
		var probes []probe
		ends := slices.Compact([]uint16{g.Port, g.last()})
		for _, port := range ends {
			probes = append(probes, probe{proto: g.protocol(), dev: dev, from: netip.AddrPortFrom(from, 0), to: netip.AddrPortFrom(g.Remote, port)},
				probe{proto: g.protocol(), dev: dev, from: netip.AddrPortFrom(from, port), to: netip.AddrPortFrom(g.Remote, discardPort)})
		}
		if g.protocol() == transport.ProtoSCTP {
			if err := k.examine(g, dev); err != nil {
				return err
			}
			probes = nil
		}
		for _, pr := range probes {
			if err := pr.run(g); err != nil {
				return err
			}
		}
		for _, port := range ends {
			if err := k.probeQuote(g, dev, from, port); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("self-test of the guard of %v: %w", g, err)
	}
	return nil
}

// wayTo returns the device that leads to an address in clear.
func (k *kernel) wayTo(a netip.Addr) (string, error) {
	routes, err := k.RouteGet(a.AsSlice())
	if err != nil || len(routes) == 0 {
		return "", fmt.Errorf("%w: no route to %v (%v)", ErrUntested, a, err)
	}
	l, err := k.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return "", fmt.Errorf("%w: the device to %v: %v", ErrUntested, a, err)
	}
	return l.Attrs().Name, nil
}

// stranger is the address that a probe to the guard's peer comes from.
func (k *kernel) stranger(g Spec) (netip.Addr, error) {
	own, err := k.AddrList(nil, familyOf(g.Remote))
	for try := 0; errors.Is(err, netlink.ErrDumpInterrupted) && try < 10; try++ {
		own, err = k.AddrList(nil, familyOf(g.Remote))
	}
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%w: list this host's addresses: %w", ErrUntested, err)
	}
	from := probeFrom4
	if g.Remote.Is6() {
		from = probeFrom6
	}
	for from == g.Remote || slices.ContainsFunc(own, func(a netlink.Addr) bool { return prefixOf(a.IPNet).Addr() == from }) {
		from = from.Next()
	}
	return from, nil
}

type probe struct {
	proto    transport.Protocol
	dev      string
	from, to netip.AddrPort
}

// examine looks for holes in a guard by what the kernel has. An SCTP socket of
// Linux sends from addresses of its host alone, from which an SA that is up would
// take a probe; and a kernel without SCTP has no such socket.
func (k *kernel) examine(g Spec, dev string) error {
	have, err := k.policies()
	if err != nil {
		return err
	}
	inv := inventoryOf(have)
	holes, err := k.faults(g, inv)
	if err != nil {
		return err
	}
	holes = append(holes, k.bypasses(g, have)...)
	holes = append(holes, g.decapsulated(inv)...)
	if !g.Remote.Is6() {
		exempt, err := exemptDevices()
		if err != nil {
			return err
		}
		for _, h := range exempt {
			if h.out && (h.dev == "all" || h.dev == dev) {
				holes = append(holes, h.Hole)
			}
		}
	}
	for _, h := range holes {
		if !h.Shut {
			return fmt.Errorf("%w: %v; `ironwarp doctor` lists all of them", ErrLeaks, h)
		}
	}
	return nil
}

func (p probe) run(g Spec) error {
	before, counted := blockedOut()
	err := p.send()
	after, _ := blockedOut()
	switch {
	case errors.Is(err, syscall.EPERM) && (!counted || after > before):
		return nil
	case errors.Is(err, syscall.EACCES) && g.Remote.Is6() && g.DataPlane != esp.Kernel:
		return nil // the rules that stand for the outbound policies
	case errors.Is(err, syscall.EADDRINUSE):
		return nil // a listener of all addresses; the probe as the host that dials is enough
	case err == nil, errors.Is(err, syscall.EINPROGRESS):
		return fmt.Errorf("%w: a probe from %v to %v was sent on %s; the kernel's IPsec policies or routing rules were removed or overridden: `ironwarp doctor` lists the holes", ErrLeaks, p.from, p.to, p.dev)
	case errors.Is(err, syscall.EPERM):
		return fmt.Errorf("%w: something else than the guard refuses a probe to %v (%v): IPAddressDeny= of a systemd unit, or another filter of sockets", ErrUntested, p.to, err)
	}
	return fmt.Errorf("%w: a probe to %v on %s: %v", ErrUntested, p.to, p.dev, err)
}

// probeQuote sends an ICMP error that quotes the header of a packet of the link, as
// if it could not be delivered here (RFC 792, RFC 4443 section 3.1). Without
// CAP_NET_RAW it compares what the kernel has with what should be there.
func (k *kernel) probeQuote(g Spec, dev string, from netip.Addr, port uint16) error {
	ports := make([]byte, 8)
	binary.BigEndian.PutUint16(ports[2:], port)
	message := []byte{3, 3, 0, 0, 0, 0, 0, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, byte(g.protocol()), 0, 0}
	proto := transport.Protocol(protoICMP)
	if g.Remote.Is6() {
		message = []byte{1, 4, 0, 0, 0, 0, 0, 0, 0x60, 0, 0, 0, 0, 8, byte(g.protocol()), 64}
		proto = protoICMP6
	}
	message = slices.Concat(message, g.Remote.AsSlice(), from.AsSlice(), ports)
	binary.BigEndian.PutUint16(message[2:], checksum(message)) // that of ICMPv6 is the kernel's task
	p := probe{proto: proto, dev: dev, from: netip.AddrPortFrom(from, 0), to: netip.AddrPortFrom(g.Remote, 0)}
	fd, err := p.socket(unix.SOCK_RAW)
	if errors.Is(err, syscall.EPERM) {
		return k.examineQuotes(g)
	}
	if err == nil {
		defer unix.Close(fd)
		err = unix.Sendto(fd, message, 0, sockio.Sockaddr(p.to))
	}
	switch {
	case errors.Is(err, syscall.EPERM):
		return nil
	case err == nil:
		return fmt.Errorf("%w: an ICMP error from %v to %v that quotes a packet of the link was sent on %s; table %s of nf_tables was removed or overridden: `ironwarp doctor` lists the holes", ErrLeaks, from, g.Remote, dev, quotesTable)
	}
	return fmt.Errorf("%w: an ICMP error to %v on %s: %v", ErrUntested, g.Remote, dev, err)
}

func (k *kernel) examineQuotes(g Spec) error {
	have, err := k.inventory()
	if err != nil {
		return err
	}
	holes, err := quoteStep(k, g, have).check()
	if err == nil && len(holes) > 0 {
		err = fmt.Errorf("%w: %v", ErrLeaks, holes[0])
	}
	return err
}

// checksum is that of the internet (RFC 1071) over an even number of bytes.
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// socket is one that is bound to the probe's device, so that it is not led into a
// tun, and to an address that is not the host's.
func (p probe) socket(kind int) (fd int, err error) {
	family, level, transparent := unix.AF_INET, unix.SOL_IP, unix.IP_TRANSPARENT
	if p.to.Addr().Is6() {
		family, level, transparent = unix.AF_INET6, unix.SOL_IPV6, unix.IPV6_TRANSPARENT
	}
	fd, err = unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(p.proto))
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	if err := unix.SetsockoptInt(fd, level, transparent, 1); err != nil {
		return -1, os.NewSyscallError("set IP_TRANSPARENT", err)
	}
	if err := unix.BindToDevice(fd, p.dev); err != nil {
		return -1, os.NewSyscallError("bind to the device", err)
	}
	return fd, os.NewSyscallError("bind", unix.Bind(fd, sockio.Sockaddr(p.from)))
}

// send begins a TCP connection, or sends an empty UDP datagram.
func (p probe) send() error {
	kind := unix.SOCK_STREAM
	if p.proto == transport.ProtoUDP {
		kind = unix.SOCK_DGRAM
	}
	fd, err := p.socket(kind)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, sockio.Sockaddr(p.to)); err != nil || kind == unix.SOCK_STREAM {
		return err
	}
	_, err = unix.Write(fd, nil)
	return err
}

// blockedOut reads how many packets policies have stopped on their way out, in
// the network namespace of the thread.
func blockedOut() (n uint64, known bool) {
	s, err := XfrmStats("")
	n, known = s["XfrmOutPolBlock"]
	return n, known && err == nil
}

// Blocked counts the clear packets that the kernel has stopped since it was
// started, of all guards of a network namespace. Out are those that this host
// was to send, In those that it received from the wire: clear packets of a
// guarded port from a peer's address.
type Blocked struct {
	Out uint64 `json:"out"`
	In  uint64 `json:"in"`
}

// CountBlocked reads those counters. It fails as XfrmStats does.
func CountBlocked(netns string) (Blocked, error) {
	s, err := XfrmStats(netns)
	// A packet that meets an SA's own policy instead of the block lacks what that
	// one demands.
	return Blocked{Out: s["XfrmOutPolBlock"], In: s["XfrmInPolBlock"] + s["XfrmInTmplMismatch"]}, err
}
