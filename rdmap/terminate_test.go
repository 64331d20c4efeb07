package rdmap_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rdmap"
)

// The Terminate: RFC 5040 sections 4.8, 5.4, 6.2.1, 7.1 and 7.2.

// The codes of Figure 9 that a peer can bring about, and what is quoted by
// Figure 10 and the rules of section 7.1. Not made by us: 0x08 (a fault of ours
// concerns one stream), 0x09 and 0xff as they stand twice in the figure, in the
// type that Figure 10 gives to an Invalidate.
func TestRDMAPErrorCodes(t *testing.T) {
	const stag, foreign, writeOnly, gone = 7, 8, 9, 10
	read := func(stag uint32, to uint64, n uint32) []byte {
		return untagged(true, rdmap.OpReadRequest, 1, 1, 0, rdmap.ReadRequest{SinkSTag: 1, SinkTO: 2, Size: n, SourceSTag: stag, SourceTO: to}.Append(nil)...)
	}
	atom := func(stag uint32, to uint64) []byte {
		return untagged(true, rdmap.OpAtomicRequest, 1, 1, 0, rdmap.AtomicRequest{ID: 1, STag: stag, TO: to}.Append(nil)...)
	}
	invalidate := func(op rdmap.Opcode, stag uint32) []byte {
		return ddp.AppendUntagged(nil, true, rdmap.Control(op), stag, 0, 1, 0)
	}
	rdmapVersion := func(v byte, seg []byte) []byte {
		seg[1] = seg[1]&0x3f | v<<6
		return seg
	}
	const protection, operation = rdmap.TypeRemoteProtection, rdmap.TypeRemoteOperation
	for _, tc := range []struct {
		name string
		typ  uint8
		code uint8
		seg  []byte
	}{
		{"Read of an invalid STag", protection, 0x00, read(gone, 0, 1)},
		{"Read past the bounds", protection, 0x01, read(stag, 0, 65)},
		{"Read from past the bounds", protection, 0x01, read(stag, 65, 1)},
		{"Read without the right", protection, 0x02, read(writeOnly, 0, 1)},
		{"Read of another stream's STag", protection, 0x03, read(foreign, 0, 1)},
		{"Read with a TO that wraps", protection, 0x04, read(stag, ^uint64(0), 2)},
		{"Atomic on an invalid STag", protection, 0x00, atom(gone, 0)},
		{"Atomic past the bounds", protection, 0x01, atom(stag, 64)},
		{"Atomic partly past the bounds", protection, 0x01, atom(stag, 60)},
		{"Atomic without the right", protection, 0x02, atom(writeOnly, 0)},
		{"Atomic on another stream's STag", protection, 0x03, atom(foreign, 0)},
		{"Atomic with a TO that wraps", protection, 0x04, atom(stag, ^uint64(0)-3)},
		{"Write without the right", protection, 0x02, tagged(true, rdmap.OpWrite, stag, 0, 1)},
		{"Send with Invalidate of an invalid STag", protection, 0x00, invalidate(rdmap.OpSendInvalidate, gone)},
		{"Send with Invalidate of another stream's STag", protection, 0x09, invalidate(rdmap.OpSendInvalidate, foreign)},
		{"Send with SE and Invalidate of another stream's STag", protection, 0x09, invalidate(rdmap.OpSendSEInvalidate, foreign)},
		{"RDMAP version 0", operation, 0x05, rdmapVersion(0, untagged(true, rdmap.OpSend, 0, 1, 0, 1))},
		{"RDMAP version 2, tagged", operation, 0x05, rdmapVersion(2, tagged(true, rdmap.OpWrite, stag, 0, 1))},
		{"RDMAP version 3", operation, 0x05, rdmapVersion(3, untagged(true, rdmap.OpSend, 0, 1, 0))},
		{"opcode 12", operation, 0x06, untagged(true, 12, 0, 1, 0)},
		{"opcode 15, tagged", operation, 0x06, tagged(true, 15, stag, 0, 1)},
		{"a tagged Send", operation, 0x06, tagged(true, rdmap.OpSend, stag, 0, 1)},
		{"an untagged Write", operation, 0x06, untagged(true, rdmap.OpWrite, 0, 1, 0, 1)},
		{"an untagged Read Response", operation, 0x06, untagged(true, rdmap.OpReadResponse, 0, 1, 0, 1)},
		{"a Send on queue 1", operation, 0x06, untagged(true, rdmap.OpSend, 1, 1, 0)},
		{"a Read Request on queue 0", operation, 0x06, untagged(true, rdmap.OpReadRequest, 0, 1, 0, make([]byte, 28)...)},
		{"a Terminate on queue 0", operation, 0x06, untagged(true, rdmap.OpTerminate, 0, 1, 0, make([]byte, 4)...)},
		{"a Send on queue 2", operation, 0x06, untagged(true, rdmap.OpSend, 2, 1, 0)},
		{"an Atomic Response on queue 1", operation, 0x06, untagged(true, rdmap.OpAtomicResponse, 1, 1, 0, make([]byte, 12)...)},
		{"an Atomic of code 1", operation, 0x06, untagged(true, rdmap.OpAtomicRequest, 1, 1, 0, append([]byte{0, 0, 0, 1}, make([]byte, 48)...)...)},
		{"an Atomic that is not aligned", operation, 0x07, atom(stag, 4)},
		{"a Read Request that is short", operation, 0xff, untagged(true, rdmap.OpReadRequest, 1, 1, 0, make([]byte, 27)...)},
		{"a Read Request that is long", operation, 0xff, untagged(true, rdmap.OpReadRequest, 1, 1, 0, make([]byte, 29)...)},
		{"Immediate Data of 7 bytes", operation, 0xff, untagged(true, rdmap.OpImmediate, 0, 1, 0, make([]byte, 7)...)},
		{"Immediate Data of 9 bytes", operation, 0xff, untagged(true, rdmap.OpImmediateSE, 0, 1, 0, make([]byte, 9)...)},
	} {
		for _, o := range []iwarptest.Options{{}, {Direct: true}, {Window: 10}} {
			p := open(t, rdmap.Config{}, o, nil)
			p.receive(1, 64)
			p.region(stag, 64, rdmap.RemoteRead|rdmap.RemoteAtomic)
			p.region(writeOnly, 64, rdmap.RemoteWrite)
			p.region(foreign, 64, 0)
			p.raw.Send(tc.seg)
			term := p.wantTerminate()
			if term.Layer != ddp.LayerRDMA || term.Type != tc.typ || term.Code != tc.code {
				t.Errorf("%s, %+v: Terminate %v %d.%#02x, want RDMAP %d.%#02x", tc.name, o, term.Layer, term.Type, term.Code, tc.typ, tc.code)
			}
			if !bytes.Equal(term.DDP, tc.seg[:ddp.HeaderLen(tc.seg)]) || int(term.SegLen) != len(tc.seg) {
				t.Errorf("%s, %+v: the Terminate quotes %x of %d bytes", tc.name, o, term.DDP, term.SegLen)
			}
			// The RDMA header is a Read Request's, for a Remote Protection Error.
			var header []byte
			if _, op := rdmap.ParseControl(tc.seg[1]); op == rdmap.OpReadRequest && tc.typ == protection {
				header = tc.seg[ddp.UntaggedHeaderLen:]
			}
			if !bytes.Equal(term.RDMAP, header) {
				t.Errorf("%s: the Terminate quotes the RDMA header %x, want %x", tc.name, term.RDMAP, header)
			}
			p.raw.CloseWrite()
			if err := p.wantEnd(); !errors.Is(err, &ddp.Error{Layer: ddp.LayerRDMA, Type: tc.typ, Code: tc.code}) {
				t.Errorf("%s: ended with %v", tc.name, err)
			}
			p.mu.Lock()
			for _, r := range p.regions {
				if r.pins != 0 || !bytes.Equal(r.buf, make([]byte, 64)) {
					t.Errorf("%s: memory is pinned %d times and holds %x", tc.name, r.pins, r.buf)
				}
			}
			p.mu.Unlock()
		}
	}
}

