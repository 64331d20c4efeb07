package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/integration/node"
)

// storm lets fio write and verify the scratch disk while child SAs are deleted
// from both ends and strongSwan is killed, and shows that the stream stays.
func (s *scene) storm(ctx context.Context) error {
	s.out.step("storm")
	before, err := s.alpha.Streams(ctx, "beta")
	if err != nil {
		return err
	}
	start := time.Now()
	var deleted [2]int
	var killed int
	if err := s.underLoad(ctx, "fio wrote and verified without an error", func(ctx context.Context) (err error) {
		deleted, killed, err = s.disrupt(ctx)
		return err
	}); err != nil {
		return err
	}
	s.claim(deleted[0]+deleted[1] == s.size.deletions, "child SAs deleted under I/O came back",
		"%d deleted, %d from alpha and %d from beta", deleted[0]+deleted[1], deleted[0], deleted[1])
	s.claim(killed != 0, "strongSwan was killed and started again under I/O", "SIGKILL to process %d on beta", killed)

	after, err := s.alpha.Streams(ctx, "beta")
	if err != nil {
		return err
	}
	same, text := node.SameStreams(before, after, time.Since(start))
	s.claim(same, "the streams are the same streams", "%s", text)
	s.out.done("fio on scratch while %d SAs were deleted and strongSwan was killed once", s.size.deletions)
	return nil
}

// underLoad lets fio write and verify the scratch disk while disrupt runs, and claims that it
// does so without an error.
func (s *scene) underLoad(ctx context.Context, text string, disrupt func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := make(chan struct{})
	var load node.Done
	loadDone := make(chan error, 1)
	go func() {
		var err error
		load, err = s.fio(ctx, stop)
		if err != nil {
			cancel(err)
		}
		loadDone <- err
	}()
	err := disrupt(ctx)
	close(stop)
	if err != nil {
		cancel(err)
	}
	loadErr := <-loadDone
	if cause := context.Cause(ctx); err != nil && loadErr != nil && errors.Is(cause, loadErr) {
		err = nil // fio's failure came first and ended the disruption
	}
	if err != nil {
		return err
	}
	s.claim(loadErr == nil, text, "%s", errorText(loadErr, fmt.Sprintf("%s written, %s read back and verified", mib(load.Written), mib(load.Read))))
	return loadErr
}

// disrupt deletes child SAs alternately from both ends, and kills beta's
// strongSwan half way. After each it waits until an SA is back and data flows.
func (s *scene) disrupt(ctx context.Context) (deleted [2]int, killed int, err error) {
	ends := []struct {
		at   *node.Node
		peer string
	}{{s.alpha, "beta"}, {s.beta, "alpha"}}
	total := s.size.deletions + 1
	if err := s.awaitFlow(ctx); err != nil {
		return deleted, 0, err
	}
	for i := range s.size.deletions {
		s.out.progress(float64(i+min(killed, 1))/float64(total), fmt.Sprintf("%d SAs deleted", i))
		end := ends[i%2]
		n, err := s.deleteSAs(ctx, end.at, end.peer)
		if err != nil {
			return deleted, killed, err
		}
		if n > 0 {
			deleted[i%2]++
		}
		if i == s.size.deletions/2 {
			s.out.progress(float64(i+1)/float64(total), "strongSwan on beta killed")
			if killed, err = s.killCharon(ctx); err != nil {
				return deleted, killed, err
			}
		}
	}
	return deleted, killed, nil
}

// deleteSAs deletes a host's child SAs to its peer and returns how many there
// were once new ones carry data.
func (s *scene) deleteSAs(ctx context.Context, n *node.Node, peer string) (int, error) {
	var old []api.SA
	if err := n.Query(ctx, &old, "sa", "ls"); err != nil {
		return 0, err
	}
	// An emulated machine may be too slow for the order's time limit. What counts is
	// that others are there afterwards.
	_, ordered := n.Ironwarp(ctx, nil, "sa", "delete", peer)
	if err := s.awaitSA(ctx, n, old); err != nil {
		return 0, errors.Join(ordered, err)
	}
	return len(old), s.awaitFlow(ctx)
}

func (s *scene) killCharon(ctx context.Context) (pid int, err error) {
	var old []api.SA
	if err := s.beta.Query(ctx, &old, "sa", "ls"); err != nil {
		return 0, err
	}
	pid = s.beta.CharonPID()
	if err := s.beta.RestartCharon(ctx); err != nil {
		return 0, err
	}
	if err := s.awaitSA(ctx, s.beta, old); err != nil {
		return 0, err
	}
	return pid, s.awaitFlow(ctx)
}

// awaitSA waits until a child SA is installed that is not one of old.
func (s *scene) awaitSA(ctx context.Context, n *node.Node, old []api.SA) error {
	ctx, cancel := context.WithTimeout(ctx, healTimeout)
	defer cancel()
	var last error
	err := node.Until(ctx, func() (bool, error) {
		var now []api.SA
		if last = n.Query(ctx, &now, "sa", "ls"); last != nil {
			return false, nil // strongSwan may be away for the moment
		}
		return slices.ContainsFunc(now, func(sa api.SA) bool {
			return sa.State == "INSTALLED" && !slices.ContainsFunc(old, func(o api.SA) bool { return o.SPIIn == sa.SPIIn })
		}), nil
	})
	if err != nil {
		return fmt.Errorf("no new child SA on %s: %w", n.Name(), errors.Join(context.Cause(ctx), last))
	}
	return nil
}

// flowed is how much has to move to count as flowing, in bytes.
const flowed = 512 << 10

// awaitFlow waits until scratch's I/O has moved on.
func (s *scene) awaitFlow(ctx context.Context) error {
	moved := func() (uint64, error) {
		io, err := s.alpha.DiskIO(ctx, "scratch")
		return io.ReadBytes + io.WriteBytes, err
	}
	ctx, cancel := context.WithTimeout(ctx, healTimeout)
	defer cancel()
	base, err := moved()
	if err != nil {
		return err
	}
	err = node.Until(ctx, func() (bool, error) {
		now, err := moved()
		return err == nil && now >= base+flowed, err
	})
	if err != nil {
		return fmt.Errorf("the I/O on scratch does not go on: %w", err)
	}
	return nil
}

// fio writes and verifies scratch until stop is closed.
func (s *scene) fio(ctx context.Context, stop <-chan struct{}) (node.Done, error) {
	load := node.Load{URI: s.scratch.URI, Size: s.size.verified, Timeout: fioTimeout}
	return load.Run(ctx, s.alpha, stop)
}
