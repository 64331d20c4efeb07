package backing

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A file is made longer and shorter, stays the disk that it was, and loses nothing but its
// end.
func TestResizeOfAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Open(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	before := s.Identity()
	if errno := s.write(make([]byte, 512), 1<<20, false); errno == 0 {
		t.Error("a write behind the end succeeds")
	}
	if err := s.Resize(2 << 20); err != nil || s.Size() != 2<<20 {
		t.Fatal(s.Size(), err)
	}
	if errno := s.write([]byte{7}, 2<<20-1, false); errno != 0 {
		t.Error(errno)
	}
	if err := os.Truncate(path, 3<<20+5); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		if grown, err := s.Grow(); err != nil || grown != (i == 0) || s.Size() != 3<<20 {
			t.Errorf("grown %v to %d: %v", grown, s.Size(), err)
		}
	}
	if err := s.Resize(1 << 19); err != nil || s.Size() != 1<<19 {
		t.Error(s.Size(), err)
	}
	if grown, err := s.Grow(); grown || err != nil {
		t.Errorf("it grows back: %v", err)
	}
	// As a daemon that was killed leaves it.
	if err := s.closeAll(); err != nil {
		t.Fatal(err)
	}
	if s, err = Open(path, Options{}); err != nil {
		t.Fatal(err)
	}
	if why, _ := s.NewLife(); s.Identity().Disk != before.Disk || s.Identity().Life != before.Life && s.cache() != "" {
		t.Errorf("it is %v now, was %v: %s", s.Identity(), before, why)
	}
	for n, want := range map[int64]error{0: ErrEmpty, -512: ErrEmpty, 513: ErrPartSector, 1 << 62: unix.EFBIG} {
		if err := s.Resize(n); !errors.Is(err, want) || s.Size() != 1<<19 {
			t.Errorf("%d bytes: %v, want %v; it has %d", n, err, want, s.Size())
		}
	}
	s.Close()
	if err := s.Resize(1 << 20); !errors.Is(err, unix.EBADF) {
		t.Error(err)
	}
	ro, err := Open(path, Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer ro.Close()
	if err := ro.Resize(1 << 20); !errors.Is(err, ErrReadOnly) {
		t.Error(err)
	}
}
