package backing

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/block/backing/backingtest"
)

// The kernel's answer to a flush may be lost with a daemon that is killed. Nobody knows
// which writes it was about: the life before is not vouched for, whatever else was reported.
func TestLifeEndsWithADaemonKilledInASync(t *testing.T) {
	for _, on := range []string{"file", "file without attributes", "device"} {
		t.Run(on, func(t *testing.T) {
			path := newFile(t, t.TempDir(), "disk")
			opt := Options{Records: filepath.Join(t.TempDir(), "records")}
			if on == "device" {
				path = backingtest.Loop(t, path)
			}
			open := func() *Store {
				s := reopen(t, path, opt)
				if on == "file without attributes" {
					s.keeper.fd = -1
					_ = unix.Fremovexattr(int(s.fd), recordAttr)
					if err := s.keeper.save(&s.rec); err != nil {
						t.Fatal(err)
					}
				}
				return s
			}
			s := open()
			was := s.Identity()
			s.beginSync()
			s.beginSync()
			s.endSync()
			s.endSync()
			for _, err := range []error{s.Write(make([]byte, 512), 0, true), s.Flush(), s.Write(make([]byte, 512), 512, false)} {
				if err != nil {
					t.Fatal(err)
				}
			}
			s.abandon(t)
			if s = open(); s.Identity() != was {
				t.Fatal("all calls had returned, and the life does not go on")
			}
			s.beginSync()
			s.beginSync()
			s.endSync()
			s.abandon(t)
			s = open()
			if now := s.Identity(); now.Disk != was.Disk || now.Life == was.Life || s.Keeps(was.Life) {
				t.Errorf("a call was under way, and its life is vouched for: %v, was %v, kept %v", now, was, s.Keeps(was.Life))
			}
			if err := s.Flush(); err != nil {
				t.Errorf("a flush in the new life: %v", err)
			}
			was = s.Identity()
			s.abandon(t)
			if s = open(); s.Identity() != was {
				t.Error("all calls of the new life had returned, and it does not go on")
			}
		})
	}
}

// The call that records a life that goes on may get an error of writeback as well.
func TestErrorReportedToTheNextStoreAtItsStartIsLatched(t *testing.T) {
	const size = 40 << 20
	path, opt := backingtest.ThinFile(t, size).Path, Options{Records: filepath.Join(t.TempDir(), "records")}
	s := reopen(t, path, opt)
	was := s.Identity().Life
	block := make([]byte, 1<<20)
	for off := int64(0); off < size; off += int64(len(block)) {
		rand.Read(block)
		if err := s.Write(block, off, false); err != nil {
			t.Fatalf("a write into the page cache: %v", err)
		}
	}
	s.abandon(t)
	reopen(t, path, opt).abandon(t)
	// What is still dirty is written out, so that the kernel has nothing left to report.
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for tries := 0; f.Sync() != nil; tries++ {
		if tries > size>>12 {
			t.Fatal("fsync fails for ever")
		}
	}
	s = reopen(t, path, opt)
	if err := s.Flush(); err == nil && (s.Identity().Life == was || s.Keeps(was)) {
		t.Error("a flush succeeds in the life whose acknowledged writes are lost")
	}
}

// NFS reports errors to plain writes, which leave no hint: no life goes on there.
func TestNoLifeGoesOnWhereErrorsAreReportedToWrites(t *testing.T) {
	if !reportsToWrites(unix.NFS_SUPER_MAGIC) {
		t.Error("a life would go on over NFS")
	}
	for name, kind := range map[string]int64{"ext4": unix.EXT4_SUPER_MAGIC, "XFS": unix.XFS_SUPER_MAGIC, "Btrfs": unix.BTRFS_SUPER_MAGIC, "tmpfs": unix.TMPFS_MAGIC} {
		if reportsToWrites(kind) {
			t.Errorf("no life would go on over %s", name)
		}
	}
}

// withoutOwner runs f as a user who may write to files of others, and nothing else to
// them, as a daemon without CAP_FOWNER.
func withoutOwner(t *testing.T, f func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // which ends with the goroutine
		h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var caps [2]unix.CapUserData
		err := unix.Capget(&h, &caps[0])
		if err == nil {
			caps[0].Effective &^= 1 << unix.CAP_FOWNER
			err = unix.Capset(&h, &caps[0])
		}
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Skipf("cannot do without CAP_FOWNER here: %v", err)
	}
}

// The life of a disk does not go on after a daemon that could not set the hint.
func TestLifeOfAFileOfAnotherOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("giving a file to another owner needs root")
	}
	for name, given := range map[string]bool{"before": true, "while it is exported": false} {
		t.Run(name, func(t *testing.T) {
			path := newFile(t, t.TempDir(), "disk")
			chown := func() {
				if err := os.Chown(path, 1000, 1000); err != nil {
					t.Fatal(err)
				}
			}
			if given {
				chown()
			}
			var s *Store
			withoutOwner(t, func() { s = reopen(t, path, Options{}) })
			chown()
			was := s.Identity()
			withoutOwner(t, func() {
				if err := s.Flush(); err != nil {
					t.Errorf("a flush: %v", err)
				}
				s.beginSync()
			})
			s.abandon(t)
			if s = reopen(t, path, Options{}); s.Identity().Life == was.Life || s.Keeps(was.Life) || s.Identity().Disk != was.Disk {
				t.Errorf("a call was under way, and its life is vouched for: %v, was %v", s.Identity(), was)
			}
		})
	}
}
