package rdmap_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rdmap"
)

// Ordering and completions: RFC 5040 section 5.5, rule by rule. Rules 1 to 8
// leave things open; that early segments may be placed (3 to 6) is in
// early_test.go.

// Rules 9 and 14: a Send or Write is complete when the LLP has taken it, and not
// before. What the peer has done with it does not matter.
func TestCompleteWhenTheLLPHasIt(t *testing.T) {
	p := start(t)
	p.raw.Stall(true)
	p.post(sgl(rdmap.Op{Kind: rdmap.OpSend, ID: 1}, make([]byte, 4)))
	p.post(rdmap.Op{Kind: rdmap.OpImmediate, ID: 2})
	p.post(sgl(rdmap.Op{Kind: rdmap.OpWrite, ID: 3}, make([]byte, 4)))
	p.receive(1, 0)
	p.raw.Send(untagged(true, rdmap.OpSend, 0, 1, 0))
	p.want("recv 1 Send 0") // the stream lives, and nothing of ours is complete
	p.raw.Stall(false)
	p.want("done 1", "done 2", "done 3")
}

// Rules 10 and 16: Sends are delivered in the order in which they were sent,
// each when its last segment has come, and after the Writes before it.
func TestSendsAreDeliveredInOrder(t *testing.T) {
	for _, o := range []iwarptest.Options{{}, {Direct: true}} {
		p := open(t, rdmap.Config{}, o, nil)
		b1 := p.receive(1, 8)
		p.receive(2, 8)
		p.receive(3, 8)
		p.receive(4, 8)
		mem := p.region(7, 4, rdmap.RemoteWrite)
		p.region(probeSTag, 1, rdmap.RemoteWrite)
		p.raw.Send(untagged(false, rdmap.OpSend, 0, 1, 0, []byte("abc")...))
		p.raw.Send(tagged(true, rdmap.OpWrite, 7, 0, []byte("data")...), tagged(true, rdmap.OpWrite, probeSTag, 0, 1))
		// Direct asks for the place first, then places.
		if o.Direct {
			p.want("probe", "probe")
		} else {
			p.want("probe")
		}
		p.raw.Send(untagged(true, rdmap.OpSendSE, 0, 1, 3, []byte("de")...), untagged(true, rdmap.OpImmediate, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 9), untagged(true, rdmap.OpSend, 0, 3, 0))
		p.want("recv 1 Send with SE 5", "recv 2 Immediate Data 0 imm 0x9", "recv 3 Send 0")
		if string(b1[:5]) != "abcde" || string(mem) != "data" {
			t.Errorf("received %q, written %q", b1[:5], mem)
		}
	}
}

// Rules 11, 19 and 20: Reads complete in the order of the requests, each when
// the last byte of its response has been delivered.
func TestReadsCompleteWithTheirLastSegment(t *testing.T) {
	for _, o := range []iwarptest.Options{{}, {Direct: true}} {
		p := open(t, rdmap.Config{}, o, nil)
		p.region(probeSTag, 1, rdmap.RemoteWrite)
		sink := make([]byte, 8)
		p.post(sgl(rdmap.Op{Kind: rdmap.OpReadRequest, ID: 1}, sink[:3], sink[3:]))
		p.post(sgl(rdmap.Op{Kind: rdmap.OpReadRequest, ID: 2}, make([]byte, 1)))
		reqs := p.wantOps(rdmap.OpReadRequest, rdmap.OpReadRequest)
		r1, _ := rdmap.ParseReadRequest(reqs[0][ddp.UntaggedHeaderLen:])
		r2, _ := rdmap.ParseReadRequest(reqs[1][ddp.UntaggedHeaderLen:])
		p.raw.Send(tagged(false, rdmap.OpReadResponse, r1.SinkSTag, 0, []byte("abcd")...), tagged(true, rdmap.OpWrite, probeSTag, 0, 1))
		if o.Direct {
			p.want("probe", "probe")
		} else {
			p.want("probe")
		}
		p.raw.Send(tagged(true, rdmap.OpReadResponse, r1.SinkSTag, 4, []byte("efgh")...))
		p.want("done 1")
		if string(sink) != "abcdefgh" {
			t.Errorf("read %q", sink)
		}
		p.raw.Send(tagged(true, rdmap.OpReadResponse, r2.SinkSTag, 0, 'x'))
		p.want("done 2")
	}
}

