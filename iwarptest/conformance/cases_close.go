package conformance

func closeCases() []Case {
	return []Case{
		{Name: "close/delivers what was posted", RFC: "RFC 5040 section 6.2", Core: true, run: closeDelivers},
		{Name: "close/waits for reads", RFC: "RFC 5040 section 6.2", Core: true, run: closeAwaitsReads},
		{Name: "close/ends a quiet stream", RFC: "RFC 5040 section 6.2", run: func(a, b *side) {
			a.recvNothing(3)
			b.recvNothing(5)
			a.close()
			b.wantEnd(PeerClosed, Graceful)
			a.wantEnd(Graceful)
		}},
		{Name: "close/by both", RFC: "RFC 5040 section 6.2", run: func(a, b *side) {
			a.recvNothing(3)
			b.recvNothing(5)
			a.close()
			b.close()
			a.wantEnd(Graceful, PeerClosed)
			b.wantEnd(Graceful, PeerClosed)
		}},
		{Name: "close/is the same twice", RFC: "RFC 5040 section 6.2", run: func(a, b *side) {
			a.close()
			a.close()
			b.wantEnd(PeerClosed, Graceful)
			a.wantEnd(Graceful)
			a.close()
			b.close()
		}},
		{Name: "close/refuses posts", RFC: "RFC 5040 section 6.2", run: func(a, b *side) {
			a.close()
			a.wantEnd(Graceful)
			b.wantEnd(PeerClosed, Graceful)
			for _, s := range []*side{a, b} {
				s.tryPost(WR{Op: OpSend, Flags: Signaled})
				s.drained = false
			}
		}},
		{Name: "close/by the peer flushes", RFC: "RFC 5040 section 5.5 rule 15", run: peerCloseFlushes},
		{Name: "abort/flushes in order", RFC: "RFC 5040 section 6.2", run: abortFlushes},
		{Name: "abort/leaves other streams alone", RFC: "RFC 5040 section 5.5 rule 1", connect: func(k *connector) {
			a, b := k.pair()
			a2, b2 := k.pair()
			ping(a2, b2)
			a.abort()
			a.wantEnd(Aborted)
			b.ending()
			ping(a2, b2)
			ping(b2, a2)
		}},
	}
}

func (s *side) close() {
	s.t.Helper()
	s.check("close", s.Close())
}

func (s *side) abort() {
	s.t.Helper()
	s.check("abort", s.Abort())
}

// What was posted before a graceful close arrives.
func closeDelivers(a, b *side) {
	const n, part = 5, 50000
	src, dst := a.mem(part, 0), b.mem(n*part, LocalWrite)
	written := b.mem(part, LocalWrite|RemoteWrite)
	for i := range n {
		b.recv(dst.at(i*part, part))
		a.post(WR{Op: OpSend, Flags: Signaled, SGL: []SGE{src.at(0, part-i)}})
		dst.expect(i*part, src.bytes(0, part-i))
	}
	a.post(written.remote(WR{Op: OpWrite, Flags: Signaled, SGL: []SGE{src.at(0, part)}}, 0))
	written.expect(0, src.bytes(0, part))
	a.close()
	for i := range n {
		a.sent(OpSend)
		b.message(part - i)
	}
	a.sent(OpWrite)
	b.wantEnd(PeerClosed, Graceful)
	a.wantEnd(Graceful)
}

// Reads that were posted before a graceful close are answered.
func closeAwaitsReads(a, b *side) {
	n := a.lim.ORD + 3
	const piece = 50000
	sink, src := a.mem(n*piece, LocalWrite), b.mem(n*piece, RemoteRead)
	for i := range n {
		a.post(src.remote(WR{Op: OpRead, Flags: Signaled, SGL: []SGE{sink.at(i*piece, piece)}}, i*piece))
	}
	sink.expect(0, src.bytes(0, n*piece))
	a.close()
	for range n {
		a.sent(OpRead)
	}
	b.wantEnd(PeerClosed, Graceful)
	a.wantEnd(Graceful)
}

// When the peer closes, what is still posted completes in order: operations that it had
// answered succeed, the rest is flushed.
func peerCloseFlushes(a, b *side) {
	sink, src := b.mem(1<<20, LocalWrite), a.mem(1<<20, RemoteRead)
	b.recvNothing(10)
	a.recvNothing(3)
	a.post(WR{Op: OpSend, Flags: Signaled})
	a.sent(OpSend)
	b.message(0)
	a.close()
	for range b.lim.ORD + 2 {
		b.tryPost(src.remote(WR{Op: OpRead, Flags: Signaled, SGL: []SGE{sink.at(0, 1<<20)}}, 0))
		b.tryPost(WR{Op: OpWrite, Flags: Signaled})
	}
	sink.open(0, 1<<20)
	b.wantEnd(PeerClosed, Graceful)
	a.wantEnd(Graceful)
}

// An abort flushes what is posted, in order, each once.
func abortFlushes(a, b *side) {
	sink, src := a.mem(1<<20, LocalWrite), b.mem(1<<20, RemoteRead)
	sink.open(0, 1<<20)
	a.recvNothing(10)
	b.recvNothing(10)
	for range a.lim.ORD + 2 {
		a.post(src.remote(WR{Op: OpRead, Flags: Signaled, SGL: []SGE{sink.at(0, 1<<20)}}, 0))
		a.post(WR{Op: OpWrite, Flags: Signaled})
	}
	a.abort()
	a.wantEnd(Aborted)
	b.ending()
	if a.Can(FlushesReceives) && len(a.recvs.done) != 10 {
		a.t.Errorf("end %s: %d of 10 receives are flushed", a.name, len(a.recvs.done))
	}
}
