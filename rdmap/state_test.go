package rdmap_test

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rdmap"
)

// The states of a stream and every way from one to another: RFC 5040 section 6,
// RFC 5041 section 6.2.

// streams connects two streams to each other.
func streams(t testing.TB, o iwarptest.Options) (a, b *peer) {
	t.Helper()
	la, lb := iwarptest.Pair(o)
	return openOn(t, rdmap.Config{}, lb, la, nil), openOn(t, rdmap.Config{}, la, lb, nil)
}

// wantClosedForPosts checks that nothing can be posted any more.
func (p *peer) wantClosedForPosts() {
	p.t.Helper()
	if _, err := p.s.Reserve(); err == nil {
		p.s.Cancel()
		p.t.Errorf("a post in state %v is taken", p.s.State())
	}
}

func TestGracefulClose(t *testing.T) {
	p := start(t)
	if p.s.State() != rdmap.Streaming {
		t.Errorf("a new stream is %v", p.s.State())
	}
	p.postMore(sgl(rdmap.Op{Kind: rdmap.OpSend, ID: 1}, make([]byte, 5000)), true)
	p.s.Close()
	p.s.Close()
	p.wantClosedForPosts()
	p.wantOps(rdmap.OpSend, rdmap.OpSend, rdmap.OpSend, rdmap.OpSend)
	if seg := p.next(); seg != nil {
		t.Errorf("sent %x behind the queue", seg)
	}
	if s := p.s.State(); s != rdmap.Closing {
		t.Errorf("before the peer's end it is %v", s)
	}
	// The other half is still there (RFC 5041 section 6.2.1).
	p.receive(2, 0)
	p.raw.Send(untagged(true, rdmap.OpSend, 0, 1, 0))
	p.want("done 1", "recv 2 Send 0")
	p.raw.CloseWrite()
	if err := p.wantEnd(); err != nil || p.s.State() != rdmap.Closed {
		t.Errorf("ended with %v, %v", err, p.s.State())
	}
	p.wantClosedForPosts()
	p.s.Close()
	p.s.Abort(errors.New("late"))
	if p.err != nil || p.s.State() != rdmap.Closed {
		t.Errorf("after the end: %v, %v", p.err, p.s.State())
	}
}

// Close waits for the answers to our Reads, and for the peer's to be answered.
func TestGracefulCloseWaitsForReads(t *testing.T) {
	p := open(t, rdmap.Config{}, iwarptest.Options{MULPDU: 128}, nil)
	p.region(7, 4000, rdmap.RemoteRead)
	p.post(sgl(rdmap.Op{Kind: rdmap.OpReadRequest, ID: 1}, make([]byte, 2)))
	req, _ := rdmap.ParseReadRequest(p.wantOps(rdmap.OpReadRequest)[0][ddp.UntaggedHeaderLen:])
	p.s.Close()
	p.raw.Send(untagged(true, rdmap.OpReadRequest, 1, 1, 0, rdmap.ReadRequest{Size: 4000, SourceSTag: 7}.Append(nil)...))
	for n := 0; n < 4000; {
		n += len(ddp.Tagged(p.wantOps(rdmap.OpReadResponse)[0]).Payload())
	}
	p.raw.Send(tagged(true, rdmap.OpReadResponse, req.SinkSTag, 0, 1, 2))
	p.want("done 1")
	if seg := p.next(); seg != nil {
		t.Errorf("sent %x", seg)
	}
	p.raw.CloseWrite()
	if err := p.wantEnd(); err != nil {
		t.Errorf("ended with %v", err)
	}
}

// The peer's end is followed by ours: what is queued still goes, what waits for
// an answer fails.
func TestPeerCloses(t *testing.T) {
	p := open(t, rdmap.Config{}, iwarptest.Options{MULPDU: 128}, nil)
	p.raw.Stall(true)
	p.postMore(sgl(rdmap.Op{Kind: rdmap.OpSend, ID: 1}, make([]byte, 8000)), true)
	p.post(sgl(rdmap.Op{Kind: rdmap.OpReadRequest, ID: 2}, make([]byte, 2)))
	p.postMore(rdmap.Op{Kind: rdmap.OpSend, ID: 3}, true)
	p.raw.CloseWrite()
	p.wantState(rdmap.Closing)
	p.wantClosedForPosts()
	p.raw.Stall(false)
	n := 0
	for n < 8000 {
		n += len(ddp.Untagged(p.wantOps(rdmap.OpSend)[0]).Payload())
	}
	p.wantOps(rdmap.OpReadRequest, rdmap.OpSend)
	if err := p.wantEnd(); !errors.Is(err, rdmap.ErrPeerClosed) || !errors.Is(err, io.EOF) {
		t.Errorf("ended with %v", err)
	}
	p.want("done 1", "failed 2", "failed 3")
	if !errors.Is(p.errs[2], rdmap.ErrPeerClosed) {
		t.Errorf("the Read reports %v", p.errs[2])
	}
}

