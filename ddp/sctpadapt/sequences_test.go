package sctpadapt_test

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/ddp/enhanced"
	"github.com/ironwarp/ironwarp/ddp/sctpadapt"
	"github.com/ironwarp/ironwarp/transport/assoc"
)

// RFC 5043 section 6.2, active side: Initiate, Accept, segments, Terminates.
func TestActiveSequence(t *testing.T) {
	f := newFake(t, sctpadapt.Config{}, true)
	s := f.open()
	if err := s.Append([]byte("hdr"), [][]byte{[]byte("pay"), []byte("load")}); err != nil {
		t.Fatal(err)
	}
	if done, err := s.TryFlush(); !done || err != nil {
		t.Fatal(done, err)
	}
	if m := f.next(); m.PPID != sctpadapt.PPIDSegment || string(m.Bufs[0]) != "\x00\x01hdrpayload" {
		t.Errorf("%+v", m)
	}
	in := newTexts()
	f.segment(0, 3, "three")
	f.control(0, 4, sctpadapt.FunctionTerminate, "")
	f.segment(0, 1, "one")
	f.segment(0, 2, "two")
	if err := s.Receive(in); err != io.EOF {
		t.Error(err)
	}
	if want := []string{"one", "two", "three"}; !slices.Equal(in.got, want) {
		t.Errorf("%q", in.got)
	}
	if err := s.CloseWrite(); err != nil {
		t.Error(err)
	}
	f.want(0, 2, sctpadapt.FunctionTerminate, "")
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	f.none()
	if f.mux.Streams() != 0 || f.held != 0 {
		t.Errorf("%d sessions are left, %d bytes held", f.mux.Streams(), f.held)
	}
}

// RFC 5043 sections 6.3 and 6.4: Reject with the ULP's data, Terminate without.
func TestRefusals(t *testing.T) {
	f := newFake(t, sctpadapt.Config{}, true)
	got := make(chan error)
	initiate := func() {
		_, err := f.mux.Initiate(patient(t), sctpadapt.Session{PrivateData: []byte("please"), Plain: true})
		got <- err
	}
	go initiate()
	f.want(0, 0, sctpadapt.FunctionInitiate, "please")
	early := make([]byte, 1000) // a segment that has overtaken the answer
	f.say(0, sctpadapt.PPIDSegment, early)
	f.control(0, 0, sctpadapt.FunctionReject, "no")
	var r *sctpadapt.RejectedError
	if err := <-got; !errors.As(err, &r) || string(r.PrivateData) != "no" {
		t.Error(err)
	}
	go initiate()
	f.want(2, 0, sctpadapt.FunctionInitiate, "please")
	f.say(2, sctpadapt.PPIDSegment, early)
	f.control(2, 0, sctpadapt.FunctionTerminate, "")
	if err := <-got; !errors.Is(err, sctpadapt.ErrTerminated) {
		t.Error(err)
	}
	if n := f.kept.Load(); f.held != 0 || n != 0 {
		t.Errorf("%d bytes are held and memory kept %d times after refusals", f.held, n)
	}
	f.none()

	p := newFake(t, sctpadapt.Config{}, false)
	p.control(6, 0, sctpadapt.FunctionInitiate, "please")
	q, err := p.mux.Accept(patient(t))
	if err != nil || string(q.PrivateData) != "please" || q.Stream() != 6 {
		t.Fatal(err)
	}
	if err := q.Reject(make([]byte, 513)); !errors.Is(err, sctpadapt.ErrPrivateData) {
		t.Error(err)
	}
	if err := q.Reject([]byte("no")); err != nil {
		t.Error(err)
	}
	p.want(6, 0, sctpadapt.FunctionReject, "no")
	if _, err := q.Accept(sctpadapt.Session{}); err == nil {
		t.Error("a second answer")
	}
	p.control(6, 0, sctpadapt.FunctionInitiate, "again")
	if q, err = p.mux.Accept(patient(t)); err != nil {
		t.Fatal(err)
	}
	q.Close()
	p.want(6, 0, sctpadapt.FunctionTerminate, "")
	p.none()
	if f.mux.Streams() != 0 {
		t.Errorf("%d sessions", f.mux.Streams())
	}
}

