package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec/charon"
)

// Node is a host with its daemon.
type Node struct {
	*lab.Host
	Config string // path of the daemon's main file
	More   string // settings that Start adds to it

	binary string
	log    string
	client *api.Client
	daemon *exec.Cmd
	exited chan struct{} // closed when the daemon has been reaped
}

// New returns a node whose daemon is the program binary. Start starts it.
func New(h *lab.Host, binary string) *Node {
	return &Node{Host: h, binary: binary,
		Config: filepath.Join(h.Dir(), "etc", "ironwarp.yaml"), log: filepath.Join(h.Dir(), "ironwarp.log"),
		client: api.NewClient(filepath.Join(h.RunDir(), strings.TrimPrefix(config.DefaultSocket, "/run/")))}
}

// Install makes binary the host's program: that of the command line at once, and the daemon's
// when it starts again.
func (n *Node) Install(binary string) { n.binary = binary }

// Client talks to the daemon directly, without the command line.
func (n *Node) Client() *api.Client { return n.client }

// Start starts the daemon with a main file that leaves all settings but the state
// directory and More at their defaults, and waits until it answers. It fails with ctx's
// error, and where the daemon ends.
func (n *Node) Start(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Dir(n.Config), 0o700); err != nil {
		return err
	}
	main := fmt.Sprintf("state_dir: %s\n%s", filepath.Join(n.Dir(), "state"), n.More)
	if err := os.WriteFile(n.Config, []byte(main), 0o600); err != nil {
		return err
	}
	log, err := os.OpenFile(n.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := n.Command(context.Background(), n.binary, "daemon", "--config", n.Config)
	cmd.Stdout, cmd.Stderr = log, log
	// Ctrl-C is for the owner, which ends the daemons in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the daemon of %s: %w", n.Name(), err)
	}
	n.daemon, n.exited = cmd, make(chan struct{})
	go func() {
		_ = cmd.Wait() // ProcessState has what it says
		close(n.exited)
	}()
	ctx, cancel := context.WithTimeout(ctx, daemonTimeout)
	defer cancel()
	err = Until(ctx, func() (bool, error) {
		select {
		case <-n.exited:
			return false, errors.New("it ended at once")
		default:
		}
		_, err := n.client.Info(ctx)
		return err == nil, nil
	})
	if err != nil {
		return fmt.Errorf("start the daemon of %s: %w\n%s", n.Name(), err, n.LogTail(2000))
	}
	return nil
}

// Stop ends the daemon with SIGTERM, as systemd does. A daemon that does not run
// is no error.
func (n *Node) Stop() error {
	n.client.Close()
	if n.daemon == nil {
		return nil
	}
	_ = n.daemon.Process.Signal(syscall.SIGTERM)
	select {
	case <-n.exited:
		code := n.daemon.ProcessState.ExitCode()
		if n.daemon = nil; code != 0 {
			return fmt.Errorf("the daemon of %s ended with status %d\n%s", n.Name(), code, n.LogTail(1000))
		}
		return nil
	case <-time.After(daemonTimeout):
		n.Kill()
		return fmt.Errorf("the daemon of %s did not end within %v of SIGTERM", n.Name(), daemonTimeout)
	}
}

// Kill ends the daemon with SIGKILL, and returns when the process is gone.
func (n *Node) Kill() {
	n.client.Close()
	if n.daemon == nil {
		return
	}
	_ = n.daemon.Process.Kill()
	<-n.exited
	n.daemon = nil
}

// Pause stops the daemon where it stands (SIGSTOP). It fails with
// the kernel's error.
func (n *Node) Pause() error { return n.daemon.Process.Signal(syscall.SIGSTOP) }

// Resume lets a paused daemon go on. It fails as Pause does.
func (n *Node) Resume() error { return n.daemon.Process.Signal(syscall.SIGCONT) }

