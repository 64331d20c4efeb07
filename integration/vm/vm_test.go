package vm

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestReleasesAreOrderedByNumber(t *testing.T) {
	got := []string{"x-6.1.0-56-amd64", "x-6.1.0-9-amd64", "x-6.12.1-1-amd64", "x-6.1.0-100-amd64"}
	slices.SortFunc(got, compareReleases)
	want := []string{"x-6.1.0-9-amd64", "x-6.1.0-56-amd64", "x-6.1.0-100-amd64", "x-6.12.1-1-amd64"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestGuestScriptsAreShell(t *testing.T) {
	dir := t.TempDir()
	if err := writeGuest(dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range guestFiles() {
		if out, err := exec.Command("bash", "-n", filepath.Join(dir, filepath.Base(name))).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

func TestPathsWithCommasReachQEMUWhole(t *testing.T) {
	args := strings.Join((&Image{dir: "/c,d"}).args("/a,b", Options{}), " ")
	for _, want := range []string{"path=/a,,b,security_model=none", "path=/c,,d/modules,security", "-smp 2 "} {
		if !strings.Contains(args, want) {
			t.Errorf("%q is not in: %s", want, args)
		}
	}
}

func TestOldImagesGoAndTheLockStays(t *testing.T) {
	dir := t.TempDir()
	unlock, err := lock(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	for _, d := range []string{"6.1.0-1-amd64-0123", "6.1.0-2-amd64-4567.new"} {
		if err := os.MkdirAll(filepath.Join(dir, d, "modules"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := removeAllBut(dir, "lock"); err != nil {
		t.Fatal(err)
	}
	es, _ := os.ReadDir(dir)
	if len(es) != 1 || es[0].Name() != "lock" {
		t.Errorf("left: %v", es)
	}
}
