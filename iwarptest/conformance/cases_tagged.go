package conformance

// noSTag is an STag that nothing has.
func noSTag(s *side) uint32 {
	r := s.mem(8, LocalWrite|RemoteWrite).r
	return r.STag ^ 0x00abcd00
}

func taggedCases() []Case {
	return []Case{
		{Name: "write", RFC: "RFC 5040 section 5.1", Core: true, run: writeSizes},
		{Name: "write of nothing to no STag", RFC: "RFC 5041 section 5.2.1", run: func(a, b *side) {
			a.post(WR{Op: OpWrite, Flags: Signaled, STag: noSTag(b), TO: 1 << 40})
			a.sent(OpWrite)
			ping(a, b)
		}},
		{Name: "read", RFC: "RFC 5040 section 5.2", Core: true, run: readSizes},
		{Name: "read of nothing from no STag", RFC: "RFC 5040 section 7.2", run: func(a, b *side) {
			a.post(WR{Op: OpRead, Flags: Signaled, STag: noSTag(b), TO: 1 << 40})
			if wc := a.sent(OpRead); wc.Len != 0 {
				a.t.Errorf("read %d bytes", wc.Len)
			}
			ping(a, b)
		}},
	}
}

// ping shows that the stream lives and that what a has posted is done at b.
func ping(a, b *side) {
	a.t.Helper()
	b.recv()
	a.post(WR{Op: OpSend, Flags: Signaled})
	a.sent(OpSend)
	b.message(0)
}

func writeSizes(a, b *side) {
	sizes := a.sizes(taggedHeader)
	most := sizes[len(sizes)-1]
	src, dst := a.mem(most+2*margin, 0), b.mem(most+2*margin, LocalWrite|RemoteWrite)
	for i, n := range sizes {
		a.post(dst.remote(WR{Op: OpWrite, Flags: Signaled, SGL: []SGE{src.at(margin+i, n)}}, margin))
		dst.expect(margin, src.bytes(margin+i, n))
		a.sent(OpWrite)
		ping(a, b)
		dst.check()
	}
}

func readSizes(a, b *side) {
	sizes := b.sizes(taggedHeader)
	most := sizes[len(sizes)-1]
	sink, src := a.mem(most+2*margin, LocalWrite), b.mem(most+2*margin, RemoteRead)
	for i, n := range sizes {
		a.post(src.remote(WR{Op: OpRead, Flags: Signaled, SGL: []SGE{sink.at(margin, n)}}, margin+i))
		sink.expect(margin, src.bytes(margin+i, n))
		if wc := a.sent(OpRead); wc.Len != n {
			a.t.Errorf("read %d bytes, want %d", wc.Len, n)
		}
		sink.check()
	}
}
