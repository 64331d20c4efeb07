package daemon

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/block/backing"
	"github.com/ironwarp/ironwarp/block/backing/backingtest"
	"github.com/ironwarp/ironwarp/daemon/api"
)

// freezable mounts a file system that can be frozen: the kernel holds writes to it
// until it is thawed, as it does where a disk hangs.
func freezable(t *testing.T) (dir string, freeze, thaw func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting a file system needs root")
	}
	image, dir := filepath.Join(t.TempDir(), "fs.img"), t.TempDir()
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 32<<20)); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mkfs.ext4", "-q", image).CombinedOutput(); err != nil {
		t.Skipf("mkfs.ext4: %v %s", err, out)
	}
	if out, err := exec.Command("mount", "-o", "loop", image, dir).CombinedOutput(); err != nil {
		t.Skipf("mount: %v %s", err, out)
	}
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	// linux/fs.h
	const fifreeze, fithaw = 0xC0045877, 0xC0045878
	frozen := false
	freeze = func() {
		t.Helper()
		if err := unix.IoctlSetInt(int(f.Fd()), fifreeze, 0); err != nil {
			t.Fatalf("freeze: %v", err)
		}
		frozen = true
	}
	thaw = func() {
		if frozen {
			frozen = false
			if err := unix.IoctlSetInt(int(f.Fd()), fithaw, 0); err != nil {
				t.Errorf("thaw: %v", err)
			}
		}
	}
	t.Cleanup(func() {
		thaw()
		f.Close()
		// What hung is closed in the background.
		if out, err := exec.Command("umount", "--lazy", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v %s", err, out)
		}
	})
	return dir, freeze, thaw
}

// hangingWrite has alpha write to an export of beta's in a directory that is frozen then.
func hangingWrite(t *testing.T, alpha, beta *host, dir string, freeze, thaw func()) (image string, answered chan struct{}) {
	t.Helper()
	image = filepath.Join(dir, "disk.img")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 1<<20)); err != nil {
		t.Fatal(err)
	}
	beta.export("disk", image, false)
	c := alpha.attach("disk")
	t.Cleanup(thaw) // the goroutines that hang end before the hosts do
	freeze()
	answered = make(chan struct{})
	go func() {
		defer close(answered)
		c.Do(0, cmdWrite, 0, 4096, make([]byte, 4096))
	}()
	eventually(t, "the write is at the storage", func() bool {
		return slices.ContainsFunc(beta.status().Sessions, func(s api.Session) bool { return s.InFlight > 0 })
	})
	return image, answered
}

// TestHungStorageHoldsUpNobodyElse: an export whose storage hangs, with I/O under way,
// is removed at once, and the configuration can be changed and the status read.
func TestHungStorageHoldsUpNobodyElse(t *testing.T) {
	dir, freeze, thaw := freezable(t)
	alpha, beta := newHost(t, ""), newHost(t, "")
	link(t, alpha, beta)
	_, answered := hangingWrite(t, alpha, beta, dir, freeze, thaw)
	if err := beta.api.RemoveExport(t.Context(), "disk", true); err != nil {
		t.Fatal(err)
	}
	if _, err := beta.api.Reload(t.Context()); err != nil {
		t.Error(err)
	}
	if e := beta.status().Exports; len(e) != 0 {
		t.Errorf("it is offered still: %+v", e)
	}
	beta.export("other", beta.image("other.img", 1<<20), false)
	if !strings.Contains(beta.log.String(), "its storage hangs") {
		t.Error("the log does not say that the storage hangs")
	}
	select {
	case <-answered:
		t.Error("the storage has not hung: the write was answered")
	default:
	}
	thaw()
	<-answered
}

// TestEndWaitsForASlowLastFlush: a daemon that ends while the storage is slow, as a disk
// is that has much to write or spins up, has flushed what it acknowledged.
func TestEndWaitsForASlowLastFlush(t *testing.T) {
	dir, freeze, thaw := freezable(t)
	alpha, beta := newHost(t, ""), newHost(t, "")
	link(t, alpha, beta)
	image := filepath.Join(dir, "disk.img")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 1<<20)); err != nil {
		t.Fatal(err)
	}
	beta.export("disk", image, false)
	c := alpha.attach("disk")
	ok(t, c, cmdWrite, 0, 4096, make([]byte, 4096))
	life := beta.d.exports.Server().Exports()[0].Identity.Life
	freeze()
	t.Cleanup(thaw)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		beta.stop()
	}()
	eventually(t, "the daemon waits for the flush", func() bool {
		select {
		case <-ended:
			t.Fatal("the daemon has ended without its last flush")
		default:
		}
		return strings.Contains(beta.log.String(), "waits for the last flush")
	})
	thaw()
	<-ended
	if strings.Contains(beta.log.String(), "its storage hangs") {
		t.Error("the daemon has given the flush up")
	}
	store, err := backing.Open(image, backing.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if !store.Keeps(life) {
		t.Error("the end was not orderly: the next daemon cannot know what was flushed")
	}
}

