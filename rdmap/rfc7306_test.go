package rdmap_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rdmap"
)

// Atomics and Immediate Data: RFC 7306. Their faults are in terminate_test.go
// and rfc5041_test.go, their order in order_test.go and early_test.go.

// Section 5.1.1; the pseudocode is compared with in wire_test.go.
func TestFetchAddFields(t *testing.T) {
	for _, tc := range []struct {
		name                  string
		old, add, mask, value uint64
	}{
		{"no mask: one field of 64 bits", 0xffffffffffffffff, 2, 0, 1},
		{"the carry crosses 32 bits", 0x00000000ffffffff, 1, 0, 0x0000000100000000},
		{"a boundary at bit 31 drops the carry", 0x00000000ffffffff, 1, 1 << 31, 0},
		{"and bit 31 itself is added", 0x0000000080000000, 0x80000001, 1 << 31, 1},
		{"the boundary at bit 63 changes nothing", 0xffffffffffffffff, 2, 1 << 63, 1},
		{"two fields of 32 bits", 0xffffffff_ffffffff, 0x00000001_00000002, 1<<63 | 1<<31, 0x00000000_00000001},
		{"fields of 8 bits", 0xff01ff02ff03ff04, 0x0101010101010101, 0x8080808080808080, 0x0002000300040005},
		{"fields of one bit are exclusive or", 0xf0f0, 0xff00, ^uint64(0), 0x0ff0},
		{"subtract in a field", 0x00000005_00000005, 0x00000000_ffffffff, 1<<63 | 1<<31, 0x00000005_00000004},
	} {
		a := rdmap.AtomicRequest{Op: rdmap.AtomicFetchAdd, AddSwap: tc.add, AddSwapMask: tc.mask}
		if got := a.Apply(tc.old); got != tc.value {
			t.Errorf("%s: %#x, want %#x", tc.name, got, tc.value)
		}
	}
}

// A stream carries out what the peer asks for and answers on queue 3, with MSNs
// of its own and the peer's identifier.
func TestAtomicsOnTheWire(t *testing.T) {
	p := start(t)
	mem := p.region(7, 16, rdmap.RemoteAtomic)
	binary.NativeEndian.PutUint64(mem[8:], 0x00000001_ffffffff)
	full := ^uint64(0)
	for i, tc := range []struct {
		req        rdmap.AtomicRequest
		orig, left uint64
	}{
		{rdmap.AtomicRequest{Op: rdmap.AtomicFetchAdd, AddSwap: 1, AddSwapMask: 1 << 31, CompareMask: full}, 0x00000001_ffffffff, 0x00000001_00000000},
		{rdmap.AtomicRequest{Op: rdmap.AtomicFetchAdd, AddSwap: full}, 0x00000001_00000000, 0x00000000_ffffffff},
		{rdmap.AtomicRequest{Op: rdmap.AtomicCmpSwap, AddSwap: 5, AddSwapMask: full, Compare: 1, CompareMask: full}, 0x00000000_ffffffff, 0x00000000_ffffffff},
		{rdmap.AtomicRequest{Op: rdmap.AtomicCmpSwap, AddSwap: 0x1234567890, AddSwapMask: 0xff, Compare: 0xff, CompareMask: 0xff}, 0x00000000_ffffffff, 0x00000000_ffffff90},
		{rdmap.AtomicRequest{Op: rdmap.AtomicCmpSwap, AddSwap: 8, AddSwapMask: full}, 0x00000000_ffffff90, 8}, // no compare bits: a swap
	} {
		tc.req.ID, tc.req.STag, tc.req.TO = 0xabc0+uint32(i), 7, 8
		body := tc.req.Append(nil)
		body[0], body[3] = 0xff, body[3]|0xf0 // reserved, ignored on receive
		p.raw.Send(untagged(true, rdmap.OpAtomicRequest, 1, uint32(i)+1, 0, body...))
		u := ddp.Untagged(p.wantOps(rdmap.OpAtomicResponse)[0])
		a, ok := rdmap.ParseAtomicResponse(u.Payload())
		if !ok || u.QN() != 3 || int(u.MSN()) != i+1 || u.MO() != 0 || !u.Last() || a.ID != tc.req.ID || a.Original != tc.orig {
			t.Errorf("%d: answer %x, original %#x, want %#x", i, u, a.Original, tc.orig)
		}
		if got := binary.NativeEndian.Uint64(mem[8:]); got != tc.left {
			t.Errorf("%d: left %#x, want %#x", i, got, tc.left)
		}
	}
}

