package backing

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/block/backing/backingtest"
)

// overwrite fills the file with FUA writes and others until one of them fails since the
// storage below is full, and returns how many have.
func overwrite(t *testing.T, s *Store, size int64) (failed int) {
	t.Helper()
	block := bytes.Repeat([]byte{0xa5}, 1<<20)
	for off := int64(0); off < size; off += int64(len(block)) {
		// Writes without FUA are acknowledged; that of the last 4 KiB waits.
		if err := s.Write(block[:len(block)-4096], off, false); err != nil {
			t.Fatalf("a write into the page cache: %v", err)
		}
		if err := s.Write(block[:4096], off+int64(len(block))-4096, true); err != nil {
			failed++
		}
	}
	return failed
}

// The kernel reports an error of writeback once. A FUA write that gets it must not keep it
// from the next flush, and no later Store may forget it.
func TestErrorOfWritebackIsLatchedWhicheverCallGotIt(t *testing.T) {
	const size = 60 << 20
	thin := backingtest.ThinFile(t, size)
	path, opt := thin.Path, Options{Records: filepath.Join(t.TempDir(), "records")}
	s, err := Open(path, opt)
	if err != nil {
		t.Fatal(err)
	}
	if overwrite(t, s, size) == 0 && s.Flush() == nil {
		t.Fatal("the storage is not full")
	}
	life := s.Identity().Life
	for range 3 {
		if err := s.Flush(); err == nil {
			t.Fatal("a flush succeeds although acknowledged writes are lost")
		}
		if err := s.Write(make([]byte, 512), 0, true); err == nil {
			t.Fatal("a block.FUA write succeeds on a disk that has lost writes")
		}
	}
	if s.Fault() == "" {
		t.Error("the store does not say why")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	// The storage gets room, and the file system is checked and mounted again.
	thin.Repair(t)
	if s, err = Open(path, opt); err != nil {
		t.Fatal(err)
	}
	if err := s.Flush(); err == nil || s.Fault() == "" || s.Identity().Life != life {
		t.Errorf("the next Store has forgotten: flush %v, fault %q", err, s.Fault())
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	// Its administrator repairs it.
	opt.Repair = true
	if s, err = Open(path, opt); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Flush(); err != nil || s.Fault() != "" || s.Identity().Life == life || s.Keeps(life) {
		t.Errorf("after its repair: flush %v, fault %q, kept %v", err, s.Fault(), s.Keeps(life))
	}
}

// Of several FUA writes under way, the kernel reports to one that they could not be written.
func TestEachFUAWriteThatSucceedsIsThere(t *testing.T) {
	const size, writers, each = 48 << 20, 16, 64 << 10
	dev, opt := backingtest.ThinDevice(t, size), Options{Records: filepath.Join(t.TempDir(), "records")}
	s := reopen(t, dev, opt)
	block := bytes.Repeat([]byte{0xa5}, each)
	var durable [size / each]bool
	var next atomic.Int64
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(durable)); i = next.Add(1) - 1 {
				durable[i] = s.Write(block, i*each, true) == nil
			}
		})
	}
	wg.Wait()
	if s.Fault() == "" {
		t.Fatal("the storage is not full")
	}
	if errno := s.ioctl(unix.BLKFLSBUF, nil); errno != 0 {
		t.Fatal(errno)
	}
	got := make([]byte, each)
	for i, ok := range durable {
		if err := s.Read(got, int64(i)*each); err != nil {
			t.Fatal(err)
		}
		if ok && !bytes.Equal(got, block) {
			t.Errorf("FUA write %d succeeded, and is lost", i)
		}
	}
}