// RFC 5043 section 6.4: there is a finite limit on Initiates that wait; beyond,
// the answer is a Terminate.
func TestInitiateFlood(t *testing.T) {
	f := newFake(t, sctpadapt.Config{MaxPending: 3}, false)
	for i := range uint16(8) {
		f.control(i, 0, sctpadapt.FunctionInitiate, "")
	}
	for i := uint16(3); i < 8; i++ {
		f.want(i, 0, sctpadapt.FunctionTerminate, "")
	}
	f.none()
	if f.mux.Streams() != 3 || f.aborted != "" {
		t.Errorf("%d sessions, abort %q", f.mux.Streams(), f.aborted)
	}
	for range 3 {
		r, err := f.mux.Accept(patient(t))
		if err != nil {
			t.Fatal(err)
		}
		r.Close()
	}
	f.read = len(f.sent)
	f.control(7, 0, sctpadapt.FunctionInitiate, "")
	f.none() // room again
}

// RFC 5043 sections 5, 6, 9 and 10: each chunk that conforms to no legal sequence
// terminates its session, says why, and leaves the association and other
// sessions alone.
func TestIllegalSequences(t *testing.T) {
	chunk := func(flags assoc.Flags, ppid uint32, b string) func(*fake) {
		return func(f *fake) {
			f.chunk(&assoc.Message{Stream: 1, PPID: ppid, Flags: flags, Payload: []byte(b)})
		}
	}
	const whole = assoc.Begin | assoc.End | assoc.Unordered
	say := func(ssn uint16, fn sctpadapt.Function, private string) func(*fake) {
		return func(f *fake) { f.control(1, ssn, fn, private) }
	}
	for name, do := range map[string]func(*fake){
		"ordered chunk":               chunk(assoc.Begin|assoc.End, 16, "\x00\x01x"),
		"first fragment":              chunk(assoc.Begin|assoc.Unordered, 16, "\x00\x01x"),
		"middle fragment":             chunk(assoc.Unordered, 16, "\x00\x01x"),
		"last fragment":               chunk(assoc.End|assoc.Unordered, 16, "\x00\x01x"),
		"wrong protocol":              chunk(whole, 18, "\x00\x01x"),
		"protocol 0":                  chunk(whole, 0, "\x00\x01x"),
		"half a number":               chunk(whole, 16, "\x00"),
		"control of 3 bytes":          chunk(whole, 17, "\x00\x01\x00"),
		"unknown function":            say(1, 8, ""),
		"function 0":                  say(1, 0, ""),
		"Terminate with private data": say(1, sctpadapt.FunctionTerminate, "x"),
		"Initiate within the session": say(1, sctpadapt.FunctionInitiate, ""),
		"Accept without an Initiate":  say(1, sctpadapt.FunctionAccept, ""),
		"Reject within the session":   say(1, sctpadapt.FunctionReject, ""),
		"513 bytes of private data":   say(0, sctpadapt.FunctionInitiate, string(make([]byte, 513))),
		"Enhanced Initiate, no data":  say(0, sctpadapt.FunctionEnhancedInitiate, "x"),
		"number of the past":          func(f *fake) { f.segment(1, 0, "x") },
		"number beyond the window":    func(f *fake) { f.segment(1, 1+1<<15, "x") },
		"the same number twice":       func(f *fake) { f.segment(1, 5, "x"); f.segment(1, 5, "x") },
		"segment behind the end":      func(f *fake) { f.control(1, 3, sctpadapt.FunctionTerminate, ""); f.segment(1, 4, "x") },
		"two ends": func(f *fake) {
			f.control(1, 3, sctpadapt.FunctionTerminate, "")
			f.control(1, 4, sctpadapt.FunctionTerminate, "")
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, sctpadapt.Config{}, false)
			s, other := f.accept(1), f.accept(3)
			do(f)
			err := s.Receive(newTexts())
			var se *sctpadapt.SessionError
			if !errors.As(err, &se) || se.Stream != 1 {
				t.Errorf("Receive: %v", err)
			}
			f.want(1, 1, sctpadapt.FunctionTerminate, "")
			s.Append(nil, [][]byte{{1}})
			if _, err := s.TryFlush(); err == nil {
				t.Error("a segment behind the Terminate")
			}
			s.Close()
			in := newTexts()
			over := make(chan error)
			go func() { over <- other.Receive(in) }()
			f.segment(3, 1, "still alive")
			in.wait(1)
			other.Close()
			f.want(3, 1, sctpadapt.FunctionTerminate, "")
			if err := <-over; err != ddp.ErrClosed {
				t.Error(err)
			}
			f.none()
			if f.aborted != "" || f.held != 0 {
				t.Errorf("aborted: %q, %d bytes held", f.aborted, f.held)
			}
		})
	}
}

