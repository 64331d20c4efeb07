package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
)

// policyPath is Debian's switch for services started by package installation
// (invoke-rc.d(8)). The project runs IKE daemons of its own in namespaces; the
// host's own need not start because a test wants the binary.
const policyPath = "/usr/sbin/policy-rc.d"

func install(ps []debPackage) error {
	apt, err := exec.LookPath("apt-get")
	if err != nil {
		return errors.New("this machine has no apt-get; install by other means what provides the commands above")
	}
	byHand := "apt-get install --no-install-recommends " + names(ps)
	if os.Geteuid() != 0 {
		return fmt.Errorf("installing packages takes root: run this as root, or first: sudo %s", byHand)
	}
	// apt-get gets the terminal's Ctrl-C itself and cleans up; this process only
	// has to live long enough to restore the service policy.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	restore, err := holdServices()
	if err != nil {
		return err
	}
	defer restore()
	fmt.Println("installing them with apt-get")
	args := []string{"install", "-y", "--no-install-recommends"}
	for _, p := range ps {
		args = append(args, p.name)
	}
	_, err = run(apt, args...)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	fmt.Println("refreshing the package lists (apt-get update)")
	if upOut, upErr := run(apt, "update"); upErr != nil {
		return fmt.Errorf("apt-get update failed: %w; is there a network, and a package mirror in /etc/apt?\n%s", upErr, tail(upOut, 6))
	}
	if out, err := run(apt, args...); err != nil {
		return fmt.Errorf("%s failed: %w\n%s", byHand, err, tail(out, 10))
	}
	return nil
}

func run(apt string, args ...string) (string, error) {
	args = append([]string{
		"-q", "-o", "Acquire::Retries=2", "-o", "Acquire::http::Timeout=20",
		"-o", "DPkg::Lock::Timeout=120", "-o", "Dpkg::Use-Pty=0",
	}, args...)
	cmd := exec.Command(apt, args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C.UTF-8")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	// apt-get update calls an unreachable mirror a warning and exits 0.
	if err == nil && args[len(args)-1] == "update" && strings.Contains(out.String(), "Failed to fetch") {
		err = errors.New("no mirror could be reached")
	}
	return out.String(), err
}

// holdServices keeps invoke-rc.d from starting services until the returned
// function is called. A policy that the administrator set is left alone.
func holdServices() (restore func(), err error) {
	f, err := os.OpenFile(policyPath, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrNotExist) {
		return func() {}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("keep new packages from starting services: %w", err)
	}
	_, werr := f.WriteString("#!/bin/sh\nexit 101\n")
	if err := errors.Join(werr, f.Close()); err != nil {
		os.Remove(policyPath)
		return nil, fmt.Errorf("keep new packages from starting services: %w", err)
	}
	return func() { os.Remove(policyPath) }, nil
}

func tail(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return "  " + strings.Join(lines, "\n  ")
}