// A response that skips a Read, or answers it otherwise than asked, is the
// peer's fault.
func TestReadResponsesThatDoNotFit(t *testing.T) {
	for name, tc := range map[string]struct {
		read int // 0: the Read that is due, 1: the one after it, 2: the Atomic
		to   uint64
		n    int
		last bool
		code uint8
	}{
		"the second Read's first":   {1, 0, 8, true, ddp.CodeTaggedInvalidSTag},
		"to an Atomic":              {2, 0, 8, true, ddp.CodeTaggedInvalidSTag},
		"not from the start":        {0, 1, 7, true, ddp.CodeTaggedBounds},
		"too long":                  {0, 0, 9, true, ddp.CodeTaggedBounds},
		"too short":                 {0, 0, 7, true, ddp.CodeTaggedBounds},
		"whole, but not at its end": {0, 0, 8, false, ddp.CodeTaggedBounds},
		"empty":                     {0, 0, 0, true, ddp.CodeTaggedBounds},
		"an offset that would wrap": {0, ^uint64(0), 8, true, ddp.CodeTaggedBounds},
		"an offset above 32 bits":   {0, 1 << 32, 8, true, ddp.CodeTaggedBounds},
	} {
		for _, o := range []iwarptest.Options{{}, {Direct: true}} {
			p := open(t, rdmap.Config{}, o, nil)
			var stags []uint32
			for id := range uint64(2) {
				p.post(sgl(rdmap.Op{Kind: rdmap.OpReadRequest, ID: id}, make([]byte, 8)))
				r, _ := rdmap.ParseReadRequest(p.wantOps(rdmap.OpReadRequest)[0][ddp.UntaggedHeaderLen:])
				stags = append(stags, r.SinkSTag)
			}
			p.post(rdmap.Op{Kind: rdmap.OpAtomicRequest, ID: 2})
			a, _ := rdmap.ParseAtomicRequest(p.wantOps(rdmap.OpAtomicRequest)[0][ddp.UntaggedHeaderLen:])
			stags = append(stags, a.ID)
			p.raw.Send(tagged(tc.last, rdmap.OpReadResponse, stags[tc.read], tc.to, make([]byte, tc.n)...))
			if term := p.wantTerminate(); term.Layer != ddp.LayerDDP || term.Type != ddp.TypeTagged || term.Code != tc.code {
				t.Errorf("%s: Terminate %+v", name, term)
			}
			p.raw.CloseWrite()
			p.wantEnd()
		}
	}
}

// Rule 12: the data written can be read back; the Request is not processed
// before what was sent ahead of it is in place.
func TestReadBringsWhatWasWritten(t *testing.T) {
	for _, o := range []iwarptest.Options{{}, {Direct: true}} {
		p := open(t, rdmap.Config{}, o, nil)
		p.region(7, 4, rdmap.RemoteWrite|rdmap.RemoteRead)
		p.raw.Send(tagged(false, rdmap.OpWrite, 7, 0, []byte("ab")...), tagged(true, rdmap.OpWrite, 7, 2, []byte("cd")...),
			untagged(true, rdmap.OpReadRequest, 1, 1, 0, rdmap.ReadRequest{Size: 4, SourceSTag: 7}.Append(nil)...))
		if got := ddp.Tagged(p.wantOps(rdmap.OpReadResponse)[0]).Payload(); string(got) != "abcd" {
			t.Errorf("read %q", got)
		}
	}
}

// Rule 12: a Send or Write behind a Read does not wait for it, unless it is
// fenced.
func TestFence(t *testing.T) {
	p := start(t)
	p.post(sgl(rdmap.Op{Kind: rdmap.OpReadRequest, ID: 1}, make([]byte, 1)))
	p.post(rdmap.Op{Kind: rdmap.OpAtomicRequest, ID: 2})
	p.post(rdmap.Op{Kind: rdmap.OpWrite, ID: 3})
	p.post(rdmap.Op{Kind: rdmap.OpSend, ID: 4, Fence: true})
	p.post(rdmap.Op{Kind: rdmap.OpWrite, ID: 5})
	segs := p.wantOps(rdmap.OpReadRequest, rdmap.OpAtomicRequest, rdmap.OpWrite)
	r, _ := rdmap.ParseReadRequest(segs[0][ddp.UntaggedHeaderLen:])
	a, _ := rdmap.ParseAtomicRequest(segs[1][ddp.UntaggedHeaderLen:])
	p.raw.Send(tagged(true, rdmap.OpReadResponse, r.SinkSTag, 0, 1))
	p.want("done 1")
	// One answer is missing: what is sent next is the answer to a Read of the
	// peer's, not the fenced Send.
	p.raw.Send(untagged(true, rdmap.OpReadRequest, 1, 1, 0, rdmap.ReadRequest{}.Append(nil)...))
	p.wantOps(rdmap.OpReadResponse)
	p.raw.Send(untagged(true, rdmap.OpAtomicResponse, 3, 1, 0, rdmap.AtomicResponse{ID: a.ID}.Append(nil)...))
	p.want("done 2", "done 3", "done 4", "done 5")
	p.wantOps(rdmap.OpSend, rdmap.OpWrite)
}