// FUA writes for which there is no room get the errors of earlier writes instead, and may
// use up all openings by which the kernel would report them to a flush.
func TestFUAWritesWithoutRoomLeaveTheErrorToTheFlush(t *testing.T) {
	const size, part = 40 << 20, 32 << 10
	path := backingtest.ThinFile(t, size).Path
	s := reopen(t, path, Options{Records: filepath.Join(t.TempDir(), "records")})
	// Half of the write has room, and the device has, too; the other half has none.
	if err := s.Write(bytes.Repeat([]byte{1}, part), 0, true); err != nil {
		t.Fatal(err)
	}
	if err := s.Discard(part, part, true); err != nil {
		t.Fatal(err)
	}
	backingtest.Fill(t, filepath.Dir(path))
	block := bytes.Repeat([]byte{0xa5}, 1<<20)
	for off := int64(len(block)); off < size; off += int64(len(block)) {
		if err := s.Write(block, off, false); err != nil {
			t.Fatalf("a write into the page cache: %v", err)
		}
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Sync() == nil {
		t.Fatal("the storage is not full")
	}
	// Sixteen at once, of which each ends before the next takes an opening.
	var all []uintptr
	for range maxSyncs {
		all = append(all, <-s.syncs)
	}
	for _, fd := range all {
		s.syncs <- fd
		if s.Write(block[:2*part], 0, true) == nil {
			t.Fatal("there is room")
		}
		<-s.syncs
	}
	for _, fd := range all {
		s.syncs <- fd
	}
	if err := s.Flush(); err == nil {
		t.Error("a flush succeeds although acknowledged writes are lost")
	}
}

// The flush of a Store that is closed may be the first to get an error.
func TestErrorOfTheLastFlushIsLatched(t *testing.T) {
	const size = 40 << 20
	dev, opt := backingtest.ThinDevice(t, size), Options{Records: filepath.Join(t.TempDir(), "records")}
	s := reopen(t, dev, opt)
	block := bytes.Repeat([]byte{0xa5}, 1<<20)
	for off := int64(0); off < size; off += int64(len(block)) {
		if err := s.Write(block, off, false); err != nil {
			t.Fatalf("a write into the page cache: %v", err)
		}
	}
	life := s.Identity().Life
	if err := s.Close(); err == nil {
		t.Fatal("the storage is not full")
	}
	next := reopen(t, dev, opt)
	if err := next.Flush(); err == nil && (next.Identity().Life == life || next.Keeps(life)) {
		t.Errorf("a flush succeeds in the life whose acknowledged writes are lost; fault %q", next.Fault())
	}
	if next.Fault() == "" {
		t.Error("the next Store does not say why writes are lost")
	}
}

func newFile(t *testing.T, dir, name string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func reopen(t *testing.T, path string, opt Options) *Store {
	t.Helper()
	s, err := Open(path, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// abandon leaves a Store as a daemon that is killed does.
func (s *Store) abandon(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if err := s.closeAll(); err != nil {
		t.Fatal(err)
	}
}

func TestLifeChangesWhenWritesMayBeLost(t *testing.T) {
	for _, where := range []string{"attribute", "records"} {
		t.Run(where, func(t *testing.T) {
			dir := t.TempDir()
			path := newFile(t, dir, "disk")
			opt := Options{Records: filepath.Join(dir, "records")}
			open := func() *Store {
				s := reopen(t, path, opt)
				if where == "records" {
					// As if the file system had no attributes.
					s.keeper.fd = -1
					if err := unix.Fremovexattr(int(s.fd), recordAttr); err != nil && err != unix.ENODATA && err != unix.ENOTSUP {
						t.Fatal(err)
					}
					if err := s.keeper.save(&s.rec); err != nil {
						t.Fatal(err)
					}
				}
				return s
			}
			says := func(s *Store, why string, keeps bool) {
				t.Helper()
				if got, has := s.NewLife(); !strings.Contains(got, why) || (got == "") != (why == "") || has != keeps {
					t.Errorf("the reason of its life is %q, it keeps the last one: %v; want %q, %v", got, has, why, keeps)
				}
			}
			first := open()
			says(first, "", false)
			was := first.Identity()
			if err := first.Write([]byte("acknowledged"), 0, false); err != nil {
				t.Fatal(err)
			}
			first.abandon(t)
			killed := open()
			if killed.Identity() != was {
				t.Error("a daemon that is killed keeps the page cache, and the life does not go on")
			}
			says(killed, "", false)
			if err := killed.Close(); err != nil {
				t.Fatal(err)
			}
			ended := open()
			if now := ended.Identity(); now.Disk != was.Disk || now.Life == was.Life || !ended.Keeps(was.Life) {
				t.Errorf("after an orderly end: %v, was %v, kept %v", now, was, ended.Keeps(was.Life))
			}
			says(ended, "ended in good order", true)
			unsure := ended.Identity().Life
			setHint(int(ended.fd), 0) // the inode leaves the memory
			ended.abandon(t)
			evicted := open()
			if now := evicted.Identity(); now.Disk != was.Disk || now.Life == unsure || evicted.Keeps(unsure) || !evicted.Keeps(was.Life) {
				t.Error("the inode was evicted, and its writes are vouched for")
			}
			says(evicted, "was killed while it flushed, or the kernel has dropped the file from its memory", false)
			unsure = evicted.Identity().Life
			evicted.rec.Cache = "another boot"
			if err := evicted.keeper.save(&evicted.rec); err != nil {
				t.Fatal(err)
			}
			evicted.abandon(t)
			rebooted := open()
			if now := rebooted.Identity(); now.Life == unsure || rebooted.Keeps(unsure) {
				t.Error("the host has booted anew, and its writes are vouched for")
			}
			says(rebooted, "this host was rebooted", false)
			last := rebooted.Identity().Life
			if err := rebooted.Close(); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, bytes.Repeat([]byte{1}, 1<<20), 0o600); err != nil {
				t.Fatal(err)
			}
			changed := open()
			if changed.Keeps(last) || changed.Identity().Disk != was.Disk {
				t.Error("somebody else has written to the file, and its writes are vouched for")
			}
			says(changed, "somebody else has written to it", false)
		})
	}
}

// A file that backup software has restored in place while nobody served it, with the time of
// change that it had, or shorter, vouches for no writes.
func TestFileThatWasRestoredInPlaceBeginsAnotherLife(t *testing.T) {
	for name, restore := range map[string]func(path string, before os.FileInfo) error{
		"with its time of change": func(path string, before os.FileInfo) error {
			then := before.ModTime().Add(-time.Hour)
			return errors.Join(os.WriteFile(path, bytes.Repeat([]byte{7}, 1<<20), 0o600), os.Chtimes(path, then, then))
		},
		"shorter": func(path string, _ os.FileInfo) error {
			return os.WriteFile(path, bytes.Repeat([]byte{7}, 1<<19), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path, opt := newFile(t, dir, "disk"), Options{Records: filepath.Join(dir, "records")}
			kept := reopen(t, path, opt)
			if err := kept.Close(); err != nil {
				t.Fatal(err)
			}
			before, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			killed := reopen(t, path, opt)
			if err := killed.Write([]byte("acknowledged"), 0, false); err != nil {
				t.Fatal(err)
			}
			killed.abandon(t)
			if err := restore(path, before); err != nil {
				t.Fatal(err)
			}
			s := reopen(t, path, opt)
			for what, life := range map[string]block.ID{"the one that was killed": killed.Identity().Life, "one before": kept.Identity().Life} {
				if s.Identity().Life == life || s.Keeps(life) {
					t.Errorf("the writes of %s are vouched for", what)
				}
			}
			if why, _ := s.NewLife(); !strings.Contains(why, "restored") {
				t.Errorf("the reason of its life is %q", why)
			}
			if got := make([]byte, 12); s.Read(got, 0) != nil || got[0] != 7 {
				t.Errorf("it has %q", got)
			}
		})
	}
}

// A flush of a read-only export does nothing. So it vouches for no life that has not ended,
// or that has lost writes: the next Store that may write does.
func TestReadOnlyStoreVouchesForNoWrites(t *testing.T) {
	for name, lost := range map[string]bool{"killed": false, "killed after it had lost writes": true} {
		t.Run(name, func(t *testing.T) {
			path, opt := newFile(t, t.TempDir(), "disk"), Options{Records: filepath.Join(t.TempDir(), "records")}
			s := reopen(t, path, opt)
			was := s.Identity()
			if err := s.Write([]byte("acknowledged"), 0, false); err != nil {
				t.Fatal(err)
			}
			if lost {
				s.latch(unix.EIO, "a test")
			}
			s.abandon(t)
			r := reopen(t, path, Options{ReadOnly: true, Records: opt.Records})
			if now := r.Identity(); now.Disk != was.Disk || now.Life == was.Life || r.Keeps(was.Life) {
				t.Errorf("read-only: %v, was %v, kept %v, flush %v", now, was, r.Keeps(was.Life), r.Flush())
			}
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			if s = reopen(t, path, opt); s.Identity() != was || (s.Fault() != "") != lost {
				t.Errorf("then for writing: %v, was %v, fault %q", s.Identity(), was, s.Fault())
			}
		})
	}
}

// A Store whose record cannot be written leaves that of the life before. If the inode had
// left the memory by then, that life must not go on in a later Store.
func TestLifeThatIsNotWrittenDownVouchesForNoOther(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a file system needs root")
	}
	dir, opt := t.TempDir(), Options{Records: filepath.Join(t.TempDir(), "records")}
	if err := unix.Mount("ramfs", dir, "ramfs", 0, ""); err != nil { // it has no attributes
		t.Skipf("cannot mount a ramfs here: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	path := newFile(t, dir, "disk")
	evicted := reopen(t, path, opt)
	unsure := evicted.Identity().Life
	setHint(int(evicted.fd), 0) // the inode leaves the memory
	evicted.abandon(t)
	unkept := reopen(t, path, Options{}) // as `ironwarp export add` looks at it
	if unkept.Unkept() == nil {
		t.Fatal("the record could be written")
	}
	if err := unkept.Close(); err != nil {
		t.Fatal(err)
	}
	if next := reopen(t, path, opt); next.Identity().Life == unsure || next.Keeps(unsure) {
		t.Error("the inode was evicted, and its writes are vouched for")
	}
}

func TestCopyAndExchangedFileAreOtherDisks(t *testing.T) {
	dir := t.TempDir()
	path := newFile(t, dir, "disk")
	s := reopen(t, path, Options{})
	was := s.Identity().Disk
	s.Close()
	twin := filepath.Join(dir, "twin")
	if out, err := exec.Command("cp", "--preserve=all", path, twin).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if n, err := unix.Getxattr(twin, recordAttr, nil); err != nil || n == 0 {
		t.Skipf("cp copies no attributes here: %v", err)
	}
	c := reopen(t, twin, Options{})
	if c.Identity().Disk == was || c.CopyOf() != was {
		t.Errorf("the copy is %v, a copy of %v; the disk is %v", c.Identity().Disk, c.CopyOf(), was)
	}
	c.Close()
	if err := os.Rename(twin, path); err != nil {
		t.Fatal(err)
	}
	if x := reopen(t, path, Options{}); x.Identity().Disk == was {
		t.Error("another file in its place is taken for the disk")
	}
}

func TestUnknownRecordIsIgnored(t *testing.T) {
	dir := t.TempDir()
	for i, text := range []string{"", "{", "null", `{"version":99,"disk":"01020304-0506-4708-890a-0b0c0d0e0f10"}`, strings.Repeat("x", maxRecord+1), `{"version":1,"disk":"zz"}`} {
		path := newFile(t, dir, string(rune('a'+i)))
		if err := unix.Setxattr(path, recordAttr, []byte(text), 0); err != nil {
			t.Logf("%d bytes do not fit: %v", len(text), err)
			continue
		}
		s := reopen(t, path, Options{})
		if id := s.Identity(); id.Disk.IsZero() || id.Life.IsZero() {
			t.Errorf("%.20q: %v", text, id)
		}
		s.Close()
		if reopen(t, path, Options{}).Identity().Disk != s.Identity().Disk {
			t.Errorf("%.20q: the UUID does not stay", text)
		}
	}
}

func TestLoopDeviceHasAnIdentityThatStays(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("loop devices need root")
	}
	dir := t.TempDir()
	path := newFile(t, dir, "disk")
	opt := Options{Records: filepath.Join(dir, "records")}
	setUp := func() string {
		out, err := exec.Command("losetup", "-f", "--show", path).CombinedOutput()
		if err != nil {
			t.Skipf("no loop devices here: %s", out)
		}
		return strings.TrimSpace(string(out))
	}
	takeDown := func(dev string) {
		if out, err := exec.Command("losetup", "-d", dev).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
	dev := setUp()
	s := reopen(t, dev, opt)
	was := s.Identity()
	s.abandon(t)
	s = reopen(t, dev, opt)
	if s.Identity() != was {
		t.Errorf("%v, was %v", s.Identity(), was)
	}
	s.abandon(t)
	takeDown(dev)
	dev = setUp()
	defer takeDown(dev)
	s = reopen(t, dev, opt)
	defer s.Close()
	if now := s.Identity(); now.Disk != was.Disk || now.Life == was.Life || s.Keeps(was.Life) {
		t.Errorf("the device was made anew: %v, was %v", now, was)
	}
}
