package conformance

func orderCases() []Case {
	return []Case{
		{Name: "more reads than ORD", RFC: "RFC 5040 section 6.1", Core: true, run: readsBeyondORD},
		{Name: "send after write shows the data", RFC: "RFC 5040 section 5.5 rules 5 and 10", Core: true, run: sendAfterWrite},
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

// When a Send has been delivered, what the Writes before it brought can be read.
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
