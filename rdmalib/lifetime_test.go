package rdmalib

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// lifetime runs a part of testdata/lifetime.c.
func lifetime(t *testing.T, part string) {
	t.Helper()
	if _, err := os.Stat("/usr/include/infiniband/verbs.h"); err != nil {
		t.Skip("needs libibverbs-dev")
	}
	program := filepath.Join(t.TempDir(), "lifetime")
	if out, err := exec.Command("gcc", "-O1", "-g", "-fsanitize=address", "-Wall", "-Werror", "-Wno-unused-function", "-Ic", "-o", program, "testdata/lifetime.c", "c/data.c", "c/device.c", "c/objects.c", "-lpthread").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), program, part)
	cmd.Env = append(os.Environ(), "ASAN_OPTIONS=detect_leaks=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// A program may arm a completion queue in one thread while it gives it another size in another.
func TestQueueIsArmedWhileItIsResized(t *testing.T) { lifetime(t, "arm") }

// What an asynchronous event is about is destroyed when the program has acknowledged the event, as ibv_get_async_event(3) has it.
func TestWhatAnEventIsAboutStays(t *testing.T) { lifetime(t, "events") }
