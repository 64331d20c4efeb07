package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/integration/node"
)

const programTime = 2 * time.Minute

// programPorts are declared for programs, and of these are used:
var programPorts = config.PortBlock{First: 18432, Size: 64}

const (
	perftestPort = "18440"
	rcopyPort    = "18441"
)

// runPrograms has programs of others, which know RDMA by libibverbs and nothing of IronWarp, move data between the hosts.
func (s *scene) runPrograms(ctx context.Context) error {
	s.out.step("programs")
	if missing := s.missingForPrograms(); missing != "" {
		s.out.done("left out, as there is no %s: make demo has it", missing)
		return nil
	}
	for n, peer := range map[*node.Node]*node.Node{s.alpha: s.beta, s.beta: s.alpha} {
		if _, err := n.Ironwarp(ctx, nil, "ulp", "add", "--peer", peer.Name(), "--ports", programPorts.String(), "--listen", "rdma"); err != nil {
			return err
		}
	}
	if err := s.perftest(ctx); err != nil {
		return err
	}
	if err := s.rcopy(ctx); err != nil {
		return err
	}
	s.out.done("ironwarp run -- ib_write_bw, and rcopy, of Debian, unchanged; an SA was deleted under the former from either host")
	return nil
}

// missingForPrograms is what runPrograms lacks; "": nothing.
func (s *scene) missingForPrograms() string {
	for _, name := range []string{"ib_write_bw", "rcopy", "ss"} {
		if _, err := exec.LookPath(name); err != nil {
			return name
		}
	}
	libraries := filepath.Join(filepath.Dir(s.binary), "rdma")
	if _, err := os.Stat(filepath.Join(libraries, "libibverbs.so.1")); err != nil {
		return libraries
	}
	return ""
}

// program starts one on a host, by `ironwarp run`.
func (s *scene) program(ctx context.Context, n *node.Node, args ...string) (cmd *exec.Cmd, out *bytes.Buffer, err error) {
	cmd, out = n.Command(ctx, s.binary, append([]string{"run", "--"}, args...)...), new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = out, out
	return cmd, out, cmd.Start()
}

// listens waits until somebody listens on a port of a host.
func listens(ctx context.Context, n *node.Node, port string) error {
	return node.Until(ctx, func() (bool, error) {
		out, err := n.Command(ctx, "ss", "-Hltn", "sport = :"+port).Output()
		return len(out) > 0, errors.Join(err, ctx.Err())
	})
}

var writeBandwidth = regexp.MustCompile(`(?m)^ *65536 +\d+ +\S+ +(\S+) `)

// perftest measures RDMA Writes while SAs are deleted. It knows no other end than a time, which may pass on a busy machine
// before they are: then it has more.
func (s *scene) perftest(ctx context.Context) error {
	for seconds := 4; ; seconds *= 4 {
		early, err := s.perftestFor(ctx, seconds)
		if !early || seconds > 60 {
			return err
		}
	}
}

// errEarly is that of a program that has ended before all SAs were deleted.
var errEarly = errors.New("it has ended before all SAs were deleted")

// perftestFor is perftest of so many seconds; early means that it has ended well before all SAs were deleted.
func (s *scene) perftestFor(ctx context.Context, seconds int) (early bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, programTime)
	defer cancel()
	args := []string{"ib_write_bw", "-F", "-R", "-p", perftestPort, "-D", strconv.Itoa(seconds)} // -F: a report even if the processor's clock is not known
	server, said, err := s.program(ctx, s.beta, args...)
	if err != nil {
		return false, err
	}
	defer server.Process.Kill()
	if err := listens(ctx, s.beta, perftestPort); err != nil {
		return false, fmt.Errorf("ib_write_bw on beta: %w\n%s", err, said)
	}
	client, out, err := s.program(ctx, s.alpha, append(args, s.beta.Addr().String())...)
	if err != nil {
		return false, err
	}
	running, over := context.WithCancelCause(ctx)
	done := make(chan struct{})
	var ended error // how, once done is closed
	go func() {
		ended = client.Wait()
		over(errEarly)
		close(done)
	}()
	defer func() {
		_ = client.Process.Kill()
		<-done
	}()
	deleted := 0
	for n, peer := range map[*node.Node]*node.Node{s.alpha: s.beta, s.beta: s.alpha} {
		if err := s.programMoves(running); errors.Is(context.Cause(running), errEarly) {
			break
		} else if err != nil {
			return false, fmt.Errorf("ib_write_bw: %w", err)
		}
		if _, err := n.Ironwarp(ctx, nil, "sa", "delete", peer.Name()); err != nil {
			return false, err
		}
		deleted++
	}
	<-done // at the latest when the context has ended, by which it was started
	err = ended
	if err == nil && deleted < 2 {
		return true, errors.Join(errEarly, server.Wait())
	}
	rate := writeBandwidth.FindStringSubmatch(out.String())
	s.claim(err == nil && rate != nil, "perftest's ib_write_bw ran between the hosts, over deleted SAs", "%s",
		errorText(err, fmt.Sprintf("%s MB/s; %d SAs deleted", strings.Join(rate[min(1, len(rate)):], ""), deleted)))
	if err != nil {
		return false, nil // it is a claim that does not hold
	}
	return false, server.Wait()
}

// programMoves waits until a program's stream on alpha has moved something more.
func (s *scene) programMoves(ctx context.Context) error {
	var before uint64
	return node.Until(ctx, func() (bool, error) {
		list, err := s.alpha.Client().Streams(ctx) // there may be none yet
		if err != nil {
			return false, err
		}
		var sum uint64
		for _, x := range list {
			if x.Program != "" {
				sum += x.BytesOut
			}
		}
		moved := before > 0 && sum > before+1<<20
		if before == 0 {
			before = sum
		}
		return moved, ctx.Err()
	})
}

// rcopy copies a file that is full of the canary by sockets over RDMA.
func (s *scene) rcopy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, programTime)
	defer cancel()
	const size = 2 << 20
	from, to := filepath.Join(s.alpha.Dir(), "from"), filepath.Join(s.beta.Dir(), "to")
	want := s.canary.Bytes(size)
	if err := os.WriteFile(from, want, 0o600); err != nil {
		return err
	}
	server, said, err := s.program(ctx, s.beta, "rcopy", "-p", rcopyPort)
	if err != nil {
		return err
	}
	defer func() {
		server.Process.Kill()
		_ = server.Wait() // it serves until it is killed
	}()
	if err := listens(ctx, s.beta, rcopyPort); err != nil {
		return fmt.Errorf("rcopy on beta: %w\n%s", err, said)
	}
	client, out, err := s.program(ctx, s.alpha, "rcopy", from, s.beta.Addr().String()+":"+to, "-p", rcopyPort)
	if err != nil {
		return err
	}
	if err = client.Wait(); err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	} else {
		err = node.Until(ctx, func() (bool, error) {
			got, err := os.ReadFile(to)
			return bytes.Equal(got, want), errors.Join(err, ctx.Err())
		})
	}
	s.claim(err == nil, "a file came whole by sockets over RDMA, those of librdmacm", "%s", errorText(err, mib(size)+" by rcopy"))
	return nil
}
