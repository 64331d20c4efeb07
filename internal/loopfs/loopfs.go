// Package loopfs mounts file systems of their own for tests, each in a file by way of a loop device.
package loopfs

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Kinds of file systems, and how each is made.
var tools = map[string]struct {
	deb  string
	mkfs []string
	size int64 // the least that mkfs takes, in bytes
}{
	"xfs":   {"xfsprogs", []string{"mkfs.xfs", "-q"}, 304 << 20},
	"btrfs": {"btrfs-progs", []string{"mkfs.btrfs", "-q"}, 128 << 20},
	"ext4":  {"e2fsprogs", []string{"mkfs.ext4", "-q", "-F"}, 16 << 20},
}

// Mount mounts an empty file system of a kind, of size bytes or the least that it can have, until the test ends. It skips the test where
// that is not possible.
func Mount(t testing.TB, kind string, size int64) (dir string) {
	t.Helper()
	tool := tools[kind]
	if os.Getuid() != 0 {
		t.Skip("needs root, to mount a file system")
	}
	if _, err := exec.LookPath(tool.mkfs[0]); err != nil {
		t.Skipf("%s is not installed: apt install %s", tool.mkfs[0], tool.deb)
	}
	if known, err := os.ReadFile("/proc/filesystems"); err != nil || !strings.Contains(string(known), "\t"+kind+"\n") {
		if out, err := exec.Command("modprobe", kind).CombinedOutput(); err != nil {
			t.Skipf("this kernel has no %s: %v %s", kind, err, out)
		}
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		t.Skipf("this machine has no loop devices: %v", err)
	}
	image := filepath.Join(t.TempDir(), kind+".img")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, max(size, tool.size)); err != nil {
		t.Fatal(err)
	}
	run(t, append(tool.mkfs, image)...)
	dir = filepath.Join(t.TempDir(), "mnt")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	run(t, "mount", "-t", kind, "-o", "loop,nodev,nosuid", image, dir)
	t.Cleanup(func() {
		// What a test has killed may take a moment to let go of it; a lazy unmount waits for that by itself.
		run(t, "umount", "-l", dir)
	})
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func run(t testing.TB, argv ...string) {
	t.Helper()
	if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strconv.Quote(strings.Join(argv, " ")), err, out)
	}
}