// TestExportThatChangesIsNeverMissing: a host that asks for an export while its old
// storage is being closed and its new one opened, which take their time, is not told that
// there is none.
func TestExportThatChangesIsNeverMissing(t *testing.T) {
	dir, freeze, thaw := freezable(t)
	alpha, beta, gamma := newHost(t, ""), newHost(t, ""), newHost(t, "")
	link(t, alpha, beta)
	if _, err := gamma.api.AddPeer(t.Context(), api.PeerSpec{Name: "beta", Address: "127.0.0.1", Port: beta.port, Protection: "loopback"}); err != nil {
		t.Fatal(err)
	}
	first, second := filepath.Join(dir, "first.img"), filepath.Join(dir, "second.img")
	for _, path := range []string{first, second} {
		if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	declare := func(path string) {
		beta.write("exports.d/disk.yaml", "name: disk\npath: "+path+"\nallow: [alpha]\n")
	}
	declare(first)
	if _, err := beta.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := alpha.attach("disk")
	t.Cleanup(thaw)
	freeze()
	go c.Do(0, cmdWrite, 0, 4096, make([]byte, 4096))
	eventually(t, "the write is at the storage", func() bool {
		return slices.ContainsFunc(beta.status().Sessions, func(s api.Session) bool { return s.InFlight > 0 })
	})
	declare(second)
	reloaded := make(chan error, 1)
	go func() {
		_, err := beta.api.Reload(t.Context())
		reloaded <- err
	}()
	answers := map[string]bool{}
	pace := time.NewTicker(20 * time.Millisecond) // who makes more streams than that is blocked
	defer pace.Stop()
	for over := false; !over; {
		select {
		case err := <-reloaded:
			if err != nil {
				t.Error(err)
			}
			over = true
		case <-pace.C:
		}
		_, err := gamma.api.Attach(t.Context(), api.AttachRequest{Peer: "beta", Export: "disk", TimeoutSeconds: 30}, nil)
		if err == nil {
			continue
		}
		answers[err.Error()] = true
		if e := apiError(err); e.Code == api.CodeNotFound {
			t.Fatalf("it is said to be missing: %v", err)
		}
	}
	if len(answers) == 0 {
		t.Error("nobody asked meanwhile")
	}
	t.Log(answers)
	thaw()
	eventually(t, "the changed one can be attached", func() bool {
		_, err := gamma.api.Attach(t.Context(), api.AttachRequest{Peer: "beta", Export: "disk", TimeoutSeconds: 30}, nil)
		return err == nil
	})
}

// TestWatchdogHearsNothingOfADaemonThatCannotAct: systemd is told that the daemon is
// alive only while its configuration can be changed.
func TestWatchdogHearsNothingOfADaemonThatCannotAct(t *testing.T) {
	sd := newSystemd(t)
	t.Setenv("WATCHDOG_USEC", strconv.Itoa(int((30 * time.Millisecond).Microseconds())))
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	// No change is stuck but the one below: what is broken is looked for with the same lock.
	h := &host{t: t, stuck: 50 * time.Millisecond, retry: time.Hour}
	h.begin("")
	await := func(want string) {
		t.Helper()
		for !strings.HasPrefix(sd.next(), want) {
		}
	}
	await("WATCHDOG=1")
	h.d.changing.Lock()
	await("STATUS=a change of the configuration has not ended")
	for range 5 {
		if got := sd.next(); !strings.HasPrefix(got, "STATUS=a change") {
			t.Errorf("while a change is stuck systemd is told %q", got)
		}
	}
	h.d.changing.Unlock()
	await("WATCHDOG=1")
	h.stop()
}

// TestHungStorageIsOfferedWhenItAnswers: an export whose storage hangs when it is
// opened holds up no other, says so, and is offered once the storage answers.
func TestHungStorageIsOfferedWhenItAnswers(t *testing.T) {
	dir, freeze, thaw := freezable(t)
	alpha, beta := newHost(t, ""), &host{t: t, offering: 2 * time.Second}
	beta.begin("")
	link(t, alpha, beta)
	t.Cleanup(thaw)
	image, more := filepath.Join(dir, "disk.img"), filepath.Join(dir, "more.img")
	for _, path := range []string{image, more} {
		if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	freeze()
	_, err := beta.api.AddExport(t.Context(), api.ExportSpec{Name: "more", Path: more, Allow: []string{"alpha"}})
	says(t, err, api.CodeUnavailable, "more.img", "may hang")
	beta.write("exports.d/disk.yaml", "name: disk\npath: "+image+"\nallow: [alpha]\n")
	beta.write("exports.d/other.yaml", "name: other\npath: "+beta.image("other.img", 1<<20)+"\nallow: [alpha]\n")
	if _, err := beta.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	state := func() map[string]api.Export {
		m := map[string]api.Export{}
		for _, e := range beta.status().Exports {
			m[e.Name] = e
		}
		return m
	}
	eventually(t, "another export is offered", func() bool { return state()["other"].State == api.ExportReady })
	e := state()["disk"]
	if e.State != api.ExportProblem {
		t.Fatalf("it is offered: %+v", e)
	}
	says(t, e.Problem, api.CodeUnavailable, "may hang")
	// Its declaration may change meanwhile.
	beta.write("exports.d/disk.yaml", "name: disk\npath: "+image+"\nallow: [alpha]\nwriters: shared\n")
	if _, err := beta.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	thaw()
	eventually(t, "it is offered", func() bool { return state()["disk"].State == api.ExportReady })
	ok(t, alpha.attach("disk"), cmdRead, 0, 512, nil)
}

// An export whose storage takes its time to be opened is offered then, and holds up nobody
// meanwhile: not the configuration, nor another export.
func TestStorageThatOpensSlowlyHoldsUpNobody(t *testing.T) {
	dir, freeze, thaw := freezable(t)
	h := &host{t: t, offering: 2 * waitTime} // after that it does not take its time, but hangs
	h.begin("")
	t.Cleanup(thaw)
	image := filepath.Join(dir, "disk.img")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 1<<20)); err != nil {
		t.Fatal(err)
	}
	freeze()
	type result struct {
		e   api.Export
		err error
	}
	added := make(chan result, 1)
	go func() {
		e, err := h.api.AddExport(t.Context(), api.ExportSpec{Name: "disk", Path: image})
		added <- result{e, err}
	}()
	st, err := os.Stat(image)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the storage is being opened", func() bool {
		locks, err := os.ReadFile("/proc/locks")
		return err == nil && strings.Contains(string(locks), fmt.Sprintf(":%d ", st.Sys().(*syscall.Stat_t).Ino))
	})
	if _, err := h.api.Reload(t.Context()); err != nil {
		t.Error(err)
	}
	if e, err := h.api.AddExport(t.Context(), api.ExportSpec{Name: "other", Path: h.image("other.img", 1<<20)}); err != nil || e.State != api.ExportReady {
		t.Errorf("another export: %+v, %v", e, err)
	}
	select {
	case r := <-added:
		t.Fatalf("it was not waited for: %+v", r)
	default:
	}
	thaw()
	if r := <-added; r.err != nil || r.e.State != api.ExportReady {
		t.Errorf("%+v, %v", r.e, r.err)
	}
}

