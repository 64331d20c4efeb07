package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// storm lets fio write and verify the scratch disk while child SAs are deleted
// from both ends and strongSwan is killed, and shows that the stream stays.
func (s *scene) storm(ctx context.Context) error {
	s.out.step("storm")
	before, err := s.streams(ctx)
	if err != nil {
		return err
	}
	start := time.Now()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := make(chan struct{})
	var load fioTotals
	loadDone := make(chan error, 1)
	go func() {
		err := s.fio(ctx, stop, &load)
		if err != nil {
			cancel(err)
		}
		loadDone <- err
	}()
	deleted, killed, err := s.disrupt(ctx)
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
	s.claim(loadErr == nil, "fio wrote and verified without an error", "%s",
		errorText(loadErr, fmt.Sprintf("%s written, %s read back and verified", mib(load.written), mib(load.read))))
	if loadErr != nil {
		return loadErr
	}
	s.claim(deleted[0]+deleted[1] == s.size.deletions, "child SAs deleted under I/O came back",
		"%d deleted, %d from alpha and %d from beta", deleted[0]+deleted[1], deleted[0], deleted[1])
	s.claim(killed != 0, "strongSwan was killed and started again under I/O", "SIGKILL to process %d on beta", killed)

	after, err := s.streams(ctx)
	if err != nil {
		return err
	}
	same, text := compareStreams(before, after, time.Since(start))
	s.claim(same, "the streams are the same streams", "%s", text)
	s.out.done("fio on scratch while %d SAs were deleted and strongSwan was killed once", s.size.deletions)
	return nil
}

// streams are alpha's block streams to beta, by id.
func (s *scene) streams(ctx context.Context) ([]api.Stream, error) {
	st, err := s.alpha.status(ctx)
	if err != nil {
		return nil, err
	}
	list := slices.DeleteFunc(st.Streams, func(x api.Stream) bool { return x.Peer != "beta" })
	if len(list) == 0 {
		return nil, errors.New("alpha has no stream to beta")
	}
	slices.SortFunc(list, func(a, b api.Stream) int { return bytes.Compare([]byte(a.ID), []byte(b.ID)) })
	return list, nil
}

// compareStreams says whether two looks, some time apart, saw the same streams:
// the same ids, each older by that time.
func compareStreams(before, after []api.Stream, apart time.Duration) (same bool, text string) {
	ids := func(list []api.Stream) (ids []string) {
		for _, x := range list {
			ids = append(ids, x.ID)
		}
		return ids
	}
	if len(before) == 0 || !slices.Equal(ids(before), ids(after)) {
		return false, fmt.Sprintf("ids %v before, %v after", ids(before), ids(after))
	}
	for i := range before {
		// The ages are taken within the daemon and the time between them here: two
		// seconds are more than the calls take.
		if grown := after[i].AgeSeconds - before[i].AgeSeconds; grown < apart.Seconds()-2 || grown < 0 {
			return false, fmt.Sprintf("%s was %.0f s old, and after %.0f s it is %.0f s old", before[i].ID, before[i].AgeSeconds, apart.Seconds(), after[i].AgeSeconds)
		}
	}
	text = fmt.Sprintf("%s: %.0f s old before, %.0f s after", before[0].ID, before[0].AgeSeconds, after[0].AgeSeconds)
	if n := len(before); n > 1 {
		text += fmt.Sprintf("; the other %d likewise", n-1)
	}
	return true, text
}

