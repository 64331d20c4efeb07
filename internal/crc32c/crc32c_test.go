package crc32c

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"testing"
	"unsafe"
)

// reversed is the polynomial without its x^32, bit i being x^(31-i).
const reversed = 0x82f63b78

var table = crc32.MakeTable(crc32.Castagnoli)

// implementation is one way to compute Update, for inputs of at least min bytes.
type implementation struct {
	name   string
	min    int
	update func(crc uint32, p []byte) uint32
}

func implementations() []implementation {
	return append([]implementation{
		{"Update", 0, Update},
		{"stdlib", 0, updateStdlib},
	}, archImplementations()...)
}

// bitwise is Update straight from the definition.
func bitwise(crc uint32, p []byte) uint32 {
	crc = ^crc
	for _, b := range p {
		crc ^= uint32(b)
		for range 8 {
			crc = crc>>1 ^ crc&1*reversed
		}
	}
	return ^crc
}

func random(n int) []byte {
	p := make([]byte, n)
	rng := rand.NewChaCha8([32]byte{'c', 'r', 'c'})
	rng.Read(p)
	return p
}

// vectors are those of RFC 3720, appendix B.4, which prints a CRC as its bytes
// on the wire, the lowest first.
var vectors = []struct {
	name string
	p    []byte
	want uint32
}{
	{"empty", nil, 0},
	{"32 zeros", make([]byte, 32), 0x8a9136aa},
	{"32 ones", bytes.Repeat([]byte{0xff}, 32), 0x62a8ab43},
	{"32 incrementing", counting(func(i int) int { return i }), 0x46dd794e},
	{"32 decrementing", counting(func(i int) int { return 31 - i }), 0x113fdb5c},
	{"iSCSI Read(10)", []byte{
		0x01, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
		0x14, 0, 0, 0, 0, 0, 0x04, 0, 0, 0, 0, 0x14, 0, 0, 0, 0x18,
		0x28, 0, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0, 0, 0, 0, 0,
	}, 0xd9963a56},
}

func counting(f func(i int) int) []byte {
	p := make([]byte, 32)
	for i := range p {
		p[i] = byte(f(i))
	}
	return p
}

func TestVectors(t *testing.T) {
	for _, v := range vectors {
		if got := Checksum(v.p); got != v.want {
			t.Errorf("Checksum, %s: %#08x, want %#08x", v.name, got, v.want)
		}
		if got := bitwise(0, v.p); got != v.want {
			t.Errorf("bitwise, %s: %#08x, want %#08x", v.name, got, v.want)
		}
		for _, impl := range implementations() {
			if len(v.p) < impl.min {
				continue
			}
			if got := impl.update(0, v.p); got != v.want {
				t.Errorf("%s, %s: %#08x, want %#08x", impl.name, v.name, got, v.want)
			}
		}
	}
}

// TestVectorsFar puts each vector behind a block that leaves the CRC at 0, so
// that implementations with a minimum length see it as well.
func TestVectorsFar(t *testing.T) {
	for _, pad := range []int{64, 256, 1024} {
		front := neutral(pad)
		for _, v := range vectors {
			p := append(bytes.Clone(front), v.p...)
			for _, impl := range implementations() {
				if len(p) < impl.min {
					continue
				}
				if got := impl.update(0, p); got != v.want {
					t.Errorf("%s, %s behind %d bytes: %#08x, want %#08x",
						impl.name, v.name, pad, got, v.want)
				}
			}
		}
	}
}

// neutral returns n bytes whose CRC is 0: the last four are the register in
// front of them, plus what 32 steps of the register turn into all ones.
func neutral(n int) []byte {
	p := random(n)
	before := ^bitwise(0, p[:n-4])
	want := ^uint32(0)
	for range 32 { // a step of bitwise, backwards
		out := want >> 31
		want = (want^out*reversed)<<1 | out
	}
	for i := range 4 {
		p[n-4+i] = byte((before ^ want) >> (8 * i))
	}
	return p
}