// A revocation waits for pins (RFC 5042 section 6.2.2): that of a Write or an Atomic is
// given up after it has changed the memory, not before.
func TestMemoryIsPinnedUntilItHasChanged(t *testing.T) {
	const stag, now = 7, 0x0123456789abcdef
	for name, msg := range map[string][]byte{
		"write": tagged(true, rdmap.OpWrite, stag, 0, binary.NativeEndian.AppendUint64(nil, now)...),
		"fetch and add": untagged(true, rdmap.OpAtomicRequest, 1, 1, 0,
			rdmap.AtomicRequest{Op: rdmap.AtomicFetchAdd, STag: stag, AddSwap: now}.Append(nil)...),
		"compare and swap": untagged(true, rdmap.OpAtomicRequest, 1, 1, 0,
			rdmap.AtomicRequest{Op: rdmap.AtomicCmpSwap, STag: stag, AddSwap: now, AddSwapMask: ^uint64(0)}.Append(nil)...),
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t)
			mem := p.region(stag, 8, rdmap.RemoteWrite|rdmap.RemoteAtomic)
			var seen []uint64
			p.mu.Lock()
			p.regions[stag].let = func() { seen = append(seen, binary.NativeEndian.Uint64(mem)) }
			p.mu.Unlock()
			p.region(probeSTag, 1, rdmap.RemoteWrite)
			p.raw.Send(msg, tagged(true, rdmap.OpWrite, probeSTag, 0, 1))
			p.want("probe")
			p.mu.Lock()
			defer p.mu.Unlock()
			if len(seen) != 1 || seen[0] != now {
				t.Errorf("the memory held %#x when its pins were given up", seen)
			}
		})
	}
}

// Section 5.2.1: it is the buffer's address that must be aligned, whatever the
// offset.
func TestAtomicAlignment(t *testing.T) {
	for _, shift := range []int{0, 3} {
		for to := range uint64(9) {
			p := start(t)
			mem := p.region(7, 32, rdmap.RemoteAtomic)
			p.mu.Lock()
			p.regions[7].buf = mem[shift:]
			p.mu.Unlock()
			p.raw.Send(untagged(true, rdmap.OpAtomicRequest, 1, 1, 0, rdmap.AtomicRequest{STag: 7, TO: to, AddSwap: 1}.Append(nil)...))
			if (to+uint64(shift))%8 == 0 {
				p.wantOps(rdmap.OpAtomicResponse)
				continue
			}
			if term := p.wantTerminate(); term.Layer != ddp.LayerRDMA || term.Type != rdmap.TypeRemoteOperation || term.Code != rdmap.CodeCatastrophicStream {
				t.Errorf("base %d, offset %d: Terminate %+v", shift, to, term)
			}
			p.raw.CloseWrite()
			p.wantEnd()
			if slices.Max(mem) != 0 {
				t.Errorf("base %d, offset %d: memory has changed", shift, to)
			}
		}
	}
}

// Section 5.2.2: an answer that does not fit the oldest Atomic is an error.
func TestAtomicResponsesThatDoNotFit(t *testing.T) {
	for name, answer := range map[string]func(id uint32) []byte{
		"another identifier": func(id uint32) []byte { return rdmap.AtomicResponse{ID: id + 1}.Append(nil) },
		"the second's first": func(id uint32) []byte { return rdmap.AtomicResponse{ID: id + 1}.Append(nil) },
		"short":              func(id uint32) []byte { return rdmap.AtomicResponse{ID: id}.Append(nil)[:11] },
		"long":               func(id uint32) []byte { return append(rdmap.AtomicResponse{ID: id}.Append(nil), 0) },
	} {
		p := start(t)
		p.post(rdmap.Op{Kind: rdmap.OpAtomicRequest, ID: 1})
		p.post(rdmap.Op{Kind: rdmap.OpAtomicRequest, ID: 2})
		a, _ := rdmap.ParseAtomicRequest(p.wantOps(rdmap.OpAtomicRequest, rdmap.OpAtomicRequest)[0][ddp.UntaggedHeaderLen:])
		p.raw.Send(untagged(true, rdmap.OpAtomicResponse, 3, 1, 0, answer(a.ID)...))
		if term := p.wantTerminate(); term.Layer != ddp.LayerRDMA || term.Type != rdmap.TypeRemoteOperation || term.Code != rdmap.CodeUnexpectedOpcode {
			t.Errorf("%s: Terminate %+v", name, term)
		}
		p.raw.CloseWrite()
		p.wantEnd()
	}
}

// Section 5.3: atomic across the streams of an RNIC, and with local users of
// sync/atomic.
func TestAtomicityAcrossStreams(t *testing.T) {
	const n, rounds = 32, 100
	mem := make([]byte, 16)
	seen := make([][]uint64, n)
	var wg sync.WaitGroup
	for i := range n {
		p := open(t, rdmap.Config{}, iwarptest.Options{}, nil)
		p.regions[7] = &region{stag: 7, buf: mem, rights: rdmap.RemoteAtomic}
		wg.Go(func() {
			for k := range uint32(rounds) {
				p.raw.Send(untagged(true, rdmap.OpAtomicRequest, 1, k+1, 0, rdmap.AtomicRequest{STag: 7, TO: 8, AddSwap: 1}.Append(nil)...))
				seg := p.next()
				if seg == nil {
					t.Error("the stream has ended")
					return
				}
				a, _ := rdmap.ParseAtomicResponse(seg[ddp.UntaggedHeaderLen:])
				seen[i] = append(seen[i], a.Original)
			}
		})
	}
	wg.Wait()
	all := slices.Concat(seen...)
	slices.Sort(all)
	for i, v := range all {
		if v != uint64(i) {
			t.Fatalf("the value %d was found twice or never", i)
		}
	}
	if got := binary.NativeEndian.Uint64(mem[8:]); got != n*rounds {
		t.Errorf("the word is %d, want %d", got, n*rounds)
	}
}

