package guard

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/vishvananda/netlink"
)

// State is an ESP state of the kernel that a child SA has made.
type State struct {
	src, dst netip.Addr
	SPI      uint32
}

// isChildPolicy reports whether charon has installed a policy for a child of the
// guard's peer: it demands ESP, for the link's port or block of ports, at the priority
// that only our children have.
func isChildPolicy(p *xfrmPolicy, g Spec) bool {
	if p.Priority != esp.ChildPriority || len(p.Tmpls) == 0 || p.Dir > netlink.XFRM_DIR_FWD || netlink.Proto(g.protocol()) != p.Proto {
		return false
	}
	remote := prefixOf(p.Src)
	if p.Dir == netlink.XFRM_DIR_OUT {
		remote = prefixOf(p.Dst)
	}
	return remote.IsValid() && remote.IsSingleIP() && remote.Addr() == g.Remote &&
		(p.SrcPort == int(g.Port) && p.srcMask == portMask(g.Size) || p.DstPort == int(g.Port) && p.dstMask == portMask(g.Size))
}

// ChildLink is the link of a guard, and this host's address for it.
type ChildLink struct {
	Spec
	Local netip.Addr
}

// states lists for each link the ESP states that policies of its children lead to.
// Policies and states are read once for all.
func (k *kernel) states(links []ChildLink) ([][]State, error) {
	policies, err := k.policies()
	if err != nil {
		return nil, err
	}
	at := map[netip.Addr][]*xfrmPolicy{} // policies by the host at either end
	for i := range policies {
		if p := &policies[i]; p.Priority == esp.ChildPriority && len(p.Tmpls) > 0 {
			src, dst := prefixOf(p.Src).Addr(), prefixOf(p.Dst).Addr()
			at[src] = append(at[src], p)
			if dst != src {
				at[dst] = append(at[dst], p)
			}
		}
	}
	type use struct {
		reqid    int
		src, dst netip.Addr
	}
	users := map[use][]int{} // links
	families := map[int]bool{}
	for i, l := range links {
		note := func(u use) {
			if !slices.Contains(users[u], i) {
				users[u] = append(users[u], i)
			}
		}
		for _, p := range at[l.Remote] {
			if !isChildPolicy(p, l.Spec) {
				continue
			}
			families[familyOf(l.Remote)] = true
			for _, t := range p.Tmpls {
				// Those of transport mode name no addresses.
				src, ok1 := netip.AddrFromSlice(t.Src)
				dst, ok2 := netip.AddrFromSlice(t.Dst)
				if !ok1 || !ok2 || src.Unmap().IsUnspecified() || dst.Unmap().IsUnspecified() {
					src, dst = l.Local, l.Remote
				}
				src, dst = src.Unmap(), dst.Unmap()
				note(use{t.Reqid, src, dst})
				note(use{t.Reqid, dst, src})
			}
		}
	}
	out := make([][]State, len(links))
	for family := range families {
		all, err := k.XfrmStateList(family)
		for try := 0; errors.Is(err, netlink.ErrDumpInterrupted) && try < 10; try++ {
			all, err = k.XfrmStateList(family)
		}
		if err != nil {
			return nil, fmt.Errorf("list ESP states: %w", err)
		}
		for _, s := range all {
			src, _ := netip.AddrFromSlice(s.Src)
			dst, _ := netip.AddrFromSlice(s.Dst)
			src, dst = src.Unmap(), dst.Unmap()
			if s.Proto != netlink.XFRM_PROTO_ESP || s.Spi == 0 {
				continue
			}
			for _, i := range users[use{s.Reqid, src, dst}] {
				if familyOf(links[i].Remote) == family {
					out[i] = append(out[i], State{src, dst, uint32(s.Spi)})
				}
			}
		}
	}
	return out, nil
}

func (k *kernel) delState(o State) error {
	err := k.XfrmStateDel(&netlink.XfrmState{Src: o.src.AsSlice(), Dst: o.dst.AsSlice(), Proto: netlink.XFRM_PROTO_ESP, Spi: int(o.SPI)})
	if err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("delete the ESP state from %v to %v with SPI %08x: %w", o.src, o.dst, o.SPI, err)
	}
	return nil
}

// RemoveChildren removes what a charon that is gone has left of a peer's children. It
// fails with the kernel's error, and where g is impossible.
func RemoveChildren(g Spec) error {
	if err := g.validate(); err != nil {
		return err
	}
	return inNS(g.NetNS, func(k *kernel) error { return k.dropChildren(g) })
}

func (k *kernel) dropChildren(g Spec) error {
	policies, err := k.policies()
	if err != nil {
		return err
	}
	var errs []error
	states, err := k.states([]ChildLink{{Spec: g}})
	errs = append(errs, err)
	for i := range policies {
		if p := &policies[i]; isChildPolicy(p, g) {
			errs = append(errs, k.delPolicy(p))
		}
	}
	for _, o := range slices.Concat(states...) {
		errs = append(errs, k.delState(o))
	}
	return errors.Join(errs...)
}

// ChildStates lists for each link the ESP states that policies of its children lead to,
// by one look at the kernel for all of them. It fails with the kernel's error.
func ChildStates(netns string, links []ChildLink) (states [][]State, err error) {
	err = inNS(netns, func(k *kernel) error {
		states, err = k.states(links)
		return err
	})
	return states, err
}

// DeleteStates removes ESP states. That one is not there is no error.
func DeleteStates(netns string, states []State) error {
	return inNS(netns, func(k *kernel) error {
		var errs []error
		for _, o := range states {
			errs = append(errs, k.delState(o))
		}
		return errors.Join(errs...)
	})
}