// Rule 13: messages are sent in the order of the posts, and the segments of one
// are together (RFC 5041 section 5.3).
func TestMessagesGoInOrder(t *testing.T) {
	p := open(t, rdmap.Config{MaxSend: 64, ORD: 32}, iwarptest.Options{MULPDU: 128}, nil)
	kinds := []rdmap.Opcode{rdmap.OpSend, rdmap.OpWrite, rdmap.OpImmediate, rdmap.OpReadRequest, rdmap.OpSendSE, rdmap.OpAtomicRequest, rdmap.OpImmediateSE, rdmap.OpSendSEInvalidate, rdmap.OpSendInvalidate}
	var want []rdmap.Opcode
	for i := range 3 {
		for k, kind := range kinds {
			op := rdmap.Op{Kind: kind, ID: uint64(10*i + k), STag: 77}
			n := 1
			if kind != rdmap.OpImmediate && kind != rdmap.OpImmediateSE && kind != rdmap.OpAtomicRequest && kind != rdmap.OpReadRequest {
				op, n = sgl(op, make([]byte, 300)), 3
			}
			p.postMore(op, true)
			for range n {
				want = append(want, kind)
			}
		}
	}
	p.s.Flush()
	msn := uint32(0)
	for i, seg := range p.wantOps(want...) {
		if _, op := rdmap.ParseControl(seg[1]); op == rdmap.OpWrite || ddp.Untagged(seg).QN() != 0 {
			continue
		} else if u := ddp.Untagged(seg); u.MO() == 0 {
			if msn++; u.MSN() != msn {
				t.Errorf("segment %d: MSN %d, want %d", i, u.MSN(), msn)
			}
			inv := uint32(0)
			if op == rdmap.OpSendInvalidate || op == rdmap.OpSendSEInvalidate {
				inv = 77
			}
			if u.ULPWord() != inv {
				t.Errorf("%v: Invalidate STag %d", op, u.ULPWord())
			}
		}
	}
}

// Rule 15: operations complete in the order of the posts.
func TestOperationsCompleteInOrder(t *testing.T) {
	p := start(t)
	p.post(sgl(rdmap.Op{Kind: rdmap.OpReadRequest, ID: 1}, make([]byte, 1)))
	p.post(rdmap.Op{Kind: rdmap.OpSend, ID: 2})
	p.post(rdmap.Op{Kind: rdmap.OpAtomicRequest, ID: 3})
	p.post(rdmap.Op{Kind: rdmap.OpWrite, ID: 4})
	segs := p.wantOps(rdmap.OpReadRequest, rdmap.OpSend, rdmap.OpAtomicRequest, rdmap.OpWrite)
	r, _ := rdmap.ParseReadRequest(segs[0][ddp.UntaggedHeaderLen:])
	a, _ := rdmap.ParseAtomicRequest(segs[2][ddp.UntaggedHeaderLen:])
	p.raw.Send(tagged(true, rdmap.OpReadResponse, r.SinkSTag, 0, 1))
	p.want("done 1", "done 2")
	p.raw.Send(untagged(true, rdmap.OpAtomicResponse, 3, 1, 0, rdmap.AtomicResponse{ID: a.ID}.Append(nil)...))
	p.want("done 3", "done 4")
}

// Rules 17 and 18: a Send is delivered though the answer to a Read before it is
// still to be sent.
func TestSendDoesNotWaitForReadResponses(t *testing.T) {
	p := start(t)
	p.region(7, 1<<20, rdmap.RemoteRead)
	p.receive(1, 0)
	p.raw.Stall(true)
	p.raw.Send(untagged(true, rdmap.OpReadRequest, 1, 1, 0, rdmap.ReadRequest{Size: 1 << 20, SourceSTag: 7}.Append(nil)...), untagged(true, rdmap.OpSend, 0, 1, 0))
	p.want("recv 1 Send 0")
	p.raw.Stall(false)
	p.wantOps(rdmap.OpReadResponse)
}

