package main

import (
	"context"
	"errors"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/integration/node"
)

// control shows that the check of the wire can fail: with the guard overridden
// and without SAs the same I/O does cross it in clear, and a capture of its own
// counts that. Afterwards all is as before.
func (s *scene) control(ctx context.Context) (err error) {
	s.out.step("control")
	capture, err := s.alpha.CaptureAll(ctx, lab.CaptureOptions{Unjudged: "the control"})
	if err != nil {
		return err
	}
	hosts := []*lab.Host{s.alpha.Host, s.beta.Host}
	for i, h := range hosts {
		for _, w := range wires[s.transport] {
			if err := h.OverrideGuardOf(w.proto, hosts[1-i], w.port); err != nil {
				return err
			}
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
	clear := clearOn(counts, wires[s.transport])
	s.claim(clear > 0, "control: without the guard the same check finds clear packets", "%d clear packets of %s", clear, s.wireNames())
	s.claim(counts.Leaked() != "", "control: and the disk's content in them", "%s", counts.Leaked())
	for i, h := range hosts {
		for _, w := range wires[s.transport] {
			if err := h.EndOverrideOf(w.proto, hosts[1-i], w.port); err != nil {
				return err
			}
		}
		if err := h.StartCharon(ctx); err != nil {
			return err
		}
	}
	s.out.done("the same I/O with the guard overridden and strongSwan dead, in a capture of its own; both are back")
	return nil
}

// readUntilClear reads docs until the capture has clear packets with its content. That there are
// none within the limit is no error here: it is what the claim is about.
func (s *scene) readUntilClear(ctx context.Context, capture lab.Captures) error {
	ctx, cancel := context.WithTimeout(ctx, healTimeout)
	defer cancel()
	cmd := s.alpha.Command(ctx, "nbdcopy", s.docs.URI, "null:")
	if err := cmd.Start(); err != nil {
		return err
	}
	err := node.Until(ctx, func() (bool, error) {
		c, err := capture.Count()
		return clearOn(c, wires[s.transport]) > 0 && c.Leaked() != "", err
	})
	cancel()
	cmd.Wait() // it was ended early, on purpose
	if errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}