// Section 6: 8 bytes behind the DDP header, on queue 0 with the Sends' numbers,
// a buffer each, solicited or not.
func TestImmediateData(t *testing.T) {
	p := start(t)
	p.postMore(rdmap.Op{Kind: rdmap.OpImmediate, ID: 1, Imm: 0x0102030405060708, STag: 99}, true)
	p.postMore(rdmap.Op{Kind: rdmap.OpSend, ID: 2}, true)
	p.post(rdmap.Op{Kind: rdmap.OpImmediateSE, ID: 3, Imm: 1 << 63})
	segs := p.wantOps(rdmap.OpImmediate, rdmap.OpSend, rdmap.OpImmediateSE)
	for i, want := range []string{
		"0148" + "00000000" + "00000000" + "00000001" + "00000000" + "0102030405060708",
		"0143" + "00000000" + "00000000" + "00000002" + "00000000",
		"0149" + "00000000" + "00000000" + "00000003" + "00000000" + "8000000000000000",
	} {
		segs[i][0] &^= 0x40 // L
		if got := fmt.Sprintf("%x", segs[i]); got != want {
			t.Errorf("segment %d is %s, want %s", i, got, want)
		}
	}
	p.want("done 1", "done 2", "done 3")
	for id := range uint64(3) {
		p.receive(id, 0) // no room is needed
	}
	p.raw.Send(untagged(true, rdmap.OpImmediateSE, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 5), untagged(true, rdmap.OpImmediate, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 6), untagged(true, rdmap.OpSend, 0, 3, 0))
	p.want("recv 0 Immediate Data with SE 0 imm 0x5", "recv 1 Immediate Data 0 imm 0x6", "recv 2 Send 0")
	if m := (rdmap.Message{Op: rdmap.OpImmediateSE}); !m.Solicited() || (rdmap.Message{Op: rdmap.OpImmediate}).Solicited() {
		t.Error("the solicited event is not that of the opcode")
	}
}

// How a peer that lacks RFC 7306 is found out: it does not know the opcode. The
// answers are what the RFC says, with and without the header, and what Linux'
// siw sends.
func TestPeerWithoutExtensions(t *testing.T) {
	imm := rdmap.Op{Kind: rdmap.OpImmediate, ID: 1}
	atom := rdmap.Op{Kind: rdmap.OpAtomicRequest, ID: 1}
	send := rdmap.Op{Kind: rdmap.OpSend, ID: 1}
	quote := func(t rdmap.Terminate) func(seg []byte) []byte {
		return func(seg []byte) []byte {
			t.DDP, t.SegLen = seg[:ddp.UntaggedHeaderLen], uint16(len(seg))
			return t.Append(nil)
		}
	}
	raw := func(b ...byte) func([]byte) []byte { return func([]byte) []byte { return b } }
	opcode := rdmap.Terminate{Layer: ddp.LayerRDMA, Type: rdmap.TypeRemoteOperation, Code: rdmap.CodeUnexpectedOpcode}
	swapped, other := opcode, opcode
	swapped.Swapped = true
	other.Code = rdmap.CodeUnspecified
	for _, tc := range []struct {
		name   string
		op     rdmap.Op
		answer func(seg []byte) []byte
		want   bool
	}{
		{"Immediate Data, quoted", imm, quote(opcode), true},
		{"Atomic, quoted", atom, quote(opcode), true},
		{"Atomic, not quoted", atom, raw(opcode.Append(nil)...), true},
		{"Immediate Data, as siw answers", imm, raw(0x20, 0x06, 0, 0), true},
		{"Atomic, as siw would quote it", atom, quote(swapped), true},
		{"a Send", send, quote(opcode), false},
		{"a Send, not quoted", send, raw(opcode.Append(nil)...), false},
		{"a Send, as siw answers", send, raw(0x20, 0x06, 0, 0), false},
		{"Atomic, another code", atom, quote(other), false},
	} {
		p := start(t)
		p.post(tc.op)
		p.raw.Send(untagged(true, rdmap.OpTerminate, 2, 1, 0, tc.answer(p.next())...))
		err := p.wantEnd()
		if errors.Is(err, rdmap.ErrUnsupportedByPeer) != tc.want {
			t.Errorf("%s: ended with %v", tc.name, err)
		}
		if tc.op.Kind == rdmap.OpAtomicRequest && errors.Is(p.errs[1], rdmap.ErrUnsupportedByPeer) != tc.want {
			t.Errorf("%s: the operation reports %v", tc.name, p.errs[1])
		}
	}
}
