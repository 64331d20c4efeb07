package attack

import (
	"bytes"
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/verbs"
)

// inner is a window of 16 bytes in the middle of a region of 48, and a stream whose peer may
// use it.
func inner(v *target) (*verbs.MR, uint32, *stream) {
	f := v.stream(v.pd, "mallory")
	mr := v.region(v.pd, 48, verbs.LocalWrite|verbs.WindowBind)
	return mr, f.open(mr, 16, 16, all), f
}

// open opens n bytes at off of mr in the way that the trust model has, see grant.
func (f *stream) open(mr *verbs.MR, off, n int, access verbs.Access) (stag uint32) {
	f.v.Helper()
	if !f.v.ulp.Trust().Trust().ShareSTags {
		_, stag = f.bind(mr, off, n, access)
		return stag
	}
	stag, err := mr.Reregister(off, n, access)
	f.v.granted(err)
	return stag
}

// openings are all ways to open n bytes at off of mr.
var openings = []struct {
	name string
	open func(f *stream, mr *verbs.MR, off, n int, access verbs.Access) (stag uint32)
}{
	{"a region", func(f *stream, mr *verbs.MR, off, n int, access verbs.Access) uint32 {
		return must(mr.Reregister(off, n, access))(f.v.T)
	}},
	{"a region by a post", func(f *stream, mr *verbs.MR, off, n int, access verbs.Access) uint32 {
		const id = 1 << 43
		f.v.granted(f.qp.PostSend(&verbs.SendWR{ID: id, Op: verbs.OpRegister, Flags: verbs.Signaled, SGL: []verbs.SGE{{MR: mr, Off: uint32(off), Len: uint32(n)}}, Access: access}))
		f.v.granted(f.completion(id).Err)
		return mr.STag()
	}},
	{"a window", func(f *stream, mr *verbs.MR, off, n int, access verbs.Access) uint32 {
		_, stag := f.bind(mr, off, n, access)
		return stag
	}},
}

// outside reports whether memory around the window has changed.
func outside(mr *verbs.MR) bool {
	b := mr.Bytes()
	return !bytes.Equal(b[:16], make([]byte, 16)) || !bytes.Equal(b[32:], make([]byte, 16))
}

// writeOutside writes n bytes at to of the window, with some of them outside.
func writeOutside(to uint64, n int) func(v *target) bool {
	return func(v *target) bool {
		mr, stag, f := inner(v)
		f.write(stag, to, bytes.Repeat([]byte{0xee}, n))
		if !f.settled() {
			f.wantTerminated(ddpTagged(ddp.CodeTaggedBounds))
		}
		return outside(mr)
	}
}

// readOutside reads n bytes at to, the last of them outside.
func readOutside(to uint64, n int) func(v *target) bool {
	return func(v *target) bool {
		mr, stag, f := inner(v)
		copy(mr.Bytes()[32:], secret)
		f.read(stag, to, uint32(n))
		s, ok := f.hear()
		if !s.Tagged {
			f.wantTerminated(protectionError(rdmap.CodeBounds))
		}
		return ok && s.Tagged && s.Payload[n-1] == secret[to+uint64(n)-17]
	}
}

// Access around the end of a window within a larger region: the first bytes behind it
// (R11, R16; RFC 5042 sections 6.2.1 and 6.3.1).
func TestAccessOutsideOfTheWindow(t *testing.T) { run(t, aroundTheWindow()...) }

