package block

import (
	"reflect"
	"testing"
)

func answer(all ...Extent) []byte {
	b := make([]byte, StatusLen)
	for i := range b {
		b[i] = 0xff // what was there before
	}
	PutExtents(b, all)
	return b
}

func TestExtents(t *testing.T) {
	full := make([]Extent, MaxExtents)
	for i := range full {
		full[i] = Extent{512, State(i % 2)}
	}
	for name, c := range map[string]struct {
		buf     []byte
		n       uint32
		extents []Extent
	}{
		"hole, then data":       {answer(Extent{1024, Hole | Zero}, Extent{512, 0}), 1536, []Extent{{1024, Hole | Zero}, {512, 0}}},
		"of less than asked":    {answer(Extent{1024, Hole | Zero}), 8192, []Extent{{1024, Hole | Zero}}},
		"of more than asked":    {answer(Extent{1024, 0}, Extent{1 << 30, Zero}, Extent{512, 0}), 2048, []Extent{{1024, 0}, {1024, Zero}}},
		"nothing":               {answer(), 4096, []Extent{{4096, 0}}},
		"too short":             {[]byte{0, 2, 0}, 4096, []Extent{{4096, 0}}},
		"as many as there can":  {answer(full...), 1 << 30, full},
		"neighbours of a state": {answer(Extent{512, Zero}, Extent{512, Zero}, Extent{512, 0}), 1536, []Extent{{1024, Zero}, {512, 0}}},
		"unknown bits":          {answer(Extent{512, 0xfffffffd}), 512, []Extent{{512, Hole}}},
		"not aligned":           {answer(Extent{512, Zero}, Extent{100, Zero}, Extent{412, Zero}), 1024, []Extent{{512, Zero}}},
		"not aligned at once":   {answer(Extent{100, Zero}), 1024, []Extent{{1024, 0}}},
	} {
		if got := ParseExtents(c.buf, c.n, 512); !reflect.DeepEqual(got, c.extents) {
			t.Errorf("%s: %v, want %v", name, got, c.extents)
		}
	}
}

// FuzzParseExtents proves that whatever a server says, an NBD client gets extents that lie
// in the range, are not empty, and are aligned.
func FuzzParseExtents(f *testing.F) {
	f.Add(answer(Extent{1024, Hole | Zero}, Extent{512, 0}), uint32(3))
	f.Add(answer(Extent{1<<32 - 512, 0}, Extent{512, 0}), uint32(1<<23-1))
	f.Fuzz(func(t *testing.T, b []byte, sectors uint32) {
		n := sectors%(1<<23-1)*512 + 512
		sum := uint64(0)
		for _, e := range ParseExtents(b, n, 512) {
			if e.Length == 0 || e.Length%512 != 0 || e.State&^stateMask != 0 {
				t.Fatalf("%+v", e)
			}
			sum += uint64(e.Length)
		}
		if sum == 0 || sum > uint64(n) {
			t.Fatalf("%d bytes of %d", sum, n)
		}
	})
}
