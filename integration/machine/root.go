package machine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// packages are in every machine beside Debian's least: what docs/operations.md
// asks for with userland ESP, and what a host has anyway.
var packages = []string{"systemd-sysv", "dbus", "iproute2", "kmod", "procps", "charon-systemd", "strongswan-swanctl",
	"libcharon-extra-plugins", "libstrongswan-extra-plugins", "libstrongswan-standard-plugins", "netbase", "util-linux"}

const suite = "bookworm"

// ErrNoPackages says that Debian's packages could not be had: nothing is wrong but
// the way to the mirror.
var ErrNoPackages = errors.New("the packages of Debian can't be fetched")

// Root is the file system of machines, for a test: it skips where there can be none.
func Root(t testing.TB, cache string, packages []string, finish string) string {
	t.Helper()
	root, err := makeRoot(t.Context(), cache, packages, finish, t.Output())
	switch {
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, ErrNoPackages):
		t.Skip(err)
	case err != nil:
		t.Fatal(err)
	}
	return root
}

// makeRoot returns the file system that machines start from, from the cache
// directory if it is there. Making it takes debootstrap some minutes.
func makeRoot(ctx context.Context, cache string, packages []string, finish string, log io.Writer) (string, error) {
	if _, err := exec.LookPath("debootstrap"); err != nil {
		return "", fmt.Errorf("make a machine: %w: apt install debootstrap", err)
	}
	key := sha256.Sum256([]byte(suite + strings.Join(packages, ",") + finish))
	dir := filepath.Join(cache, hex.EncodeToString(key[:6]))
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", err
	}
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	half := dir + ".half"
	if err := os.RemoveAll(half); err != nil { // of one that was interrupted
		return "", err
	}
	args := []string{"--variant=minbase", "--include=" + strings.Join(packages, ","), suite, half}
	if m := mirror(); m != "" {
		args = append(args, m)
	}
	cmd := exec.CommandContext(ctx, "debootstrap", args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%w: debootstrap %s: %w", ErrNoPackages, strings.Join(args, " "), err)
	}
	if out, err := exec.CommandContext(ctx, "sh", "-ec", finish, "sh", half).CombinedOutput(); err != nil {
		return "", fmt.Errorf("finish a machine's file system: %w: %s", err, out)
	}
	return dir, os.Rename(half, dir)
}

// mirror is where this machine has its own packages from, "" if that cannot be
// told.
func mirror() string {
	files, _ := filepath.Glob("/etc/apt/sources.list.d/*.sources")
	for _, f := range files {
		b, _ := os.ReadFile(f)
		for line := range strings.Lines(string(b)) {
			if uri, ok := strings.CutPrefix(line, "URIs:"); ok && strings.HasSuffix(strings.TrimSpace(uri), "/debian") {
				return strings.TrimSpace(uri)
			}
		}
	}
	return ""
}
