package guard

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/internal/nsdo"
	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/transport"
)

// kernel is a netlink handle in the guard's network namespace.
type kernel struct {
	*netlink.Handle

	xfrm   map[int]*nl.SocketHandle // for the messages of xfrmPolicy
	quoted *quoteTable              // as it was last read
}

func inNS(netns string, f func(*kernel) error) error {
	return nsdo.Do(netns, func() error {
		h, err := netlink.NewHandle(unix.NETLINK_XFRM, unix.NETLINK_ROUTE)
		if err != nil {
			return explain(fmt.Errorf("guard: open netlink: %w", err))
		}
		defer h.Close()
		s, err := nl.Subscribe(unix.NETLINK_XFRM)
		if err != nil {
			return explain(fmt.Errorf("guard: open netlink: %w", err))
		}
		defer s.Close()
		return explain(f(&kernel{Handle: h, xfrm: map[int]*nl.SocketHandle{unix.NETLINK_XFRM: {Socket: s}}}))
	})
}

func explain(err error) error {
	switch {
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES):
		return fmt.Errorf("%w: the guard needs CAP_NET_ADMIN; run as root", err)
	case errors.Is(err, syscall.EPROTONOSUPPORT):
		return fmt.Errorf("%w: this kernel has no XFRM, so nothing could keep clear traffic from leaving; modprobe xfrm_user (CONFIG_XFRM_USER)", err)
	}
	return err
}

// policies lists all XFRM policies, both families.
func (k *kernel) policies() ([]xfrmPolicy, error) {
	all, err := k.listPolicies()
	for try := 0; errors.Is(err, netlink.ErrDumpInterrupted) && try < 10; try++ {
		all, err = k.listPolicies() // the list changed while it was read
	}
	if err != nil {
		return nil, fmt.Errorf("list XFRM policies: %w", err)
	}
	return all, nil
}

// inventory is the guard policies that the kernel has.
type inventory struct {
	all map[policyKey]*xfrmPolicy
	of  map[netip.Addr][]*xfrmPolicy // by the peer's address
}

func (k *kernel) inventory() (inventory, error) {
	all, err := k.policies()
	if err != nil {
		return inventory{}, err
	}
	return inventoryOf(all), nil
}

func inventoryOf(all []xfrmPolicy) inventory {
	inv := inventory{map[policyKey]*xfrmPolicy{}, map[netip.Addr][]*xfrmPolicy{}}
	for i := range all {
		if p := &all[i]; isGuard(p) {
			inv.all[keyOf(p)] = p
			inv.of[remoteOf(p)] = append(inv.of[remoteOf(p)], p)
		}
	}
	return inv
}

// plan is what the guard consists of.
func (k *kernel) plan(g Spec, have inventory) (plan, error) {
	p, err := planeOf(g.DataPlane).plan(k, g)
	p.steps = append(p.steps, quoteStep(k, g, have))
	return p, err
}

// reconcile adds what a guard lacks, and then removes its policies that are not
// in the plan. A part that fails does not keep the others from being done, but
// nothing is removed then. It reports how many block policies were missing, and
// how much of what is beside the policies.
func (k *kernel) reconcile(g Spec, have inventory) (r Result) {
	plan, err := k.plan(g, have)
	errs := []error{err}
	wanted := map[policyKey]bool{}
	for _, w := range plan.policies {
		wanted[keyOf(w)] = true
		if have.all[keyOf(w)] != nil {
			continue
		}
		if err := k.addPolicy(w); err != nil {
			errs = append(errs, err)
			continue
		}
		if isBlock(w) {
			r.Blocks++
		}
	}
	for _, s := range plan.steps {
		n, err := s.do()
		r.Others += n
		errs = append(errs, err)
	}
	if r.Err = errors.Join(errs...); r.Err != nil || plan.keep {
		return r
	}
	for _, a := range g.Addresses() {
		for _, p := range have.of[a] {
			if concerns(p, g) && !wanted[keyOf(p)] {
				errs = append(errs, k.delPolicy(p))
			}
		}
	}
	r.Err = errors.Join(errs...)
	return r
}