// The same where no session is open: at the active side before the answer, at the
// passive side before its own, and on a stream without a session.
func TestIllegalBeforeTheSession(t *testing.T) {
	t.Run("segment without a session", func(t *testing.T) {
		f := newFake(t, sctpadapt.Config{}, false)
		f.segment(2, 1, "x")
		f.want(2, 0, sctpadapt.FunctionTerminate, "")
		f.control(2, 0, sctpadapt.FunctionTerminate, "") // is not answered
		f.control(2, 3, sctpadapt.FunctionInitiate, "")  // an Initiate has number 0
		f.want(2, 0, sctpadapt.FunctionTerminate, "")
		f.none()
	})
	t.Run("segment before the Accept", func(t *testing.T) {
		f := newFake(t, sctpadapt.Config{}, false)
		f.control(2, 0, sctpadapt.FunctionInitiate, "")
		f.segment(2, 1, "x")
		f.want(2, 0, sctpadapt.FunctionTerminate, "")
		r, err := f.mux.Accept(patient(t))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Accept(sctpadapt.Session{}); err == nil {
			t.Error("a terminated session is accepted")
		}
		f.none()
	})
	t.Run("Initiate as the answer", func(t *testing.T) {
		f := newFake(t, sctpadapt.Config{}, true)
		got := make(chan error)
		go func() { _, err := f.mux.Initiate(patient(t), plain); got <- err }()
		f.want(0, 0, sctpadapt.FunctionInitiate, "")
		f.control(0, 0, sctpadapt.FunctionInitiate, "")
		f.want(0, 1, sctpadapt.FunctionTerminate, "")
		var se *sctpadapt.SessionError
		if err := <-got; !errors.As(err, &se) {
			t.Error(err)
		}
	})
	t.Run("Enhanced Accept of a plain Initiate", func(t *testing.T) {
		f := newFake(t, sctpadapt.Config{}, true)
		got := make(chan error)
		go func() { _, err := f.mux.Initiate(patient(t), plain); got <- err }()
		f.want(0, 0, sctpadapt.FunctionInitiate, "")
		f.control(0, 0, sctpadapt.FunctionEnhancedAccept, "\x00\x01\x00\x01")
		f.want(0, 1, sctpadapt.FunctionTerminate, "")
		var se *sctpadapt.SessionError
		if err := <-got; !errors.As(err, &se) {
			t.Error(err)
		}
	})
	t.Run("segments before the Accept arrive early", func(t *testing.T) {
		f := newFake(t, sctpadapt.Config{}, true) // legal: the passive side has sent its Accept before
		got := make(chan *sctpadapt.Stream)
		go func() { s, _ := f.mux.Initiate(patient(t), plain); got <- s }()
		f.want(0, 0, sctpadapt.FunctionInitiate, "")
		f.segment(0, 1, "early")
		f.control(0, 0, sctpadapt.FunctionAccept, "")
		s := <-got
		f.control(0, 2, sctpadapt.FunctionTerminate, "")
		in := newTexts()
		if err := s.Receive(in); err != io.EOF || len(in.got) != 1 {
			t.Errorf("%v, %q", err, in.got)
		}
		s.Close()
	})
}

