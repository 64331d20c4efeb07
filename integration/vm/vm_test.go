package vm

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
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
	args := strings.Join((&Image{dir: "/c,d"}).args("/a,b", Options{Sockets: []string{"/e,f"}}), " ")
	for _, want := range []string{"path=/a,,b,security_model=none", "path=/c,,d/modules,security", "id=socket0,path=/e,,f -device", "-smp 2 "} {
		if !strings.Contains(args, want) {
			t.Errorf("%q is not in: %s", want, args)
		}
	}
}

func TestOldImagesGoUnlessTheyRun(t *testing.T) {
	dir := t.TempDir()
	unlock, err := lock(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	const running = "6.1.0-1-amd64-89ab"
	for _, d := range []string{"6.1.0-1-amd64-0123", "6.1.0-2-amd64-4567.new", running} {
		if err := os.MkdirAll(filepath.Join(dir, d, "modules"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	release, err := hold(filepath.Join(dir, running), syscall.LOCK_SH)
	if err != nil {
		t.Fatal(err)
	}
	left := func(want ...string) {
		t.Helper()
		if err := removeOld(dir); err != nil {
			t.Fatal(err)
		}
		var got []string
		es, _ := os.ReadDir(dir)
		for _, e := range es {
			got = append(got, e.Name())
		}
		if !slices.Equal(got, want) {
			t.Errorf("left: %v, want %v", got, want)
		}
	}
	left(running, "lock")
	release()
	left("lock")
}

// fakeQEMU puts a QEMU into PATH that gets stuck the first times.
const fakeQEMU = `#!/bin/bash
for a; do case $a in local,id=out,path=*) a=${a#*path=}; out=${a%%,*} ;; esac; done
echo x >>$out/tries
[ "$(wc -l <$out/tries)" -gt STUCK ] || HOW
touch $out/booted
echo 7 >$out/status
`

// A kernel that panics before its script has begun, as on a host that is too busy,
// is booted again.
func TestMachineThatPanicsInBootIsStartedAgain(t *testing.T) {
	for stuck, works := range map[string]bool{"2": true, "3": false} {
		bin, out := t.TempDir(), t.TempDir()
		program := strings.NewReplacer("STUCK", stuck, "HOW", "exit 0").Replace(fakeQEMU)
		if err := os.WriteFile(filepath.Join(bin, "qemu-system-x86_64"), []byte(program), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
		r, err := (&Image{dir: t.TempDir()}).Run(t.Context(), out, "", Options{Timeout: time.Minute})
		if works && (err != nil || r.Status != 7) || !works && !errors.Is(err, errNoBoot) {
			t.Errorf("%s panics: status %d, %v", stuck, r.Status, err)
		}
	}
}

func TestMachineThatGetsStuckInBootIsStartedAgain(t *testing.T) {
	for stuck, works := range map[string]bool{"0": true, "2": true, "3": false} {
		bin, out := t.TempDir(), t.TempDir()
		if err := os.WriteFile(filepath.Join(bin, "qemu-system-x86_64"), []byte(strings.NewReplacer("STUCK", stuck, "HOW", "exec sleep 1000").Replace(fakeQEMU)), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
		boot := map[string]time.Duration{"0": time.Minute, "2": 2 * time.Second, "3": 100 * time.Millisecond}[stuck]
		r, err := (&Image{dir: t.TempDir()}).Run(t.Context(), out, "", Options{Boot: boot, Timeout: time.Minute})
		if works && (err != nil || r.Status != 7) || !works && !errors.Is(err, errNoBoot) {
			t.Errorf("stuck %s times: status %d, %v", stuck, r.Status, err)
		}
	}
}

// A kernel that says that a processor is stuck is given up at once, but for the last time: it may be slow. What it says
// once the script has begun is the script's business.
func TestMachineThatSaysThatItIsStuckIsStartedAgain(t *testing.T) {
	says := `printf 'watchdog: BUG: soft loc'; printf 'kup - CPU#1 stuck for 26s!'`
	for _, program := range []string{
		strings.NewReplacer("STUCK", "2", "HOW", "{ "+says+"; exec sleep 1000; }").Replace(fakeQEMU),
		strings.NewReplacer("STUCK", "2", "HOW", "{ "+says+"; exec sleep 1000; }", "touch", says+"; touch").Replace(fakeQEMU),
		strings.NewReplacer("STUCK", "0", "HOW", "exit 1", "echo 7", says+"; echo 7").Replace(fakeQEMU),
	} {
		bin, out := t.TempDir(), t.TempDir()
		if err := os.WriteFile(filepath.Join(bin, "qemu-system-x86_64"), []byte(program), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
		r, err := (&Image{dir: t.TempDir()}).Run(t.Context(), out, "", Options{Boot: time.Hour, Timeout: time.Minute})
		if err != nil || r.Status != 7 {
			t.Errorf("status %d, %v, of\n%s", r.Status, err, program)
		}
	}
}

// By it continuous integration distinguishes a mirror that is away from a broken build.
func TestKernelThatCannotBeFetchedIsNamed(t *testing.T) {
	if _, _, err := identify(t.Context()); err != nil {
		t.Skipf("it takes the packages of make interop: %v", err)
	}
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "apt-get"), []byte("#!/bin/sh\nexit 100\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	_, err := Build(t.Context(), t.TempDir(), io.Discard)
	if !errors.Is(err, ErrNoPackage) || !strings.Contains(err.Error(), "package mirror") {
		t.Errorf("error %v, want %v and what to do", err, ErrNoPackage)
	}
}
