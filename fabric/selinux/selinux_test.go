package selinux

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/fabric/policy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	solver = "system_u:system_r:solver_t"
	secret = "system_u:object_r:secret_t"
)

// files is a directory that looks like selinuxfs. integration/selinux has the real one.
type files struct {
	Mount
	t    testing.TB
	page page // writable
}

// newFiles makes it, with a policy that has the classes, of which rdma_partition is number 7
// and modify its third permission.
func newFiles(t testing.TB) *files {
	f := &files{Mount: Mount{t.TempDir()}, t: t}
	f.write("class/process/index", "2")
	f.write("class/rdma_partition/index", "7")
	f.write("class/rdma_partition/perms/modify", "3")
	f.write("status", strings.Repeat("\x00", os.Getpagesize()))
	file, err := os.OpenFile(f.path("status"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if f.page, err = unix.Mmap(int(file.Fd()), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.page.close() })
	f.set(offsetVersion, statusVersion)
	f.set(offsetEnforcing, 1)
	f.set(offsetDenyUnknown, 1)
	return f
}

func (f *files) write(name, s string) {
	path := f.path(name)
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err = errors.Join(err, os.WriteFile(path, []byte(s), 0o644)); err != nil {
		f.t.Fatal(err)
	}
}

func (f *files) set(offset int, v uint32) {
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&f.page[offset])), v)
}

// change is what the kernel does to the page.
func (f *files) change(offset int, v uint32) {
	sequence := f.page.load(offsetSequence)
	f.set(offsetSequence, sequence+1)
	f.set(offset, v)
	f.set(offsetSequence, sequence+2)
}

// answers has the file access give an answer to the question about solver and secret.
func (f *files) answers(s string) {
	f.write("access", strings.Repeat("-", len(solver+" "+secret+" 7"))+s)
}

func (f *files) open() *Decider {
	d, err := f.Open(nil)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		if err := d.Close(); err != nil {
			f.t.Error(err)
		}
	})
	return d
}

func TestAnswerIsThatOfThePermission(t *testing.T) {
	for _, c := range []struct {
		answer string
		want   bool
	}{
		{"4 ffffffff 0 ffffffff 1 0", true},
		{"4 ffffffff 0 ffffffff 1 0\n\x00", true},
		{"ffffffff ffffffff 0 0 1 0", true},
		{"0 ffffffff 0 ffffffff 1 0", false},
		{"fffffffb ffffffff 0 ffffffff 1 0", false},
		{"4 fffffffb 0 ffffffff 1 0", false}, // not decided
	} {
		f := newFiles(t)
		f.answers(c.answer)
		if got, err := f.open().MayModify(solver, secret); got != c.want || err != nil {
			t.Errorf("%q: %v, %v", c.answer, got, err)
		}
		if b, _ := os.ReadFile(f.path("access")); !strings.HasPrefix(string(b), solver+" "+secret+" 7") {
			t.Errorf("asked %q", b)
		}
	}
	for _, a := range []string{"4", "", "yes", "4 ffffffff 0 ffffffff 1 x"} {
		f := newFiles(t)
		f.answers(a)
		if got, err := f.open().MayModify(solver, secret); got || err == nil {
			t.Errorf("%q: %v, %v", a, got, err)
		}
	}
}

func TestLabelsThatWouldChangeTheQuestionAreNotAsked(t *testing.T) {
	f := newFiles(t)
	d := f.open()
	d.ask = func(s, p string, c class) (answer, error) {
		a, err := f.ask(s, p, c)
		if !errors.Is(err, policy.ErrContext) {
			t.Errorf("%q %q was asked: %v", s, p, err)
		}
		return a, err
	}
	for _, label := range []string{"", "solver_t", solver + " ", solver + " " + secret + " 7", solver + "\x00", solver + "\n", "a:b", solver + ":s0 x"} {
		if ok, err := d.MayModify(label, secret); ok || !errors.Is(err, policy.ErrContext) {
			t.Errorf("%q: %v, %v", label, ok, err)
		}
		if ok, err := d.MayModify(solver, label); ok || !errors.Is(err, policy.ErrContext) {
			t.Errorf("partition %q: %v, %v", label, ok, err)
		}
		if _, err := f.Canonical(label); !errors.Is(err, policy.ErrContext) {
			t.Errorf("canonical %q: %v", label, err)
		}
	}
}

