package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/integration/node"
)

// pathOptions are those of `peer add` for more than one wire. A path that is silent is given
// up after (4+1) intervals.
func (s *scene) pathOptions(n, peer *node.Node) (options []string) {
	if s.paths > 1 {
		options = []string{"--local-address", n.Addr().String(), "--heartbeat-interval", "2s", "--heartbeat-misses", "4"}
	}
	for wire := 1; wire < s.paths; wire++ {
		options = append(options, "--path", fmt.Sprintf("%v=%v", peer.AddrOn(wire), n.AddrOn(wire)))
	}
	return options
}

// cutWires cuts each wire in turn while fio writes and verifies the scratch disk. With one
// path there is no other to go by, and nothing is cut.
func (s *scene) cutWires(ctx context.Context) error {
	if s.paths < 2 {
		return nil
	}
	s.out.step("cut")
	var stalls []string
	err := s.underLoad(ctx, "fio wrote and verified while each wire was cut", func(ctx context.Context) error {
		for wire := range s.paths {
			s.out.progress(float64(wire)/float64(s.paths), fmt.Sprintf("wire %d is cut", wire+1))
			stall, err := s.cutWire(ctx, wire)
			if err != nil {
				return fmt.Errorf("wire %d was cut: %w", wire+1, err)
			}
			stalls = append(stalls, stall.Round(100*time.Millisecond).String())
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.claim(len(stalls) == s.paths, "a path whose wire is cut is given up, and comes back", "given up and its I/O done by the others after %s", strings.Join(stalls, ", "))
	s.out.done("fio on scratch while each of %d wires was cut and joined again", s.paths)
	return nil
}

// cutWire cuts a wire until its path is given up and the I/O goes on without it, and joins it
// again until the path is back. It returns the time until the I/O went on.
func (s *scene) cutWire(ctx context.Context, wire int) (stall time.Duration, err error) {
	if err := s.awaitPaths(ctx, s.paths); err != nil {
		return 0, err
	}
	if err := s.beta.Sever(ctx, wire, true); err != nil {
		return 0, err
	}
	start := time.Now()
	if err := errors.Join(s.awaitPaths(ctx, s.paths-1), s.awaitFlow(ctx)); err != nil {
		return 0, err
	}
	stall = time.Since(start)
	if err := s.beta.Sever(ctx, wire, false); err != nil {
		return 0, err
	}
	return stall, errors.Join(s.awaitPaths(ctx, s.paths), s.awaitFlow(ctx))
}

// awaitPaths waits until so many of the session's paths carry I/O.
func (s *scene) awaitPaths(ctx context.Context, want int) error {
	ctx, cancel := context.WithTimeout(ctx, healTimeout)
	defer cancel()
	up := 0
	err := node.Until(ctx, func() (bool, error) {
		st, err := s.alpha.Client().Status(ctx)
		if err != nil {
			return false, err
		}
		up = 0
		for _, x := range st.Sessions {
			for _, p := range x.Paths {
				if x.Role == "client" && p.State == "connected" && !p.Avoided {
					up++
				}
			}
		}
		return up == want, nil
	})
	if err != nil {
		return fmt.Errorf("%d paths carry I/O, not %d: %w", up, want, err)
	}
	return nil
}
