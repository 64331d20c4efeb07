package conformance

func orderCases() []Case {
	return []Case{
		{Name: "more reads than ORD", RFC: "RFC 5040 section 6.1", Core: true, run: readsBeyondORD},
		{Name: "sends arrive in order", RFC: "RFC 5040 section 5.5 rule 10", Core: true, run: sendsInOrder},
		{Name: "mixed operations complete in order", RFC: "RFC 5040 section 5.5 rules 13 and 15", Core: true, run: mixed},
		{Name: "unsignaled operations are silent", RFC: "RFC 5040 section 5.5 rule 15", run: unsignaled},
		{Name: "send after write shows the data", RFC: "RFC 5040 section 5.5 rules 5 and 10", Core: true, run: sendAfterWrite},
		{Name: "read after write brings the data", RFC: "RFC 5040 section 5.5 rule 12", Core: true, run: readAfterWrite},
		{Name: "fenced write waits for the read", RFC: "RFC 5040 section 5.5 rule 12", A: Fence, Core: true, run: fencedWrite},
		{Name: "fenced send waits for the read", RFC: "RFC 5040 section 5.5 rule 18", A: Fence, run: fencedSend},
		{Name: "both directions under load", RFC: "RFC 5040 section 5.5 rule 2", Core: true, run: func(a, b *side) { load([]*side{a, b}, []*side{b, a}, 8) }},
		{Name: "several streams under load", RFC: "RFC 5040 section 5.5 rule 1", connect: func(k *connector) {
			var from, to []*side
			for range 4 {
				a, b := k.pair()
				from, to = append(from, a, b), append(to, b, a)
			}
			load(from, to, 3)
		}},
	}
}

// More Reads than the peer holds wait here and are all answered, in order (RFC
// 5040 section 5.5 rules 15 and 20).
func readsBeyondORD(a, b *side) {
	n := a.lim.MaxSend - 1
	const piece = 1000
	sink, src := a.mem(n*piece, LocalWrite), b.mem(n*piece, RemoteRead)
	for i := range n {
		a.post(src.remote(WR{Op: OpRead, Flags: Signaled, SGL: []SGE{sink.at(i*piece, piece-i)}}, i*piece))
		sink.expect(i*piece, src.bytes(i*piece, piece-i))
	}
	for range n {
		a.sent(OpRead)
	}
	sink.check()
}

func sendsInOrder(a, b *side) {
	n := min(a.lim.MaxSend, b.lim.MaxRecv) - 1
	const slot = 4000
	src, dst := a.mem(slot, 0), b.mem(n*slot, LocalWrite)
	size := func(i int) int { return i * 977 % slot }
	for i := range n {
		b.recv(dst.at(i*slot, slot))
	}
	for i := range n {
		a.post(WR{Op: OpSend, Flags: Signaled | More, SGL: []SGE{src.at(0, size(i))}})
		dst.expect(i*slot, src.bytes(0, size(i)))
	}
	ping(a, b) // takes a's completions in order and b's first message of no bytes
	for i := range n - 1 {
		b.message(size(i + 1))
		a.sent(OpSend)
	}
	b.message(0)
	a.sent(OpSend)
}

// A Read that takes long does not let what was posted behind it complete first.
func mixed(a, b *side) {
	const big = 1 << 18
	src, sink := a.mem(5000, 0), a.mem(big, LocalWrite)
	dst, from := b.mem(5000, LocalWrite|RemoteWrite), b.mem(big, RemoteRead)
	read := func(n int) WR {
		sink.expect(0, from.bytes(0, n))
		return from.remote(WR{Op: OpRead, Flags: Signaled, SGL: []SGE{sink.at(0, n)}}, 0)
	}
	write := dst.remote(WR{Op: OpWrite, Flags: Signaled, SGL: []SGE{src.at(0, 5000)}}, 0)
	send := WR{Op: OpSend, Flags: Signaled, SGL: []SGE{src.at(0, 10)}}
	posts := []WR{read(big), write, send, read(1), read(3000), send, write, read(0), send, write, read(big)}
	if !b.Can(EmptyReads) {
		posts[7] = read(2)
	}
	dst.expect(0, src.bytes(0, 5000))
	for range 3 {
		buf := b.mem(10, LocalWrite)
		b.recv(buf.at(0, 10))
		buf.expect(0, src.bytes(0, 10))
	}
	for _, wr := range posts {
		a.post(wr)
	}
	for _, wr := range posts {
		if wc := a.sent(wr.Op); wr.Op == OpRead && wc.Len != wr.SGL[0].Len {
			a.t.Errorf("end %s: read %d bytes, want %d", a.name, wc.Len, wr.SGL[0].Len)
		}
	}
	for range 3 {
		b.message(10)
	}
}

// Only the signaled operation of each round has a completion.
func unsignaled(a, b *side) {
	n := a.lim.MaxSend - 1
	src, dst := a.mem(64, 0), b.mem(64*64, LocalWrite|RemoteWrite)
	for range 3 {
		src.fill()
		for i := range n - 1 {
			a.post(dst.remote(WR{Op: OpWrite, SGL: []SGE{src.at(0, 64)}}, i%64*64))
			dst.expect(i%64*64, src.bytes(0, 64))
		}
		ping(a, b)
		dst.check()
	}
}

