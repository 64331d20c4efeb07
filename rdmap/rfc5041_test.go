package rdmap_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rdmap"
)

// The rules of RFC 5041 as a stream keeps them, on a conforming LLP. Placement
// out of order is in early_test.go.

// Section 5.2, with its own examples: 2,048 bytes and a MULPDU of 1,500.
func TestSegmentationExamples(t *testing.T) {
	p := open(t, rdmap.Config{}, iwarptest.Options{MULPDU: 1500}, nil)
	src := make([]byte, 2048)
	for i := range src {
		src[i] = byte(i * 7)
	}
	p.post(sgl(rdmap.Op{Kind: rdmap.OpSend}, src[:1000], src[1000:]))
	segs := p.wantOps(rdmap.OpSend, rdmap.OpSend)
	for i, want := range []struct {
		mo   uint32
		n    int
		last bool
	}{{0, 1482, false}, {1482, 566, true}} {
		u := ddp.Untagged(segs[i])
		if u.MSN() != 1 || u.QN() != 0 || u.MO() != want.mo || len(u.Payload()) != want.n || u.Last() != want.last || !bytes.Equal(u.Payload(), src[want.mo:int(want.mo)+want.n]) {
			t.Errorf("untagged segment %d: MSN %d, MO %d, %d bytes, last %v", i, u.MSN(), u.MO(), len(u.Payload()), u.Last())
		}
	}
	p.post(sgl(rdmap.Op{Kind: rdmap.OpWrite, STag: 5, TO: 16384}, src))
	segs = p.wantOps(rdmap.OpWrite, rdmap.OpWrite)
	for i, want := range []struct {
		to   uint64
		n    int
		last bool
	}{{16384, 1486, false}, {17870, 562, true}} {
		s := ddp.Tagged(segs[i])
		off := int(want.to - 16384)
		if s.STag() != 5 || s.TO() != want.to || len(s.Payload()) != want.n || s.Last() != want.last || !bytes.Equal(s.Payload(), src[off:off+want.n]) {
			t.Errorf("tagged segment %d: TO %d, %d bytes, last %v", i, s.TO(), len(s.Payload()), s.Last())
		}
	}
}

// Section 5.2: a zero-length message is exactly one segment, and a tagged one's
// STag and TO are not looked at. Those of a Read are RFC 5040's, section 5.2.1.
func TestZeroLengthMessages(t *testing.T) {
	p := start(t)
	p.postMore(rdmap.Op{Kind: rdmap.OpSend, ID: 1}, true)
	p.postMore(rdmap.Op{Kind: rdmap.OpWrite, ID: 2, STag: 0xdead, TO: 9}, true)
	p.post(rdmap.Op{Kind: rdmap.OpReadRequest, ID: 3, STag: 0xdead, TO: 9})
	segs := p.wantOps(rdmap.OpSend, rdmap.OpWrite, rdmap.OpReadRequest)
	if len(segs[0]) != ddp.UntaggedHeaderLen || !ddp.Untagged(segs[0]).Last() || len(segs[1]) != ddp.TaggedHeaderLen || !ddp.Tagged(segs[1]).Last() {
		t.Errorf("segments %x, %x", segs[0], segs[1])
	}
	req, ok := rdmap.ParseReadRequest(segs[2][ddp.UntaggedHeaderLen:])
	if !ok || req.Size != 0 {
		t.Errorf("Read Request %+v", req)
	}
	p.raw.Send(tagged(true, rdmap.OpReadResponse, req.SinkSTag, req.SinkTO))
	p.want("done 1", "done 2", "done 3")

	p.receive(1, 0)
	p.raw.Send(
		tagged(true, rdmap.OpWrite, 0xdead, ^uint64(0)),
		untagged(true, rdmap.OpReadRequest, 1, 1, 0, rdmap.ReadRequest{SinkSTag: 8, SinkTO: 9, SourceSTag: 0xdead}.Append(nil)...),
		untagged(true, rdmap.OpSend, 0, 1, 0),
	)
	p.want("recv 1 Send 0")
	resp := ddp.Tagged(p.wantOps(rdmap.OpReadResponse)[0])
	if len(resp) != ddp.TaggedHeaderLen || resp.STag() != 8 || resp.TO() != 9 || !resp.Last() {
		t.Errorf("Read Response %x", resp)
	}
}

