package backing

import (
	"bytes"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func TestReadsWhatTheFileHolds(t *testing.T) {
	path, content := disk(t, diskSize+512)
	s := open(t, path, Options{})
	if s.Size() != diskSize+512 || s.Geometry().ReadOnly || s.device || s.Path() != path {
		t.Fatalf("size %d, read-only %v, device %v, path %q", s.Size(), s.Geometry().ReadOnly, s.device, s.Path())
	}
	for _, c := range []struct{ off, n int }{{0, 1}, {0, 4096}, {511, 70000}, {diskSize, 512}, {diskSize + 512, 0}, {0, len(content)}} {
		p := make([]byte, c.n)
		if err := s.Read(p, int64(c.off)); err != nil || !bytes.Equal(p, content[c.off:c.off+c.n]) {
			t.Errorf("Read %d at %d: err %v, equal %v", c.n, c.off, err, bytes.Equal(p, content[c.off:c.off+c.n]))
		}
		clear(p)
		done, err := s.TryRead(p, int64(c.off))
		if err != nil || done && !bytes.Equal(p, content[c.off:c.off+c.n]) {
			t.Errorf("TryRead %d at %d: done %v, err %v", c.n, c.off, done, err)
		}
	}
}

func TestOutsideTheDiskIsEINVAL(t *testing.T) {
	path, _ := disk(t, diskSize)
	s := open(t, path, Options{})
	p := make([]byte, 512)
	for _, off := range []int64{-1, diskSize, diskSize - 511, 1<<63 - 1, 1<<63 - 512} {
		for name, err := range map[string]error{
			"read": s.Read(p, off), "write": s.Write(p, off, false), "fua": s.Write(p, off, true),
			"discard": s.Discard(off, 512, false), "zeroes": s.WriteZeroes(off, 512, false, false),
		} {
			if err != unix.EINVAL {
				t.Errorf("%s at %d: %v, want EINVAL", name, off, err)
			}
		}
		if done, err := s.TryRead(p, off); !done || err != unix.EINVAL {
			t.Errorf("TryRead at %d: %v, %v, want true, EINVAL", off, done, err)
		}
	}
	if err := s.Discard(0, -1, false); err != unix.EINVAL {
		t.Errorf("discard of a negative length: %v", err)
	}
	if fi, _ := os.Stat(path); fi.Size() != diskSize {
		t.Errorf("the file has %d bytes now", fi.Size())
	}
}

func TestReadOnlyIsEPERM(t *testing.T) {
	path, content := disk(t, diskSize)
	s := open(t, path, Options{ReadOnly: true})
	for name, err := range map[string]error{
		"write": s.Write(make([]byte, 512), 0, false), "fua": s.Write(make([]byte, 512), 0, true),
		"discard": s.Discard(0, 512, false), "zeroes": s.WriteZeroes(0, 512, false, false),
	} {
		if err != unix.EPERM {
			t.Errorf("%s: %v, want EPERM", name, err)
		}
	}
	if err := s.Flush(); err != nil {
		t.Errorf("flush: %v", err)
	}
	if s.Geometry().CanTrim {
		t.Error("a read-only store claims that it can discard")
	}
	got, _ := os.ReadFile(path)
	if !bytes.Equal(got, content) {
		t.Error("content changed")
	}
}

func TestShrunkenFileIsEIO(t *testing.T) {
	path, content := disk(t, diskSize)
	s := open(t, path, Options{})
	if err := os.Truncate(path, 8192+100); err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 4096)
	if err := s.Read(p, 4096); err != nil || !bytes.Equal(p, content[4096:8192]) {
		t.Errorf("what is left cannot be read: %v", err)
	}
	for name, err := range map[string]error{
		"read across the end": s.Read(p, 8192), "read beyond": s.Read(p, diskSize/2),
		"write beyond": s.Write(p, diskSize/2, false), "fua beyond": s.Write(p, diskSize/2, true),
		"discard beyond": s.Discard(diskSize/2, 4096, false), "zeroes beyond": s.WriteZeroes(diskSize/2, 4096, false, true),
	} {
		if err != unix.EIO {
			t.Errorf("%s: %v, want EIO", name, err)
		}
	}
	for _, off := range []int64{8192, diskSize / 2} {
		if done, _ := s.TryRead(p, off); done {
			t.Errorf("TryRead at %d claims success", off)
		}
	}
	if fi, _ := os.Stat(path); fi.Size() != 8192+100 {
		t.Errorf("a refused write changed the file's size to %d", fi.Size())
	}
	if s.Size() != diskSize {
		t.Errorf("size changed to %d while open", s.Size())
	}
}

func TestFailedFlushStaysFailed(t *testing.T) {
	path, _ := disk(t, 512)
	s := open(t, path, Options{})
	s.flushFailed.Store(int32(unix.EIO))
	if err := s.Flush(); err != unix.EIO {
		t.Errorf("flush: %v", err)
	}
}

