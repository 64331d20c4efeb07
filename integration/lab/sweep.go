package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// registry has a file for each lab of this machine, with the parent of its
// directory in it; one of that name with .keep added says that it is kept.
const registry = "/run/ironwarp-lab"

func register(prefix, dir string) error {
	if err := os.MkdirAll(registry, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(registry, prefix), []byte(dir), 0o600)
}

// Sweep removes labs whose owner has died without closing them. Kept ones stay. The
// error lists what could not be removed.
func Sweep(ctx context.Context) error {
	var errs []error
	for _, prefix := range prefixes() {
		if ownerAlive(prefix) {
			continue
		}
		if _, err := os.Stat(filepath.Join(registry, prefix+".keep")); err == nil {
			continue
		}
		errs = append(errs, discard(ctx, parentOf(prefix), prefix))
	}
	return errors.Join(errs...)
}

// Discard removes the lab of that name (Lab.Name), kept or not, together with every
// process in its hosts. dir is its Config.Dir; it is known if the lab was made on this
// machine since it started, and may be left empty then. It fails where name is not a
// lab's, and with what could not be removed.
func Discard(ctx context.Context, dir, name string) error {
	if _, _, ok := parsePrefix(name); !ok {
		return fmt.Errorf("%q is not the name of a lab", name)
	}
	if dir == "" {
		dir = parentOf(name)
	}
	return discard(ctx, dir, name)
}

func parentOf(prefix string) string {
	if b, err := os.ReadFile(filepath.Join(registry, prefix)); err == nil && filepath.IsAbs(string(b)) {
		return string(b)
	}
	return os.TempDir()
}

// discard kills what runs in the namespaces of a lab, removes them and the directory.
// Parts that are already gone are no error.
func discard(ctx context.Context, dir, prefix string) error {
	var errs []error
	for _, ns := range namespaces() {
		if !strings.HasPrefix(ns, prefix+"-") {
			continue
		}
		if !isFirst(ns) {
			errs = append(errs, killAll(ctx, ns))
		}
		if err := ip(ctx, "netns", "del", ns); err != nil {
			if _, statErr := os.Stat("/run/netns/" + ns); statErr == nil {
				errs = append(errs, err)
			}
		}
	}
	errs = append(errs, os.RemoveAll(filepath.Join(dir, prefix)))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove the lab %s: %w", prefix, err)
	}
	for _, f := range []string{prefix, prefix + ".keep"} {
		if err := os.Remove(filepath.Join(registry, f)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove the lab %s: %w", prefix, err)
		}
	}
	return nil
}

// isFirst reports whether a namespace is that of process 1 (Config.First).
func isFirst(ns string) bool {
	first, err := os.Stat("/proc/1/ns/net")
	if err != nil {
		return false
	}
	named, err := os.Stat("/run/netns/" + ns)
	return err == nil && os.SameFile(first, named)
}

// killAll ends the processes of one of our namespaces, and waits until it is
// empty.
func killAll(ctx context.Context, ns string) error {
	for {
		out, err := exec.CommandContext(ctx, "ip", "netns", "pids", ns).Output()
		if err != nil {
			if _, statErr := os.Stat("/run/netns/" + ns); statErr != nil {
				return nil
			}
			return fmt.Errorf("list the processes of %s: %w", ns, err)
		}
		left := 0
		for _, f := range strings.Fields(string(out)) {
			pid, err := strconv.Atoi(f)
			// A thread of this process may be in there during a Host.Do.
			if err != nil || pid == os.Getpid() || zombie(pid) {
				continue
			}
			left++
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if left == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("end the processes of %s: %w", ns, ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func namespaces() []string {
	entries, _ := os.ReadDir("/run/netns")
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), namePrefix) {
			names = append(names, e.Name())
		}
	}
	return names
}

// prefixes lists the labs that have a namespace or are registered.
func prefixes() []string {
	var all []string
	for _, ns := range namespaces() {
		if numbers, _, ok := strings.Cut(strings.TrimPrefix(ns, namePrefix), "-"); ok {
			all = append(all, namePrefix+numbers)
		}
	}
	entries, _ := os.ReadDir(registry)
	for _, e := range entries {
		all = append(all, e.Name())
	}
	all = slices.DeleteFunc(all, func(p string) bool { _, _, ok := parsePrefix(p); return !ok })
	slices.Sort(all)
	return slices.Compact(all)
}

func parsePrefix(p string) (pid int, start uint64, ok bool) {
	rest, found := strings.CutPrefix(p, namePrefix)
	parts := strings.Split(rest, ".")
	if !found || len(parts) != 3 {
		return 0, 0, false
	}
	pid, err1 := strconv.Atoi(parts[0])
	start, err2 := strconv.ParseUint(parts[1], 10, 64)
	_, err3 := strconv.ParseUint(parts[2], 10, 64)
	return pid, start, err1 == nil && err2 == nil && err3 == nil
}

func ownerAlive(prefix string) bool {
	pid, start, ok := parsePrefix(prefix)
	if !ok {
		return true
	}
	now, err := startTime(pid)
	return err == nil && now == start && !zombie(pid)
}

// startTime is when a process started, in clock ticks since boot: together with the
// process id it identifies a process for good.
func startTime(pid int) (uint64, error) {
	f, err := statFields(pid)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(f[19], 10, 64)
}

func zombie(pid int) bool {
	f, err := statFields(pid)
	return err != nil || f[0] == "Z" || f[0] == "X"
}

// statFields returns the fields of /proc/PID/stat that follow the command name.
func statFields(pid int) ([]string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	i := strings.LastIndexByte(string(b), ')')
	f := strings.Fields(string(b[i+1:]))
	if i < 0 || len(f) < 20 {
		return nil, fmt.Errorf("/proc/%d/stat: not understood", pid)
	}
	return f, nil
}