// tuns returns the devices of userland ESP: the named one, or all tun devices
// with the name that kernel-libipsec gives.
func (k *kernel) tuns(name string) ([]netlink.Link, error) {
	links, err := k.LinkList()
	for try := 0; errors.Is(err, netlink.ErrDumpInterrupted) && try < 10; try++ {
		links, err = k.LinkList()
	}
	if err != nil {
		return nil, fmt.Errorf("list network devices: %w", err)
	}
	return slices.DeleteFunc(links, func(l netlink.Link) bool {
		if name != "" && l.Attrs().Name != name {
			return true
		}
		return l.Type() != "tuntap" && l.Type() != "tun" || !libipsecTun.MatchString(l.Attrs().Name)
	}), nil
}

var libipsecTun = regexp.MustCompile(`^ipsec\d+$`)

// blocks are the policies that stop clear packets: what this host sends, what
// it receives, and what it forwards from the peer. What it forwards to the peer
// meets those of the outbound direction. The peer's address in the form of the
// other family (Spec.Addresses) is blocked as well; no ESP has that one.
func (g Spec) blocks() []*xfrmPolicy {
	var out []*xfrmPolicy
	for i, a := range g.Addresses() {
		dirs := []netlink.Dir{netlink.XFRM_DIR_OUT, netlink.XFRM_DIR_IN, netlink.XFRM_DIR_FWD}
		if i > 0 {
			dirs = dirs[:2]
		}
		h := g
		h.Remote = a
		for _, dir := range dirs {
			for _, local := range []bool{false, true} {
				p := h.policy(dir, local)
				p.Action, p.Priority = netlink.XFRM_POLICY_BLOCK, blockPriority
				out = append(out, p)
			}
		}
	}
	return out
}

// isOutbound reports whether a policy is one for packets to the peer's own
// address.
func (g Spec) isOutbound(p *xfrmPolicy) bool {
	return p.Dir == netlink.XFRM_DIR_OUT && remoteOf(p) == g.Remote
}

// allows are the policies that let clear packets go into a tun.
func (g Spec) allows(tun int) []*xfrmPolicy {
	var out []*xfrmPolicy
	for _, local := range []bool{false, true} {
		p := g.policy(netlink.XFRM_DIR_OUT, local)
		p.Action, p.Priority, p.Ifindex = netlink.XFRM_POLICY_ALLOW, esp.ChildPriority, tun
		out = append(out, p)
	}
	return out
}

// allowMarked are the policies that let packets with the tun's mark come in.
func (g Spec) allowMarked() []*xfrmPolicy {
	var out []*xfrmPolicy
	for _, local := range []bool{false, true} {
		p := g.policy(netlink.XFRM_DIR_IN, local)
		p.Action, p.Priority, p.Mark = netlink.XFRM_POLICY_ALLOW, esp.ChildPriority, &netlink.XfrmMark{Value: tunMark, Mask: 0xffffffff}
		out = append(out, p)
	}
	return out
}

// policy is one for packets from or to any local address; local is whose port, or
// block of ports, it is.
func (g Spec) policy(dir netlink.Dir, local bool) *xfrmPolicy {
	p := &xfrmPolicy{XfrmPolicy: netlink.XfrmPolicy{Dir: dir, Proto: netlink.Proto(g.protocol())}}
	remote, all := hostNet(g.Remote), everything(g.Remote)
	if dir == netlink.XFRM_DIR_OUT {
		p.Src, p.Dst = all, remote
	} else {
		p.Src, p.Dst = remote, all
	}
	if local == (dir == netlink.XFRM_DIR_OUT) {
		p.SrcPort, p.srcMask = int(g.Port), portMask(g.Size)
	} else {
		p.DstPort, p.dstMask = int(g.Port), portMask(g.Size)
	}
	return p
}