// A segment that is too short for its header is reported without one: "if possible"
// (Figure 10).
func TestTerminateForATruncatedHeader(t *testing.T) {
	for _, n := range []int{0, 1, 13, 17} {
		p := start(t)
		p.raw.Send(untagged(true, rdmap.OpSend, 0, 1, 0)[:n])
		if term := p.wantTerminate(); term.Layer != ddp.LayerRDMA || term.Type != rdmap.TypeRemoteOperation || term.Code != rdmap.CodeUnspecified || term.DDP != nil {
			t.Errorf("%d bytes: Terminate %+v", n, term)
		}
		p.raw.CloseWrite()
		p.wantEnd()
	}
}

// Read Requests past the depth find no buffer on queue 1 (section 6.1). It is
// DDP that refuses them, so no RDMA header is quoted (section 7.1 rule 3,
// Figure 10).
func TestRequestsPastIRD(t *testing.T) {
	read := rdmap.ReadRequest{SinkSTag: 1, Size: 8, SourceSTag: 7}.Append(nil)
	atom := rdmap.AtomicRequest{STag: 7, AddSwap: 1}.Append(nil)
	for _, last := range [][]byte{untagged(true, rdmap.OpReadRequest, 1, 3, 0, read...), untagged(true, rdmap.OpAtomicRequest, 1, 3, 0, atom...)} {
		p := open(t, rdmap.Config{MaxSend: 4, IRD: 2, ORD: 2}, iwarptest.Options{}, nil)
		mem := p.region(7, 8, rdmap.RemoteRead|rdmap.RemoteAtomic)
		// In one batch: none is answered before all have come.
		p.raw.Send(untagged(true, rdmap.OpReadRequest, 1, 1, 0, read...), untagged(true, rdmap.OpAtomicRequest, 1, 2, 0, atom...), last)
		term := p.wantTerminate()
		if term.Layer != ddp.LayerDDP || term.Type != ddp.TypeUntagged || term.Code != ddp.CodeUntaggedNoBuffer ||
			!bytes.Equal(term.DDP, last[:ddp.UntaggedHeaderLen]) || term.RDMAP != nil {
			t.Errorf("Terminate %+v", term)
		}
		p.raw.CloseWrite()
		p.wantEnd()
		if binary.NativeEndian.Uint64(mem) != 1 {
			t.Errorf("the word is %d: an Atomic past the depth was carried out", binary.NativeEndian.Uint64(mem))
		}
	}
}

