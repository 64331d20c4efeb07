package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netlink"

	"github.com/ironwarp/ironwarp/integration/lab"
)

// control shows that the check of the wire can fail: without the guard and
// without SAs the same I/O does cross it in clear, and a capture of its own
// counts that. Afterwards all is as before.
func (s *scene) control(ctx context.Context) error {
	s.out.step("control")
	capture, err := s.alpha.host.Capture(ctx, lab.CaptureOptions{})
	if err != nil {
		return err
	}
	nodes := []*node{s.alpha, s.beta}
	for _, n := range nodes {
		n.host.KillCharon()
	}
	guards := make([][]netlink.XfrmPolicy, len(nodes))
	for i, n := range nodes {
		if guards[i], err = takeGuardAway(n.host); err != nil {
			return err
		}
	}
	readCtx, cancel := context.WithTimeout(ctx, healTimeout)
	read := make(chan error, 1)
	go func() {
		out, err := s.alpha.host.Run(readCtx, "nbdcopy", s.docs.URI, "null:")
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		read <- err
	}()
	seen := 0
	err = until(readCtx, func() (bool, error) {
		c, err := capture.Count()
		seen = c.Clear(linkPort)
		return seen > 0, err
	})
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		cancel()
		return errors.Join(err, <-read)
	}
	cancel()
	<-read // it was ended early, on purpose
	counts, err := capture.Stop()
	if err != nil {
		return err
	}
	s.claim(counts.Clear(linkPort) > 0, "control: without the guard the same check finds clear packets",
		"%d clear packets of port %d", counts.Clear(linkPort), linkPort)
	for i, n := range nodes {
		if err := putGuardBack(n.host, guards[i]); err != nil {
			return err
		}
	}
	for _, n := range nodes {
		if err := n.host.StartCharon(ctx); err != nil {
			return err
		}
	}
	s.out.done("guard off, strongSwan off, and the same I/O again in a capture of its own; both are back")
	return os.Remove(capture.Path())
}

// takeGuardAway removes every XFRM policy and state of a host and returns the
// policies that block.
func takeGuardAway(h *lab.Host) (guard []netlink.XfrmPolicy, err error) {
	err = h.Do(func() error {
		all, err := netlink.XfrmPolicyList(netlink.FAMILY_ALL)
		if err != nil {
			return err
		}
		for _, p := range all {
			if p.Action == netlink.XFRM_POLICY_BLOCK {
				guard = append(guard, p)
			}
		}
		if len(guard) == 0 {
			return errors.New("there are no blocking policies: the guard is not there")
		}
		if err := netlink.XfrmPolicyFlush(); err != nil {
			return err
		}
		// A kernel without ESP has no states either and may refuse the call.
		_ = netlink.XfrmStateFlush(0)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("take the guard of %s away: %w", h.Name(), err)
	}
	return guard, nil
}

func putGuardBack(h *lab.Host, guard []netlink.XfrmPolicy) error {
	err := h.Do(func() error {
		for _, p := range guard {
			if err := netlink.XfrmPolicyUpdate(&p); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("put the guard of %s back: %w", h.Name(), err)
	}
	return nil
}