// disrupt deletes child SAs alternately from both ends, and kills beta's
// strongSwan half way. After each it waits until an SA is back and data flows.
func (s *scene) disrupt(ctx context.Context) (deleted [2]int, killed int, err error) {
	ends := []struct {
		node *node
		peer string
	}{{s.alpha, "beta"}, {s.beta, "alpha"}}
	total := s.size.deletions + 1
	if err := s.awaitFlow(ctx); err != nil {
		return deleted, 0, err
	}
	for i := range s.size.deletions {
		s.out.progress(float64(i+min(killed, 1))/float64(total), fmt.Sprintf("%d SAs deleted", i))
		end := ends[i%2]
		n, err := s.deleteSAs(ctx, end.node, end.peer)
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
func (s *scene) deleteSAs(ctx context.Context, n *node, peer string) (int, error) {
	var old []api.SA
	if err := n.query(ctx, &old, "sa", "ls"); err != nil {
		return 0, err
	}
	if _, err := n.ironwarp(ctx, nil, "sa", "delete", peer); err != nil {
		return 0, err
	}
	if err := s.awaitSA(ctx, n, old); err != nil {
		return 0, err
	}
	return len(old), s.awaitFlow(ctx)
}

func (s *scene) killCharon(ctx context.Context) (pid int, err error) {
	var old []api.SA
	if err := s.beta.query(ctx, &old, "sa", "ls"); err != nil {
		return 0, err
	}
	pid = s.beta.host.CharonPID()
	if err := s.beta.host.RestartCharon(ctx); err != nil {
		return 0, err
	}
	if err := s.awaitSA(ctx, s.beta, old); err != nil {
		return 0, err
	}
	return pid, s.awaitFlow(ctx)
}

// awaitSA waits until a child SA is installed that is not one of old.
func (s *scene) awaitSA(ctx context.Context, n *node, old []api.SA) error {
	ctx, cancel := context.WithTimeout(ctx, healTimeout)
	defer cancel()
	var last error
	err := until(ctx, func() (bool, error) {
		var now []api.SA
		if last = n.query(ctx, &now, "sa", "ls"); last != nil {
			return false, nil // strongSwan may be away for the moment
		}
		return slices.ContainsFunc(now, func(sa api.SA) bool {
			return sa.State == "INSTALLED" && !slices.ContainsFunc(old, func(o api.SA) bool { return o.SPIIn == sa.SPIIn })
		}), nil
	})
	if err != nil {
		return fmt.Errorf("no new child SA on %s: %w", n.host.Name(), errors.Join(context.Cause(ctx), last))
	}
	return nil
}

// flowed is how much has to move to count as flowing, in bytes.
const flowed = 512 << 10

// awaitFlow waits until scratch's I/O has moved on.
func (s *scene) awaitFlow(ctx context.Context) error {
	moved := func() (uint64, error) {
		io, err := s.diskIO(ctx, "scratch")
		return io.ReadBytes + io.WriteBytes, err
	}
	ctx, cancel := context.WithTimeout(ctx, healTimeout)
	defer cancel()
	base, err := moved()
	if err != nil {
		return err
	}
	err = until(ctx, func() (bool, error) {
		now, err := moved()
		return err == nil && now >= base+flowed, err
	})
	if err != nil {
		return fmt.Errorf("the I/O on scratch does not go on: %w", err)
	}
	return nil
}

// fioTotals counts bytes.
type fioTotals struct{ written, read int64 }

// fio writes and verifies scratch, pass after pass, until stop is closed; the
// pass that runs then is finished.
func (s *scene) fio(ctx context.Context, stop <-chan struct{}, sum *fioTotals) error {
	ctx, cancel := context.WithTimeout(ctx, fioTimeout)
	defer cancel()
	for pass := 1; ; pass++ {
		cmd := s.alpha.host.Command(ctx, "fio", "--name=scratch", "--ioengine=nbd", "--uri="+s.scratch.URI,
			"--rw=randwrite", "--bs=64k", "--iodepth=8", "--size="+strconv.FormatInt(s.size.verified, 10),
			"--randseed="+strconv.Itoa(pass), "--verify=crc32c", "--do_verify=1", "--verify_fatal=1", "--verify_state_save=0", "--output-format=json")
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("fio, pass %d: %w: %s%s", pass, errors.Join(err, context.Cause(ctx)), stderr.Bytes(), firstLines(stdout.Bytes(), 5))
		}
		if err := sum.add(stdout.Bytes()); err != nil {
			return fmt.Errorf("fio, pass %d: %w", pass, err)
		}
		select {
		case <-stop:
			return nil
		default:
		}
	}
}

func firstLines(b []byte, n int) []byte {
	for i, c := range b {
		if c == '\n' {
			if n--; n == 0 {
				return b[:i]
			}
		}
	}
	return b
}

// add takes fio's report, which must say that there was no error and that all
// that was written was read back.
func (t *fioTotals) add(report []byte) error {
	var r struct {
		Jobs []struct {
			Error int
			Read  struct {
				Bytes int64 `json:"io_bytes"`
			}
			Write struct {
				Bytes int64 `json:"io_bytes"`
			}
		}
	}
	if i := bytes.IndexByte(report, '{'); i > 0 {
		report = report[i:] // warnings stand before the report
	}
	if err := json.Unmarshal(report, &r); err != nil || len(r.Jobs) != 1 {
		return fmt.Errorf("its report is not understood: %v", err)
	}
	j := r.Jobs[0]
	if j.Error != 0 || j.Write.Bytes == 0 || j.Read.Bytes < j.Write.Bytes {
		return fmt.Errorf("error %d; %d bytes written, %d verified", j.Error, j.Write.Bytes, j.Read.Bytes)
	}
	t.written += j.Write.Bytes
	t.read += j.Read.Bytes
	return nil
}
