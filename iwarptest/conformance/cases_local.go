package conformance

// localCases are about memory windows and about registration and invalidation
// in the send queue. The end that acts is the peer that uses the memory; the
// other owns it.
func localCases() []Case {
	const windows, local = Windows, LocalOps
	return []Case{
		{Name: "window opens in its turn", RFC: "RFC 5042 section 2.2.5", B: windows, Core: true, run: windowOpens},
		{Name: "window can be bound again", RFC: "RFC 5042 section 6.1.1", A: SendInvalidate, B: windows | SendInvalidate | local, run: windowAgain},
		{Name: "window leaves its region open", RFC: "RFC 5042 section 6.1.1", A: SendInvalidate, B: windows | SendInvalidate, run: func(a, b *side) {
			m := bindable(b)
			w := b.bind(m, 100, 200, RemoteRead|RemoteWrite)
			b.recv()
			invalidate(a, b, w)
			src := a.mem(10, 0)
			a.post(m.remote(WR{Op: OpWrite, SGL: []SGE{src.at(0, 10)}}, 150))
			m.expect(150, src.bytes(0, 10))
			ping(a, b)
		}},
		{Name: "registration in its turn", RFC: "RFC 5042 section 6.1.1", B: local, Core: true, run: registerInTurn},
		{Name: "local invalidate in its turn", RFC: "RFC 5042 section 6.2.2", B: local | Fence, run: invalidateInTurn},
		{Name: "local operation that fails", RFC: "RFC 5040 section 7.1 rule 1", B: local, run: localFails},
		{Name: "bind of a window that is bound", RFC: "RFC 5042 section 6.1.1", B: windows, run: bindBound},
		{Name: "window is not another stream's to invalidate", RFC: "RFC 5042 section 6.1.1", A: SendInvalidate, B: windows | SendInvalidate, connect: windowOfOtherInvalidated},
		{Name: "window is for one stream", RFC: "RFC 5042 section 6.1.1", B: windows, connect: windowOfOther},
		{Name: "window ends with its stream", RFC: "RFC 5042 section 6.2.2", B: windows, connect: windowOfEnded},
	}
}

// windowFaults are errors in the use of windows.
var windowFaults = []fault{
	{name: "write outside of the window", rfc: write5041, b: Windows, recvs: 3, codes: []code{ddpBounds}, act: func(a, b *side) WR {
		return writeTo(a, b.bind(bindable(b), 1000, 500, RemoteWrite), 493, 8)
	}},
	{name: "write before the window", rfc: write5041, b: Windows, recvs: 3, codes: []code{ddpBounds, ddpWrap}, act: func(a, b *side) WR {
		return writeTo(a, b.bind(bindable(b), 1000, 500, RemoteWrite), -1, 2)
	}},
	{name: "read of a window without the right", rfc: "RFC 5040 section 4.8", b: Windows, recvs: 3, codes: []code{rdmaAccess}, act: func(a, b *side) WR {
		return readFrom(a, b.bind(bindable(b), 1000, 500, RemoteWrite), 0, 8)
	}},
	{name: "write to a window that a send invalidated", rfc: "RFC 5040 section 5.3", a: SendInvalidate, b: Windows | SendInvalidate, recvs: 4, codes: []code{ddpSTag},
		act: func(a, b *side) WR {
			w := b.bind(bindable(b), 1000, 500, RemoteWrite)
			invalidate(a, b, w)
			return writeTo(a, w, 0, 8)
		}},
	{name: "write to a window that was invalidated locally", rfc: "RFC 5042 section 6.2.2", b: Windows | LocalOps, recvs: 4, codes: []code{ddpSTag},
		act: func(a, b *side) WR {
			w := b.bind(bindable(b), 1000, 500, RemoteWrite)
			b.post(WR{Op: OpInvalidate, Flags: Signaled, Invalidate: w.r.STag})
			b.sent(OpInvalidate)
			return writeTo(a, w, 0, 8)
		}},
	{name: "write to the STag before a registration", rfc: write5041, b: LocalOps, recvs: 3, codes: []code{ddpSTag}, act: func(a, b *side) WR {
		m := writable(b)
		wr := writeTo(a, m, 0, 8)
		b.register(m, 0, 4096, RemoteWrite)
		b.sent(OpRegister)
		return wr
	}},
	{name: "write outside of what was registered", rfc: write5041, b: LocalOps, recvs: 3, codes: []code{ddpBounds}, act: func(a, b *side) WR {
		m := b.register(writable(b), 1000, 500, RemoteWrite)
		b.sent(OpRegister)
		return writeTo(a, m, 493, 8)
	}},
}