// An export whose storage takes its time to be closed is not offered from the beginning, and
// holds up nobody meanwhile: not the configuration, nor another export. What is declared in
// its place is offered as soon as it is closed.
func TestStorageThatClosesSlowlyHoldsUpNobody(t *testing.T) {
	dir, freeze, thaw := freezable(t)
	alpha, beta := newHost(t, ""), &host{t: t, parting: 2 * waitTime} // before that it is slow, and does not hang
	beta.begin("")
	link(t, alpha, beta)
	image, answered := hangingWrite(t, alpha, beta, dir, freeze, thaw)
	if err := os.Remove(filepath.Join(beta.dir, "exports.d", "disk.yaml")); err != nil {
		t.Fatal(err)
	}
	beta.write("exports.d/again.yaml", "name: again\npath: "+image+"\nallow: [alpha]\n")
	reloaded := make(chan error, 1)
	go func() {
		_, err := beta.api.Reload(t.Context())
		reloaded <- err
	}()
	eventually(t, "it is not offered any more", func() bool {
		return !slices.ContainsFunc(beta.status().Exports, func(e api.Export) bool { return e.Name == "disk" })
	})
	if e, err := beta.api.AddExport(t.Context(), api.ExportSpec{Name: "other", Path: beta.image("other.img", 1<<20)}); err != nil || e.State != api.ExportReady {
		t.Errorf("another export: %+v, %v", e, err)
	}
	if _, err := beta.api.AddPeer(t.Context(), api.PeerSpec{Name: "gamma", Address: "127.0.0.3", Protection: "loopback"}); err != nil {
		t.Errorf("a peer: %v", err)
	}
	select {
	case err := <-reloaded:
		t.Fatalf("the storage was not waited for: %v", err)
	case <-answered:
		t.Fatal("the storage has not been slow: the write was answered")
	default:
	}
	thaw()
	<-answered
	if err := <-reloaded; err != nil {
		t.Error(err)
	}
	eventually(t, "the same file is offered under its new name", func() bool {
		return slices.ContainsFunc(beta.status().Exports, func(e api.Export) bool { return e.Name == "again" && e.State == api.ExportReady })
	})
	if strings.Contains(beta.log.String(), "its storage hangs") {
		t.Error("the log says that the storage hangs")
	}
}

// A device that another program has locked is in use; its storage does not hang.
func TestDeviceInUseIsNotSaidToHang(t *testing.T) {
	h := newHost(t, "")
	dev := backingtest.Loop(t, h.image("disk.img", 1<<20))
	other, err := os.OpenFile(dev, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := unix.Flock(int(other.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a slow machine has opened it in time", func() bool {
		_, err = h.api.AddExport(t.Context(), api.ExportSpec{Name: "disk", Path: dev, ReadOnly: true})
		return err == nil || !strings.Contains(err.Error(), "may hang")
	})
	says(t, err, api.CodeInvalid, "in use by another export or program")
}
