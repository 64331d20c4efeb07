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
		{Name: "write from a list", RFC: "RFC 5040 section 5.1", A: SGL, Core: true, run: writeLists},
		{Name: "write to the ends of a region", RFC: "RFC 5041 section 7.1", run: func(a, b *side) {
			src, dst := a.mem(300, 0), b.mem(300, LocalWrite|RemoteWrite)
			for _, p := range []span{{0, 1}, {299, 300}, {0, 300}, {299, 299}, {300, 300}} {
				src.fill()
				a.post(dst.remote(WR{Op: OpWrite, SGL: []SGE{src.at(p.from, p.to-p.from)}}, p.from))
				dst.expect(p.from, src.bytes(p.from, p.to-p.from))
				ping(a, b)
				dst.check()
			}
		}},
		{Name: "read", RFC: "RFC 5040 section 5.2", Core: true, run: readSizes},
		{Name: "read of nothing from no STag", RFC: "RFC 5040 section 7.2", run: func(a, b *side) {
			a.post(WR{Op: OpRead, Flags: Signaled, STag: noSTag(b), TO: 1 << 40})
			if wc := a.sent(OpRead); wc.Len != 0 {
				a.t.Errorf("end %s: read %d bytes of none", a.name, wc.Len)
			}
			ping(a, b)
		}},
		{Name: "read into a list", RFC: "RFC 5040 section 5.2", A: ReadSGL, Core: true, run: readLists},
		{Name: "read to the ends of a region", RFC: "RFC 5040 section 7.2", run: func(a, b *side) {
			sink, src := a.mem(300, LocalWrite), b.mem(300, RemoteRead)
			for _, p := range []span{{0, 1}, {299, 300}, {0, 300}} {
				a.post(src.remote(WR{Op: OpRead, Flags: Signaled, SGL: []SGE{sink.at(0, p.to-p.from)}}, p.from))
				sink.expect(0, src.bytes(p.from, p.to-p.from))
				a.sent(OpRead)
				sink.check()
			}
		}},
		{Name: "a region outlives its invalidation", RFC: "RFC 5040 section 5.3", A: SendInvalidate, B: SendInvalidate | Reopen, run: reopened},
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
	src := a.mem(most+2*margin, 0)
	for i, n := range sizes {
		dst := b.mem(n+2*margin, LocalWrite|RemoteWrite)
		a.post(dst.remote(WR{Op: OpWrite, Flags: Signaled, SGL: []SGE{src.at(margin+i, n)}}, margin))
		dst.expect(margin, src.bytes(margin+i, n))
		a.sent(OpWrite)
		ping(a, b)
		dst.check()
	}
}

func writeLists(a, b *side) {
	const n = 20000
	src, dst := a.mem(n+2000, 0), b.mem(n+2000, LocalWrite|RemoteWrite)
	for k := 2; k <= a.lim.SGEs; k++ {
		from, data := src.pieces(k, n-k, k)
		a.post(dst.remote(WR{Op: OpWrite, SGL: from}, 3*k))
		dst.expect(3*k, data)
		ping(a, b)
		dst.check()
	}
}

func readSizes(a, b *side) {
	sizes := b.sizes(taggedHeader)
	most := sizes[len(sizes)-1]
	src := b.mem(most+2*margin, RemoteRead)
	for i, n := range sizes {
		sink := a.mem(n+2*margin, LocalWrite)
		a.post(src.remote(WR{Op: OpRead, Flags: Signaled, SGL: []SGE{sink.at(margin, n)}}, margin+i))
		sink.expect(margin, src.bytes(margin+i, n))
		if wc := a.sent(OpRead); wc.Len != n {
			a.t.Errorf("end %s: read %d bytes, want %d", a.name, wc.Len, n)
		}
		sink.check()
	}
}

func readLists(a, b *side) {
	const n = 20000
	sink, src := a.mem(n+2000, LocalWrite), b.mem(n+2000, RemoteRead)
	for k := 2; k <= a.lim.SGEs; k++ {
		to, _ := sink.pieces(k, n-k, k)
		a.post(src.remote(WR{Op: OpRead, Flags: Signaled, SGL: to}, 3*k))
		sink.scatter(to, src.bytes(3*k, n-k))
		a.sent(OpRead)
		sink.check()
	}
}

// Memory whose STag the peer has invalidated can still be used locally, and
// opened again under another STag.
func reopened(a, b *side) {
	src, dst := a.mem(100, 0), b.mem(100, LocalWrite|RemoteWrite)
	for range 3 {
		old := dst.r.STag
		b.recv(dst.at(0, 50)) // local use
		a.post(WR{Op: OpSend, Flags: WithInvalidate, Invalidate: old, SGL: []SGE{src.at(0, 50)}})
		dst.expect(0, src.bytes(0, 50))
		b.wantInvalidated(b.message(50), old)
		dst.check()
		dst.reopen(LocalWrite | RemoteWrite)
		if dst.r.STag == old {
			b.t.Fatalf("end %s: the new STag is the old one, %#x", b.name, old)
		}
		src.fill()
		a.post(dst.remote(WR{Op: OpWrite, SGL: []SGE{src.at(0, 100)}}, 0))
		dst.expect(0, src.bytes(0, 100))
		ping(a, b)
		dst.check()
	}
}

// reopen gives the buffer a new STag.
func (b *buffer) reopen(access Access) {
	b.s.t.Helper()
	r, err := b.s.Endpoint.(Reopener).Reopen(b.r, access)
	b.s.check("register again", err)
	b.r = r
}
