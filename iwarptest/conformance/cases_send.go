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
	}
}

// sendSizes sends messages of all sizes with one kind of Send.
func sendSizes(a, b *side, kind Flags) {
	sizes := a.sizes(untaggedHeader)
	most := sizes[len(sizes)-1]
	src, dst := a.mem(most+2*margin, LocalWrite), b.mem(most+2*margin, LocalWrite)
	for i, n := range sizes {
		wr := WR{Op: OpSend, Flags: Signaled | kind, SGL: []SGE{src.at(margin+i, n)}}
		if kind&WithInvalidate != 0 {
			wr.Invalidate = b.mem(8, LocalWrite|RemoteWrite).r.STag
		}
		b.recv(dst.at(margin, n))
		a.post(wr)
		dst.expect(margin, src.bytes(margin+i, n))
		a.sent(OpSend)
		wc := b.message(n)
		if wc.Solicited != (kind&Solicited != 0) || wc.Invalidated != wr.Invalidate {
			b.t.Errorf("%d bytes: completion %+v, want solicited %v, invalidated %#x", n, wc, kind&Solicited != 0, wr.Invalidate)
		}
		dst.check()
	}
}