func hostNet(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

func everything(like netip.Addr) *net.IPNet {
	if like.Is6() {
		return &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	}
	return &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
}

func isBlock(p *xfrmPolicy) bool {
	return p.Action == netlink.XFRM_POLICY_BLOCK && p.Priority == blockPriority && p.Ifindex == 0 && p.Mark == nil && guardShape(p)
}

// isAllow reports whether a policy is one of those that let ESP's clear side pass.
func isAllow(p *xfrmPolicy) bool {
	if p.Action != netlink.XFRM_POLICY_ALLOW || p.Priority != esp.ChildPriority || !guardShape(p) {
		return false
	}
	if p.Dir == netlink.XFRM_DIR_IN {
		return p.Ifindex == 0 && p.Mark != nil && *p.Mark == netlink.XfrmMark{Value: tunMark, Mask: 0xffffffff}
	}
	return p.Dir == netlink.XFRM_DIR_OUT && p.Ifindex != 0 && p.Mark == nil
}

func isGuard(p *xfrmPolicy) bool { return isBlock(p) || isAllow(p) }

// guardShape is that of Spec.policy: one host, everything, one port or block of ports.
func guardShape(p *xfrmPolicy) bool {
	if _, _, _, ok := p.ports(); !ok || p.Ifid != 0 || len(p.Tmpls) > 0 {
		return false
	}
	remote, local := p.Dst, p.Src
	if p.Dir != netlink.XFRM_DIR_OUT {
		remote, local = p.Src, p.Dst
	}
	r, l := prefixOf(remote), prefixOf(local)
	return r.IsValid() && r.IsSingleIP() && l.IsValid() && l.Bits() == 0
}

func remoteOf(p *xfrmPolicy) netip.Addr {
	if p.Dir != netlink.XFRM_DIR_OUT {
		return prefixOf(p.Src).Addr()
	}
	return prefixOf(p.Dst).Addr()
}

func concerns(p *xfrmPolicy, g Spec) bool {
	port, size, _, ok := p.ports()
	return ok && port == g.Port && size == max(g.Size, 1) && transport.Protocol(p.Proto) == g.protocol() && slices.Contains(g.Addresses(), remoteOf(p))
}

func prefixOf(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	a, ok := netip.AddrFromSlice(n.IP)
	if !ok {
		return netip.Prefix{}
	}
	ones, size := n.Mask.Size()
	if size == 32 {
		a = a.Unmap()
	}
	return netip.PrefixFrom(a, ones)
}

func directionName(d netlink.Dir) string {
	switch d {
	case netlink.XFRM_DIR_IN:
		return "in"
	case netlink.XFRM_DIR_FWD:
		return "fwd"
	}
	return "out"
}

func (k *kernel) describe(p *xfrmPolicy) Policy {
	d := Policy{Direction: directionName(p.Dir), Action: "block", Remote: remoteOf(p), Protocol: transport.Protocol(p.Proto), Priority: p.Priority,
		LocalPort: uint16(p.SrcPort), PeerPort: uint16(p.DstPort)}
	if p.Dir != netlink.XFRM_DIR_OUT {
		d.LocalPort, d.PeerPort = d.PeerPort, d.LocalPort
	}
	if _, size, _, ok := p.ports(); ok && size > 1 {
		d.Size = size
	}
	if p.Mark != nil {
		d.Mark = p.Mark.Value
	}
	if p.Action == netlink.XFRM_POLICY_ALLOW {
		d.Action = "allow"
	}
	if p.Ifindex != 0 {
		d.Device = fmt.Sprintf("(device %d, gone)", p.Ifindex)
		if l, err := k.LinkByIndex(p.Ifindex); err == nil {
			d.Device = l.Attrs().Name
		}
	}
	return d
}
