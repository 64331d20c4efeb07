package rdmap_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rdmap"
)

// Placement out of order with delivery in order: RFC 5041 sections 5.3 and 5.4,
// RFC 5040 section 5.5.

// unordered starts a stream on an LLP that delivers in the order in which the
// test sends numbered segments.
func unordered(t testing.TB) *peer {
	t.Helper()
	p := open(t, rdmap.Config{}, iwarptest.Options{Window: 100}, nil)
	p.region(probeSTag, 1, rdmap.RemoteWrite)
	return p
}

func (p *peer) sendAt(n int, seg []byte) {
	p.t.Helper()
	if err := p.raw.SendNumbered(uint16(n), seg); err != nil {
		p.t.Fatal(err)
	}
}

// sendEarly sends segments as number 1 and on, and waits until they have been
// taken. Number 0 is missing, so nothing may have been delivered.
func (p *peer) sendEarly(segs ...[]byte) {
	p.t.Helper()
	for i, seg := range segs {
		p.sendAt(i+1, seg)
	}
	p.sendAt(len(segs)+1, tagged(true, rdmap.OpWrite, probeSTag, 0, 1))
	p.want("probe")
}

func TestLateSegmentHoldsBackDeliveryNotPlacement(t *testing.T) {
	p := unordered(t)
	b1, b2, b3 := p.receive(1, 8), p.receive(2, 8), p.receive(3, 8)
	win := p.region(7, 8, rdmap.RemoteWrite)
	p.sendEarly(
		untagged(true, rdmap.OpSend, 0, 2, 4, []byte("efgh")...),
		untagged(true, rdmap.OpSendSE, 0, 3, 0, []byte("ijk")...),
		tagged(true, rdmap.OpWrite, 7, 2, []byte("lm")...),
	)
	if string(b1) != "\x00\x00\x00\x00\x00\x00\x00\x00" || string(b2) != "\x00\x00\x00\x00efgh" || string(b3[:3]) != "ijk" || string(win[2:4]) != "lm" {
		t.Errorf("placed %q, %q, %q, %q", b1, b2, b3, win)
	}
	p.raw.Close()
	p.wantEnd()
	if len(p.taken) != 3 || p.news != nil {
		t.Errorf("%d buffers are taken, the upper has heard %q", len(p.taken), p.news)
	}
}

func TestDeliveryIsInOrder(t *testing.T) {
	p := unordered(t)
	var bufs [4][]byte
	for i := range bufs {
		bufs[i] = p.receive(uint64(i+1), 8)
	}
	p.sendEarly(
		untagged(true, rdmap.OpSend, 0, 1, 4, []byte("efgh")...),
		untagged(true, rdmap.OpImmediateSE, 0, 2, 0, 1, 2, 3, 4, 5, 6, 7, 8),
		untagged(true, rdmap.OpSendSE, 0, 3, 0),
	)
	p.sendAt(0, untagged(false, rdmap.OpSend, 0, 1, 0, []byte("abcd")...))
	p.want("recv 1 Send 8", "recv 2 Immediate Data with SE 0 imm 0x102030405060708", "recv 3 Send with SE 0")
	if string(bufs[0]) != "abcdefgh" {
		t.Errorf("received %q", bufs[0])
	}
	p.sendAt(5, untagged(true, rdmap.OpSend, 0, 4, 0, 'z'))
	p.want("recv 4 Send 1")
}

// A receive of several pieces is filled across them from any offset.
func TestEarlySegmentsScatter(t *testing.T) {
	p := unordered(t)
	a, b, c := make([]byte, 3), make([]byte, 1), make([]byte, 4)
	r := &rdmap.RecvBuffer{ID: 1, Len: 8, SGL: [][]byte{a, b, c}}
	p.recvs = append(p.recvs, r)
	p.sendEarly(untagged(true, rdmap.OpSend, 0, 1, 5, []byte("fgh")...), untagged(false, rdmap.OpSend, 0, 1, 2, []byte("cde")...))
	if got := string(a) + string(b) + string(c); got != "\x00\x00cdefgh" {
		t.Errorf("placed %q", got)
	}
}

