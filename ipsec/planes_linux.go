package ipsec

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
)

// dataPlane is who does ESP. Everything that differs between the two stands
// behind it.
type dataPlane interface {
	// offers tells what charon may be asked for.
	offers() offer
	// plan tells what the kernel has to hold for a guard. It changes nothing.
	plan(k *kernel, g GuardSpec) (plan, error)
	// installed proves that a child that charon lists is in place where its
	// packets come by.
	installed(g GuardSpec, sa *SA, c *Child) error
	// route keeps the way of the peer's packets to ESP, while a child is up.
	route(g GuardSpec, local netip.Addr, up bool) error
	// holdsSAs tells that the kernel has the SAs: who flushes its policies has
	// taken the SAs' policies as well, and what a killed charon leaves stays.
	holdsSAs() bool
}

// offer is what a data plane can do.
type offer struct {
	transport bool // transport mode
	esn       bool // extended sequence numbers
	kernel    bool // the algorithms that only the kernel has
	udp       bool // ESP in UDP is the only one
	priority  int  // that charon has to give to its policies; 0: it has none in the kernel
}

// plan is what a guard consists of under a data plane.
type plan struct {
	policies []*netlink.XfrmPolicy
	steps    []step
	keep     bool // other policies of this guard stay, whatever they are
}

// step is a part of a guard beside the policies. Policies that are not in the
// plan give way when every step is done.
type step struct {
	// do puts in place what is missing, and tells how much that was if it is worth
	// telling.
	do func() (int, error)
	// check tells what is amiss, without changing it.
	check func() ([]Hole, error)
}

// plane returns what stands for d.
func (d DataPlane) plane() dataPlane {
	switch d {
	case DataPlaneKernel:
		return kernelESP{}
	case DataPlaneUserland:
		return userlandESP{}
	}
	return undecided{}
}

func (d DataPlane) offers() offer { return d.plane().offers() }

// choose says who does ESP here, and why: configured is what the configuration
// says.
func (d *DaemonStatus) choose(configured DataPlane) {
	probe := KernelESP()
	kernel := "the kernel has ESP"
	switch {
	case errors.Is(probe, ErrNoKernelESP):
		kernel = probe.Error()
	case probe != nil:
		kernel = fmt.Sprintf("it is not known whether the kernel has ESP (%v)", probe)
	}
	loaded := slices.Contains(d.Plugins, libipsec)
	switch {
	case loaded && probe != nil:
		d.DataPlane, d.Reason = DataPlaneUserland, fmt.Sprintf("strongSwan has loaded its plugin %s, and %s", libipsec, kernel)
	case loaded:
		d.DataPlane, d.Reason = DataPlaneUserland, fmt.Sprintf("strongSwan has loaded its plugin %s, although %s", libipsec, kernel)
	case probe != nil:
		d.DataPlane, d.Reason = DataPlaneKernel, fmt.Sprintf("strongSwan has not loaded its plugin %s; but %s", libipsec, kernel)
	default:
		d.DataPlane, d.Reason = DataPlaneKernel, kernel
	}
	if configured != DataPlaneAuto && configured != d.DataPlane {
		d.Reason = fmt.Sprintf("the configuration says so; by itself it would be %v: %s", d.DataPlane, d.Reason)
		d.DataPlane = configured
	}
}

// undecided is the plane while charon has not been seen: the blocks alone.
type undecided struct{}

func (undecided) offers() offer { return offer{transport: true, udp: true} }

func (undecided) plan(k *kernel, g GuardSpec) (plan, error) {
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

func (undecided) installed(GuardSpec, *SA, *Child) error  { return nil }
func (undecided) route(GuardSpec, netip.Addr, bool) error { return nil }
func (undecided) holdsSAs() bool                          { return false }
