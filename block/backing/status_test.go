package backing

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/block"
)

// sparse makes a file of n bytes with data in some ranges of 64 KiB, each given by its
// first byte.
func sparse(t testing.TB, dir string, n int64, data ...int64) string {
	t.Helper()
	path := filepath.Join(dir, "disk")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(n); err != nil {
		t.Fatal(err)
	}
	for _, off := range data {
		if _, err := f.WriteAt(make([]byte, 64<<10), off); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

func status(t testing.TB, s *Store, off, n int64) []block.Extent {
	t.Helper()
	buf := make([]byte, block.StatusLen)
	if errno := s.status(buf, off, n); errno != 0 {
		t.Fatalf("status of %d bytes at %d: %v", n, off, errno)
	}
	return block.ParseExtents(buf, uint32(n), sector)
}

const holeAndZero = block.Hole | block.Zero

func TestStatusIsThatOfTheFile(t *testing.T) {
	s := open(t, sparse(t, t.TempDir(), 1<<30, 128<<10, 1<<20, 1<<30-64<<10), Options{})
	hole := func(n uint32) block.Extent { return block.Extent{Length: n, State: holeAndZero} }
	data := func(n uint32) block.Extent { return block.Extent{Length: n} }
	for _, c := range []struct {
		name   string
		off, n int64
		want   []block.Extent
	}{
		{"all", 0, 1 << 30, []block.Extent{hole(128 << 10), data(64 << 10), hole(832 << 10), data(64 << 10), hole(1<<30 - 64<<10 - (1<<20 + 64<<10)), data(64 << 10)}},
		{"within a hole", 512, 512, []block.Extent{hole(512)}},
		{"within data", 128<<10 + 512, 1024, []block.Extent{data(1024)}},
		{"from data into a hole", 160 << 10, 64 << 10, []block.Extent{data(32 << 10), hole(32 << 10)}},
		{"from a hole into data", 64 << 10, 65 << 10, []block.Extent{hole(64 << 10), data(1 << 10)}},
	} {
		if got := status(t, s, c.off, c.n); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	if err := s.Write(make([]byte, 4096), 512<<10, false); err != nil {
		t.Fatal(err)
	}
	if got := status(t, s, 512<<10, 4096); got[0].State != 0 {
		t.Errorf("a write that is in the page cache: %v", got)
	}
	if err := s.Discard(0, 1<<20, false); err != nil {
		t.Fatal(err)
	}
	if got := status(t, s, 0, 1<<20); len(got) != 1 || got[0].State != holeAndZero {
		t.Errorf("what was discarded: %v", got)
	}
}

// TestHolesAreOfWholeSectors, whatever the range is made of.
func TestHolesAreOfWholeSectors(t *testing.T) {
	s := open(t, sparse(t, t.TempDir(), 1<<20, 128<<10), Options{})
	got, errno := s.extents(64<<10+1, 128<<10)
	if want := []block.Extent{{Length: 64<<10 - 1, State: holeAndZero}, {Length: 64 << 10}, {Length: 1}}; errno != 0 || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v, want %v", got, errno, want)
	}
}

// TestDeviceIsAllData: the kernel does not know the holes of a device.
func TestDeviceIsAllData(t *testing.T) {
	s := open(t, loopDevice(t, sparse(t, t.TempDir(), 1<<20)), Options{})
	if got := status(t, s, 512, 1<<19); !reflect.DeepEqual(got, []block.Extent{{Length: 1 << 19}}) {
		t.Errorf("%v", got)
	}
}

func TestStatusOfManyExtentsIsOfTheFirst(t *testing.T) {
	s := open(t, sparse(t, t.TempDir(), 256<<20), Options{})
	const step = 128 << 10
	for off := int64(0); off < s.Size(); off += step {
		if err := s.Write([]byte("x"), off, false); err != nil {
			t.Fatal(err)
		}
	}
	covered, calls := int64(0), 0
	for ; covered < s.Size(); calls++ {
		for _, e := range status(t, s, covered, s.Size()-covered) {
			if (e.State == 0) != (covered%step == 0) {
				t.Fatalf("at %d: %v", covered, e)
			}
			covered += int64(e.Length)
		}
	}
	if calls != 8 {
		t.Errorf("%d calls for %d extents of %d each", calls, 2*s.Size()/step, block.MaxExtents)
	}
}

// TestStatusOfAFileThatHasShrunk: what is lost is no hole.
func TestStatusOfAFileThatHasShrunk(t *testing.T) {
	path := sparse(t, t.TempDir(), 1<<20, 0)
	s := open(t, path, Options{})
	if err := os.Truncate(path, 512<<10); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, block.StatusLen)
	for off, want := range map[int64]error{0: nil, 256 << 10: nil, 512<<10 - 512: unix.EIO, 768 << 10: unix.EIO, 1 << 20: unix.EINVAL, 1<<63 - 1: unix.EINVAL} {
		if err := asError(s.status(buf, off, 1024)); err != want {
			t.Errorf("at %d: %v, want %v", off, err, want)
		}
	}
	if err := asError(s.status(buf, 0, 0)); err != unix.EINVAL {
		t.Errorf("of nothing: %v", err)
	}
	s.Close()
	if err := asError(s.status(buf, 0, 512)); err != unix.EBADF {
		t.Errorf("of a closed disk: %v", err)
	}
}

// TestReadAheadIsAHint: it has no result but EINVAL.
func TestReadAheadIsAHint(t *testing.T) {
	s := open(t, sparse(t, t.TempDir(), 1<<30, 0), Options{})
	for n, want := range map[int64]error{0: nil, 512: nil, 1 << 30: nil, 1<<30 + 512: unix.EINVAL} {
		if err := asError(s.readAhead(0, n)); err != want {
			t.Errorf("%d bytes: %v, want %v", n, err, want)
		}
	}
}

// TestFastZero: it zeroes where that costs nothing, and otherwise fails without an effect.
func TestFastZero(t *testing.T) {
	s := open(t, sparse(t, t.TempDir(), 1<<20, 0), Options{})
	p := make([]byte, 4096)
	for _, fl := range []block.Flags{block.FastZero, block.FastZero | block.NoUnmap, block.FastZero | block.FUA} {
		if err := s.Write([]byte("x"), 100, false); err != nil {
			t.Fatal(err)
		}
		errno := s.writeZeroes(0, 4096, fl)
		if err := s.Read(p, 0); err != nil || (p[100] == 0) != (errno == 0) || errno != 0 && errno != unix.EOPNOTSUPP {
			t.Errorf("flags %d: %v, then %v, byte %d", fl, errno, err, p[100])
		}
	}
	if s.flushFailed.Load() != 0 {
		t.Error("a flush has failed")
	}
}