// RFC 5040 section 5.5 rules 6, 11 and 19.
func TestEarlyReadResponsesArePlacedAndCompleteInOrder(t *testing.T) {
	p := unordered(t)
	sink1, sink2 := make([]byte, 6), make([]byte, 2)
	p.post(sgl(rdmap.Op{Kind: rdmap.OpReadRequest, ID: 1}, sink1[:2], sink1[2:]))
	p.post(sgl(rdmap.Op{Kind: rdmap.OpReadRequest, ID: 2}, sink2))
	p.post(rdmap.Op{Kind: rdmap.OpAtomicRequest, ID: 3})
	reqs := p.wantOps(rdmap.OpReadRequest, rdmap.OpReadRequest, rdmap.OpAtomicRequest)
	r1, _ := rdmap.ParseReadRequest(reqs[0][ddp.UntaggedHeaderLen:])
	r2, _ := rdmap.ParseReadRequest(reqs[1][ddp.UntaggedHeaderLen:])
	at, _ := rdmap.ParseAtomicRequest(reqs[2][ddp.UntaggedHeaderLen:])
	p.sendEarly(
		tagged(true, rdmap.OpReadResponse, r1.SinkSTag, 3, []byte("def")...),
		tagged(true, rdmap.OpReadResponse, r2.SinkSTag, 0, []byte("gh")...),
		untagged(true, rdmap.OpAtomicResponse, 3, 1, 0, rdmap.AtomicResponse{ID: at.ID, Original: 5}.Append(nil)...),
	)
	if string(sink1) != "\x00\x00\x00def" || string(sink2) != "gh" {
		t.Errorf("placed %q, %q", sink1, sink2)
	}
	p.sendAt(0, tagged(false, rdmap.OpReadResponse, r1.SinkSTag, 0, []byte("abc")...))
	p.want("done 1", "done 2", "done 3")
	if string(sink1) != "abcdef" {
		t.Errorf("read %q", sink1)
	}
}

// RFC 5040 section 5.5 rules 12 and 17, RFC 7306 section 5.4 rules 3 and 5:
// requests that come early are carried out in their turn, and see what was sent
// before them.
func TestEarlyRequestsWaitForTheirTurn(t *testing.T) {
	p := unordered(t)
	mem := p.region(7, 8, rdmap.RemoteWrite|rdmap.RemoteRead|rdmap.RemoteAtomic)
	word := make([]byte, 8)
	binary.NativeEndian.PutUint64(word, 40)
	p.sendEarly(
		untagged(true, rdmap.OpAtomicRequest, 1, 1, 0, rdmap.AtomicRequest{ID: 9, STag: 7, AddSwap: 2}.Append(nil)...),
		untagged(true, rdmap.OpReadRequest, 1, 2, 0, rdmap.ReadRequest{SinkSTag: 3, Size: 8, SourceSTag: 7}.Append(nil)...),
	)
	if binary.NativeEndian.Uint64(mem) != 0 {
		t.Error("an Atomic is carried out ahead of its turn")
	}
	p.sendAt(0, tagged(true, rdmap.OpWrite, 7, 0, word...))
	answers := p.wantOps(rdmap.OpAtomicResponse, rdmap.OpReadResponse)
	if a, _ := rdmap.ParseAtomicResponse(answers[0][ddp.UntaggedHeaderLen:]); a.Original != 40 {
		t.Errorf("the Atomic found %d", a.Original)
	}
	if v := binary.NativeEndian.Uint64(answers[1][ddp.TaggedHeaderLen:]); v != 42 {
		t.Errorf("the Read brings %d", v)
	}
}

func TestEarlyInvalidateWaitsForItsTurn(t *testing.T) {
	p := unordered(t)
	p.receive(1, 0)
	p.region(7, 8, rdmap.RemoteWrite)
	p.sendEarly(ddp.AppendUntagged(nil, true, rdmap.Control(rdmap.OpSendInvalidate), 7, 0, 1, 0))
	p.sendAt(0, tagged(true, rdmap.OpWrite, 7, 0, 1))
	p.want("recv 1 Send with Invalidate 0 inv 0x7")
}

