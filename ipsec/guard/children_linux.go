package guard

import (
	"errors"
	"fmt"
	"net/netip"
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
// guard's peer: it demands ESP, for the link's port, at the priority that only
// our children have.
func isChildPolicy(p *netlink.XfrmPolicy, g Spec) bool {
	if p.Priority != esp.ChildPriority || len(p.Tmpls) == 0 || p.Dir > netlink.XFRM_DIR_FWD || netlink.Proto(g.protocol()) != p.Proto {
		return false
	}
	remote := prefixOf(p.Src)
	if p.Dir == netlink.XFRM_DIR_OUT {
		remote = prefixOf(p.Dst)
	}
	return remote.IsValid() && remote.IsSingleIP() && remote.Addr() == g.Remote && (p.SrcPort == int(g.Port) || p.DstPort == int(g.Port))
}

// states lists the ESP states that policies of the peer's children lead to.
func (k *kernel) states(g Spec, local netip.Addr) ([]State, error) {
	policies, err := k.policies()
	if err != nil {
		return nil, err
	}
	type use struct {
		reqid    int
		src, dst netip.Addr
	}
	uses := map[use]bool{}
	for i := range policies {
		if !isChildPolicy(&policies[i], g) {
			continue
		}
		for _, t := range policies[i].Tmpls {
			// Those of transport mode name no addresses.
			src, ok1 := netip.AddrFromSlice(t.Src)
			dst, ok2 := netip.AddrFromSlice(t.Dst)
			if !ok1 || !ok2 || src.Unmap().IsUnspecified() || dst.Unmap().IsUnspecified() {
				src, dst = local, g.Remote
			}
			src, dst = src.Unmap(), dst.Unmap()
			uses[use{t.Reqid, src, dst}], uses[use{t.Reqid, dst, src}] = true, true
		}
	}
	if len(uses) == 0 {
		return nil, nil
	}
	all, err := k.XfrmStateList(familyOf(g.Remote))
	for try := 0; errors.Is(err, netlink.ErrDumpInterrupted) && try < 10; try++ {
		all, err = k.XfrmStateList(familyOf(g.Remote))
	}
	if err != nil {
		return nil, fmt.Errorf("list ESP states: %w", err)
	}
	var out []State
	for _, s := range all {
		src, _ := netip.AddrFromSlice(s.Src)
		dst, _ := netip.AddrFromSlice(s.Dst)
		src, dst = src.Unmap(), dst.Unmap()
		if s.Proto == netlink.XFRM_PROTO_ESP && s.Spi != 0 && uses[use{s.Reqid, src, dst}] {
			out = append(out, State{src, dst, uint32(s.Spi)})
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
	states, err := k.states(g, netip.Addr{})
	errs = append(errs, err)
	for i := range policies {
		if p := &policies[i]; isChildPolicy(p, g) {
			errs = append(errs, k.delPolicy(p))
		}
	}
	for _, o := range states {
		errs = append(errs, k.delState(o))
	}
	return errors.Join(errs...)
}

// ChildStates lists the ESP states that policies of the children of these guards' peer
// lead to.
func ChildStates(netns string, specs []Spec, local netip.Addr) (states []State, err error) {
	err = inNS(netns, func(k *kernel) error {
		for _, g := range specs {
			some, err := k.states(g, local)
			if err != nil {
				return err
			}
			states = append(states, some...)
		}
		return nil
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
