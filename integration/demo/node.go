package main

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
	"strings"
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/integration/lab"
)

type attachment = api.Attachment

// node is a host with its daemon, driven as a person would: by the command line.
type node struct {
	host   *lab.Host
	binary string
	config string
	log    string

	daemon *exec.Cmd
	exited chan struct{}
}

func newNode(h *lab.Host, binary string) *node {
	return &node{host: h, binary: binary, config: filepath.Join(h.Dir(), "etc", "ironwarp.yaml"), log: filepath.Join(h.Dir(), "ironwarp.log")}
}

// startDaemon starts the daemon with a main file that leaves all settings but
// the state directory at their defaults, and waits until it answers.
func (n *node) startDaemon(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Dir(n.config), 0o700); err != nil {
		return err
	}
	main := fmt.Sprintf("state_dir: %s\n", filepath.Join(n.host.Dir(), "state"))
	if err := os.WriteFile(n.config, []byte(main), 0o600); err != nil {
		return err
	}
	log, err := os.OpenFile(n.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := n.host.Command(context.Background(), n.binary, "daemon", "--config", n.config)
	cmd.Stdout, cmd.Stderr = log, log
	// Ctrl-C is for the demonstration, which ends the daemons in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the daemon of %s: %w", n.host.Name(), err)
	}
	n.daemon, n.exited = cmd, make(chan struct{})
	go func() {
		cmd.Wait()
		close(n.exited)
	}()
	ctx, cancel := context.WithTimeout(ctx, daemonTimeout)
	defer cancel()
	err = until(ctx, func() (bool, error) {
		select {
		case <-n.exited:
			return false, errors.New("it ended at once")
		default:
		}
		var st api.Status
		return n.query(ctx, &st, "status") == nil, nil
	})
	if err != nil {
		return fmt.Errorf("start the daemon of %s: %w\n%s", n.host.Name(), err, n.logTail(2000))
	}
	return nil
}

// stopDaemon ends the daemon with SIGTERM, as systemd does.
func (n *node) stopDaemon() error {
	if n.daemon == nil {
		return nil
	}
	n.daemon.Process.Signal(syscall.SIGTERM)
	select {
	case <-n.exited:
		if code := n.daemon.ProcessState.ExitCode(); code != 0 {
			return fmt.Errorf("the daemon of %s ended with %v\n%s", n.host.Name(), n.daemon.ProcessState, n.logTail(1000))
		}
		return nil
	case <-time.After(daemonTimeout):
		n.daemon.Process.Kill()
		<-n.exited
		return fmt.Errorf("the daemon of %s did not end within %v of SIGTERM", n.host.Name(), daemonTimeout)
	}
}

// ironwarp runs the command line on the host and returns its output.
func (n *node) ironwarp(ctx context.Context, stdin io.Reader, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, cliTimeout)
	defer cancel()
	cmd := n.host.Command(ctx, n.binary, args...)
	cmd.Stdin = stdin
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("ironwarp %s on %s: %w\n%s", strings.Join(args, " "), n.host.Name(), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.Bytes(), nil
}

// query runs a command of the CLI with --json and reads what it prints.
func (n *node) query(ctx context.Context, into any, args ...string) error {
	out, err := n.ironwarp(ctx, nil, append([]string{"--json"}, args...)...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(out, into); err != nil {
		return fmt.Errorf("ironwarp %s --json on %s: %w", strings.Join(args, " "), n.host.Name(), err)
	}
	return nil
}

func (n *node) status(ctx context.Context) (st api.Status, err error) {
	return st, n.query(ctx, &st, "status")
}

func (n *node) logTail(max int) string {
	b, err := os.ReadFile(n.log)
	if err != nil {
		return err.Error()
	}
	if len(b) > max {
		b = b[len(b)-max:]
	}
	return strings.TrimSpace(string(b))
}

// until asks again and again, with pauses, until ok or an error.
func until(ctx context.Context, ask func() (ok bool, err error)) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok, err := ask(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}
