package conformance

import (
	"encoding/binary"
	"math/rand/v2"
)

func atomicCases() []Case {
	const both = Atomics
	return []Case{
		{Name: "fetch and add", RFC: "RFC 7306 section 5.1.1", A: both, B: both, Core: true, run: fetchAdds},
		{Name: "compare and swap", RFC: "RFC 7306 section 5.1.2", A: both, B: both, run: cmpSwaps},
		{Name: "atomics and reads share ORD", RFC: "RFC 7306 section 5.2", A: both, B: both, Core: true, run: atomicsBeyondORD},
		{Name: "atomics of several streams", RFC: "RFC 7306 section 5.3", A: both, B: both, connect: atomicsOfStreams},
	}
}

// word is memory of b for atomics: 64 bytes, on a boundary of 64 bits.
func word(b *side) *buffer { return b.mem(64, LocalWrite|RemoteAtomic|RemoteRead) }

func fetchAdd(b *buffer, off int, add uint64) WR {
	return b.remote(WR{Op: OpFetchAdd, Flags: Signaled, Add: add}, off)
}

// Words in memory have the machine's byte order.
func (b *buffer) word(off int) uint64 { return binary.NativeEndian.Uint64(b.bytes(off, 8)) }
func (b *buffer) expectWord(off int, v uint64) {
	b.expect(off, binary.NativeEndian.AppendUint64(nil, v))
}
func (b *buffer) putWord(off int, v uint64) { b.put(off, binary.NativeEndian.AppendUint64(nil, v)) }

// maskedAdd is the pseudocode of RFC 7306 section 5.1.1, bit by bit.
func maskedAdd(old, add, mask uint64) (sum uint64) {
	carry := uint64(0)
	for bit := range 64 {
		v := carry + old>>bit&1 + add>>bit&1
		sum |= v & 1 << bit
		carry = v >> 1 &^ (mask >> bit)
	}
	return sum
}

// numbers are the values and masks that the atomics are tried with: fields of
// 64, 32, 16, 8 and 1 bits, carries out of each, and some of no pattern.
func numbers() (pairs [][3]uint64) {
	r := rand.New(rand.NewPCG(7306, 5))
	pairs = [][3]uint64{
		{40, 2, 0}, {^uint64(0), 1, 0}, {^uint64(0), 1, 1 << 63}, {0xffffffff, 1, 1<<31 | 1<<63}, {0xffffffff, 1, 0},
		{0xffffffffffffffff, 0x0001000100010001, 0x8000800080008000}, {0xff00ff00ff00ff00, 0x0101010101010101, 0x8080808080808080},
		{0xaaaaaaaaaaaaaaaa, ^uint64(0), ^uint64(0)}, {0, 0, 0}, {5, ^uint64(0), 0},
	}
	for range 20 {
		pairs = append(pairs, [3]uint64{r.Uint64(), r.Uint64(), r.Uint64()})
	}
	return pairs
}

func fetchAdds(a, b *side) {
	mem, res := word(b), a.mem(16, LocalWrite)
	for i, n := range numbers() {
		old, off := n[0], i%8*8
		mem.putWord(off, old)
		wr := fetchAdd(mem, off, n[1])
		wr.AddMask = n[2]
		if i%2 == 0 { // into memory as well
			wr.SGL = []SGE{res.at(8, 8)}
			res.expectWord(8, old)
		}
		mem.expectWord(off, maskedAdd(old, n[1], n[2]))
		a.original(wr, old)
		ping(a, b)
		mem.check()
		res.check()
	}
}

// original carries out an atomic that must find old.
func (a *side) original(wr WR, old uint64) {
	a.t.Helper()
	a.post(wr)
	if wc := a.sent(OpAtomic); wc.Imm != old {
		a.t.Errorf("end %s: %v of %#x with mask %#x, compare %#x with mask %#x: found %#x, want %#x", a.name, wr.Op, wr.Add|wr.Swap, wr.AddMask|wr.SwapMask,
			wr.Compare, wr.CompareMask, wc.Imm, old)
	}
}

func cmpSwaps(a, b *side) {
	mem := word(b)
	for _, n := range numbers() {
		old, swap, mask := n[0], n[1], n[2]
		for i, cmp := range []struct{ v, mask uint64 }{
			{old, ^uint64(0)}, {old ^ 1, ^uint64(0)}, {old ^ 1, ^uint64(1)}, {swap, 0}, {old ^ 1<<63, 1 << 63}, {old, mask}, {swap, mask},
		} {
			off := 8 * i
			mem.putWord(off, old)
			if (cmp.v^old)&cmp.mask == 0 {
				mem.expectWord(off, old&^mask|swap&mask)
			}
			a.original(mem.remote(WR{Op: OpCmpSwap, Flags: Signaled, Swap: swap, SwapMask: mask, Compare: cmp.v, CompareMask: cmp.mask}, off), old)
		}
		ping(a, b)
		mem.check()
	}
}

// Atomics and Reads together are never more than the peer holds; they are
// carried out and answered in the order of posting (RFC 7306 section 5.4 rule 8).
func atomicsBeyondORD(a, b *side) {
	n := a.lim.MaxSend - 1
	mem, sink := word(b), a.mem(8*n, LocalWrite)
	mem.putWord(0, 100)
	for i := range n {
		v := 100 + uint64((i+1)/2)
		if i%2 == 0 {
			a.post(fetchAdd(mem, 0, 1))
		} else {
			a.post(mem.remote(WR{Op: OpRead, Flags: Signaled, SGL: []SGE{sink.at(8*i, 8)}}, 0))
			sink.open(8*i, 8) // a later Atomic may overtake the reading (RFC 5040 section 5.5 rule 12)
		}
		if i%2 == 0 {
			mem.expectWord(0, v+1)
		}
	}
	for i := range n {
		if i%2 == 1 {
			a.sent(OpRead)
		} else if wc := a.sent(OpAtomic); wc.Imm != 100+uint64(i/2) {
			a.t.Errorf("end %s: atomic %d found %d, want %d", a.name, i/2, wc.Imm, 100+i/2)
		}
	}
	ping(a, b)
	got, err := a.Load(sink.r, 0, 8*n)
	a.check("load", err)
	for i := 1; i < n; i += 2 {
		if v := binary.NativeEndian.Uint64(got[8*i:]); v < 100+uint64((i+1)/2) || v > mem.word(0) {
			a.t.Errorf("end %s: a Read behind %d additions to 100 brought %d", a.name, (i+1)/2, v)
		}
	}
}

// Additions of several streams to one word all count.
func atomicsOfStreams(k *connector) {
	const streams, each = 4, 40
	var from, to []*side
	for range streams {
		a, b := k.pair()
		from, to = append(from, a), append(to, b)
	}
	mem := word(to[0])
	mem.putWord(0, 0)
	for range each {
		for _, a := range from {
			a.post(fetchAdd(mem, 0, 1))
		}
	}
	seen := make(map[uint64]bool)
	for _, a := range from {
		last := uint64(0)
		for i := range each {
			v := a.sent(OpAtomic).Imm
			if seen[v] || i > 0 && v <= last {
				a.t.Errorf("end %s: an addition found %d, which another found or a later one", a.name, v)
			}
			seen[v], last = true, v
		}
	}
	mem.expectWord(0, streams*each)
	ping(from[0], to[0])
}