func TestEarlyTerminateWaitsForItsTurn(t *testing.T) {
	p := unordered(t)
	p.receive(1, 0)
	p.sendEarly(untagged(true, rdmap.OpTerminate, 2, 1, 0, rdmap.Terminate{Layer: ddp.LayerDDP, Type: 1, Code: 1}.Append(nil)...))
	p.sendAt(0, untagged(true, rdmap.OpSend, 0, 1, 0))
	p.want("recv 1 Send 0")
	var te *rdmap.TerminateError
	if err := p.wantEnd(); !errors.As(err, &te) || te.Terminate.Code != 1 {
		t.Errorf("ended with %v", err)
	}
}

// What is wrong with an early segment ends the stream in its turn, as it would
// have done in order: number 0 of each is a Send, which is delivered first. The
// codes are those of RFC 5041 section 7.2.
func TestEarlyFaults(t *testing.T) {
	send := func(msn, mo uint32, n int) []byte {
		return untagged(true, rdmap.OpSend, 0, msn, mo, make([]byte, n)...)
	}
	part := func(msn, mo uint32, n int) []byte {
		return untagged(false, rdmap.OpSend, 0, msn, mo, make([]byte, n)...)
	}
	for _, tc := range []struct {
		name string
		segs [][]byte
		bad  int // the one at fault
		want ddp.Error
	}{
		{"a segment twice", [][]byte{part(2, 0, 4), part(2, 0, 4)}, 1, ddp.Error{Layer: 1, Type: 2, Code: 4}},
		{"segments that overlap", [][]byte{part(2, 0, 4), send(2, 3, 4)}, 1, ddp.Error{Layer: 1, Type: 2, Code: 4}},
		{"a gap between segments", [][]byte{part(2, 0, 4), send(2, 5, 3)}, 1, ddp.Error{Layer: 1, Type: 2, Code: 4}},
		{"a message twice", [][]byte{send(2, 0, 4), send(2, 0, 4)}, 1, ddp.Error{Layer: 1, Type: 2, Code: 3}},
		{"a message left out", [][]byte{send(3, 0, 4), send(2, 0, 4)}, 0, ddp.Error{Layer: 1, Type: 2, Code: 3}},
		{"a message further ahead than segments", [][]byte{send(3, 0, 4)}, 0, ddp.Error{Layer: 1, Type: 2, Code: 3}},
		{"a message of the past", [][]byte{send(0, 0, 4)}, 0, ddp.Error{Layer: 1, Type: 2, Code: 3}},
		{"more messages than buffers", [][]byte{send(2, 0, 1), send(3, 0, 1), send(4, 0, 1)}, 2, ddp.Error{Layer: 1, Type: 2, Code: 2}},
		{"longer than the buffer", [][]byte{send(2, 0, 9)}, 0, ddp.Error{Layer: 1, Type: 2, Code: 5}},
		{"the end past the buffer's", [][]byte{part(2, 0, 8), send(2, 8, 1)}, 1, ddp.Error{Layer: 1, Type: 2, Code: 5}},
		{"an offset past the buffer", [][]byte{send(2, 9, 1)}, 0, ddp.Error{Layer: 1, Type: 2, Code: 4}},
		{"an offset at the end of 32 bits", [][]byte{send(2, 0xffffffff, 2)}, 0, ddp.Error{Layer: 1, Type: 2, Code: 4}},
		{"a queue that there is not", [][]byte{untagged(true, rdmap.OpSend, 4, 1, 0)}, 0, ddp.Error{Layer: 1, Type: 2, Code: 1}},
		{"DDP version 2", [][]byte{{0x42, 0x43, 17: 0}}, 0, ddp.Error{Layer: 1, Type: 2, Code: 6}},
		{"DDP version 0, tagged", [][]byte{{0xc0, 0x40, 13: 0}}, 0, ddp.Error{Layer: 1, Type: 1, Code: 4}},
		{"too short", [][]byte{{0x41, 0x43}}, 0, ddp.Error{Layer: 0, Type: 2, Code: 0xff}},
		{"a Write to no STag", [][]byte{tagged(true, rdmap.OpWrite, 1, 0, 1)}, 0, ddp.Error{Layer: 1, Type: 1, Code: 0}},
		{"a Read Response to no STag", [][]byte{tagged(true, rdmap.OpReadResponse, 1, 0, 1)}, 0, ddp.Error{Layer: 1, Type: 1, Code: 0}},
		{"a request of a wrong length", [][]byte{untagged(true, rdmap.OpReadRequest, 1, 1, 0, make([]byte, 1000)...)}, 0, ddp.Error{Layer: 0, Type: 2, Code: 0xff}},
		{"Immediate Data of a wrong length", [][]byte{untagged(true, rdmap.OpImmediate, 0, 2, 0, make([]byte, 9)...)}, 0, ddp.Error{Layer: 0, Type: 2, Code: 0xff}},
		{"the first fault counts", [][]byte{send(2, 0, 9), tagged(true, rdmap.OpWrite, 1, 0, 1)}, 0, ddp.Error{Layer: 1, Type: 2, Code: 5}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := unordered(t)
			for id := range uint64(3) {
				p.receive(id+1, 8)
			}
			for i := len(tc.segs) - 1; i >= 0; i-- {
				p.sendAt(i+1, tc.segs[i])
			}
			p.sendAt(0, send(1, 0, 0))
			term := p.wantTerminate()
			if term.Layer != tc.want.Layer || term.Type != tc.want.Type || term.Code != tc.want.Code {
				t.Errorf("Terminate %v, %d.%#x, want %v", term.Layer, term.Type, term.Code, tc.want)
			}
			if n := ddp.HeaderLen(tc.segs[tc.bad]); n > 0 && (string(term.DDP) != string(tc.segs[tc.bad][:n]) || int(term.SegLen) != len(tc.segs[tc.bad])) {
				t.Errorf("it quotes %x of %d bytes, want %x of %d", term.DDP, term.SegLen, tc.segs[tc.bad][:n], len(tc.segs[tc.bad]))
			}
			p.raw.CloseWrite()
			if err := p.wantEnd(); !errors.Is(err, &tc.want) {
				t.Errorf("ended with %v", err)
			}
			if p.news[0] != "recv 1 Send 0" {
				t.Errorf("the upper has heard %q", p.news)
			}
		})
	}
}

