package vm

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// image is the machine in the cache that IRONWARP_VM_CACHE names, built if need be, or
// the one that make interop has built.
func image(t *testing.T) *Image {
	t.Helper()
	cache := os.Getenv("IRONWARP_VM_CACHE")
	if cache == "" {
		if os.Geteuid() != 0 {
			t.Skip("it boots a virtual machine that sees this machine's files, which takes root")
		}
		cache = filepath.Join("..", "..", ".cache", "vm")
		if ok, err := Cached(context.Background(), cache); !ok {
			t.Skipf("there is no virtual machine to boot; make interop builds it, or set IRONWARP_VM_CACHE to a directory for it (%v)", err)
		}
	}
	im, err := Build(context.Background(), cache, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	return im
}

func TestScriptRunsAsRootAndLeavesStatusOutputAndFiles(t *testing.T) {
	im, out := image(t), t.TempDir()
	r, err := im.Run(context.Background(), out, "id -u\nuname -r\necho kept >/mnt/out/file\necho lost >/etc/ironwarp-vm-test\nexit 3\n", Options{})
	if err != nil {
		t.Fatal(err)
	}
	if want := "0\n" + im.Kernel + "\n"; r.Status != 3 || !strings.Contains(r.Output, want) {
		t.Errorf("status %d, output %q, want 3 and %q", r.Status, r.Output, want)
	}
	if b, err := os.ReadFile(filepath.Join(out, "file")); string(b) != "kept\n" {
		t.Errorf("the file in the shared directory: %q, %v", b, err)
	}
	if _, err := os.Stat("/etc/ironwarp-vm-test"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the guest has written to the host: %v", err)
	}
}

func TestScriptThatHangsIsCutOff(t *testing.T) {
	im := image(t)
	if _, err := im.Run(context.Background(), t.TempDir(), "sleep 1000\n", Options{Timeout: 20 * time.Second}); err == nil || !strings.Contains(err.Error(), "longer than 20s") {
		t.Errorf("run: %v", err)
	}
}

func TestGuestThatDiesIsReported(t *testing.T) {
	im := image(t)
	if _, err := im.Run(context.Background(), t.TempDir(), "echo the last words\nbusybox poweroff -f\n", Options{}); !errors.Is(err, ErrDied) || !strings.Contains(err.Error(), "the last words") {
		t.Errorf("run: %v", err)
	}
}