// Ironwarp runs the command line on the host and returns its output. It fails where the
// exit status is not 0; the error has the output.
func (n *Node) Ironwarp(ctx context.Context, stdin io.Reader, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, cliTimeout)
	defer cancel()
	cmd := n.Command(ctx, n.binary, args...)
	cmd.Stdin = stdin
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("ironwarp %s on %s: %w\n%s", strings.Join(args, " "), n.Name(), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.Bytes(), nil
}

// Query runs a command of the CLI with --json and decodes its output. It fails as
// Ironwarp does, and where the output is not such JSON.
func (n *Node) Query(ctx context.Context, into any, args ...string) error {
	out, err := n.Ironwarp(ctx, nil, append([]string{"--json"}, args...)...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(out, into); err != nil {
		return fmt.Errorf("ironwarp %s --json on %s: %w", strings.Join(args, " "), n.Name(), err)
	}
	return nil
}

// LogTail returns the last max bytes of the daemon's log.
func (n *Node) LogTail(max int) string {
	b, err := os.ReadFile(n.log)
	if err != nil {
		return err.Error()
	}
	if len(b) > max {
		b = b[len(b)-max:]
	}
	return strings.TrimSpace(string(b))
}

// Join declares a and b to each other, with the same options of `peer add` on both, and
// waits for their first SA. The secret is generated on a and carried as a person would:
// from the file there to standard input on b. It fails as Ironwarp does, and with ctx's
// error.
func Join(ctx context.Context, a, b *Node, options ...string) error {
	return JoinWith(ctx, a, b, func(_, _ *Node) []string { return options })
}

// JoinWith is Join with the options that options returns for a node and its peer. It
// fails as Join does.
func JoinWith(ctx context.Context, a, b *Node, options func(n, peer *Node) []string) error {
	add := func(n, peer *Node, stdin io.Reader, secret ...string) error {
		args := append([]string{"peer", "add"}, secret...)
		args = append(append(args, options(n, peer)...), peer.Name(), peer.Addr().String())
		_, err := n.Ironwarp(ctx, stdin, args...)
		return err
	}
	if err := add(a, b, nil, "--generate-psk"); err != nil {
		return err
	}
	secret, err := os.ReadFile(config.SecretPath(a.Config, b.Name()))
	if err != nil {
		return err
	}
	if err := add(b, a, bytes.NewReader(secret), "--psk-file", "-"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	for _, n := range []*Node{a, b} {
		var last error
		err := Until(ctx, func() (bool, error) {
			var list []api.SA
			list, last = n.client.SAs(ctx)
			return last == nil && slices.ContainsFunc(list, func(sa api.SA) bool { return sa.State == charon.StateInstalled }), nil
		})
		if err != nil {
			return fmt.Errorf("no SA on %s: %w", n.Name(), errors.Join(err, last))
		}
	}
	return nil
}

// DiskIO is what the daemon has counted for an attached disk. It fails where the daemon
// does not answer, or has no such disk.
func (n *Node) DiskIO(ctx context.Context, export string) (api.IO, error) {
	list, err := n.client.Attachments(ctx)
	if err != nil {
		return api.IO{}, err
	}
	for _, a := range list {
		if a.Export == export {
			return a.IO, nil
		}
	}
	return api.IO{}, fmt.Errorf("%s is not attached to %s any more", export, n.Name())
}

// Build makes the program ironwarp in dir and returns its path. It fails with the
// compiler's output.
func Build(ctx context.Context, dir string) (string, error) {
	binary := filepath.Join(dir, "ironwarp")
	out, err := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", binary, "github.com/ironwarp/ironwarp/cmd/ironwarp").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build ironwarp: %w\n%s", err, out)
	}
	return binary, nil
}

// Until calls f again and again, with short pauses, until ok or an error.
func Until(ctx context.Context, ask func() (ok bool, err error)) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		if ok, err := ask(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

const (
	// A busy machine is no failure.
	daemonTimeout = 2 * time.Minute
	cliTimeout    = 3 * time.Minute
	joinTimeout   = 2 * time.Minute
	pollEvery     = 10 * time.Millisecond
)