func TestAnswersAreKeptUntilThePolicyChanges(t *testing.T) {
	f := newFiles(t)
	d := f.open()
	asked, allowed := 0, true
	d.ask = func(string, string, class) (answer, error) { asked++; return answer{allowed: allowed}, nil }
	check := func(want bool, questions int) {
		t.Helper()
		if got, err := d.MayModify(solver, secret); got != want || err != nil || asked != questions {
			t.Errorf("%v, %v after %d questions; want %v after %d", got, err, asked, want, questions)
		}
	}
	check(true, 1)
	check(true, 1)
	f.change(offsetEnforcing, 0)
	check(true, 1) // the mode changes no answer
	allowed = false
	f.change(offsetPolicyload, 2)
	check(false, 2)
	check(false, 2)
}

func TestAnswerOfAPolicyThatIsReplacedMeanwhileIsNotKept(t *testing.T) {
	f := newFiles(t)
	d := f.open()
	loads := uint32(0)
	d.ask = func(string, string, class) (answer, error) {
		if loads++; loads <= 2 {
			f.change(offsetPolicyload, loads)
			return answer{allowed: true}, nil
		}
		return answer{}, nil
	}
	if ok, err := d.MayModify(solver, secret); ok || err != nil || loads != 3 {
		t.Errorf("%v, %v after %d questions", ok, err, loads)
	}
	d.ask = func(string, string, class) (answer, error) {
		loads++
		f.change(offsetPolicyload, loads)
		return answer{allowed: true}, nil
	}
	f.change(offsetPolicyload, 100)
	if ok, err := d.MayModify(solver, secret); ok || err == nil {
		t.Errorf("with a policy that changes all the time: %v, %v", ok, err)
	}
}