// Section 4.3: MSNs count from 1 in each queue and wrap from 0xffffffff to 0,
// sending and receiving.
func TestMSNWraps(t *testing.T) {
	for _, o := range []iwarptest.Options{{}, {Direct: true}} {
		p := open(t, rdmap.Config{}, o, func(p *peer) { p.s.SetMSNs(0xfffffffe) })
		mem := p.region(7, 8, rdmap.RemoteRead|rdmap.RemoteAtomic)
		mem[0] = 1
		for i, msn := range []uint32{0xfffffffe, 0xffffffff, 0, 1} {
			id := uint64(10 * i)
			p.receive(id, 4)
			p.raw.Send(untagged(false, rdmap.OpSend, 0, msn, 0, 1, 2), untagged(true, rdmap.OpSend, 0, msn, 2, 3))
			q1 := msn + uint32(i) // two requests a round
			p.raw.Send(
				untagged(true, rdmap.OpReadRequest, 1, q1, 0, rdmap.ReadRequest{Size: 8, SourceSTag: 7}.Append(nil)...),
				untagged(true, rdmap.OpAtomicRequest, 1, q1+1, 0, rdmap.AtomicRequest{ID: 3, STag: 7}.Append(nil)...))
			answers := p.wantOps(rdmap.OpReadResponse, rdmap.OpAtomicResponse)
			if got := ddp.Untagged(answers[1]).MSN(); got != msn {
				t.Fatalf("Atomic Response %d has MSN %#x, want %#x", i, got, msn)
			}
			p.post(rdmap.Op{Kind: rdmap.OpSend, ID: id + 1})
			p.post(sgl(rdmap.Op{Kind: rdmap.OpReadRequest, ID: id + 2}, make([]byte, 1)))
			p.post(rdmap.Op{Kind: rdmap.OpAtomicRequest, ID: id + 3})
			segs := p.wantOps(rdmap.OpSend, rdmap.OpReadRequest, rdmap.OpAtomicRequest)
			for k, want := range []uint32{msn, q1, q1 + 1} {
				if got := ddp.Untagged(segs[k]).MSN(); got != want {
					t.Fatalf("round %d, message %d has MSN %#x, want %#x", i, k, got, want)
				}
			}
			r, _ := rdmap.ParseReadRequest(segs[1][ddp.UntaggedHeaderLen:])
			a, _ := rdmap.ParseAtomicRequest(segs[2][ddp.UntaggedHeaderLen:])
			p.raw.Send(tagged(true, rdmap.OpReadResponse, r.SinkSTag, r.SinkTO, 9),
				untagged(true, rdmap.OpAtomicResponse, 3, msn, 0, rdmap.AtomicResponse{ID: a.ID}.Append(nil)...))
			p.wantOnce("recv", "done", "done", "done")
		}
	}
}

// Early segments count across the wrap, too.
func TestMSNWrapsOutOfOrder(t *testing.T) {
	p := open(t, rdmap.Config{}, iwarptest.Options{Window: 10}, func(p *peer) { p.s.SetMSNs(0xffffffff) })
	p.region(probeSTag, 1, rdmap.RemoteWrite)
	p.receive(1, 1)
	b := p.receive(2, 1)
	p.sendEarly(untagged(true, rdmap.OpSend, 0, 0, 0, 'b'))
	if b[0] != 'b' {
		t.Errorf("placed %q", b)
	}
	p.sendAt(0, untagged(true, rdmap.OpSend, 0, 0xffffffff, 0, 'a'))
	p.want("recv 1 Send 1", "recv 2 Send 1")
}

