package attack

import (
	"bytes"
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/verbs"
)

var (
	bounds = rdmap.Terminate{Layer: ddp.LayerDDP, Type: ddp.TypeTagged, Code: ddp.CodeTaggedBounds}
	wrap   = rdmap.Terminate{Layer: ddp.LayerDDP, Type: ddp.TypeTagged, Code: ddp.CodeTaggedTOWrap}
)

// A Write around either end of a window within a larger region (R11, R16).
func TestWriteOutsideOfTheWindow(t *testing.T) {
	window := func(v *victim) (*verbs.MR, uint32, *foe) {
		mr := v.region(v.pd, 64, verbs.LocalWrite)
		stag := must(mr.Reregister(16, 16, verbs.RemoteWrite|verbs.RemoteRead))(v.T)
		return mr, stag, v.stream(v.pd, "mallory")
	}
	outside := func(mr *verbs.MR) bool {
		b := mr.Bytes()
		return !bytes.Equal(b[:16], make([]byte, 16)) || !bytes.Equal(b[32:], make([]byte, 32))
	}
	at := func(to uint64, n int) attack {
		return attack{fmt.Sprintf("%d bytes at %d", n, to), checks.Bounds, func(v *victim) bool {
			mr, stag, f := window(v)
			f.write(stag, to, bytes.Repeat([]byte{0xee}, n))
			if !f.settled() {
				f.wantTerminated(bounds)
			}
			return outside(mr)
		}}
	}
	run(t, at(16, 1), at(15, 2), at(0, 17), at(17, 3),
		attack{"a message whose second segment goes past the end", checks.Bounds, func(v *victim) bool {
			mr, stag, f := window(v)
			f.write(stag, 0, make([]byte, 16))
			f.write(stag, 16, evil)
			if !f.settled() {
				f.wantTerminated(bounds)
			}
			return outside(mr)
		}},
		attack{"read one byte more", checks.Bounds, func(v *victim) bool {
			mr, stag, f := window(v)
			copy(mr.Bytes()[32:], "secret")
			f.read(stag, 0, 17)
			s, ok := f.hear()
			return ok && s.Tagged && s.Payload[16] == 's'
		}},
	)
}

// A tagged offset near the end of the number space, so that offset and length
// wrap (R11). Without the check the bounds alone decide, by an end that is small.
func TestTaggedOffsetThatWraps(t *testing.T) {
	if checks.Weakened {
		t.Skip("Go's own bounds check ends the program: TestTaggedOffsetsAgainstAModel has the twin")
	}
	for _, to := range []uint64{math.MaxUint64, math.MaxUint64 - 1, math.MaxUint64 - 3} {
		v := newVictim(t)
		mr := v.region(v.pd, 64, all)
		f := v.stream(v.pd, "mallory")
		f.write(mr.STag(), to, evil)
		if f.settled() {
			t.Errorf("a Write at %#x is taken", to)
			continue
		}
		if to > math.MaxUint64-4 {
			f.wantTerminated(wrap)
		}
		if !bytes.Equal(mr.Bytes(), make([]byte, 64)) {
			t.Errorf("a Write at %#x changes memory", to)
		}
	}
}

// Every offset and length around every edge of small windows, against a model of
// which bytes a Write may change (R11).
func TestEveryWriteAroundSmallWindowsAgainstAModel(t *testing.T) {
	if checks.Weakened {
		t.Skip("TestWriteOutsideOfTheWindow has the twins")
	}
	const size, from, n = 12, 3, 5
	for off := range uint64(n + 3) {
		for length := range n + 4 {
			v := newVictim(t)
			mr := v.region(v.pd, size, verbs.LocalWrite)
			stag := must(mr.Reregister(from, n, verbs.RemoteWrite))(t)
			f := v.stream(v.pd, "mallory")
			f.write(stag, off, bytes.Repeat([]byte{0xee}, length))
			legal := length == 0 || off+uint64(length) <= n
			if goesOn := f.settled(); goesOn != legal {
				t.Errorf("%d bytes at %d of %d: the stream goes on %v, want %v", length, off, n, goesOn, legal)
			}
			want := make([]byte, size)
			if legal {
				copy(want[from+off:], bytes.Repeat([]byte{0xee}, length))
			}
			if !bytes.Equal(mr.Bytes(), want) {
				t.Errorf("%d bytes at %d of %d: memory is %x, want %x", length, off, n, mr.Bytes(), want)
			}
			<-closed(f)
		}
	}
}

// The same for large windows and offsets from the whole number space, with messages
// of several segments.
func TestTaggedOffsetsAgainstAModel(t *testing.T) {
	if checks.Weakened {
		t.Skip("TestWriteOutsideOfTheWindow has the twins")
	}
	v := newVictim(t)
	const size = 1 << 16
	mr := v.region(v.pd, size, verbs.LocalWrite)
	rapid.Check(t, func(rt *rapid.T) {
		from := rapid.IntRange(0, size-1).Draw(rt, "from")
		n := rapid.IntRange(1, size-from).Draw(rt, "window")
		stag := must(mr.Reregister(from, n, verbs.RemoteWrite))(t)
		clear(mr.Bytes())
		want := make([]byte, size)
		f := v.stream(v.pd, "mallory")
		legal := true
		for range rapid.IntRange(1, 4).Draw(rt, "segments") {
			near := rapid.SampledFrom([]uint64{0, uint64(n) - 1, uint64(n), math.MaxUint64, math.MaxUint32, 1 << 63}).Draw(rt, "near")
			to := near + uint64(rapid.IntRange(-2000, 2000).Draw(rt, "by"))
			length := rapid.IntRange(0, 1400).Draw(rt, "length")
			f.write(stag, to, bytes.Repeat([]byte{0xee}, length))
			end := to + uint64(length)
			legal = legal && (length == 0 || end >= to && end <= uint64(n))
			if legal && length > 0 {
				copy(want[from:][to:end], bytes.Repeat([]byte{0xee}, length))
			}
		}
		if goesOn := f.settled(); goesOn != legal {
			rt.Fatalf("the stream goes on %v, want %v", goesOn, legal)
		}
		<-closed(f)
		if !bytes.Equal(mr.Bytes(), want) {
			rt.Fatal("memory is not what the legal Writes make of it")
		}
	})
}

// closed ends the foe's stream.
func closed(f *foe) <-chan struct{} {
	f.qp.Close()
	f.Close()
	return f.qp.Done()
}
