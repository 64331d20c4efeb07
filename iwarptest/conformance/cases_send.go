package conformance

// sizes are the lengths in bytes that messages of s are tried with, where a
// segment has a header of hdr bytes: none, one, an odd one, exactly a segment
// and one more, several segments, 1 MiB.
func (s *side) sizes(hdr int) []int {
	seg := s.lim.MULPDU - hdr
	if s.lim.MULPDU == 0 {
		seg = 1448 - 6 - hdr // the likeliest: Ethernet, with TCP's timestamps
	}
	return []int{0, 1, 3, seg, seg + 1, 3*seg + 7, 1 << 20}
}

const (
	taggedHeader   = 14 // RFC 5041 section 4.2
	untaggedHeader = 18 // RFC 5041 section 4.3
)

const margin = 100 // bytes of a region before and after what a case works on

func sendCases() []Case {
	return []Case{
		{Name: "send", RFC: "RFC 5040 section 5.3", Core: true, run: func(a, b *side) { sendSizes(a, b, 0) }},
		{Name: "send with solicited event", RFC: "RFC 5040 section 5.3", run: func(a, b *side) { sendSizes(a, b, Solicited) }},
		{Name: "send with invalidate", RFC: "RFC 5040 section 5.3", A: SendInvalidate, B: SendInvalidate,
			run: func(a, b *side) { sendSizes(a, b, WithInvalidate) }},
		{Name: "send with solicited event and invalidate", RFC: "RFC 5040 section 5.3", A: SendInvalidate, B: SendInvalidate,
			run: func(a, b *side) { sendSizes(a, b, Solicited|WithInvalidate) }},
		{Name: "send from a list into a list", RFC: "RFC 5041 section 5.1", A: SGL, B: SGL, Core: true, run: sendLists},
		{Name: "send into a longer receive", RFC: "RFC 5040 section 5.3", run: func(a, b *side) {
			src, dst := a.mem(3000, 0), b.mem(5000, LocalWrite)
			b.recv(dst.at(1000, 4000))
			a.post(WR{Op: OpSend, SGL: []SGE{src.at(0, 3000)}})
			dst.expect(1000, src.bytes(0, 3000))
			b.message(3000)
		}},
		{Name: "inline", RFC: "RFC 5040 section 5.5 rule 8", A: Inline, run: inline},
		{Name: "immediate data", RFC: "RFC 7306 section 6", A: Immediate, B: Immediate, Core: true, run: immediates},
	}
}

// sendSizes sends messages of all sizes with one kind of Send.
func sendSizes(a, b *side, kind Flags) {
	sizes := a.sizes(untaggedHeader)
	most := sizes[len(sizes)-1]
	src := a.mem(most+2*margin, LocalWrite)
	for i, n := range sizes {
		dst := b.mem(n+2*margin, LocalWrite)
		wr := WR{Op: OpSend, Flags: Signaled | kind, SGL: []SGE{src.at(margin+i, n)}}
		if kind&WithInvalidate != 0 {
			wr.Invalidate = b.mem(8, LocalWrite|RemoteWrite).r.STag
		}
		b.recv(dst.at(margin, n))
		a.post(wr)
		dst.expect(margin, src.bytes(margin+i, n))
		a.sent(OpSend)
		wc := b.message(n)
		b.wantSolicited(wc, kind&Solicited != 0)
		b.wantInvalidated(wc, wr.Invalidate)
		dst.check()
	}
}

// pieces cuts n bytes at off of a buffer into count pieces of unequal length
// with gaps between them, the second of three or more empty, and returns them with what
// the pieces must hold joined.
func (b *buffer) pieces(off, n, count int) (sgl []SGE, joined []byte) {
	for i := range count {
		k := n / count
		switch i {
		case count - 1:
			k = n
		case 0:
			k = min(n, 1)
		case 1:
			k = 0
		}
		sgl = append(sgl, b.at(off, k))
		joined = append(joined, b.bytes(off, k)...)
		off += k + 50
		n -= k
	}
	return sgl, joined
}

// scatter expects p in the elements of sgl, all of b.
func (b *buffer) scatter(sgl []SGE, p []byte) {
	for _, e := range sgl {
		k := min(e.Len, len(p))
		b.expect(e.Off, p[:k])
		p = p[k:]
	}
}

func sendLists(a, b *side) {
	const n = 20000
	src, dst := a.mem(n+2000, 0), b.mem(n+2000, LocalWrite)
	for k := 2; k <= min(a.lim.SGEs, b.lim.SGEs); k++ {
		from, data := src.pieces(k, n-k, k)
		to, _ := dst.pieces(2*k, n-k, b.lim.SGEs)
		b.recv(to...)
		a.post(WR{Op: OpSend, SGL: from})
		dst.scatter(to, data)
		b.message(n - k)
		dst.check()
	}
}

// The source of an inline send may be changed as soon as it is posted.
func inline(a, b *side) {
	src, dst := a.mem(a.lim.Inline, LocalWrite), b.mem(2*a.lim.Inline, LocalWrite|RemoteWrite)
	for _, n := range []int{1, a.lim.Inline / 2, a.lim.Inline} {
		b.recv(dst.at(0, n))
		b.recv()
		dst.expect(0, src.bytes(0, n))
		a.post(WR{Op: OpSend, Flags: FromInline | More, SGL: []SGE{src.at(0, n)}})
		src.fill()
		dst.expect(a.lim.Inline, src.bytes(0, n))
		a.post(dst.remote(WR{Op: OpWrite, Flags: FromInline | More, SGL: []SGE{src.at(0, n)}}, a.lim.Inline))
		src.fill()
		a.post(WR{Op: OpSend, Flags: Signaled})
		b.message(n)
		b.message(0)
		dst.check()
		a.sent(OpSend)
	}
}

// Immediate Data takes a receive each, in order with Sends, and marks it when
// solicited; a Write before it is in place when it arrives.
func immediates(a, b *side) {
	const n = 5000
	src, dst := a.mem(n, 0), b.mem(n, LocalWrite|RemoteWrite)
	buf := b.mem(64, LocalWrite)
	for i, flags := range []Flags{0, Solicited, 0, Solicited} {
		src.fill()
		imm := 0xfeedface00000000 | uint64(i)
		b.recvNothing(2)
		a.post(dst.remote(WR{Op: OpWrite, Flags: More, SGL: []SGE{src.at(0, n)}}, 0))
		a.post(WR{Op: OpImmediate, Flags: Signaled | flags, Imm: imm})
		a.post(WR{Op: OpSend, Flags: Signaled})
		dst.expect(0, src.bytes(0, n))
		wc := b.received(OpRecvImmediate)
		if wc.Imm != imm {
			b.t.Errorf("end %s: Immediate Data %#x, want %#x", b.name, wc.Imm, imm)
		}
		b.wantSolicited(wc, flags&Solicited != 0)
		dst.check()
		b.message(0)
		a.sent(OpImmediate)
		a.sent(OpSend)
	}
	buf.open(0, 8) // the end may or may not place the 8 bytes as well
	b.recv(buf.at(0, 64))
	a.post(WR{Op: OpImmediate, Imm: 7})
	if wc := b.received(OpRecvImmediate); wc.Imm != 7 {
		b.t.Errorf("end %s: Immediate Data %#x, want 7", b.name, wc.Imm)
	}
}