// Section 7.2, code by code: what the peer does and what is reported to it. Each is on
// an LLP that gives whole segments and on one that asks for the place of
// payloads first.
func TestDDPErrorCodes(t *testing.T) {
	const stag, foreign, readOnly = 7, 8, 9
	send := func(last bool, msn, mo uint32, n int) []byte {
		return untagged(last, rdmap.OpSend, 0, msn, mo, make([]byte, n)...)
	}
	write := func(stag uint32, to uint64, n int) []byte {
		return tagged(true, rdmap.OpWrite, stag, to, make([]byte, n)...)
	}
	version := func(v byte, seg []byte) []byte {
		seg[0] = seg[0]&^3 | v
		return seg
	}
	for _, tc := range []struct {
		name string
		typ  uint8
		code uint8
		segs [][]byte // the last is at fault
	}{
		{"invalid STag", 1, 0x00, [][]byte{write(0xdead, 0, 1)}},
		{"base or bounds: the end", 1, 0x01, [][]byte{write(stag, 0, 65)}},
		{"base or bounds: the start", 1, 0x01, [][]byte{write(stag, 65, 1)}},
		{"base or bounds: one past the end", 1, 0x01, [][]byte{write(stag, 64, 1)}},
		{"not associated with the stream", 1, 0x02, [][]byte{write(foreign, 0, 1)}},
		{"TO wrap", 1, 0x03, [][]byte{write(stag, ^uint64(0), 2)}},
		{"invalid version, tagged: 0", 1, 0x04, [][]byte{version(0, write(stag, 0, 1))}},
		{"invalid version, tagged: 2", 1, 0x04, [][]byte{version(2, write(stag, 0, 1))}},
		{"invalid version, tagged: 3", 1, 0x04, [][]byte{version(3, write(stag, 0, 0))}},
		{"Read Response to no STag", 1, 0x00, [][]byte{tagged(true, rdmap.OpReadResponse, 1, 0, 1)}},

		{"invalid queue number: 4", 2, 0x01, [][]byte{untagged(true, rdmap.OpSend, 4, 1, 0, 1)}},
		{"invalid queue number: the largest", 2, 0x01, [][]byte{untagged(true, rdmap.OpSend, ^uint32(0), 1, 0)}},
		{"no buffer available", 2, 0x02, [][]byte{send(true, 1, 0, 1), send(true, 2, 0, 1)}},
		{"no buffer for a zero-length Send", 2, 0x02, [][]byte{send(true, 1, 0, 1), send(true, 2, 0, 0)}},
		{"no buffer for Immediate Data", 2, 0x02, [][]byte{send(true, 1, 0, 1), untagged(true, rdmap.OpImmediate, 0, 2, 0, make([]byte, 8)...)}},
		{"MSN range: 0", 2, 0x03, [][]byte{send(true, 0, 0, 1)}},
		{"MSN range: skipped", 2, 0x03, [][]byte{send(true, 2, 0, 1)}},
		{"MSN range: repeated", 2, 0x03, [][]byte{send(true, 1, 0, 1), send(true, 1, 0, 1)}},
		{"MSN range: within a message", 2, 0x03, [][]byte{send(false, 1, 0, 1), send(true, 2, 1, 1)}},
		{"MSN range: queue 1", 2, 0x03, [][]byte{untagged(true, rdmap.OpReadRequest, 1, 2, 0, make([]byte, 28)...)}},
		{"MSN range: queue 3", 2, 0x03, [][]byte{untagged(true, rdmap.OpAtomicResponse, 3, 0, 0, make([]byte, 12)...)}},
		{"invalid MO: not 0 at the start", 2, 0x04, [][]byte{send(true, 1, 1, 1)}},
		{"invalid MO: repeated", 2, 0x04, [][]byte{send(false, 1, 0, 4), send(true, 1, 0, 4)}},
		{"invalid MO: a gap", 2, 0x04, [][]byte{send(false, 1, 0, 4), send(true, 1, 5, 4)}},
		{"invalid MO: an overlap", 2, 0x04, [][]byte{send(false, 1, 0, 4), send(true, 1, 3, 4)}},
		{"invalid MO: queue 1", 2, 0x04, [][]byte{untagged(true, rdmap.OpReadRequest, 1, 1, 1, make([]byte, 28)...)}},
		{"too long", 2, 0x05, [][]byte{send(true, 1, 0, 65)}},
		{"too long in the second segment", 2, 0x05, [][]byte{send(false, 1, 0, 64), send(true, 1, 64, 1)}},
		{"too long: a request in two segments", 2, 0x05, [][]byte{untagged(false, rdmap.OpReadRequest, 1, 1, 0, make([]byte, 28)...)}},
		{"invalid version, untagged: 0", 2, 0x06, [][]byte{version(0, send(true, 1, 0, 1))}},
		{"invalid version, untagged: 2", 2, 0x06, [][]byte{version(2, send(true, 1, 0, 1))}},
		{"invalid version, untagged: 3", 2, 0x06, [][]byte{version(3, send(true, 1, 0, 0))}},
	} {
		for _, o := range []iwarptest.Options{{}, {Direct: true}, {Window: 10}} {
			p := open(t, rdmap.Config{}, o, nil)
			p.receive(1, 64)
			p.region(stag, 64, rdmap.RemoteWrite)
			p.region(foreign, 64, 0)
			if err := p.raw.Send(tc.segs...); err != nil {
				t.Fatal(err)
			}
			term := p.wantTerminate()
			if term.Layer != ddp.LayerDDP || term.Type != tc.typ || term.Code != tc.code {
				t.Errorf("%s, %+v: Terminate %v %d.%#02x, want DDP %d.%#02x", tc.name, o, term.Layer, term.Type, term.Code, tc.typ, tc.code)
			}
			// RFC 5040 Figure 10: the DDP header and the segment's length, no RDMA header.
			bad := tc.segs[len(tc.segs)-1]
			if !bytes.Equal(term.DDP, bad[:ddp.HeaderLen(bad)]) || int(term.SegLen) != len(bad) || term.RDMAP != nil {
				t.Errorf("%s, %+v: the Terminate quotes %x of %d bytes and %x", tc.name, o, term.DDP, term.SegLen, term.RDMAP)
			}
			p.raw.CloseWrite()
			if err := p.wantEnd(); !errors.Is(err, &ddp.Error{Layer: ddp.LayerDDP, Type: tc.typ, Code: tc.code}) {
				t.Errorf("%s: ended with %v", tc.name, err)
			}
		}
	}
}

// Section 7.1: what follows a segment at fault is dropped, and none of it is
// placed.
func TestNothingIsPlacedAfterAFault(t *testing.T) {
	for _, o := range []iwarptest.Options{{}, {Direct: true}, {Window: 10}} {
		p := open(t, rdmap.Config{}, o, nil)
		mem := p.region(7, 4, rdmap.RemoteWrite)
		b := p.receive(1, 4)
		p.raw.Send(tagged(true, rdmap.OpWrite, 1, 0, 1), tagged(true, rdmap.OpWrite, 7, 0, 1, 2, 3, 4), untagged(true, rdmap.OpSend, 0, 1, 0, 1, 2))
		p.wantTerminate()
		p.raw.CloseWrite()
		p.wantEnd()
		if !bytes.Equal(mem, make([]byte, 4)) || !bytes.Equal(b, make([]byte, 4)) || p.news != nil {
			t.Errorf("%+v: placed %x and %x, the upper has heard %q", o, mem, b, p.news)
		}
	}
}