// bindable is memory of s for windows.
func bindable(s *side) *buffer {
	return s.mem(4096, LocalWrite|RemoteRead|RemoteWrite|AccessBind)
}

// postBind binds a new window to n bytes at off of m. The buffer that it returns
// serves remote only: m records what the memory must hold.
func (s *side) postBind(m *buffer, window, off, n int, access Access) *buffer {
	s.t.Helper()
	wr := s.local(OpBind)
	r, err := s.Endpoint.(Binder).PostBind(wr, window, m.at(off, n), access)
	s.check("post a bind", err)
	return &buffer{s: s, r: r}
}

// local records a signaled operation that the Binder posts.
func (s *side) local(op Op) WR {
	s.id++
	wr := WR{ID: s.id, Op: op, Flags: Signaled}
	s.sends.waiting = append(s.sends.waiting, wr)
	return wr
}

func (s *side) window() int {
	s.t.Helper()
	w, err := s.Endpoint.(Binder).Window()
	s.check("allocate a memory window", err)
	return w
}

// bind is postBind and waits until it is done.
func (s *side) bind(m *buffer, off, n int, access Access) *buffer {
	s.t.Helper()
	w := s.postBind(m, s.window(), off, n, access)
	s.sent(OpBind)
	return w
}

// register posts a registration of n bytes at off of m.
func (s *side) register(m *buffer, off, n int, access Access) *buffer {
	s.t.Helper()
	r, err := s.Endpoint.(Binder).PostRegister(s.local(OpRegister), m.at(off, n), access)
	s.check("post a registration", err)
	return &buffer{s: s, r: r}
}

// The Send behind a bind finds the window open at the peer, and what the window
// opens is exactly what was bound.
func windowOpens(a, b *side) {
	src, sink := a.mem(600, 0), a.mem(600, LocalWrite)
	for i := range 6 {
		m := bindable(b)
		off, n := 100*i+1, 500+i
		src.fill()
		a.recv()
		w := b.postBind(m, b.window(), off, n, RemoteWrite|RemoteRead)
		b.post(WR{Op: OpSend, Flags: Signaled})
		a.message(0)
		a.post(w.remote(WR{Op: OpWrite, SGL: []SGE{src.at(0, n)}}, 0))
		a.post(w.remote(WR{Op: OpRead, Flags: Signaled, SGL: []SGE{sink.at(0, n)}}, 0))
		m.expect(off, src.bytes(0, n))
		sink.expect(0, src.bytes(0, n))
		a.sent(OpRead)
		sink.check()
		b.sent(OpBind)
		b.sent(OpSend)
		ping(a, b)
		m.check()
	}
}

// A window whose STag is invalid is bound again, elsewhere, under another STag.
func windowAgain(a, b *side) {
	m, src := bindable(b), a.mem(200, 0)
	window := b.window()
	seen := make(map[uint32]bool)
	for i := range 4 {
		w := b.postBind(m, window, 300*i, 200, RemoteWrite)
		b.sent(OpBind)
		if seen[w.r.STag] {
			b.t.Errorf("end %s: a window has the STag %#x a second time", b.name, w.r.STag)
		}
		seen[w.r.STag] = true
		src.fill()
		a.post(w.remote(WR{Op: OpWrite, SGL: []SGE{src.at(0, 200)}}, 0))
		m.expect(300*i, src.bytes(0, 200))
		ping(a, b)
		m.check()
		if i%2 == 0 {
			b.recv()
			invalidate(a, b, w)
			continue
		}
		b.post(WR{Op: OpInvalidate, Flags: Signaled, Invalidate: w.r.STag})
		b.sent(OpInvalidate)
	}
}

// The Send behind a registration can tell the peer the new STag.
func registerInTurn(a, b *side) {
	m, src := writable(b), a.mem(4096, 0)
	for i := range 5 {
		src.fill()
		a.recv()
		r := b.register(m, i, 4096-2*i, RemoteWrite)
		b.post(WR{Op: OpSend, Flags: Signaled})
		a.message(0)
		a.post(r.remote(WR{Op: OpWrite, SGL: []SGE{src.at(0, 4096-2*i)}}, 0))
		m.expect(i, src.bytes(0, 4096-2*i))
		b.sent(OpRegister)
		b.sent(OpSend)
		ping(a, b)
		m.check()
	}
}