// Rule 20 and RFC 7306 section 5.2.2: answers go in the order of the requests,
// to the STags and from the offsets that each names.
func TestAnswersGoInOrder(t *testing.T) {
	p := open(t, rdmap.Config{MaxSend: 4, IRD: 8}, iwarptest.Options{MULPDU: 128}, nil)
	mem := p.region(7, 1000, rdmap.RemoteRead|rdmap.RemoteAtomic)
	for i := range mem {
		mem[i] = byte(i * 3)
	}
	word := binary.NativeEndian.Uint64(mem[8:])
	want := append([]byte(nil), mem...)
	read := func(msn, size uint32, to uint64) []byte {
		return untagged(true, rdmap.OpReadRequest, 1, msn, 0, rdmap.ReadRequest{SinkSTag: 100 + msn, SinkTO: 1 << 40, Size: size, SourceSTag: 7, SourceTO: to}.Append(nil)...)
	}
	p.raw.Send(read(1, 300, 500), untagged(true, rdmap.OpAtomicRequest, 1, 2, 0, rdmap.AtomicRequest{ID: 55, STag: 7, TO: 8}.Append(nil)...), read(3, 0, 0), read(4, 1, 999))
	segs := p.wantOps(rdmap.OpReadResponse, rdmap.OpReadResponse, rdmap.OpReadResponse, rdmap.OpAtomicResponse, rdmap.OpReadResponse, rdmap.OpReadResponse)
	var got []byte
	for _, i := range []int{0, 1, 2} {
		s := ddp.Tagged(segs[i])
		if s.STag() != 101 || s.TO() != 1<<40+uint64(len(got)) || s.Last() != (i == 2) {
			t.Errorf("segment %d: STag %d, TO %d, last %v", i, s.STag(), s.TO(), s.Last())
		}
		got = append(got, s.Payload()...)
	}
	if !bytes.Equal(got, want[500:800]) {
		t.Error("the first Read brings other bytes")
	}
	if a, ok := rdmap.ParseAtomicResponse(segs[3][ddp.UntaggedHeaderLen:]); !ok || a.ID != 55 || a.Original != word {
		t.Errorf("Atomic Response %+v", a)
	}
	if s := ddp.Tagged(segs[5]); ddp.Tagged(segs[4]).STag() != 103 || s.STag() != 104 || s.Payload()[0] != want[999] {
		t.Errorf("last answers %x, %x", segs[4], segs[5])
	}
}

// Section 6.1: no more requests are outstanding than the peer takes.
func TestORDIsNotExceeded(t *testing.T) {
	p := open(t, rdmap.Config{MaxSend: 16, IRD: 1, ORD: 2}, iwarptest.Options{}, nil)
	for id := range uint64(5) {
		if id%2 == 0 {
			p.post(sgl(rdmap.Op{Kind: rdmap.OpReadRequest, ID: id}, make([]byte, 1)))
		} else {
			p.post(rdmap.Op{Kind: rdmap.OpAtomicRequest, ID: id})
		}
	}
	atomics := uint32(0)
	var reqs [][]byte
	for id := range uint64(5) {
		// Two are under way, or what is left. What the stream sends next is not
		// another, but the answer to ours.
		if id == 0 {
			reqs = p.wantOps(rdmap.OpReadRequest, rdmap.OpAtomicRequest)
		} else if id < 4 {
			reqs = append(reqs, p.next())
		}
		p.raw.Send(untagged(true, rdmap.OpReadRequest, 1, uint32(id)+1, 0, rdmap.ReadRequest{}.Append(nil)...))
		p.wantOps(rdmap.OpReadResponse)
		seg := reqs[id]
		if id%2 == 0 {
			r, _ := rdmap.ParseReadRequest(seg[ddp.UntaggedHeaderLen:])
			p.raw.Send(tagged(true, rdmap.OpReadResponse, r.SinkSTag, 0, 1))
		} else {
			a, _ := rdmap.ParseAtomicRequest(seg[ddp.UntaggedHeaderLen:])
			atomics++
			p.raw.Send(untagged(true, rdmap.OpAtomicResponse, 3, atomics, 0, rdmap.AtomicResponse{ID: a.ID}.Append(nil)...))
		}
		p.wantOnce("done")
	}
}