func aroundTheWindow() []attack {
	write := func(to uint64, n int) attack {
		return attack{fmt.Sprintf("write %d bytes at %d", n, to), checks.Bounds, writeOutside(to, n)}
	}
	read := func(to uint64, n int) attack {
		return attack{fmt.Sprintf("read %d bytes at %d", n, to), checks.Bounds, readOutside(to, n)}
	}
	return []attack{
		write(16, 1), write(15, 2), write(0, 17), write(17, 3),
		read(16, 1), read(15, 2), read(0, 17), read(17, 3),
		{"a Write whose second segment goes past the end", checks.Bounds, func(v *target) bool {
			mr, stag, f := inner(v)
			f.writePart(stag, 0, make([]byte, 16))
			f.write(stag, 16, evil)
			if !f.settled() {
				f.wantTerminated(ddpTagged(ddp.CodeTaggedBounds))
			}
			return outside(mr)
		}},
		{"an Atomic behind the end", checks.Bounds, func(v *target) bool {
			mr, stag, f := inner(v)
			f.fetchAdd(stag, 16, 1)
			if !f.settled() {
				f.wantTerminated(protectionError(rdmap.CodeBounds))
			}
			return outside(mr)
		}},
		{"an Atomic whose last bytes are behind the end", checks.Bounds, func(v *target) bool {
			f := v.stream(v.pd, "mallory")
			mr := v.region(v.pd, 48, verbs.LocalWrite|verbs.WindowBind)
			stag := f.open(mr, 16, 12, all)
			f.fetchAdd(stag, 8, 1<<32|1<<24) // changes bytes 3 and 4 of 8
			if !f.settled() {
				f.wantTerminated(protectionError(rdmap.CodeBounds))
			}
			return !bytes.Equal(mr.Bytes()[28:], make([]byte, 20))
		}},
	}
}

// writePart is write, but for the mark of the last segment.
func (f *stream) writePart(stag uint32, to uint64, data []byte) {
	_ = f.Say(iwarptest.Segment{Tagged: true, Op: rdmap.OpWrite, STag: stag, TO: to, Payload: data})
}

// A tagged offset near the end of the number space, so that offset and length wrap
// to an end that is within bounds. What then asks for memory from behind its end to
// before it ends the program (R11).
func TestTaggedOffsetThatWraps(t *testing.T) {
	var attacks []attack
	add := func(name string, want rdmap.Terminate, do func(f *stream, stag uint32)) {
		attacks = append(attacks, attack{name, checks.TOWrap, func(v *target) bool {
			mr, stag, f := inner(v)
			return v.dies(func() {
				do(f, stag)
				f.wantTerminated(want)
				if !bytes.Equal(mr.Bytes(), make([]byte, mr.Len())) {
					v.Error("memory has changed")
				}
			})
		}})
	}
	for _, by := range []uint64{0, 1, 2} {
		add(fmt.Sprintf("write at -%d", by+1), ddpTagged(ddp.CodeTaggedTOWrap), func(f *stream, stag uint32) { f.write(stag, math.MaxUint64-by, evil) })
		add(fmt.Sprintf("read at -%d", by+1), protectionError(rdmap.CodeTOWrap), func(f *stream, stag uint32) { f.read(stag, math.MaxUint64-by, 4) })
	}
	add("atomic at -8", protectionError(rdmap.CodeTOWrap), func(f *stream, stag uint32) { f.fetchAdd(stag, math.MaxUint64-7, 1) })
	add("read of all but one byte", protectionError(rdmap.CodeTOWrap), func(f *stream, stag uint32) { f.read(stag, math.MaxUint64-1<<32+3, math.MaxUint32) })
	run(t, attacks...)
}

// carriers are the ways in which an LLP hands segments over.
var carriers = []struct {
	name string
	o    iwarptest.Options
}{
	{"whole segments", iwarptest.Options{}},
	{"straight into place", iwarptest.Options{Direct: true}},
	{"out of order", iwarptest.Options{Window: 16, Shuffle: true}},
}

// shot is an access, and its effect on memory if it is legal.
type shot struct {
	write bool
	to    uint64
	n     int
}

// legal reports whether it is within a window of size bytes, with no help of what wraps.
func (s shot) legal(size int) bool {
	return s.n == 0 || s.to <= uint64(size) && uint64(s.n) <= uint64(size)-s.to
}

// fire makes the access, and checks stream and memory against the model: want is the
// region's memory before, from is where the window begins in it.
func (s shot) fire(f *stream, mr *verbs.MR, stag uint32, from, size int, want []byte) error {
	var mark []byte
	if s.write {
		mark = bytes.Repeat([]byte{0xee}, s.n)
		f.write(stag, s.to, mark)
	} else {
		f.read(stag, s.to, uint32(s.n))
	}
	legal := s.legal(size)
	if goesOn := f.settled(); goesOn != legal {
		return fmt.Errorf("%+v of %d bytes: the stream goes on: %v, want %v", s, size, goesOn, legal)
	}
	if legal && s.n > 0 && s.write {
		copy(want[from:][s.to:], mark)
	}
	if !bytes.Equal(mr.Bytes(), want) {
		return fmt.Errorf("%+v of %d bytes: memory is not what the legal accesses make of it", s, size)
	}
	if s.write {
		return nil
	}
	var got []byte
	for done := false; !done; {
		r, ok := f.hear()
		if !ok || !r.Tagged {
			break
		}
		got, done = append(got, r.Payload...), r.Last
	}
	if legal && s.n > 0 && !bytes.Equal(got, want[from:][s.to:s.to+uint64(s.n)]) || !legal && len(got) > 0 {
		return fmt.Errorf("%+v of %d bytes: %d bytes are read that should not be, or others", s, size, len(got))
	}
	return nil
}

