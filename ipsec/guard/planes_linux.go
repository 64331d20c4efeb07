package guard

import (
	"net/netip"
	"slices"

	"github.com/ironwarp/ironwarp/ipsec/esp"
)

// dataPlane is who does ESP. Everything that differs between the two stands
// behind it.
type dataPlane interface {
	// plan returns what the kernel has to hold for a guard. It changes nothing.
	plan(k *kernel, g Spec) (plan, error)
	// installed proves that a child that charon lists is in place where its
	// packets come by.
	installed(g Spec, c ChildSA) error
	// route keeps the way of the peer's packets to ESP, while a child is up.
	route(g Spec, local netip.Addr, up bool) error
}

// ChildSA is a child SA as charon lists it.
type ChildSA struct {
	Name          string
	Local, Remote netip.Addr // the hosts between which its ESP goes
	SPIIn, SPIOut string
}

// Confirm proves that a child is in place where the packets of the guard's link come
// by. It fails where it is not, and with the kernel's error.
func Confirm(g Spec, c ChildSA) error { return planeOf(g.DataPlane).installed(g, c) }

// Route keeps the way of the packets of the guard's peer to ESP, while a child is up.
// It fails with the kernel's error.
func Route(g Spec, local netip.Addr, up bool) error {
	return planeOf(g.DataPlane).route(g, local, up)
}

// plan is what a guard consists of under a data plane.
type plan struct {
	policies []*xfrmPolicy
	steps    []step
	keep     bool // other policies of this guard stay, whatever they are
}

// step is a part of a guard beside the policies. Policies that are not in the
// plan give way when every step is done.
type step struct {
	// do puts in place what is missing, and returns how much that was if it is worth
	// telling.
	do func() (int, error)
	// check returns what is amiss, without changing it.
	check func() ([]Hole, error)
}

// planeOf returns what stands for d.
func planeOf(d esp.Plane) dataPlane {
	switch d {
	case esp.Kernel:
		return kernelESP{}
	case esp.Userland:
		return userlandESP{}
	}
	return undecided{}
}

// undecided is the plane while charon has not been seen: the blocks alone.
type undecided struct{}

func (undecided) plan(k *kernel, g Spec) (plan, error) {
	p := plan{policies: g.blocks(), keep: true}
	if !g.Remote.Is6() {
		return p, nil
	}
	// Where routing rules stand for the outbound policies, these would be in the
	// way of streams that run.
	shut, err := k.rulesHold(g)
	if err == nil && shut {
		p.policies = slices.DeleteFunc(p.policies, g.isOutbound)
	}
	return p, err
}

func (undecided) installed(Spec, ChildSA) error      { return nil }
func (undecided) route(Spec, netip.Addr, bool) error { return nil }