// Memory that goes away while a Read is answered: the quoted header says where
// the response has stopped (section 4.8).
func TestTerminateWithinAReadResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := open(t, rdmap.Config{}, iwarptest.Options{MULPDU: 128}, nil)
		p.region(7, 1<<16, rdmap.RemoteRead)
		p.receive(1, 0)
		p.raw.Stall(true)
		req := untagged(true, rdmap.OpReadRequest, 1, 1, 0, rdmap.ReadRequest{SinkSTag: 3, SinkTO: 1000, Size: 60000, SourceSTag: 7, SourceTO: 11}.Append(nil)...)
		p.raw.Send(req, ddp.AppendUntagged(nil, true, rdmap.Control(rdmap.OpSendInvalidate), 7, 0, 1, 0))
		p.want("recv 1 Send with Invalidate 0 inv 0x7")
		p.raw.Stall(false)
		var sent uint64
		for {
			seg := p.next()
			if seg == nil {
				t.Fatal("no Terminate")
			}
			if ddp.IsTagged(seg) {
				sent += uint64(len(ddp.Tagged(seg).Payload()))
				continue
			}
			term, _ := rdmap.ParseTerminate(ddp.Untagged(seg).Payload())
			r, _ := rdmap.ParseReadRequest(term.RDMAP)
			want := rdmap.ReadRequest{SinkSTag: 3, SinkTO: 1000 + sent, Size: 60000 - uint32(sent), SourceSTag: 7, SourceTO: 11 + sent}
			if term.Layer != ddp.LayerRDMA || term.Type != rdmap.TypeRemoteProtection || term.Code != rdmap.CodeInvalidSTag || r != want {
				t.Errorf("after %d bytes: Terminate %+v with %+v, want %+v", sent, term, r, want)
			}
			if !bytes.Equal(term.DDP, req[:ddp.UntaggedHeaderLen]) || int(term.SegLen) != len(req) {
				t.Errorf("it quotes %x of %d bytes", term.DDP, term.SegLen)
			}
			break
		}
		if seg := p.next(); seg != nil { // section 5.4: nothing more, and a graceful end of the LLP (6.2.1)
			t.Errorf("after the Terminate: %x", seg)
		}
		p.raw.CloseWrite()
		p.wantEnd()
	})
}

