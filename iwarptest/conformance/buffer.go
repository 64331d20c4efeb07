package conformance

import (
	"bytes"
	"math/rand/v2"
)

// buffer is a region with a copy of what it must hold, guard bytes included.
// Every case ends with a comparison of all its buffers, so a byte that changes
// where none should fails the case.
type buffer struct {
	s    *side
	r    Region
	want []byte // from -Guard on
	free []span // whose content is open
}

type span struct{ from, to int }

// mem is a new region of n bytes with random content.
func (s *side) mem(n int, access Access) *buffer {
	s.t.Helper()
	r, err := s.Region(n, access)
	s.check("register memory", err)
	b := &buffer{s: s, r: r, want: make([]byte, n+2*Guard)}
	s.bufs = append(s.bufs, b)
	b.fill()
	return b
}

// fill changes the whole content, guard bytes included.
func (b *buffer) fill() {
	b.s.t.Helper()
	b.s.seed++
	seed := [32]byte{0: b.s.seed, 1: b.s.name[0]}
	rand.NewChaCha8(seed).Read(b.want)
	b.s.check("store", b.s.Store(b.r, -Guard, b.want))
}

// at is n bytes at off as an element of a scatter/gather list.
func (b *buffer) at(off, n int) SGE { return SGE{Region: b.r, Off: off, Len: n} }

// bytes is what b must hold in n bytes at off.
func (b *buffer) bytes(off, n int) []byte { return b.want[Guard+off : Guard+off+n] }

// put stores p at off.
func (b *buffer) put(off int, p []byte) {
	b.s.t.Helper()
	b.expect(off, p)
	b.s.check("store", b.s.Store(b.r, off, p))
}

// expect requires p at off from now on.
func (b *buffer) expect(off int, p []byte) { copy(b.want[Guard+off:], p) }

// open permits any content in n bytes at off from now on.
func (b *buffer) open(off, n int) { b.free = append(b.free, span{off, off + n}) }

// check compares memory to what it must hold.
func (b *buffer) check() {
	b.s.t.Helper()
	got, err := b.s.Load(b.r, -Guard, len(b.want))
	b.s.check("load", err)
	for _, f := range b.free {
		copy(got[Guard+f.from:], b.want[Guard+f.from:Guard+f.to])
	}
	if bytes.Equal(got, b.want) {
		return
	}
	first, n := -1, 0
	for i := range got {
		if got[i] != b.want[i] {
			n++
			if first < 0 {
				first = i
			}
		}
	}
	b.s.t.Errorf("end %s: %d bytes of a region of %d differ from what they should be, the first at %d", b.s.name, n, b.r.Len, first-Guard)
}

// remote fills in the peer's memory of an operation: the offset off of b.
func (b *buffer) remote(wr WR, off int) WR {
	wr.STag, wr.TO = b.r.STag, b.r.TO+uint64(off)
	return wr
}