// When a Send has been delivered, the data of the Writes before it can be read.
func sendAfterWrite(a, b *side) {
	const n, rounds = 70000, 12
	src, dst := a.mem(n, 0), b.mem(n, LocalWrite|RemoteWrite)
	for i := range rounds {
		src.fill()
		b.recv()
		a.post(dst.remote(WR{Op: OpWrite, Flags: More, SGL: []SGE{src.at(0, n-i)}}, i))
		a.post(WR{Op: OpSend, Flags: Signaled})
		dst.expect(i, src.bytes(0, n-i))
		b.message(0)
		dst.check()
		a.sent(OpSend)
	}
}

// A Read sees the Writes that were posted before it.
func readAfterWrite(a, b *side) {
	const n = 70000
	src, sink, dst := a.mem(n, 0), a.mem(n, LocalWrite), b.mem(n, LocalWrite|RemoteWrite|RemoteRead)
	for i := range 6 {
		src.fill()
		a.post(dst.remote(WR{Op: OpWrite, SGL: []SGE{src.at(0, n/2)}}, 0))
		a.post(dst.remote(WR{Op: OpWrite, SGL: []SGE{src.at(n/2, n/2-i)}}, n/2))
		a.post(dst.remote(WR{Op: OpRead, Flags: Signaled, SGL: []SGE{sink.at(0, n-i)}}, 0))
		dst.expect(0, src.bytes(0, n-i))
		sink.expect(0, src.bytes(0, n-i))
		a.sent(OpRead)
		sink.check()
	}
}

// Without the Fence the Read could bring the data of the Write behind it.
func fencedWrite(a, b *side) {
	const n = 1 << 18
	src, sink, dst := a.mem(n, 0), a.mem(n, LocalWrite), b.mem(n, LocalWrite|RemoteWrite|RemoteRead)
	for range 4 {
		src.fill()
		sink.expect(0, dst.bytes(0, n))
		a.post(dst.remote(WR{Op: OpRead, Flags: Signaled, SGL: []SGE{sink.at(0, n)}}, 0))
		a.post(dst.remote(WR{Op: OpWrite, Flags: Signaled | Fenced, SGL: []SGE{src.at(0, n)}}, 0))
		a.sent(OpRead)
		sink.check()
		a.sent(OpWrite)
		dst.expect(0, src.bytes(0, n))
	}
	ping(a, b)
}

// What a fenced Send announces has been read already: b changes the memory when
// the Send arrives.
func fencedSend(a, b *side) {
	const n = 1 << 18
	sink, src := a.mem(n, LocalWrite), b.mem(n, RemoteRead|LocalWrite)
	for range 4 {
		b.recv()
		sink.expect(0, src.bytes(0, n))
		a.post(src.remote(WR{Op: OpRead, SGL: []SGE{sink.at(0, n)}}, 0))
		a.post(WR{Op: OpSend, Flags: Signaled | Fenced})
		b.message(0)
		src.fill()
		a.sent(OpSend)
		sink.check()
	}
}

// load has each end send, write and read at once; the peer of from[i] is to[i].
func load(from, to []*side, rounds int) {
	const sends, part, most = 5, 9000, 3000
	type flow struct {
		a, b                       *side
		src, sink, inbox, dst, mem *buffer
	}
	var flows []flow
	for i, a := range from {
		b := to[i]
		flows = append(flows, flow{a, b, a.mem(part, 0), a.mem(part, LocalWrite), b.mem(sends*most, LocalWrite),
			b.mem(part, LocalWrite|RemoteWrite), b.mem(part, RemoteRead)})
	}
	for r := range rounds {
		for _, f := range flows {
			for i := range sends {
				f.b.recv(f.inbox.at(i*most, most))
			}
		}
		size := func(i int) int { return (r*1009 + i*2003) % most }
		for _, f := range flows {
			f.src.fill()
			f.a.post(f.mem.remote(WR{Op: OpRead, Flags: Signaled, SGL: []SGE{f.sink.at(r, part-r)}}, r))
			f.sink.expect(r, f.mem.bytes(r, part-r))
			for i := range sends {
				f.a.post(WR{Op: OpSend, Flags: Signaled | More, SGL: []SGE{f.src.at(i, size(i))}})
				f.inbox.expect(i*most, f.src.bytes(i, size(i)))
			}
			f.a.post(f.dst.remote(WR{Op: OpWrite, Flags: Signaled, SGL: []SGE{f.src.at(0, part-r)}}, r))
			f.dst.expect(r, f.src.bytes(0, part-r))
			f.b.recv()
			f.a.post(WR{Op: OpSend, Flags: Signaled}) // when it arrives the Write is in place
		}
		for _, f := range flows {
			f.a.sent(OpRead)
			for range sends {
				f.a.sent(OpSend)
			}
			f.a.sent(OpWrite)
			f.a.sent(OpSend)
			for i := range sends {
				f.b.message(size(i))
			}
			f.b.message(0)
			for _, m := range []*buffer{f.sink, f.inbox, f.dst} {
				m.check()
			}
		}
	}
}
