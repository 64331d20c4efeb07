package backing

import (
	"bytes"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/internal/otheruser"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const diskSize = 1 << 20

// disk makes a file of random bytes.
func disk(t testing.TB, size int) (path string, content []byte) {
	t.Helper()
	content = make([]byte, size)
	r := rand.New(rand.NewPCG(1, uint64(size)))
	for i := range content {
		content[i] = byte(r.Uint32())
	}
	path = filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path, content
}

func open(t testing.TB, path string, opt Options) *Store {
	t.Helper()
	s, err := Open(path, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	fifo, empty, locked := filepath.Join(dir, "fifo"), filepath.Join(dir, "empty"), filepath.Join(dir, "locked")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	os.WriteFile(empty, nil, 0o600)
	os.WriteFile(locked, make([]byte, 512), 0o600)
	open(t, locked, Options{})
	for _, c := range []struct {
		name, path string
		is         error
		words      string
	}{
		{"missing", filepath.Join(dir, "nothing"), fs.ErrNotExist, "no such file"},
		{"directory", dir, ErrNotStorage, "a directory"},
		{"fifo", fifo, ErrNotStorage, "a fifo"},
		{"character device", "/dev/zero", ErrNotStorage, "a character device"},
		{"empty", empty, ErrEmpty, "size is zero"},
		{"exported twice", locked, ErrInUse, "in use"},
	} {
		for _, ro := range []bool{false, true} {
			_, err := Open(c.path, Options{ReadOnly: ro})
			var oe *OpenError
			if !errors.As(err, &oe) || !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.words) || !strings.Contains(err.Error(), c.path) {
				t.Errorf("%s (read-only %v): %v", c.name, ro, err)
			}
		}
	}
}

func TestUnreadableIsRefused(t *testing.T) {
	path, _ := disk(t, 512)
	os.Chmod(path, 0o400)
	err := openAsNobody(t, path, Options{})
	if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "export it read-only") {
		t.Errorf("write-protected: %v", err)
	}
	os.Chmod(path, 0)
	err = openAsNobody(t, path, Options{ReadOnly: true})
	if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "make it readable") {
		t.Errorf("unreadable: %v", err)
	}
}

// openAsNobody opens path with an ordinary user's rights.
func openAsNobody(t *testing.T, path string, opt Options) error {
	const nobody = 65534
	if os.Getuid() == 0 {
		if err := os.Chown(path, nobody, nobody); err != nil {
			t.Fatal(err)
		}
		for dir := filepath.Dir(path); strings.HasPrefix(dir, os.TempDir()+"/"); dir = filepath.Dir(dir) {
			os.Chmod(dir, 0o755)
		}
	}
	return otheruser.AsNobody(func() error {
		s, err := Open(path, opt)
		if err == nil {
			s.Close()
		}
		return err
	})
}

func TestReadOnlyExportsShareAndWritableOnesDoNot(t *testing.T) {
	path, _ := disk(t, 512)
	a := open(t, path, Options{ReadOnly: true})
	open(t, path, Options{ReadOnly: true}).Close()
	if _, err := Open(path, Options{}); !errors.Is(err, ErrInUse) {
		t.Fatalf("writable beside read-only: %v", err)
	}
	a.Close()
	w := open(t, path, Options{})
	if _, err := Open(path, Options{ReadOnly: true}); !errors.Is(err, ErrInUse) {
		t.Fatalf("read-only beside writable: %v", err)
	}
	w.Close()
	open(t, path, Options{})
}

func TestAfterCloseIsEBADF(t *testing.T) {
	path, _ := disk(t, 512)
	s := open(t, path, Options{})
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	p := make([]byte, 512)
	for name, err := range map[string]error{
		"read": s.Read(p, 0), "write": s.Write(p, 0, false), "flush": s.Flush(),
		"discard": s.Discard(0, 512, false), "zeroes": s.WriteZeroes(0, 512, false, false),
	} {
		if err != unix.EBADF {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBlockDevice(t *testing.T) {
	path, content := disk(t, diskSize)
	dev := loopDevice(t, path)
	s := open(t, dev, Options{})
	if !s.device || s.Size() != diskSize || s.Geometry().PreferredBlock < 512 {
		t.Fatalf("device %v, size %d, block size %d", s.device, s.Size(), s.Geometry().PreferredBlock)
	}
	if _, err := Open(dev, Options{}); !errors.Is(err, ErrInUse) {
		t.Errorf("exported twice: %v", err)
	}
	p := bytes.Repeat([]byte{3}, 5000)
	if err := s.Write(p, 333, true); err != nil {
		t.Fatal(err)
	}
	copy(content[333:], p)
	for _, c := range []struct {
		off, n  int
		noUnmap bool
	}{{8192, 65536, false}, {1000, 3000, false}, {131072, 4096, true}, {200001, 1, true}} {
		if err := s.WriteZeroes(int64(c.off), int64(c.n), true, c.noUnmap); err != nil {
			t.Fatalf("zeroes %+v: %v", c, err)
		}
		clear(content[c.off : c.off+c.n])
	}
	got := make([]byte, diskSize)
	if err := s.Read(got, 0); err != nil || !bytes.Equal(got, content) {
		t.Fatalf("content differs (err %v)", err)
	}
	// Only whole blocks may be discarded: what surrounds them stays.
	if err := s.Discard(400001, 100, true); err != nil {
		t.Errorf("discard inside a block: %v", err)
	}
	if err := s.Discard(300001, 50000, true); err != nil {
		t.Errorf("discard: %v", err)
	}
	if err := s.Read(got, 0); err != nil || !bytes.Equal(got[:300001], content[:300001]) || !bytes.Equal(got[350001:], content[350001:]) {
		t.Errorf("a discard changed what it should not (err %v)", err)
	}
}

func loopDevice(t *testing.T, path string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root for a loop device")
	}
	out, err := exec.Command("losetup", "--find", "--show", path).CombinedOutput()
	if err != nil {
		t.Skipf("no loop device: %v: %s", err, out)
	}
	dev := strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if out, err := exec.Command("losetup", "--detach", dev).CombinedOutput(); err != nil {
			t.Errorf("detach %s: %v: %s", dev, err, out)
		}
	})
	return dev
}

// A program that is being started briefly shares all descriptors, the locked one too.
// Closed storage is free for the next who opens it all the same.
func TestClosedStorageIsNotLocked(t *testing.T) {
	path, _ := disk(t, diskSize)
	s := open(t, path, Options{})
	inherited, err := unix.Dup(int(s.fd))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(inherited)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, path, Options{})
}