// Section 7.1 rule 4: the first fault is the one that is reported.
func TestFirstFaultIsTold(t *testing.T) {
	p := start(t)
	p.raw.Send(tagged(true, rdmap.OpWrite, 0xaaaa, 0, 1), tagged(true, rdmap.OpWrite, 0xbbbb, 0, 1), untagged(true, rdmap.OpSend, 9, 1, 0))
	if term := p.wantTerminate(); ddp.Tagged(term.DDP).STag() != 0xaaaa {
		t.Errorf("Terminate %+v", term)
	}
	if seg := p.next(); seg != nil {
		t.Errorf("after the Terminate: %x", seg)
	}
	p.raw.CloseWrite()
	p.wantEnd()
}

// A Terminate is never answered by one, nor is one that is itself at fault; the
// caller is told what is wrong with it (sections 5.4 and 7.1).
func TestTerminateIsNeverAnswered(t *testing.T) {
	good := rdmap.Terminate{Layer: ddp.LayerDDP, Type: 2, Code: 5}
	quoting := good
	quoting.DDP, quoting.SegLen, quoting.RDMAP = untagged(true, rdmap.OpReadRequest, 1, 1, 0), 46, rdmap.ReadRequest{Size: 1}.Append(nil)
	for _, tc := range []struct {
		name  string
		seg   []byte
		fault *ddp.Error
	}{
		{"good", untagged(true, rdmap.OpTerminate, 2, 1, 0, good.Append(nil)...), nil},
		{"good, with headers", untagged(true, rdmap.OpTerminate, 2, 1, 0, quoting.Append(nil)...), nil},
		{"with less than it announces", untagged(true, rdmap.OpTerminate, 2, 1, 0, quoting.Append(nil)[:30]...), nil},
		{"with more than it announces", untagged(true, rdmap.OpTerminate, 2, 1, 0, append(good.Append(nil), make([]byte, 500)...)...), nil},
		{"MSN 2", untagged(true, rdmap.OpTerminate, 2, 2, 0, good.Append(nil)...), &ddp.Error{Layer: ddp.LayerDDP, Type: 2, Code: 3}},
		{"MO 4", untagged(true, rdmap.OpTerminate, 2, 1, 4, good.Append(nil)...), &ddp.Error{Layer: ddp.LayerDDP, Type: 2, Code: 4}},
		{"not the last segment", untagged(false, rdmap.OpTerminate, 2, 1, 0, good.Append(nil)...), &ddp.Error{Layer: ddp.LayerDDP, Type: 2, Code: 5}},
	} {
		for _, o := range []iwarptest.Options{{}, {Direct: true}, {Window: 10}} {
			p := open(t, rdmap.Config{}, o, nil)
			p.raw.Send(tc.seg, tagged(true, rdmap.OpWrite, 0xdead, 0, 1))
			if seg := p.next(); seg != nil {
				t.Errorf("%s: answered with %x", tc.name, seg)
			}
			var te *rdmap.TerminateError
			if err := p.wantEnd(); !errors.As(err, &te) || te.Terminate.Layer != good.Layer || te.Terminate.Type != good.Type || te.Terminate.Code != good.Code {
				t.Errorf("%s: ended with %v", tc.name, err)
			} else if (te.Fault == nil) != (tc.fault == nil) || tc.fault != nil && !errors.Is(err, tc.fault) {
				t.Errorf("%s: the fault is %v", tc.name, te.Fault)
			}
		}
	}
	for n := range 4 {
		p := start(t)
		p.raw.Send(untagged(true, rdmap.OpTerminate, 2, 1, 0, make([]byte, n)...))
		if seg := p.next(); seg != nil {
			t.Errorf("%d bytes: answered with %x", n, seg)
		}
		var te *rdmap.TerminateError
		if err := p.wantEnd(); !errors.As(err, &te) || te.Fault == nil {
			t.Errorf("%d bytes: ended with %v", n, err)
		}
	}
}

