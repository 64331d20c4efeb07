package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/vishvananda/netlink"

	"github.com/ironwarp/ironwarp/integration/lab"
)

// control shows that the check of the wire can fail: with the guard overridden
// and without SAs the same I/O does cross it in clear, and a capture of its own
// counts that. Afterwards all is as before.
func (s *scene) control(ctx context.Context) (err error) {
	s.out.step("control")
	capture, err := s.alpha.host.Capture(ctx, lab.CaptureOptions{})
	if err != nil {
		return err
	}
	hosts := []*lab.Host{s.alpha.host, s.beta.host}
	for i, h := range hosts {
		if err := guardOff(h, hosts[1-i]); err != nil {
			return err
		}
	}
	for _, h := range hosts {
		h.KillCharon()
	}
	if err := s.readUntilClear(ctx, capture); err != nil {
		return err
	}
	counts, err := capture.Stop()
	if err != nil {
		return err
	}
	clear := counts.Clear(linkPort)
	s.claim(clear > 0, "control: without the guard the same check finds clear packets", "%d clear packets of port %d", clear, linkPort)
	for i, h := range hosts {
		if err := guardOn(h, hosts[1-i]); err != nil {
			return err
		}
		if err := h.StartCharon(ctx); err != nil {
			return err
		}
	}
	s.out.done("the same I/O with the guard overridden and strongSwan dead, in a capture of its own; both are back")
	return os.Remove(capture.Path())
}

// readUntilClear reads docs until the capture has clear packets. That there are
// none within the limit is no error here: it is what the claim is about.
func (s *scene) readUntilClear(ctx context.Context, capture *lab.Capture) error {
	ctx, cancel := context.WithTimeout(ctx, healTimeout)
	defer cancel()
	cmd := s.alpha.host.Command(ctx, "nbdcopy", s.docs.URI, "null:")
	if err := cmd.Start(); err != nil {
		return err
	}
	err := until(ctx, func() (bool, error) {
		c, err := capture.Count()
		return c.Clear(linkPort) > 0, err
	})
	cancel()
	cmd.Wait() // it was ended early, on purpose
	if errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}

// overrides are policies that win against the guard's: for the link's port
// between two hosts, either way and on either side, everything may pass.
func overrides(h, peer *lab.Host) []*netlink.XfrmPolicy {
	// The smaller number wins; the guard's are 1000 and above.
	const priority = 1
	one := func(host *lab.Host) *net.IPNet {
		return &net.IPNet{IP: host.Addr().AsSlice(), Mask: net.CIDRMask(32, 32)}
	}
	var all []*netlink.XfrmPolicy
	for _, dir := range []netlink.Dir{netlink.XFRM_DIR_OUT, netlink.XFRM_DIR_IN} {
		src, dst := h, peer
		if dir == netlink.XFRM_DIR_IN {
			src, dst = peer, h
		}
		for _, atSource := range []bool{true, false} {
			p := &netlink.XfrmPolicy{Src: one(src), Dst: one(dst), Proto: netlink.Proto(6), Dir: dir,
				Action: netlink.XFRM_POLICY_ALLOW, Priority: priority}
			if atSource {
				p.SrcPort = linkPort
			} else {
				p.DstPort = linkPort
			}
			all = append(all, p)
		}
	}
	return all
}

func guardOff(h, peer *lab.Host) error {
	err := h.Do(func() error {
		for _, p := range overrides(h, peer) {
			if err := netlink.XfrmPolicyAdd(p); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("override the guard of %s: %w", h.Name(), err)
	}
	return nil
}

func guardOn(h, peer *lab.Host) error {
	err := h.Do(func() error {
		var errs []error
		for _, p := range overrides(h, peer) {
			errs = append(errs, netlink.XfrmPolicyDel(p))
		}
		return errors.Join(errs...)
	})
	if err != nil {
		return fmt.Errorf("end the override of %s's guard: %w", h.Name(), err)
	}
	return nil
}