// smallFS mounts a file system of the given size in bytes.
func smallFS(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("backing-test", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("needs root to mount a small tmpfs: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

func TestFullFileSystemIsENOSPC(t *testing.T) {
	path := filepath.Join(smallFS(t, "256k"), "disk")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, diskSize); err != nil {
		t.Fatal(err)
	}
	s := open(t, path, Options{})
	p := bytes.Repeat([]byte{7}, 64<<10)
	var err error
	ok := 0
	for off := int64(0); off < diskSize && err == nil; off += int64(len(p)) {
		if err = s.Write(p, off, false); err == nil {
			ok++
		}
	}
	if err != unix.ENOSPC || ok == 0 {
		t.Fatalf("%d writes, then %v, want ENOSPC", ok, err)
	}
	if err := s.WriteZeroes(diskSize/2, 300<<10, false, true); err != unix.ENOSPC {
		t.Errorf("zeroes with space: %v, want ENOSPC", err)
	}
	if err := s.Discard(0, diskSize, false); err != nil {
		t.Fatal(err)
	}
	if err := s.Write(p, 0, true); err != nil {
		t.Errorf("after a discard: %v", err)
	}
}

// TestAgainstAModel compares a store with a byte slice under random operations.
func TestAgainstAModel(t *testing.T) {
	path, content := disk(t, 64<<10)
	s := open(t, path, Options{})
	if !s.Geometry().CanTrim {
		t.Logf("the file system of %s cannot punch holes", path)
	}
	rapid.Check(t, func(t *rapid.T) {
		for range rapid.IntRange(1, 20).Draw(t, "ops") {
			off := rapid.IntRange(0, len(content)).Draw(t, "off")
			n := rapid.IntRange(0, len(content)-off).Draw(t, "n")
			flag := rapid.Bool().Draw(t, "flag")
			switch rapid.IntRange(0, 3).Draw(t, "op") {
			case 0:
				p := bytes.Repeat([]byte{byte(n)}, n)
				if err := s.Write(p, int64(off), flag); err != nil {
					t.Fatal(err)
				}
				copy(content[off:], p)
			case 1:
				if err := s.WriteZeroes(int64(off), int64(n), false, flag); err != nil {
					t.Fatal(err)
				}
				clear(content[off : off+n])
			case 2:
				if err := s.Discard(int64(off), int64(n), flag); err != nil {
					t.Fatal(err)
				}
				if s.Geometry().CanTrim {
					clear(content[off : off+n])
				}
			case 3:
				if err := s.Flush(); err != nil {
					t.Fatal(err)
				}
			}
			got := make([]byte, len(content))
			if err := s.Read(got, 0); err != nil || !bytes.Equal(got, content) {
				t.Fatalf("differs from the model (err %v)", err)
			}
		}
	})
}

func TestZeroesAreWrittenWhereTheyCannotBeHad(t *testing.T) {
	path, content := disk(t, 3*zeroChunk)
	s := open(t, path, Options{})
	if errno := s.writeZeroBytes(100, 2*zeroChunk+55); errno != 0 {
		t.Fatal(errno)
	}
	clear(content[100 : 100+2*zeroChunk+55])
	got, _ := os.ReadFile(path)
	if !bytes.Equal(got, content) {
		t.Error("wrong bytes zeroed")
	}
}

func TestDiscardGivesSpaceBackAndNoUnmapKeepsIt(t *testing.T) {
	path, _ := disk(t, diskSize)
	s := open(t, path, Options{})
	if !s.Geometry().CanTrim {
		t.Skip("the file system cannot punch holes")
	}
	blocks := func() int64 {
		t.Helper()
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
		fi, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return fi.Sys().(*syscall.Stat_t).Blocks
	}
	full := blocks()
	if err := s.WriteZeroes(0, diskSize/2, true, true); err != nil {
		t.Fatal(err)
	}
	if b := blocks(); b < full {
		t.Errorf("zeroes without unmap: %d blocks of %d are left", b, full)
	}
	if err := s.Discard(0, diskSize/2, true); err != nil {
		t.Fatal(err)
	}
	if b := blocks(); b > full/2+64 {
		t.Errorf("discard: %d blocks of %d are left", b, full)
	}
}

func TestWritesAreSlowWhenTheyWaitForStorage(t *testing.T) {
	var s delay
	if !s.fast() {
		t.Fatal("not fast at first")
	}
	quick := func(n int) {
		for range n {
			s.observe(3*time.Microsecond, 4096)
		}
	}
	for range 50 {
		s.observe(4*time.Millisecond, 4096)
		if !s.fast() {
			t.Fatal("slow after a lost time slice now and then")
		}
		quick(500)
	}
	s.observe(time.Second, 4096)
	if s.fast() {
		t.Fatal("fast right after a write that waited")
	}
	for range 1000 {
		s.observe(time.Second, 4096)
	}
	quick(300)
	if !s.fast() {
		t.Fatal("not fast after enough quick writes")
	}
	for range 1000 {
		s.observe(1024*writePerKiB, 1<<20)
	}
	if !s.fast() {
		t.Fatal("large writes are measured as small ones")
	}
}

func TestNoAllocations(t *testing.T) {
	path, _ := disk(t, diskSize)
	s := open(t, path, Options{})
	p := make([]byte, 4096)
	for name, f := range map[string]func(){
		"read":    func() { s.Read(p, 8192) },
		"tryread": func() { s.TryRead(p, 8192) },
		"write":   func() { s.Write(p, 8192, false) },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkStore(b *testing.B) {
	path, _ := disk(b, diskSize)
	s := open(b, path, Options{})
	p := make([]byte, 4096)
	for name, f := range map[string]func() error{
		"read":    func() error { return s.Read(p, 8192) },
		"tryread": func() error { _, err := s.TryRead(p, 8192); return err },
		"write":   func() error { return s.Write(p, 8192, false) },
		"fua":     func() error { return s.Write(p, 8192, true) },
		"flush":   func() error { return s.Flush() },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := f(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
