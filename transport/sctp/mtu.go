package sctp

import (
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/internal/sockio"
)

// mtu returns the kernel's MTU of the route to remote, in bytes, 0 if unknown. It
// includes what routers have reported, and the overhead of IPsec if its policies are the
// kernel's. Nothing is sent.
func (k *socket) mtu(local netip.Addr, remote netip.AddrPort) int {
	family, level, opt := unix.AF_INET, unix.IPPROTO_IP, unix.IP_MTU
	if remote.Addr().Is6() {
		family, level, opt = unix.AF_INET6, unix.IPPROTO_IPV6, unix.IPV6_MTU
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	if !local.IsValid() {
		local = k.local().Addr()
	}
	if local.IsValid() && !local.IsUnspecified() {
		if unix.Bind(fd, sockio.Sockaddr(netip.AddrPortFrom(local, 0))) != nil {
			return 0
		}
	}
	if unix.Connect(fd, sockio.Sockaddr(remote)) != nil {
		return 0
	}
	n, err := unix.GetsockoptInt(fd, level, opt)
	if err != nil {
		return 0
	}
	return n
}

// sendLoose sends packets without the Don't Fragment bit, so that IP may fragment them.
// The bit belongs to the socket: packets sent concurrently may lack it as well, except
// probes, which also take k.fragment.
func (k *socket) sendLoose(s *sender, nameLen int) error {
	k.fragment.Lock()
	defer k.fragment.Unlock()
	if err := k.dontFragment(false); err != nil {
		return err
	}
	defer k.dontFragment(true)
	return k.sendAll(s, nameLen, packetLoose)
}

// dontFragment sets or clears the Don't Fragment bit of all packets. With it the kernel
// also respects what routers have reported (RFC 6951 section 5.6).
func (k *socket) dontFragment(on bool) (err error) {
	v4, v6 := unix.IP_PMTUDISC_DONT, unix.IPV6_PMTUDISC_DONT
	if on {
		v4, v6 = unix.IP_PMTUDISC_DO, unix.IPV6_PMTUDISC_DO
	}
	cerr := k.raw.Control(func(fd uintptr) {
		if k.v6 {
			err = os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, v6))
			// A socket of IPv6 only has no such option.
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, v4)
			return
		}
		err = os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, v4))
	})
	if cerr != nil {
		return cerr
	}
	return err
}