// Every offset and length around every edge of a small window, against a model of
// which bytes an access may reach (R11).
func TestEveryAccessAroundASmallWindowAgainstAModel(t *testing.T) {
	if checks.Weakened {
		t.Skip("TestAccessOutsideOfTheWindow has the twins")
	}
	const region, from, size = 12, 3, 5
	try := func(v *target, c iwarptest.Options, open func(f *stream, mr *verbs.MR, off, n int, access verbs.Access) uint32) {
		for i := range 2 * (size + 3) * (size + 4) {
			s := shot{i%2 == 0, uint64(i / 2 / (size + 4)), i / 2 % (size + 4)}
			mr := v.region(v.pd, region, verbs.LocalWrite|verbs.WindowBind)
			want := []byte("secretsecret")
			copy(mr.Bytes(), want)
			f := must(v.streamAs(v.pd, v.config(v.cq), c, "mallory"))(v.T)
			stag := open(f, mr, from, size, verbs.RemoteWrite|verbs.RemoteRead)
			if err := s.fire(f, mr, stag, from, size, want); err != nil {
				v.Error(err)
			}
			<-closed(f)
		}
	}
	for _, c := range carriers {
		for _, o := range openings {
			t.Run(c.name+"/"+o.name, func(t *testing.T) { try(newTarget(t), c.o, o.open) })
		}
	}
}

// The same for large windows and offsets from the whole number space, with messages
// of several segments and several messages.
func TestTaggedOffsetsAgainstAModel(t *testing.T) {
	if checks.Weakened {
		t.Skip("TestAccessOutsideOfTheWindow and TestTaggedOffsetThatWraps have the twins")
	}
	const region = 1 << 16
	v := newTarget(t)
	mr := v.region(v.pd, region, verbs.LocalWrite|verbs.WindowBind)
	rapid.Check(t, func(rt *rapid.T) {
		from := rapid.IntRange(0, region-1).Draw(rt, "from")
		size := rapid.IntRange(1, region-from).Draw(rt, "window")
		want := bytes.Repeat(secret, region/len(secret)+1)[:region]
		copy(mr.Bytes(), want)
		f := must(v.streamAs(v.pd, v.config(v.cq), rapid.SampledFrom(carriers).Draw(rt, "carrier").o, "mallory"))(t)
		stag := rapid.SampledFrom(openings).Draw(rt, "opening").open(f, mr, from, size, verbs.RemoteWrite|verbs.RemoteRead)
		for range rapid.IntRange(1, 4).Draw(rt, "accesses") {
			near := rapid.SampledFrom([]uint64{0, uint64(size) - 1, uint64(size), math.MaxUint64, math.MaxUint32, 1 << 63}).Draw(rt, "near")
			s := shot{write: rapid.Bool().Draw(rt, "write"), to: near + uint64(rapid.IntRange(-2000, 2000).Draw(rt, "by"))}
			if s.n = rapid.IntRange(0, 1400).Draw(rt, "length"); !s.write {
				// A response of several segments, or more than there is anywhere.
				s.n *= rapid.SampledFrom([]int{1, 2, 3, 4, 1 << 10, 1 << 20}).Draw(rt, "times")
			}
			if err := s.fire(f, mr, stag, from, size, want); err != nil {
				rt.Fatal(err)
			}
			if !s.legal(size) {
				break
			}
		}
		<-closed(f)
	})
}

// closed ends the peer's stream.
func closed(f *stream) <-chan struct{} {
	f.qp.Close()
	f.Close()
	return f.qp.Done()
}
