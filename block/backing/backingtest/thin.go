// Package backingtest makes storage that fails in tests.
package backingtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Thin is a file whose storage is full without reporting it.
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
	// Exit status 1 means that it has mended something.
	out, checked := exec.Command("e2fsck", "-fy", f.device).CombinedOutput()
	if err := syscall.Mount(f.device, f.mnt, "ext4", 0, ""); err != nil {
		t.Fatalf("%v after e2fsck (%v): %s", err, checked, out)
	}
}

// ThinFile is a file of size bytes on ext4, on a disk that claims to have room for all
// of it and has room for less than half. All blocks of the file are allocated, so that
// only writeback finds the storage full.
func ThinFile(t *testing.T, size int64) *Thin {
	t.Helper()
	dev, tmp := thinDevice(t, size+size/2, ext4...)
	mnt := mount(t, dev, filepath.Join(filepath.Dir(tmp), "mnt"))
	return &Thin{allocated(t, mnt, size), tmp, mnt, dev}
}

// HangingFile is a file whose storage is full, as that of ThinFile. Writes to that
// storage wait from freeze until thaw.
func HangingFile(t *testing.T, size int64) (path string, freeze, thaw func()) {
	t.Helper()
	dev, tmp := thinDevice(t, 22<<20, ext4...)
	lower := mount(t, dev, filepath.Join(filepath.Dir(tmp), "lower"))
	image := filepath.Join(lower, "image")
	// The file's list of extents goes behind the file system's own blocks, and needs room:
	// without it the file system becomes read-only, or not, as the order of writeback has it.
	const lists = 3 << 20
	mnt := mount(t, Loop(t, sparse(t, image, size+size/2, ext4Own+lists, ext4...)), filepath.Join(filepath.Dir(tmp), "mnt"))
	path = allocated(t, mnt, size)
	var frozen bool
	freeze = func() { run(t, "fsfreeze", "--freeze", lower); frozen = true }
	thaw = func() {
		if frozen {
			run(t, "fsfreeze", "--unfreeze", lower)
		}
		frozen = false
	}
	t.Cleanup(thaw)
	return path, freeze, thaw
}

// ext4 makes a file system that has its own blocks, the journal among them, within ext4Own
// bytes at its beginning.
var ext4 = []string{"mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1,lazy_journal_init=1,packed_meta_blocks=1", "-J", "size=4"}

const ext4Own = 6 << 20

func mount(t *testing.T, dev, mnt string) string {
	t.Helper()
	if err := os.Mkdir(mnt, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount(dev, mnt, "ext4", 0, "errors=remount-ro"); err != nil {
		t.Skipf("cannot mount ext4 here: %v", err)
	}
	t.Cleanup(func() { unmount(t, mnt) })
	return mnt
}

// allocated makes a file all of whose blocks are allocated.
func allocated(t *testing.T, dir string, size int64) string {
	t.Helper()
	path := filepath.Join(dir, "disk")
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
	return path
}

// Fill takes all room of a directory's file system, but none of its device.
func Fill(t *testing.T, dir string) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var size int64
	for step := int64(1 << 30); step >= 512; {
		switch err := syscall.Fallocate(int(f.Fd()), 0, size, step); err {
		case nil:
			size += step
		case syscall.ENOSPC:
			step /= 2
		default:
			t.Fatal(err)
		}
	}
}

// ThinDevice is a disk that claims to have size bytes and has room for 24 MiB.
func ThinDevice(t *testing.T, size int64) string {
	t.Helper()
	dev, _ := thinDevice(t, size)
	return dev
}

// thinDevice is a loop device on a sparse file on a small tmpfs. format, if any, is a
// command that prepares the file.
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
	return Loop(t, sparse(t, filepath.Join(tmp, "image"), size, ext4Own, format...)), tmp
}

// sparse makes a file that takes room for its first own bytes only.
func sparse(t *testing.T, image string, size, own int64, format ...string) string {
	t.Helper()
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, size); err != nil {
		t.Fatal(err)
	}
	if len(format) > 0 {
		run(t, format[0], append(slices.Clone(format[1:]), image)...)
		// These must have room, or the file system fails before its files do.
		f, err := os.OpenFile(image, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		first := make([]byte, min(size, own))
		if _, err := f.ReadAt(first, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(first, 0); err != nil {
			t.Fatal(err)
		}
	}
	return image
}

// Loop makes a loop device on a file.
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

// KilledInSync reports whether the last Store of the file was killed in a call to which an
// error of writeback may have been reported: then the disk begins another life.
func KilledInSync(t *testing.T, path string) bool {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var hint uint64
	if _, _, errno := syscall.Syscall(syscall.SYS_FCNTL, f.Fd(), unix.F_GET_RW_HINT, uintptr(unsafe.Pointer(&hint))); errno != 0 {
		t.Fatalf("ask for the write hint of %s: %v", path, errno)
	}
	return hint == 0
}
