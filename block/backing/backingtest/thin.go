// Package backingtest makes storage that fails in tests.
package backingtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Thin is a file whose storage is full, though it does not say so.
type Thin struct {
	Path             string
	tmp, mnt, device string
}

// Repair gives the storage room, and checks the file system.
func (f *Thin) Repair(t *testing.T) {
	t.Helper()
	if err := syscall.Mount("tmpfs", f.tmp, "tmpfs", syscall.MS_REMOUNT, "size=256m"); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Unmount(f.mnt, 0); err != nil {
		t.Fatal(err)
	}
	// It exits with 1 where it has mended something.
	out, checked := exec.Command("e2fsck", "-fy", f.device).CombinedOutput()
	if err := syscall.Mount(f.device, f.mnt, "ext4", 0, ""); err != nil {
		t.Fatalf("%v after e2fsck (%v): %s", err, checked, out)
	}
}

// ThinFile is a file of size bytes on ext4 on a disk that says it has room for all of
// it and has for less than half. All blocks of the file are allocated, so that nobody
// but writeback meets the end.
func ThinFile(t *testing.T, size int64) *Thin {
	t.Helper()
	dev, tmp := thinDevice(t, size+size/2, "mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1,lazy_journal_init=1", "-J", "size=4")
	mnt := filepath.Join(filepath.Dir(tmp), "mnt")
	if err := os.Mkdir(mnt, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount(dev, mnt, "ext4", 0, "errors=remount-ro"); err != nil {
		t.Skipf("cannot mount ext4 here: %v", err)
	}
	t.Cleanup(func() { unmount(t, mnt) })
	path := filepath.Join(mnt, "disk")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := syscall.Fallocate(int(f.Fd()), 0, 0, size); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	return &Thin{path, tmp, mnt, dev}
}

// ThinDevice is a disk that says it has size bytes and has room for 24 MiB.
func ThinDevice(t *testing.T, size int64) string {
	t.Helper()
	dev, _ := thinDevice(t, size)
	return dev
}

// thinDevice is a sparse file on a small tmpfs, behind a loop device. format, if any, is
// a command that prepares the file.
func thinDevice(t *testing.T, size int64, format ...string) (dev, tmp string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting a full disk needs root")
	}
	tmp = filepath.Join(t.TempDir(), "tmp")
	if err := os.Mkdir(tmp, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", tmp, "tmpfs", 0, "size=24m"); err != nil {
		t.Skipf("cannot mount a tmpfs here: %v", err)
	}
	t.Cleanup(func() { unmount(t, tmp) })
	image := filepath.Join(tmp, "image")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, size); err != nil {
		t.Fatal(err)
	}
	if len(format) > 0 {
		run(t, format[0], append(format[1:], image)...)
	}
	return Loop(t, image), tmp
}

// Loop is a block device that a file stands below.
func Loop(t *testing.T, file string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("loop devices need root")
	}
	out, err := exec.Command("losetup", "-f", "--show", file).CombinedOutput()
	if err != nil {
		t.Skipf("no loop devices here: %v %s", err, out)
	}
	dev := strings.TrimSpace(string(out))
	t.Cleanup(func() { run(t, "losetup", "-d", dev) })
	return dev
}

func unmount(t *testing.T, dir string) {
	if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
		t.Errorf("unmount %s: %v", dir, err)
	}
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("%s is not installed", name)
	}
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}
