package tap

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
)

// counter counts records.
type counter struct{ n int }

func (c *counter) Watch(*Record) { c.n++ }

func TestWatchersComeAndGo(t *testing.T) {
	var x Tap
	s := &Stream{Link: &Link{Tap: &x}}
	show := func() { s.Show(&Record{}) }
	var a, b counter
	show()
	endA := x.Attach(&a)
	show()
	endB := x.Attach(&b)
	show()
	endA()
	endA()
	show()
	if !x.On() || a.n != 2 || b.n != 2 {
		t.Errorf("records: %d and %d, want 2 and 2", a.n, b.n)
	}
	endB()
	show()
	if x.On() || x.watchers.Load() != nil || b.n != 2 {
		t.Error("nobody watches, and records are shown")
	}
	if (*Tap)(nil).On() {
		t.Error("no tap is on")
	}
}

// What is no payload of a ULP is shown, and not a byte of what is.
func TestVisible(t *testing.T) {
	untagged := func(op uint8, n int) []byte {
		return append(ddp.AppendUntagged(nil, true, 0x40|op, 0, 0, 1, 0), make([]byte, n)...)
	}
	for _, c := range []struct {
		what string
		seg  []byte
		want int
	}{
		{"RDMA Write", append(ddp.AppendTagged(nil, true, 0x40, 1, 2), make([]byte, 100)...), 14},
		{"RDMA Read Response", append(ddp.AppendTagged(nil, true, 0x42, 1, 2), make([]byte, 100)...), 14},
		{"Send", untagged(3, 100), 18},
		{"Send with SE and Invalidate", untagged(6, 100), 18},
		{"RDMA Read Request", untagged(1, 28), 18 + 28},
		{"one with more behind it", untagged(1, 1000), 18 + 28},
		{"Terminate", untagged(7, 52), 18 + 52},
		{"one with more behind it", untagged(7, 1000), 18 + 52},
		{"Immediate Data", untagged(8, 8), 18 + 8},
		{"Immediate Data with SE", untagged(9, 8), 18 + 8},
		{"Atomic Request", untagged(10, 52), 18 + 20},
		{"Atomic Response", untagged(11, 12), 18 + 4},
		{"an unknown opcode", untagged(15, 100), 18},
		{"less than a header", untagged(3, 0)[:17], 0},
		{"nothing", nil, 0},
	} {
		if got := Visible(c.seg, len(c.seg)); got != c.want {
			t.Errorf("%s: %d bytes are shown, want %d", c.what, got, c.want)
		}
	}
}

// FuzzVisible has any segment, of which no more is shown than there is, and of a tagged one no more than its header.
func FuzzVisible(f *testing.F) {
	f.Add(ddp.AppendUntagged(nil, true, 0x47, 0, 0, 1, 0))
	f.Add(ddp.AppendTagged(nil, true, 0x40, 1, 2))
	f.Fuzz(func(t *testing.T, b []byte) {
		n := Visible(b, len(b))
		if n < 0 || n > len(b) || len(b) > 0 && ddp.IsTagged(b) && n > ddp.TaggedHeaderLen || n > ddp.UntaggedHeaderLen+terminateLen {
			t.Errorf("%d of %d bytes are shown", n, len(b))
		}
	})
}

// Chunks of a link have numbers without gaps, each direction its own.
func TestChunksAreNumbered(t *testing.T) {
	var x Tap
	var got []uint64
	x.Attach(watch(func(r *Record) { got = append(got, r.Position) }))
	l, s := &Link{Tap: &x}, &Stream{}
	for i := range 6 {
		l.ShowChunk(s, Data, i%3 == 0, [][]byte{binary.BigEndian.AppendUint16(nil, uint16(i))}, 2)
	}
	want := []uint64{0, 0, 1, 1, 2, 3}
	if !bytes.Equal(bytesOf(got), bytesOf(want)) {
		t.Errorf("numbers %v, want %v", got, want)
	}
}

type watch func(*Record)

func (w watch) Watch(r *Record) { w(r) }

func bytesOf(n []uint64) (b []byte) {
	for _, x := range n {
		b = binary.BigEndian.AppendUint64(b, x)
	}
	return b
}

// Off is what a stream pays for each segment while nobody watches: a load, and no memory.
func BenchmarkOff(b *testing.B) {
	var x Tap
	b.ReportAllocs()
	for b.Loop() {
		if x.On() {
			b.Fatal("somebody watches")
		}
	}
}

func TestOffAllocatesNothing(t *testing.T) {
	var x Tap
	if n := testing.AllocsPerRun(1000, func() { x.On() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
