package lab

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"

	"github.com/ironwarp/ironwarp/transport"
)

// OverrideGuardOf lets everything of a port of TCP, UDP or SCTP between the host and its
// peer pass in clear, whatever the guard says: a control run needs it to show that a check
// finds clear packets. It fails with the kernel's error.
func (h *Host) OverrideGuardOf(proto transport.Protocol, peer *Host, port uint16) error {
	err := h.Do(func() error {
		for _, p := range overrides(h, peer, proto, port) {
			// With the kernel's ESP strongSwan may have a policy with the same selector.
			if err := netlink.XfrmPolicyUpdate(p); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("override the guard of %s: %w", h.name, err)
	}
	return nil
}

// EndOverrideOf takes back OverrideGuardOf. It fails with the kernel's error, for
// example where there is none.
func (h *Host) EndOverrideOf(proto transport.Protocol, peer *Host, port uint16) error {
	err := h.Do(func() error {
		var errs []error
		for _, p := range overrides(h, peer, proto, port) {
			errs = append(errs, netlink.XfrmPolicyDel(p))
		}
		return errors.Join(errs...)
	})
	if err != nil {
		return fmt.Errorf("end the override of %s's guard: %w", h.name, err)
	}
	return nil
}

// overrides are policies that take precedence over the guard's: everything of the port
// between two hosts may pass, in both directions and on both ends of each wire.
func overrides(h, peer *Host, proto transport.Protocol, port uint16) (all []*netlink.XfrmPolicy) {
	for wire := range h.lab.cfg.Wires {
		all = append(all, overridesOn(wire, h, peer, proto, port)...)
	}
	return all
}

func overridesOn(wire int, h, peer *Host, proto transport.Protocol, port uint16) (all []*netlink.XfrmPolicy) {
	// The smaller number wins; the guard's are 1000 and above.
	const priority = 1
	one := func(host *Host) *net.IPNet {
		return &net.IPNet{IP: host.AddrOn(wire).AsSlice(), Mask: net.CIDRMask(32, 32)}
	}
	for _, dir := range []netlink.Dir{netlink.XFRM_DIR_OUT, netlink.XFRM_DIR_IN} {
		src, dst := h, peer
		if dir == netlink.XFRM_DIR_IN {
			src, dst = peer, h
		}
		for _, atSource := range []bool{true, false} {
			p := &netlink.XfrmPolicy{Src: one(src), Dst: one(dst), Proto: netlink.Proto(proto), Dir: dir,
				Action: netlink.XFRM_POLICY_ALLOW, Priority: priority}
			if atSource {
				p.SrcPort = int(port)
			} else {
				p.DstPort = int(port)
			}
			all = append(all, p)
		}
	}
	return all
}