// RFC 5043 section 6.6: streams are used again when nothing of the session before
// is on its way.
func TestStreamsAreUsedAgain(t *testing.T) {
	f := newFake(t, sctpadapt.Config{}, true)
	f.streams = 4
	a, b := f.open(), f.open()
	if a.ID() != 0 || b.ID() != 2 {
		t.Errorf("streams %d and %d", a.ID(), b.ID())
	}
	if _, err := f.mux.Initiate(patient(t), plain); !errors.Is(err, sctpadapt.ErrNoStream) {
		t.Error(err)
	}
	a.Close()
	f.want(0, 1, sctpadapt.FunctionTerminate, "")
	if _, err := f.mux.Initiate(patient(t), plain); !errors.Is(err, sctpadapt.ErrNoStream) {
		t.Errorf("while the peer may still send: %v", err)
	}
	f.control(0, 2, sctpadapt.FunctionTerminate, "")
	if _, err := f.mux.Initiate(patient(t), plain); !errors.Is(err, sctpadapt.ErrNoStream) {
		t.Errorf("while a segment of the peer is missing: %v", err)
	}
	f.segment(0, 1, "late")
	f.flying = 1
	if _, err := f.mux.Initiate(patient(t), plain); !errors.Is(err, sctpadapt.ErrNoStream) {
		t.Errorf("while a chunk of ours is not acknowledged: %v", err)
	}
	f.flying = 0
	if c := f.open(); c.ID() != 0 {
		t.Errorf("stream %d", c.ID())
	}
	// Close before the answer: the Terminate waits for the Initiate's acknowledgement.
	a = f.accept(1)
	a.Close()
	if m := f.next(); !m.Barrier {
		t.Error("a Terminate may arrive before the Accept")
	}
}

// RFC 6581 section 9.1: depths, as both sides compute them.
func TestDepths(t *testing.T) {
	const ulp = enhanced.DepthULP
	for _, tc := range []struct {
		ird, ord   uint16 // of the initiator
		rird, rord uint16 // of the responder
		want       [4]uint16
		code       uint8
	}{
		{8, 4, 16, 16, [4]uint16{8, 4, 4, 8}, 0},
		{8, 20, 16, 2, [4]uint16{8, 16, 16, 2}, 0},
		{0, 0, 16, 16, [4]uint16{0, 0, 0, 0}, 0},
		{16, 16, 0, 0, [4]uint16{16, 0, 0, 0}, 0},
		{ulp, ulp, 5, 6, [4]uint16{ulp, ulp, 5, 6}, 0},
		{5, 6, ulp, ulp, [4]uint16{5, 6, ulp, 5}, 0},
		{0, 0, 0, 0, [4]uint16{0, 0, 0, 0}, 0},
	} {
		x := connect(t, sctpadapt.Config{}, sctpadapt.Config{}, nil)
		a, b := x.sessionWith(t, sctpadapt.Session{IRD: tc.ird, ORD: tc.ord}, sctpadapt.Session{IRD: tc.rird, ORD: tc.rord})
		if got := [4]uint16{a.IRD(), a.ORD(), b.IRD(), b.ORD()}; got != tc.want {
			t.Errorf("%+v: %v", tc, got)
		}
		if string(a.PrivateData()) != "welcome" || string(b.PrivateData()) != "hello" || b.PeerEnhanced() == nil {
			t.Errorf("private data %q, %q", a.PrivateData(), b.PrivateData())
		}
		a.Close()
		b.Close()
	}
	// A responder that wants more than it was offered fails the negotiation.
	f := newFake(t, sctpadapt.Config{}, true)
	got := make(chan error)
	go func() { _, err := f.mux.Initiate(patient(t), sctpadapt.Session{IRD: 3, ORD: 3}); got <- err }()
	f.want(0, 0, sctpadapt.FunctionEnhancedInitiate, "\x00\x03\x00\x03")
	f.control(0, 0, sctpadapt.FunctionEnhancedAccept, "\x00\x03\x00\x04")
	var n *sctpadapt.NegotiationError
	if err := <-got; !errors.As(err, &n) || n.Err.Code != 6 || n.Stream == nil {
		t.Error(err)
	} else {
		n.Stream.Close()
	}
}

