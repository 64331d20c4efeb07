package vm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
)

//go:embed guest/build.sh guest/init.sh guest/stage2.sh
var guest embed.FS

// Source is the Debian package with the sources of the kernel that siw is
// built from.
const Source = "linux-source-6.1"

// Headers of kernels of the same version, in Debian's plain flavour.
const headersGlob = "/usr/src/linux-headers-6.1.*-amd64"

var headersDir = regexp.MustCompile(`/linux-headers-[0-9.]+-[0-9]+-amd64$`)

// Image is a virtual machine that can be booted: a kernel, its modules and an
// initial file system, in a directory of the cache.
type Image struct {
	dir     string
	Kernel  string // its release, as in 6.1.0-56-amd64
	Version string // of the Debian packages that kernel and siw come from
}

// ErrNoPackage means that the kernel's package could not be fetched, and nothing else
// is wrong.
var ErrNoPackage = errors.New("the kernel's package can't be fetched")

// exitNoPackage is build.sh's exit status for that.
const exitNoPackage = 75

// Build returns the image for the Debian packages that are installed, from the cache
// directory if it is there. Building takes a minute, fetches the kernel's package by
// apt-get and logs its steps to log. Images of other versions are removed, unless they
// are running. It fails where a package is missing, the disk is full or ctx has ended.
func Build(ctx context.Context, cache string, log io.Writer) (*Image, error) {
	im, key, err := identify(ctx)
	if err != nil {
		return nil, fmt.Errorf("build a virtual machine: %w", err)
	}
	if cache, err = filepath.Abs(cache); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, err
	}
	unlock, err := lock(filepath.Join(cache, "lock"))
	if err != nil {
		return nil, fmt.Errorf("build a virtual machine: %w", err)
	}
	defer unlock()
	im.dir = filepath.Join(cache, key)
	if _, err := os.Stat(im.dir); err == nil {
		return im, nil
	}
	if err := removeOld(cache); err != nil {
		return nil, err
	}
	work := im.dir + ".new"
	if err := writeGuest(filepath.Join(work, "guest")); err != nil {
		return nil, err
	}
	fmt.Fprintf(log, "building a virtual machine with Linux %s and siw (%s %s); it is kept for the next time\n", im.Kernel, Source, im.Version)
	cmd := exec.CommandContext(ctx, "bash", filepath.Join(work, "guest", "build.sh"), im.Kernel, Source)
	cmd.Dir = work
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	endWithParent(cmd)
	if err := cmd.Run(); err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.ExitCode() == exitNoPackage {
			err = ErrNoPackage
		}
		return nil, errors.Join(fmt.Errorf("build a virtual machine: %w\n%s", errors.Join(err, context.Cause(ctx)), tail(out.String(), 15)), os.RemoveAll(work))
	}
	if err := os.Rename(work, im.dir); err != nil {
		return nil, err
	}
	return im, nil
}

// Cached reports whether Build would find its image in the cache directory. It fails
// where dpkg cannot tell which versions are installed.
func Cached(ctx context.Context, cache string) (bool, error) {
	_, key, err := identify(ctx)
	if err != nil {
		return false, err
	}
	_, err = os.Stat(filepath.Join(cache, key))
	return err == nil, err
}

// identify finds the kernel and the cache key, which covers every input.
func identify(ctx context.Context) (*Image, string, error) {
	dirs, _ := filepath.Glob(headersGlob)
	dirs = slices.DeleteFunc(dirs, func(d string) bool { return !headersDir.MatchString(d) })
	if len(dirs) == 0 {
		return nil, "", fmt.Errorf("there is no %s: install linux-headers-amd64", headersGlob)
	}
	slices.SortFunc(dirs, compareReleases)
	im := &Image{Kernel: strings.TrimPrefix(dirs[len(dirs)-1], "/usr/src/linux-headers-")}
	out, err := exec.CommandContext(ctx, "dpkg-query", "-W", "-f", "${Package} ${Version}\n",
		"linux-headers-"+im.Kernel, Source, "busybox-static", "kmod").Output()
	if err != nil {
		return nil, "", fmt.Errorf("ask dpkg for the versions of the kernel's packages: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		if name, v, ok := strings.Cut(strings.TrimSpace(line), " "); ok && name == Source {
			im.Version = v
		}
	}
	h := sha256.New()
	h.Write(out)
	for _, name := range guestFiles() {
		b, _ := guest.ReadFile(name)
		fmt.Fprintf(h, "%s %d\n", name, len(b))
		h.Write(b)
	}
	return im, im.Kernel + "-" + hex.EncodeToString(h.Sum(nil))[:12], nil
}

// compareReleases orders names that end in numbers with dots and dashes by
// these numbers.
func compareReleases(a, b string) int {
	return slices.Compare(numbers(a), numbers(b))
}

func numbers(s string) []int {
	var ns []int
	for _, f := range strings.FieldsFunc(s, func(r rune) bool { return r < '0' || r > '9' }) {
		n := 0
		fmt.Sscan(f, &n)
		ns = append(ns, n)
	}
	return ns
}

func guestFiles() []string { return []string{"guest/build.sh", "guest/init.sh", "guest/stage2.sh"} }

func writeGuest(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, name := range guestFiles() {
		b, err := guest.ReadFile(name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(name)), b, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// removeOld removes all images of a cache that are not running.
func removeOld(cache string) error {
	es, err := os.ReadDir(cache)
	for _, e := range es {
		dir := filepath.Join(cache, e.Name())
		if !e.IsDir() {
			continue
		}
		release, ferr := hold(dir, syscall.LOCK_EX|syscall.LOCK_NB)
		if errors.Is(ferr, syscall.EWOULDBLOCK) {
			continue
		}
		err = errors.Join(err, ferr, os.RemoveAll(dir))
		if ferr == nil {
			release()
		}
	}
	return err
}

// hold locks a directory: shared while its image runs, exclusively to remove it.
func hold(dir string, how int) (release func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), how); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return func() { f.Close() }, nil
}

// lock holds a file lock; it waits for another process that builds.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}

// tail is the last n lines of s.
func tail(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\r\n"), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return strings.Join(lines, "\n")
}