// A Terminate overtakes the rest of a long message: only what the LLP has been
// given goes first. A peer that takes little at a time still learns why.
func TestTerminateOvertakesALongMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, op := range map[string]rdmap.Op{
			"a Write":         sgl(rdmap.Op{Kind: rdmap.OpWrite, STag: 1}, make([]byte, 1<<20)),
			"a long Send":     sgl(rdmap.Op{Kind: rdmap.OpSend}, make([]byte, 1<<20)),
			"a Read Response": {},
		} {
			p := open(t, rdmap.Config{}, iwarptest.Options{MULPDU: 128}, nil)
			p.raw.Stall(true)
			if len(op.SGL) > 0 {
				p.post(op)
			} else {
				p.region(7, 1<<20, rdmap.RemoteRead)
				p.receive(1, 0)
				p.raw.Send(untagged(true, rdmap.OpReadRequest, 1, 1, 0, rdmap.ReadRequest{SinkSTag: 1, Size: 1 << 20, SourceSTag: 7}.Append(nil)...), untagged(true, rdmap.OpSend, 0, 1, 0))
				p.want("recv 1 Send 0")
			}
			p.raw.Send(untagged(true, rdmap.OpSend, 5, 1, 0))
			p.wantState(rdmap.Terminating)
			p.raw.Stall(false)
			n := 0
			for seg := p.next(); ; seg = p.next() {
				if seg == nil {
					t.Fatalf("%s: no Terminate", name)
				}
				if !ddp.IsTagged(seg) && ddp.Untagged(seg).QN() == rdmap.QNTerminate {
					break
				}
				n++
			}
			if n > 32 { // two batches of the LLP
				t.Errorf("%s: %d segments went before the Terminate", name, n)
			}
			p.raw.CloseWrite()
			p.wantEnd()
			if len(op.SGL) > 0 && p.errs[0] == nil {
				t.Errorf("%s that was cut short is reported as sent", name)
			}
		}
	})
}

// The end of a short Send is not worth cutting off: soft-iWARP would not
// understand it.
func TestTerminateLetsAShortSendGoFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := open(t, rdmap.Config{}, iwarptest.Options{MULPDU: 128}, nil)
		p.raw.Stall(true)
		p.post(sgl(rdmap.Op{Kind: rdmap.OpSend, ID: 1}, make([]byte, 8192)))
		p.raw.Send(untagged(true, rdmap.OpSend, 5, 1, 0))
		p.wantState(rdmap.Terminating)
		p.raw.Stall(false)
		n := 0
		for n < 8192 {
			seg := p.next()
			if _, op := rdmap.ParseControl(seg[1]); op != rdmap.OpSend {
				t.Fatalf("%v after %d bytes of a Send", op, n)
			}
			n += len(ddp.Untagged(seg).Payload())
		}
		p.wantTerminate()
		p.raw.CloseWrite()
		p.wantEnd()
		if p.errs[1] != nil {
			t.Errorf("the Send that was sent reports %v", p.errs[1])
		}
	})
}