func TestKeptAnswersAreBounded(t *testing.T) {
	f := newFiles(t)
	d := f.open()
	d.ask = func(string, string, class) (answer, error) { return answer{}, nil }
	for i := range maxAnswers + 100 {
		if _, err := d.MayModify(fmt.Sprintf("u:r:type%d_t", i), secret); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(d.answers); n > maxAnswers {
		t.Errorf("%d answers", n)
	}
}

func TestPolicyWithoutTheClass(t *testing.T) {
	for _, c := range []struct {
		name        string
		remove      string
		denyUnknown uint32
		source      string
		want        error
	}{
		{"denies", "class/rdma_partition", 1, "SELinux (enforcing; the loaded policy has no class rdma_partition with the permission modify; load a module that has)", ErrUnknownClass},
		{"without the permission", "class/rdma_partition/perms/modify", 1, "SELinux (enforcing; the loaded policy has no class rdma_partition with the permission modify; load a module that has)", ErrUnknownClass},
		{"no policy, denies", "class", 1, "SELinux (enforcing; SELinux has no policy loaded)", ErrNoPolicy},
		{"no policy, allows", "class", 0, "SELinux (enforcing; SELinux has no policy loaded)", ErrNoPolicy},
	} {
		f := newFiles(t)
		f.set(offsetDenyUnknown, c.denyUnknown)
		if err := os.RemoveAll(f.path(c.remove)); err != nil {
			t.Fatal(err)
		}
		d := f.open()
		d.ask = func(string, string, class) (answer, error) { t.Error("asked"); return answer{allowed: true}, nil }
		if ok, err := d.MayModify(solver, secret); ok || !errors.Is(err, c.want) {
			t.Errorf("%s: %v, %v", c.name, ok, err)
		}
		if s := d.Source(); s != c.source {
			t.Errorf("%s: source %q", c.name, s)
		}
		if !d.Enforces(solver) {
			t.Errorf("%s: not enforced", c.name)
		}
	}
}

func TestClassThatIsLoadedLaterIsFound(t *testing.T) {
	f := newFiles(t)
	if err := os.RemoveAll(f.path("class/rdma_partition")); err != nil {
		t.Fatal(err)
	}
	d := f.open()
	d.ask = func(_, _ string, c class) (answer, error) {
		return answer{allowed: c == class{9, 1}}, nil
	}
	if _, err := d.MayModify(solver, secret); !errors.Is(err, ErrUnknownClass) {
		t.Error(err)
	}
	f.write("class/rdma_partition/index", "9\n")
	f.write("class/rdma_partition/perms/modify", "1\n")
	if ok, err := d.MayModify(solver, secret); !ok || err != nil { // even before the page says so
		t.Errorf("%v, %v", ok, err)
	}
}

func TestModes(t *testing.T) {
	f := newFiles(t)
	d := f.open()
	d.ask = func(s, _ string, _ class) (answer, error) { return answer{permissive: s == solver}, nil }
	const other = "system_u:system_r:other_t"
	if d.Enforces(solver) || !d.Enforces(other) || d.Source() != "SELinux (enforcing)" {
		t.Errorf("enforcing: %v for a permissive type, %v for another; %s", d.Enforces(solver), d.Enforces(other), d.Source())
	}
	f.change(offsetEnforcing, 0)
	if d.Enforces(solver) || d.Enforces(other) || d.Source() != "SELinux (permissive)" {
		t.Errorf("permissive: %v, %v; %s", d.Enforces(solver), d.Enforces(other), d.Source())
	}
}

// wait returns when a change was reported.
func wait(t *testing.T, d *Decider) {
	t.Helper()
	select {
	case <-d.Changed():
	case <-time.After(10 * time.Second):
		t.Fatal("no change was reported")
	}
}

func TestChangesAreReported(t *testing.T) {
	f := newFiles(t)
	d := f.open()
	f.change(offsetPolicyload, 1)
	wait(t, d)
	f.change(offsetEnforcing, 0)
	wait(t, d)
	f.change(offsetDenyUnknown, 0)
	wait(t, d)
	select {
	case <-d.Changed():
		t.Error("one change was reported twice")
	case <-time.After(3 * pollEvery):
	}
}

func TestPageIsReadAsAWhole(t *testing.T) {
	f := newFiles(t)
	f.set(offsetSequence, 1) // the kernel is writing
	f.set(offsetEnforcing, 0)
	read := make(chan status, 1)
	go func() { read <- f.page.read() }()
	select {
	case s := <-read:
		t.Errorf("%+v was read from a page that is being written", s)
		return
	case <-time.After(50 * time.Millisecond):
	}
	f.set(offsetPolicyload, 5)
	f.set(offsetSequence, 2)
	if s := <-read; s != (status{0, 5, 1}) {
		t.Errorf("%+v", s)
	}
}

func TestPageIsReadAsOfOneMoment(t *testing.T) {
	f := newFiles(t)
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := uint32(0); !stop.Load(); i += 2 {
			f.set(offsetSequence, i+1)
			f.set(offsetEnforcing, i)
			f.set(offsetPolicyload, i)
			f.set(offsetSequence, i+2)
		}
	}()
	for range 1_000_000 {
		if s := f.page.read(); s.enforcing != s.policyload && s.enforcing != 1 {
			t.Errorf("half of one state and half of another: %+v", s)
			break
		}
	}
	stop.Store(true)
	<-done
}

func TestPageOfAnotherVersionIsRefused(t *testing.T) {
	f := newFiles(t)
	f.set(offsetVersion, 2)
	if d, err := f.Open(nil); err == nil || !strings.Contains(err.Error(), "version 2") {
		t.Errorf("%v, %v", d, err)
	}
}

func TestClosedDeciderDeniesAll(t *testing.T) {
	f := newFiles(t)
	f.answers("4 ffffffff 0 ffffffff 1 0")
	d := f.open()
	if ok, err := d.MayModify(solver, secret); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if err := errors.Join(d.Close(), d.Close()); err != nil {
		t.Error(err)
	}
	if ok, err := d.MayModify(solver, secret); ok || !errors.Is(err, ErrClosed) {
		t.Errorf("%v, %v", ok, err)
	}
	if !d.Enforces(solver) || d.Source() != "SELinux (closed)" {
		t.Error(d.Source())
	}
}

func TestHostWithoutSELinuxIsNotActive(t *testing.T) {
	if _, err := os.Stat(dir); err == nil {
		t.Skip("this host has SELinux")
	}
	if m, ok := Active(); ok {
		t.Errorf("%v", m)
	}
}