func TestPeerClosesAnIdleStream(t *testing.T) {
	p := start(t)
	p.raw.CloseWrite()
	p.wantFin()
	if err := p.wantEnd(); !errors.Is(err, rdmap.ErrPeerClosed) {
		t.Errorf("ended with %v", err)
	}
}

// Both ends close at once, each with messages under way.
func TestSimultaneousClose(t *testing.T) {
	for _, o := range []iwarptest.Options{{MULPDU: 128}, {MULPDU: 128, Window: 16, Shuffle: true}} {
		a, b := streams(t, o)
		a.raw.Stall(true)
		b.raw.Stall(true)
		src := bytes.Repeat([]byte("x"), 20000)
		got := [][]byte{a.receive(9, 20000), b.receive(9, 20000)}
		for _, p := range []*peer{a, b} {
			p.post(sgl(rdmap.Op{Kind: rdmap.OpSend, ID: 1}, src))
			p.s.Close()
		}
		a.raw.Stall(false)
		b.raw.Stall(false)
		for i, p := range []*peer{a, b} {
			if err := p.wantEnd(); err != nil || !bytes.Equal(got[i], src) {
				t.Errorf("end %d: %v, received the message: %v", i, err, bytes.Equal(got[i], src))
			}
			p.wantOnce("done", "recv")
		}
	}
}

// The peer has closed before our queue was sent, which we have closed, too.
func TestPeerClosesWhileClosing(t *testing.T) {
	p := open(t, rdmap.Config{}, iwarptest.Options{MULPDU: 128}, nil)
	p.raw.Stall(true)
	p.post(sgl(rdmap.Op{Kind: rdmap.OpWrite, ID: 1}, make([]byte, 8000)))
	p.s.Close()
	p.raw.CloseWrite()
	p.raw.Stall(false)
	for n := 0; n < 8000; {
		n += len(ddp.Tagged(p.wantOps(rdmap.OpWrite)[0]).Payload())
	}
	if err := p.wantEnd(); err != nil {
		t.Errorf("ended with %v", err)
	}
	p.want("done 1")
}

// A fault in each state that still receives.
func TestFaultInEachState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := tagged(true, rdmap.OpWrite, 0xdead, 0, 1)
		want := &ddp.Error{Layer: ddp.LayerDDP, Type: ddp.TypeTagged, Code: ddp.CodeTaggedInvalidSTag}
		for name, tc := range map[string]struct {
			before   func(p *peer)
			reported bool // a Terminate can be sent
		}{
			"streaming":               {func(p *peer) {}, true},
			"closing, queue not sent": {func(p *peer) { p.post(sgl(rdmap.Op{Kind: rdmap.OpReadRequest}, make([]byte, 1))); p.s.Close() }, true},
			"closing, our end sent":   {func(p *peer) { p.s.Close(); p.next() }, false},
		} {
			p := start(t)
			tc.before(p)
			p.raw.Send(bad)
			if tc.reported {
				p.wantTerminate()
			}
			if seg := p.next(); seg != nil {
				t.Errorf("%s: sent %x", name, seg)
			}
			p.raw.CloseWrite()
			if err := p.wantEnd(); !errors.Is(err, want) {
				t.Errorf("%s: ended with %v", name, err)
			}
		}
	})
}

// The peer's Terminate in each state that still receives.
func TestTerminateInEachState(t *testing.T) {
	term := untagged(true, rdmap.OpTerminate, 2, 1, 0, rdmap.Terminate{Layer: ddp.LayerDDP, Type: 1, Code: 1}.Append(nil)...)
	for name, before := range map[string]func(p *peer){
		"streaming": func(p *peer) {},
		"closing, queue not sent": func(p *peer) {
			p.post(sgl(rdmap.Op{Kind: rdmap.OpReadRequest}, make([]byte, 1)))
			p.s.Close()
			p.next()
		},
		"closing, our end sent": func(p *peer) { p.s.Close(); p.next() },
	} {
		p := start(t)
		before(p)
		p.raw.Send(term)
		if seg := p.next(); seg != nil {
			t.Errorf("%s: answered with %x", name, seg)
		}
		var te *rdmap.TerminateError
		if err := p.wantEnd(); !errors.As(err, &te) {
			t.Errorf("%s: ended with %v", name, err)
		}
	}
}

