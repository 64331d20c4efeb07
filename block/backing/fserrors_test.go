package backing

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/block/backing/backingtest"
)

// fakeExt4 is a root below which the device of a file has ext4 that counts its errors.
type fakeExt4 struct{ root, count, options string }

func newFakeExt4(t *testing.T, file, options string) *fakeExt4 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	f := &fakeExt4{root, filepath.Join(root, "sys/fs/ext4/sdx1/errors_count"), filepath.Join(root, "proc/fs/ext4/sdx1/options")}
	link := filepath.Join(root, "sys/dev/block", fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)))
	for _, dir := range []string{filepath.Dir(f.count), filepath.Dir(f.options), filepath.Dir(link)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../../devices/pci0/block/sdx/sdx1", link); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(f.options, []byte("rw\nbsddf\n"+options+"\nuser_xattr\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.set(t, 7) // from long ago
	return f
}

func (f *fakeExt4) set(t *testing.T, n int) {
	t.Helper()
	if err := os.WriteFile(f.count, fmt.Appendf(nil, "%d\n", n), 0o600); err != nil {
		t.Fatal(err)
	}
}

// An error that the file system has counted since the life of a disk began fails flushes
// and FUA writes, and those of later Stores of that life. Earlier errors do not count.
func TestErrorThatTheFileSystemCountsIsLatched(t *testing.T) {
	for name, fails := range map[string]func(s *Store) error{
		"flush": func(s *Store) error { return s.Flush() },
		"FUA":   func(s *Store) error { return s.Write(make([]byte, 512), 0, true) },
	} {
		t.Run(name, func(t *testing.T) {
			path := newFile(t, t.TempDir(), "disk")
			fs := newFakeExt4(t, path, "errors=continue")
			opt := Options{Records: filepath.Join(t.TempDir(), "records"), root: fs.root}
			s, err := Open(path, opt)
			if err != nil {
				t.Fatal(err)
			}
			if dev := s.GoesOnAfterErrors(); dev != "/dev/sdx1" {
				t.Errorf("it goes on after errors: %q", dev)
			}
			if err := fails(s); err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			fs.set(t, 8) // while nobody had it open, and all was flushed
			if s, err = Open(path, opt); err != nil {
				t.Fatal(err)
			}
			if err := fails(s); err != nil {
				t.Fatal(err)
			}
			fs.set(t, 9)
			if err := fails(s); !errors.Is(err, unix.EIO) || s.Fault() == "" {
				t.Errorf("%v, fault %q", err, s.Fault())
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if s = reopen(t, path, opt); s.Flush() == nil {
				t.Error("the next Store has forgotten")
			}
		})
	}
}

// An error that occurs between two daemons belongs to the life that goes on.
func TestErrorThatIsCountedWhileNobodyLooksIsLatched(t *testing.T) {
	path := newFile(t, t.TempDir(), "disk")
	fs := newFakeExt4(t, path, "errors=remount-ro")
	opt := Options{Records: filepath.Join(t.TempDir(), "records"), root: fs.root}
	s := reopen(t, path, opt)
	if s.GoesOnAfterErrors() != "" {
		t.Error("it stops after errors")
	}
	life := s.Identity().Life
	if err := s.closeAll(); err != nil { // as a process that is killed
		t.Fatal(err)
	}
	s.closed = true
	fs.set(t, 8)
	s = reopen(t, path, opt)
	if s.Identity().Life != life {
		t.Skip("the inode does not stay in memory here")
	}
	if err := s.Flush(); !errors.Is(err, unix.EIO) {
		t.Errorf("a flush says %v although the file system has had an error", err)
	}
}

func TestStorageThatCountsNoErrorsIsFine(t *testing.T) {
	path := newFile(t, t.TempDir(), "disk")
	s := reopen(t, path, Options{root: t.TempDir()})
	if s.GoesOnAfterErrors() != "" || s.Flush() != nil || s.Write(make([]byte, 512), 0, true) != nil {
		t.Errorf("%q, %v", s.GoesOnAfterErrors(), s.Flush())
	}
}

// Real ext4 that goes on after an error in its metadata.
func TestExt4ThatGoesOnAfterAnErrorFailsFlushes(t *testing.T) {
	thin := backingtest.ThinFile(t, 1<<20)
	if err := syscall.Mount("", filepath.Dir(thin.Path), "", syscall.MS_REMOUNT, "errors=continue"); err != nil {
		t.Fatal(err)
	}
	s := reopen(t, thin.Path, Options{})
	dev := s.GoesOnAfterErrors()
	if dev == "" {
		t.Skip("the kernel does not say what ext4 does after errors")
	}
	if err := s.Write(make([]byte, 4096), 0, false); err != nil {
		t.Fatal(err)
	}
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join("/sys/fs/ext4", filepath.Base(dev), "trigger_fs_error"), []byte("of a test"), 0o200); err != nil {
		t.Skipf("cannot have an error of ext4 here: %v", err)
	}
	// The kernel counts it in the background.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for s.Flush() == nil {
		if ctx.Err() != nil {
			t.Fatal("flushes succeed after an error of the file system")
		}
	}
	if err := s.Flush(); err == nil || s.Fault() == "" {
		t.Errorf("%v, %q", err, s.Fault())
	}
}

// The state of a disk is reported while the storage that is to record its fault does not
// answer.
func TestFaultIsReportedWhileItsRecordHangs(t *testing.T) {
	thin := backingtest.ThinFile(t, 1<<20)
	fs := newFakeExt4(t, thin.Path, "errors=remount-ro")
	s := reopen(t, thin.Path, Options{root: fs.root})
	fs.set(t, 8)
	dir, err := os.Open(filepath.Dir(thin.Path))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	const freeze, thaw = 0xC0045877, 0xC0045878 // FIFREEZE and FITHAW of linux/fs.h
	if err := unix.IoctlSetInt(int(dir.Fd()), freeze, 0); err != nil {
		t.Skipf("cannot freeze a file system here: %v", err)
	}
	flushed, reported := make(chan error, 1), make(chan string, 1)
	go func() { flushed <- s.Flush() }()
	for s.flushFailed.Load() == 0 {
		runtime.Gosched()
	}
	go func() {
		for s.Fault() == "" {
			runtime.Gosched()
		}
		reported <- s.Fault()
	}()
	select {
	case <-reported:
	case <-time.After(20 * time.Second):
		t.Error("who asks for the fault waits for the storage")
	}
	if err := unix.IoctlSetInt(int(dir.Fd()), thaw, 0); err != nil {
		t.Fatal(err)
	}
	if err := <-flushed; err == nil {
		t.Error("the flush succeeds")
	}
}