// Read Responses that are wrong in more than their STag.
func TestEarlyReadResponseFaults(t *testing.T) {
	for _, tc := range []struct {
		name string
		to   uint64
		n    int
		last bool
		code uint8
	}{
		{"past the sink", 4, 5, true, ddp.CodeTaggedBounds},
		{"an offset that wraps", ^uint64(0), 2, true, ddp.CodeTaggedTOWrap},
		{"a gap", 5, 3, true, ddp.CodeTaggedBounds},
		{"an overlap", 3, 5, true, ddp.CodeTaggedBounds},
		{"no end", 4, 4, false, ddp.CodeTaggedBounds},
		{"an early end", 4, 3, true, ddp.CodeTaggedBounds},
	} {
		p := unordered(t)
		p.post(sgl(rdmap.Op{Kind: rdmap.OpReadRequest, ID: 1}, make([]byte, 8)))
		req, _ := rdmap.ParseReadRequest(p.wantOps(rdmap.OpReadRequest)[0][ddp.UntaggedHeaderLen:])
		p.sendAt(1, tagged(tc.last, rdmap.OpReadResponse, req.SinkSTag, tc.to, make([]byte, tc.n)...))
		p.sendAt(0, tagged(false, rdmap.OpReadResponse, req.SinkSTag, 0, make([]byte, 4)...))
		if term := p.wantTerminate(); term.Layer != ddp.LayerDDP || term.Type != ddp.TypeTagged || term.Code != tc.code {
			t.Errorf("%s: Terminate %+v", tc.name, term)
		}
		p.raw.CloseWrite()
		p.wantEnd()
	}
}

// A number of the LLP that has been there is the LLP's fault, for which there
// is no Terminate (RFC 5040 section 4.8, RFC 5043 section 10).
func TestSegmentNumberTwice(t *testing.T) {
	for _, n := range []int{0, 2, 102} {
		p := unordered(t)
		p.sendAt(0, tagged(true, rdmap.OpWrite, probeSTag, 0, 1))
		p.sendAt(2, tagged(true, rdmap.OpWrite, probeSTag, 0, 1))
		p.sendAt(n, tagged(true, rdmap.OpWrite, probeSTag, 0, 1))
		var se *ddp.SequenceError
		if err := p.wantEnd(); !errors.As(err, &se) || int(se.SSN) != n {
			t.Errorf("number %d: ended with %v", n, err)
		}
		if seg := p.next(); seg != nil {
			t.Errorf("number %d: answered with %x", n, seg)
		}
	}
}