// Terminates that cross: each end has found a fault. Neither answers the
// other's, both end with their own reason.
func TestTerminatesCross(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := streams(t, iwarptest.Options{})
		failure := errors.New("local")
		for _, p := range []*peer{a, b} {
			p.local = func(*rdmap.Op) error { return failure }
			p.raw.Stall(true)
		}
		for _, p := range []*peer{a, b} {
			p.post(rdmap.Op{Kind: rdmap.OpLocal, ID: 1})
			p.wantState(rdmap.Terminating)
		}
		a.raw.Stall(false)
		b.raw.Stall(false)
		for _, p := range []*peer{a, b} {
			if err := p.wantEnd(); !errors.Is(err, failure) {
				t.Errorf("ended with %v", err)
			}
		}
	})
}

// After a fault of ours, what the peer still sends is dropped.
func TestNothingIsDeliveredAfterALocalFault(t *testing.T) {
	for _, o := range []iwarptest.Options{{}, {Direct: true}, {Window: 10}} {
		for _, n := range []uint16{0, 1} { // in order, early
			p := open(t, rdmap.Config{}, o, nil)
			p.locals(1)
			b, mem := p.receive(1, 1), p.region(7, 1, rdmap.RemoteWrite)
			p.post(rdmap.Op{Kind: rdmap.OpLocal, ID: 1})
			p.wantTerminate()
			p.raw.SendNumbered(n, untagged(true, rdmap.OpSend, 0, 1, 0, 1))
			p.raw.SendNumbered(n+1, tagged(true, rdmap.OpWrite, 7, 0, 1))
			p.raw.CloseWrite()
			p.wantEnd()
			p.want("local 1", "failed 1")
			if b[0] != 0 || mem[0] != 0 {
				t.Errorf("%+v: received %x, written %x", o, b, mem)
			}
		}
	}
}

// firstEnd is an LLP that reports which end was put to it first.
type firstEnd struct {
	*iwarptest.LLP
	once sync.Once
	how  chan string
}

func (l *firstEnd) CloseWrite() error {
	l.once.Do(func() { l.how <- "gracefully" })
	return l.LLP.CloseWrite()
}

func (l *firstEnd) Close() error {
	l.once.Do(func() { l.how <- "at once" })
	return l.LLP.Close()
}

// Section 6.2.1: the LLP is ended gracefully behind a Terminate, so that it
// arrives; the peer need not end its direction for that.
func TestGracefulEndBehindATerminate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, fault := range map[string]func(p *peer){
			"of the peer": func(p *peer) { p.raw.Send(tagged(true, rdmap.OpWrite, 0xdead, 0, 1)) },
			"of our own":  func(p *peer) { p.locals(1); p.post(rdmap.Op{Kind: rdmap.OpLocal, ID: 1}) },
		} {
			raw, l := iwarptest.Pair(iwarptest.Options{})
			end := &firstEnd{LLP: l, how: make(chan string, 1)}
			p := openOn(t, rdmap.Config{}, raw, end, nil)
			fault(p)
			p.wantTerminate()
			p.wantFin()
			if how := <-end.how; how != "gracefully" {
				t.Errorf("after a fault %s the LLP is ended %s", name, how)
			}
			p.raw.CloseWrite()
			p.wantEnd()
		}
	})
}

// broken is an LLP whose connection is lost rather than closed.
type broken struct{ *iwarptest.LLP }

var errLost = &ddp.Error{Layer: ddp.LayerLLP, Code: 1, Text: "connection lost"}

func (l broken) Receive(s ddp.Sink) error {
	l.LLP.Receive(s)
	return errLost
}

// Section 6.2: the LLP fails in each state. What is outstanding fails with its
// error, once, and the stream is over.
func TestLLPFailureInEachState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, before := range map[string]func(p *peer){
			"streaming": func(p *peer) {},
			"streaming, sender blocked": func(p *peer) {
				p.raw.Stall(true)
				p.post(sgl(rdmap.Op{Kind: rdmap.OpWrite, ID: 2}, make([]byte, 1<<20)))
			},
			"closing, waiting for a Read": func(p *peer) { p.s.Close() },
			"terminating": func(p *peer) {
				p.raw.Stall(true)
				p.post(sgl(rdmap.Op{Kind: rdmap.OpWrite, ID: 2}, make([]byte, 1<<20)))
				p.raw.Send(tagged(true, rdmap.OpWrite, 0xdead, 0, 1))
				p.wantState(rdmap.Terminating)
			},
		} {
			raw, l := iwarptest.Pair(iwarptest.Options{})
			p := openOn(t, rdmap.Config{}, raw, broken{l}, nil)
			p.post(sgl(rdmap.Op{Kind: rdmap.OpReadRequest, ID: 1}, make([]byte, 1)))
			before(p)
			p.raw.Close()
			if err := p.wantEnd(); err == nil || p.s.State() != rdmap.Closed {
				t.Errorf("%s: ended with %v in %v", name, err, p.s.State())
			}
			if p.errs[1] == nil || len(p.news) == 2 && p.errs[2] == nil || len(p.news) > 2 {
				t.Errorf("%s: operations report %v, %q", name, p.errs, p.news)
			}
		}
	})
}

