package backing

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/block/backing/backingtest"
)

func refused(t *testing.T, what, path string, words ...string) {
	t.Helper()
	s, err := Open(path, Options{})
	if err == nil {
		s.Close()
	}
	if !errors.Is(err, ErrInUse) {
		t.Errorf("%s: %v", what, err)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%s: %v; it does not say %q", what, err, w)
		}
	}
}

func TestStorageInUseUnderAnotherNameIsRefused(t *testing.T) {
	dir := t.TempDir()
	path := newFile(t, dir, "disk")
	if err := os.Truncate(path, 32<<20); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Link(path, filepath.Join(dir, "hard")), os.Symlink("disk", filepath.Join(dir, "soft"))); err != nil {
		t.Fatal(err)
	}
	s := reopen(t, path, Options{})
	refused(t, "a hard link", filepath.Join(dir, "hard"))
	refused(t, "a symbolic link", filepath.Join(dir, "soft"))
	dev := backingtest.Loop(t, path)
	refused(t, "a loop device on an exported file", dev, "disk")
	s.Close()
	refused(t, "a file below a loop device", path, dev)
	s = reopen(t, dev, Options{})
	refused(t, "an exported device", dev)
	s.Close()
	if out, err := exec.Command("mkfs.ext4", "-q", dev).CombinedOutput(); err != nil {
		t.Skipf("%v: %s", err, out)
	}
	mnt := filepath.Join(dir, "mnt")
	if err := errors.Join(os.Mkdir(mnt, 0o700), syscall.Mount(dev, mnt, "ext4", 0, "")); err != nil {
		t.Skip(err)
	}
	refused(t, "a mounted device", dev, "mounted at "+mnt)
	if err := syscall.Unmount(mnt, 0); err != nil {
		t.Fatal(err)
	}
	// Programs that were started meanwhile in mount namespaces of their own keep the
	// mount until they end.
	s, err := Open(dev, Options{})
	for end := time.Now().Add(2 * time.Minute); errors.Is(err, ErrInUse) && time.Now().Before(end); {
		s, err = Open(dev, Options{})
	}
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
}

// udev briefly locks a device to look at its content.
func TestDeviceThatIsLookedAtIsWaitedFor(t *testing.T) {
	path := newFile(t, t.TempDir(), "disk")
	dev := backingtest.Loop(t, path)
	udev, err := os.Open(dev)
	if err != nil {
		t.Fatal(err)
	}
	defer udev.Close()
	look := func() error {
		if err := syscall.Flock(int(udev.Fd()), syscall.LOCK_SH); err != nil {
			t.Fatal(err)
		}
		opened := make(chan error, 1)
		go func() {
			s, err := Open(dev, Options{})
			if err == nil {
				err = s.Close()
			}
			opened <- err
		}()
		for looks := 0; looks < 100 && len(opened) == 0; { // at two of them: ours, and that of the Store, which has to last
			if openings(t, dev) >= 2 {
				looks++
			}
		}
		if len(opened) > 0 {
			return fmt.Errorf("it did not wait: %w", <-opened)
		}
		return errors.Join(syscall.Flock(int(udev.Fd()), syscall.LOCK_UN), <-opened)
	}
	for {
		began := time.Now()
		err := look()
		if errors.Is(err, ErrInUse) && time.Since(began) > lockTime {
			continue // a busy machine has had the device locked for longer than a Store waits
		}
		if err != nil {
			t.Error(err)
		}
		return
	}
}

// openings counts this process' descriptors of a file.
func openings(t *testing.T, path string) (n int) {
	t.Helper()
	list, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range list {
		if to, err := os.Readlink(fd); err == nil && to == path {
			n++
		}
	}
	return n
}

func TestSizeThatIsNoWholeNumberOfSectorsIsRefused(t *testing.T) {
	for _, n := range []int64{300, 1_000_001} {
		path := newFile(t, t.TempDir(), "disk")
		if err := os.Truncate(path, n); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(path, Options{}); !errors.Is(err, ErrPartSector) || !strings.Contains(err.Error(), "truncate -s %512") {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

// If somebody has mounted it and writes to it, readers see a file system that does not
// hold together.
func TestReadOnlyExportOfWhatIsWrittenIsRefused(t *testing.T) {
	dir := t.TempDir()
	path := newFile(t, dir, "disk")
	if err := os.Truncate(path, 32<<20); err != nil {
		t.Fatal(err)
	}
	dev := backingtest.Loop(t, path)
	open := func(what, path string, words ...string) {
		t.Helper()
		s, err := Open(path, Options{ReadOnly: true})
		if err == nil {
			s.Close()
		}
		if len(words) == 0 && err != nil || len(words) > 0 && !errors.Is(err, ErrInUse) {
			t.Errorf("%s: %v", what, err)
			return
		}
		for _, w := range words {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v; it does not say %q", what, err, w)
			}
		}
	}
	open("a file below a loop device that may write", path, dev)
	open("a device that nobody has", dev)
	if out, err := exec.Command("mkfs.ext4", "-q", dev).CombinedOutput(); err != nil {
		t.Skipf("%v: %s", err, out)
	}
	mnt := filepath.Join(dir, "mnt")
	for _, m := range []struct {
		what  string
		flags uintptr
		words []string
	}{
		{"a device that is mounted", 0, []string{"mounted at " + mnt, "not read-only"}},
		{"a device that is mounted read-only", syscall.MS_RDONLY, nil},
	} {
		if err := errors.Join(os.MkdirAll(mnt, 0o700), syscall.Mount(dev, mnt, "ext4", m.flags, "")); err != nil {
			t.Skip(err)
		}
		open(m.what, dev, m.words...)
		if err := syscall.Unmount(mnt, 0); err != nil {
			t.Fatal(err)
		}
	}
}