// A graceful end with a segment missing before it is none.
func TestEndWithASegmentMissing(t *testing.T) {
	p := unordered(t)
	p.receive(1, 0)
	p.receive(2, 0)
	p.sendEarly(untagged(true, rdmap.OpSend, 0, 2, 0))
	p.raw.CloseWrite()
	if err := p.wantEnd(); err == nil || errors.Is(err, rdmap.ErrPeerClosed) {
		t.Errorf("ended with %v", err)
	}
}

// Random messages in a random order leave what they leave in order: the same
// deliveries and completions in the same order, the same memory, the same
// answers.
func TestAnyOrderEndsTheSame(t *testing.T) {
	for seed := range uint64(40) {
		var results [2]string
		for i, shuffled := range []bool{false, true} {
			r := rand.New(rand.NewPCG(seed, 1))
			p := open(t, rdmap.Config{MaxSend: 16, IRD: 64, ORD: 16}, iwarptest.Options{Window: 200}, nil)
			mem := p.region(7, 256, rdmap.RemoteWrite|rdmap.RemoteRead|rdmap.RemoteAtomic)
			var bufs [][]byte
			var sinks [][]byte
			var answers [][]byte // to our Reads
			for id := range uint64(8) {
				sink := make([]byte, r.IntN(40))
				p.post(sgl(rdmap.Op{Kind: rdmap.OpReadRequest, ID: 100 + id}, sink))
				req, _ := rdmap.ParseReadRequest(p.wantOps(rdmap.OpReadRequest)[0][ddp.UntaggedHeaderLen:])
				sinks = append(sinks, sink)
				answers = append(answers, cut(r, len(sink), func(last bool, off int, b []byte) []byte {
					return tagged(last, rdmap.OpReadResponse, req.SinkSTag, uint64(off), b...)
				})...)
			}
			var segs [][]byte
			q0, q1 := uint32(1), uint32(1)
			for range 40 {
				switch r.IntN(5) {
				case 0:
					bufs = append(bufs, p.receive(uint64(q0), 64))
					segs = append(segs, cut(r, r.IntN(65), func(last bool, off int, b []byte) []byte {
						return untagged(last, rdmap.OpSend, 0, q0, uint32(off), b...)
					})...)
					q0++
				case 1:
					p.receive(uint64(q0), 0)
					segs = append(segs, untagged(true, rdmap.OpImmediate, 0, q0, 0, 0, 0, 0, 0, 0, 0, 0, byte(r.IntN(255)+1)))
					q0++
				case 2: // each Write has its place: what overlaps is indeterminate (rule 3)
					at := uint64(len(segs) % 120)
					segs = append(segs, tagged(true, rdmap.OpWrite, 7, 2*at+8, byte(at)))
				case 3:
					segs = append(segs, untagged(true, rdmap.OpAtomicRequest, 1, q1, 0, rdmap.AtomicRequest{ID: q1, STag: 7, AddSwap: r.Uint64()}.Append(nil)...))
					q1++
				default:
					if len(answers) > 0 {
						segs, answers = append(segs, answers[0]), answers[1:]
					}
				}
			}
			segs = append(segs, answers...)
			order := make([]int, len(segs))
			for i := range order {
				order[i] = i
			}
			if shuffled {
				r.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
			}
			for _, n := range order {
				p.sendAt(n, segs[n])
			}
			for range q1 - 1 {
				results[i] += fmt.Sprintf("%x ", p.wantOps(rdmap.OpAtomicResponse)[0])
			}
			p.raw.CloseWrite()
			results[i] += fmt.Sprintf("%v %q %x %x %x", p.wantEnd(), p.news, mem, bufs, sinks)
		}
		if results[0] != results[1] {
			t.Fatalf("seed %d: in order\n%s, shuffled\n%s", seed, results[0], results[1])
		}
	}
}

// cut makes the segments of a message of n random bytes.
func cut(r *rand.Rand, n int, seg func(last bool, off int, b []byte) []byte) (segs [][]byte) {
	for off := 0; ; {
		b := make([]byte, min(n-off, 1+r.IntN(20)))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		segs = append(segs, seg(off+len(b) == n, off, b))
		if off += len(b); off == n {
			return segs
		}
	}
}