// A local invalidate with a Fence waits for the Reads before it, and completes
// in the order of posting.
func invalidateInTurn(a, b *side) {
	sink, src := b.mem(1<<18, LocalWrite|RemoteWrite), a.mem(1<<18, RemoteRead)
	a.recv()
	b.post(src.remote(WR{Op: OpRead, Flags: Signaled, SGL: []SGE{sink.at(0, 1<<18)}}, 0))
	b.post(WR{Op: OpInvalidate, Flags: Signaled | Fenced, Invalidate: sink.r.STag})
	b.post(WR{Op: OpSend, Flags: Signaled})
	sink.expect(0, src.bytes(0, 1<<18))
	b.sent(OpRead)
	b.sent(OpInvalidate)
	b.sent(OpSend)
	a.message(0)
	sink.check()
}

// A local operation that can't be carried out ends the stream: the consumer sees
// it fail and what is behind it flushed, the peer is sent a local error.
func localFails(a, b *side) {
	a.recvNothing(2)
	b.recvNothing(2)
	b.post(WR{Op: OpSend, Flags: Signaled | More})
	bad := b.post(WR{Op: OpInvalidate, Flags: Signaled | More, Invalidate: noSTag(b)})
	for range 3 {
		b.tryPost(WR{Op: OpSend, Flags: Signaled})
	}
	b.wantEnd(LocalFault)
	if s := b.status(bad); s != Failed {
		b.t.Errorf("end %s: the invalidation of no STag ended with %v, want %v", b.name, s, Failed)
	}
	got := a.ending()
	if got.Code = 0; a.Can(ReportsEnd) && got != (End{How: GotTerminate}) { // any code will do
		a.t.Errorf("end %s: the stream ended %v, want a Terminate that reports a local catastrophic error of RDMAP", a.name, got)
	}
	if len(a.recvs.done) > 0 && a.recvs.done[0].Status != OK {
		a.t.Errorf("end %s: the Send before the operation that failed has not arrived", a.name)
	}
}

// A window has to be invalidated before it is bound again.
func bindBound(a, b *side) {
	m := bindable(b)
	window := b.window()
	b.postBind(m, window, 0, 100, RemoteWrite)
	b.sent(OpBind)
	bad := b.local(OpBind)
	if _, err := b.Endpoint.(Binder).PostBind(bad, window, m.at(100, 100), RemoteWrite); err != nil {
		b.sends.waiting = nil // refused at once, as well
		return
	}
	b.wantEnd(LocalFault)
	if s := b.status(bad.ID); s != Failed {
		b.t.Errorf("end %s: the bind of a bound window ended with %v, want %v", b.name, s, Failed)
	}
	a.wantEnd(GotTerminate)
}

// The peer of another stream can't end a window's life.
func windowOfOtherInvalidated(k *connector) {
	windowStands(k, notInvalidated, func(a2, b2 *side, w *buffer) {
		b2.recv()
		a2.post(WR{Op: OpSend, Flags: WithInvalidate, Invalidate: w.r.STag})
	})
}

// A window is of no use to the peer of another stream, even of the same protection
// domain.
func windowOfOther(k *connector) {
	windowStands(k, []code{ddpForeign}, func(a2, b2 *side, w *buffer) {
		a2.post(writeTo(a2, w, 0, 8))
	})
}

// windowStands has another stream misuse a window, which ends that stream; the
// window is still good for its own.
func windowStands(k *connector, codes []code, misuse func(a2, b2 *side, w *buffer)) {
	a, b := k.pair()
	a2, b2 := k.pair()
	m := bindable(b)
	w := b.bind(m, 0, 1000, RemoteRead|RemoteWrite)
	misuse(a2, b2, w)
	b2.wantTerminate(SentTerminate, codes, b2.Can(Terminates))
	a2.wantTerminate(GotTerminate, codes, b2.Can(Terminates))
	src := a.mem(8, 0)
	a.post(w.remote(WR{Op: OpWrite, SGL: []SGE{src.at(0, 8)}}, 4))
	m.expect(4, src.bytes(0, 8))
	ping(a, b)
}

func windowOfEnded(k *connector) {
	a, b := k.pair()
	a2, b2 := k.pair()
	w := b.bind(bindable(b), 0, 1000, RemoteRead|RemoteWrite)
	a.close()
	b.ending()
	a2.post(writeTo(a2, w, 0, 8))
	b2.wantTerminate(SentTerminate, []code{ddpSTag}, b2.Can(Terminates))
	a2.wantTerminate(GotTerminate, []code{ddpSTag}, b2.Can(Terminates))
}