// Abort in each state: no Terminate, no waiting, and the first reason stays.
func TestAbortInEachState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reason := errors.New("enough")
		for name, tc := range map[string]struct {
			before func(p *peer)
			own    bool
		}{
			"streaming": {func(p *peer) {}, true},
			"closing":   {func(p *peer) { p.s.Close() }, true},
			"terminating": {func(p *peer) {
				p.raw.Stall(true)
				p.post(sgl(rdmap.Op{Kind: rdmap.OpWrite, ID: 2}, make([]byte, 1<<20)))
				p.raw.Send(tagged(true, rdmap.OpWrite, 0xdead, 0, 1))
				p.wantState(rdmap.Terminating)
			}, false},
		} {
			p := start(t)
			p.post(sgl(rdmap.Op{Kind: rdmap.OpReadRequest, ID: 1}, make([]byte, 1)))
			tc.before(p)
			p.s.Abort(reason)
			if err := p.wantEnd(); errors.Is(err, reason) != tc.own {
				t.Errorf("%s: ended with %v", name, err)
			}
			if p.errs[1] == nil {
				t.Errorf("%s: the Read that was under way reports no error", name)
			}
		}
	})
}

// A fault that the LLP has found is told, without headers (section 4.8, Figure
// 10).
type crcFault struct{ *iwarptest.LLP }

func (l crcFault) Receive(ddp.Sink) error {
	l.LLP.Recv()
	return &ddp.Error{Layer: ddp.LayerLLP, Type: 0, Code: 2, Text: "CRC"}
}

func TestLLPFaultIsTold(t *testing.T) {
	raw, l := iwarptest.Pair(iwarptest.Options{})
	p := openOn(t, rdmap.Config{}, raw, crcFault{l}, nil)
	p.raw.Send([]byte("anything"))
	if term := p.wantTerminate(); term.Layer != ddp.LayerLLP || term.Type != 0 || term.Code != 2 || term.DDP != nil || term.RDMAP != nil {
		t.Errorf("Terminate %+v", term)
	}
	p.raw.CloseWrite()
	p.wantEnd()
}

// A peer that neither takes nor ends anything is cut off, whatever it was that
// should end.
func TestSilentPeerIsCutOff(t *testing.T) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for name, end := range map[string]func(p *peer){
		"close": func(p *peer) { p.s.Close() },
		"close with a queue": func(p *peer) {
			p.raw.Stall(true)
			p.post(sgl(rdmap.Op{Kind: rdmap.OpWrite}, make([]byte, 1<<20)))
			p.s.Close()
		},
		"fault":                    func(p *peer) { p.raw.Send(tagged(true, rdmap.OpWrite, 0xdead, 0, 1)) },
		"fault, Terminate blocked": func(p *peer) { p.raw.Stall(true); p.raw.Send(tagged(true, rdmap.OpWrite, 0xdead, 0, 1)) },
		"the peer's end, with a queue": func(p *peer) {
			p.raw.Stall(true)
			p.post(sgl(rdmap.Op{Kind: rdmap.OpWrite}, make([]byte, 1<<20)))
			p.raw.CloseWrite()
		},
	} {
		p := start(t)
		end(p)
		wg.Go(func() {
			<-p.over
			if name == "close" && p.err == nil {
				t.Errorf("%s: a peer that had to be cut off is no error", name)
			}
		})
	}
}

// Section 5.4 and RFC 6581 section 9.1: what refuses a stream that has not
// begun is a Terminate, too.
func TestRefuse(t *testing.T) {
	raw, l := iwarptest.Pair(iwarptest.Options{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		rdmap.Refuse(l, &ddp.Error{Layer: ddp.LayerLLP, Type: 0, Code: 6})
	}()
	p := &peer{t: t, raw: raw}
	if term := p.wantTerminate(); term.Layer != ddp.LayerLLP || term.Code != 6 {
		t.Errorf("Terminate %+v", term)
	}
	if seg := p.next(); seg != nil {
		t.Errorf("then %x", seg)
	}
	raw.CloseWrite()
	<-done
}