func TestLengthsAndAlignments(t *testing.T) {
	const lengths, alignments = 2048, 64
	src := random(lengths)
	room := make([]byte, lengths+2*alignments)
	for a := range alignments {
		// What surrounds p is not zero, so that it shows when it is included.
		for i := range room {
			room[i] = 0xa5
		}
		at := int(uintptr(unsafe.Pointer(&room[0])) % alignments)
		buf := room[(alignments-at+a)%alignments:]
		for n := 0; n <= lengths; n++ {
			p := buf[:n]
			copy(p, src)
			crc := uint32(n*alignments+a) * 0x9e3779b1
			want := crc32.Update(crc, table, p)
			for _, impl := range implementations() {
				if n < impl.min {
					continue
				}
				if got := impl.update(crc, p); got != want {
					t.Fatalf("%s, %d bytes at alignment %d, CRC %#08x before: %#08x, want %#08x",
						impl.name, n, a, crc, got, want)
				}
			}
		}
	}
}

func TestEveryBit(t *testing.T) {
	for _, n := range []int{64, 127, 256, 300, 512, 1001} {
		p := make([]byte, n)
		for bit := range 8 * n {
			p[bit/8] = 1 << (bit % 8)
			want := bitwise(0, p)
			for _, impl := range implementations() {
				if n < impl.min {
					continue
				}
				if got := impl.update(0, p); got != want {
					t.Fatalf("%s, bit %d of %d bytes: %#08x, want %#08x", impl.name, bit, n, got, want)
				}
			}
			p[bit/8] = 0
		}
	}
}

func TestSplit(t *testing.T) {
	p := random(1460)
	want := bitwise(0, p)
	for _, impl := range implementations() {
		for i := impl.min; i <= len(p)-impl.min; i++ {
			if got := impl.update(impl.update(0, p[:i]), p[i:]); got != want {
				t.Fatalf("%s, %d bytes and then %d: %#08x, want %#08x", impl.name, i, len(p)-i, got, want)
			}
		}
	}
}

func TestLong(t *testing.T) {
	for _, n := range []int{14335, 14336, 14559, 14560, 14561, 28672, 65535, 65536, 65537, 1<<20 - 1, 1<<20 + 63} {
		p := random(n)
		want := crc32.Checksum(p, table)
		for _, impl := range implementations() {
			if got := impl.update(0, p); got != want {
				t.Errorf("%s, %d bytes: %#08x, want %#08x", impl.name, n, got, want)
			}
		}
	}
}

func TestNoAllocations(t *testing.T) {
	for _, n := range []int{16, 1460} {
		p := make([]byte, n)
		if got := testing.AllocsPerRun(100, func() { Update(0, p) }); got != 0 {
			t.Errorf("Update of %d bytes allocates %v times, want 0", n, got)
		}
	}
}

func FuzzUpdate(f *testing.F) {
	for _, v := range vectors {
		f.Add(uint32(0), v.p, uint16(7))
	}
	f.Add(uint32(1), random(64), uint16(64))
	f.Add(^uint32(0), random(1460), uint16(300))
	f.Fuzz(func(t *testing.T, crc uint32, p []byte, cut uint16) {
		// The engine prefers short inputs; repeated, they reach every loop.
		for len(p) > 0 && len(p) < int(cut)%2048 {
			p = append(p, p...)
		}
		i := min(int(cut), len(p))
		want := crc32.Update(crc, table, p)
		for _, impl := range implementations() {
			if len(p) >= impl.min {
				if got := impl.update(crc, p); got != want {
					t.Errorf("%s: %#08x, want %#08x", impl.name, got, want)
				}
			}
			if i >= impl.min && len(p)-i >= impl.min {
				if got := impl.update(impl.update(crc, p[:i]), p[i:]); got != want {
					t.Errorf("%s, cut at %d: %#08x, want %#08x", impl.name, i, got, want)
				}
			}
		}
	})
}

func BenchmarkUpdate(b *testing.B) {
	buf := random(1 << 20)
	for _, n := range []int{64, 256, 512, 1460, 4096, 65536, 1 << 20} {
		for _, impl := range []implementation{
			{"hash/crc32", 0, func(crc uint32, p []byte) uint32 { return crc32.Update(crc, table, p) }},
			{"crc32c", 0, Update},
		} {
			b.Run(fmt.Sprintf("%d/%s", n, impl.name), func(b *testing.B) {
				b.SetBytes(int64(n))
				crc := uint32(0)
				for b.Loop() {
					crc = impl.update(crc, buf[:n])
				}
			})
		}
	}
}