// RFC 6581 section 9.2: a responder without an IRD takes no Read as RTR if there is
// something else, and one is granted to an initiator without an ORD.
func TestReadAsRTRHasAnIRD(t *testing.T) {
	for _, tc := range []struct {
		ird, ord      uint16 // of the responder, of the initiator
		offer, agreed enhanced.RTR
		granted       uint16 // IRD
	}{
		{0, 16, enhanced.RTRWrite | enhanced.RTRRead, enhanced.RTRWrite, 0},
		{0, 16, enhanced.RTRRead, enhanced.RTRRead, 1},
		{16, 0, enhanced.RTRWrite | enhanced.RTRRead, enhanced.RTRWrite | enhanced.RTRRead, 1},
		{0, 0, enhanced.RTRWrite | enhanced.RTRRead, enhanced.RTRWrite, 0},
	} {
		x := connect(t, sctpadapt.Config{}, sctpadapt.Config{}, nil)
		a, b := x.sessionWith(t, sctpadapt.Session{ORD: tc.ord, PeerToPeer: tc.offer}, sctpadapt.Session{IRD: tc.ird})
		if a.RTR() != tc.agreed || b.RTR() != tc.agreed || b.IRD() != tc.granted || a.PeerEnhanced().IRD != tc.granted {
			t.Errorf("%+v: the ends agreed on %03b and %03b, the responder has IRD %d and said %d", tc, a.RTR(), b.RTR(), b.IRD(), a.PeerEnhanced().IRD)
		}
		a.Close()
		b.Close()
	}
}

// The end of the association ends every session, with an error that a graceful end
// does not have.
func TestLostAssociation(t *testing.T) {
	f := newFake(t, sctpadapt.Config{}, true)
	s := f.open()
	over := make(chan error)
	go func() { over <- s.Receive(newTexts()) }()
	why := fmt.Errorf("gone")
	asking := make(chan error)
	go func() { _, err := f.mux.Initiate(patient(t), plain); asking <- err }()
	f.next()
	f.mux.Event(assoc.Event{Kind: assoc.EventDown, Err: why})
	if err := <-over; !errors.Is(err, sctpadapt.ErrConnectionLost) || !errors.Is(err, why) {
		t.Error(err)
	}
	if err := <-asking; !errors.Is(err, sctpadapt.ErrMuxClosed) || !errors.Is(err, why) {
		t.Errorf("while a session was asked for: %v", err)
	}
	if _, err := f.mux.Initiate(patient(t), plain); !errors.Is(err, sctpadapt.ErrMuxClosed) || !errors.Is(err, why) {
		t.Errorf("afterwards: %v", err)
	}
	if _, err := f.mux.Accept(patient(t)); !errors.Is(err, sctpadapt.ErrMuxClosed) {
		t.Error(err)
	}
	s.Append(nil, [][]byte{{1}})
	if err := s.Flush(); !errors.Is(err, sctpadapt.ErrConnectionLost) {
		t.Error(err)
	}
	s.Close()
}

// RFC 5043 section 9: what does not fit is refused.
func TestTooLongSegments(t *testing.T) {
	f := newFake(t, sctpadapt.Config{}, true)
	s := f.open()
	if n := s.MULPDU(); n != 1424 {
		t.Errorf("MULPDU %d", n)
	}
	if err := s.Append(make([]byte, 14), [][]byte{make([]byte, 1411)}); !errors.Is(err, sctpadapt.ErrTooLong) {
		t.Error(err)
	}
	if err := s.Append(make([]byte, 14), [][]byte{make([]byte, 1410)}); err != nil {
		t.Error(err)
	}
	s.Close()
}

// An answer that comes before its Initiate has been sent is judged by what that is going to ask
// for.
func TestAnswerBeforeTheInitiate(t *testing.T) {
	f := newFake(t, sctpadapt.Config{}, true)
	s, err := f.mux.Open(&enhanced.Data{IRD: 1, ORD: 1})
	if err != nil {
		t.Fatal(err)
	}
	f.control(s.ID(), 0, sctpadapt.FunctionAccept, "") // to one without that
	f.mu.Lock()
	n := len(f.sent)
	f.mu.Unlock()
	if n == 0 {
		t.Fatal("it is taken for an answer")
	}
	f.want(s.ID(), 0, sctpadapt.FunctionTerminate, "")
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
