package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/integration/node"
)

// link declares the hosts to each other, offers the disks and attaches them.
func (s *scene) link(ctx context.Context) error {
	s.out.step("peers")
	args := []string{"--transport", s.transport}
	profile := "the default profile"
	if s.profile != "" {
		args, profile = append(args, "--profile", s.profile), "profile "+s.profile
	}
	more := ""
	if s.paths > 1 {
		more = fmt.Sprintf(", %d paths, each over a wire of its own", s.paths)
	}
	options := func(n, peer *node.Node) []string { return slices.Concat(args, s.pathOptions(n, peer)) }
	if err := node.JoinWith(ctx, s.alpha, s.beta, options); err != nil {
		return err
	}
	s.out.done("ironwarp peer add --transport %s on both, %s%s; a secret of 32 random bytes, generated on alpha", s.transport, profile, more)

	s.out.step("exports")
	if _, err := s.beta.Ironwarp(ctx, nil, "export", "add", "--allow", "alpha", "--read-only", "docs", s.image.docs); err != nil {
		return err
	}
	if _, err := s.beta.Ironwarp(ctx, nil, "export", "add", "--allow", "alpha", "scratch", s.image.scratch); err != nil {
		return err
	}
	if err := s.alpha.Query(ctx, &s.docs, "attach", "beta/docs"); err != nil {
		return err
	}
	if err := s.alpha.Query(ctx, &s.scratch, "attach", "beta/scratch"); err != nil {
		return err
	}
	s.out.done("beta offers docs and scratch; ironwarp attach on alpha gave %s", s.docs.Socket)
	return s.judgeCarrier(ctx)
}

// judgeCarrier looks what carries the streams.
func (s *scene) judgeCarrier(ctx context.Context) error {
	streams, err := s.alpha.Streams(ctx, "beta")
	if err != nil {
		return err
	}
	var peer api.Peer
	if err := s.alpha.Query(ctx, &peer, "peer", "show", "beta"); err != nil {
		return err
	}
	want, on := peer.Carrier.Transport, 0
	for _, x := range streams {
		if x.Transport == want {
			on++
		}
	}
	fits := s.transport == "auto" || want == s.transport
	s.claim(fits && on == len(streams), "the streams have the transport that was asked for", "%d of %d over %s: %s; the first is %s", on, len(streams), want, peer.Carrier.Why, streams[0].Flow)
	return nil
}

// copyOut copies the disk to alpha by nbdcopy and compares.
func (s *scene) copyOut(ctx context.Context) error {
	s.out.step("copy")
	copied := filepath.Join(s.alpha.Dir(), "copy.img")
	start := time.Now()
	if err := s.nbdcopy(ctx, copied, start); err != nil {
		return err
	}
	rate := float64(s.size.image) / 1e6 / time.Since(start).Seconds()
	s.out.done("nbdcopy brought %s of docs to alpha at %.0f MB/s", mib(s.size.image), rate)

	s.out.step("compare")
	sum, err := sha256File(copied)
	if err != nil {
		return err
	}
	same := sum == s.image.sum
	s.claim(same, "the copy's SHA-256 is the disk's", "%s", sum[:16])
	fsckErr := fsck(ctx, copied)
	s.claim(fsckErr == nil, "e2fsck finds the copy clean", "%s", errorText(fsckErr, fmt.Sprintf("%d files", s.size.files)))
	s.out.done("SHA-256 and e2fsck -fn")
	return os.Remove(copied)
}

func errorText(err error, otherwise string) string {
	if err == nil {
		return otherwise
	}
	return strings.ReplaceAll(err.Error(), "\n", " ")
}

// nbdcopy copies docs to a file and shows how far it is. nbdcopy's own progress
// moves in steps of 128 MiB, so the daemon is asked how much has been read.
func (s *scene) nbdcopy(ctx context.Context, file string, start time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, copyTimeout)
	defer cancel()
	cmd := s.alpha.Command(ctx, "nbdcopy", s.docs.URI, file)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			if err != nil {
				return fmt.Errorf("nbdcopy %s: %w: %s", s.docs.URI, errors.Join(err, ctx.Err()), bytes.TrimSpace(out.Bytes()))
			}
			return nil
		case <-tick.C:
		}
		if io, err := s.alpha.DiskIO(ctx, "docs"); err == nil {
			read := float64(io.ReadBytes - s.docs.IO.ReadBytes)
			s.out.progress(read/float64(s.size.image), fmt.Sprintf("%s, %.0f MB/s", mib(int64(read)), read/1e6/time.Since(start).Seconds()))
		}
	}
}
