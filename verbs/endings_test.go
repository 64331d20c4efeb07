package verbs

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/rdmap"
)

// handlerFunc is a CQHandler.
type handlerFunc func(*CQ, []WC)

func (f handlerFunc) Completions(cq *CQ, wcs []WC) { f(cq, wcs) }

func (e *end) useHandler(f handlerFunc) {
	e.t.Helper()
	cq, err := e.ulp.CreateCQ(1024, f)
	if err != nil {
		e.t.Fatal(err)
	}
	e.cq, e.cfg.SendCQ, e.cfg.RecvCQ = cq, cq, cq
}

func wantSignal(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(2 * time.Minute):
		t.Fatal(what)
	}
}

// Each stream whose completion is lost in an overflow ends, not only the first
// of its queue.
func TestEveryStreamWithALostCompletionEnds(t *testing.T) {
	e := newEnd(t, Config{})
	cq, err := e.ulp.CreateCQ(1, nil)
	if err != nil {
		t.Fatal(err)
	}
	e.cfg.SendCQ = cq
	var qps [3]*QP
	for i := range qps {
		raw, l := iwarptest.Pair(iwarptest.Options{})
		defer raw.Close()
		e.startOn(l)
		qps[i] = e.qp
	}
	for _, qp := range qps {
		if err := qp.PostSend(&SendWR{Op: OpWrite, Flags: Signaled}); err != nil {
			t.Fatal(err)
		}
	}
	if qps[0].Err() != nil {
		t.Errorf("the stream that lost nothing ended: %v", qps[0].Err())
	}
	for _, e.qp = range qps[1:] {
		if err := e.wantEnd(); !errors.Is(err, ErrCQOverflow) {
			t.Errorf("ended with %v", err)
		}
	}
}

// Done says that the handler has returned from the stream's last completion.
func TestDoneFollowsTheHandler(t *testing.T) {
	e := newEnd(t, Config{})
	entered, release := make(chan struct{}), make(chan struct{})
	var last atomic.Bool
	n := 0
	e.useHandler(func(_ *CQ, wcs []WC) {
		if n == 0 {
			close(entered)
			<-release
		}
		if n += len(wcs); n == 2 {
			last.Store(true)
		}
	})
	raw, l := iwarptest.Pair(iwarptest.Options{})
	defer raw.Close()
	e.startOn(l)
	e.recv(RecvWR{})
	e.post(SendWR{Op: OpWrite, Flags: Signaled})
	wantSignal(t, entered, "the handler is not called")
	e.qp.Abort(nil)
	over := make(chan bool)
	go func() {
		<-e.qp.Done()
		over <- last.Load()
	}()
	for range 1000 {
		runtime.Gosched()
	}
	close(release)
	if !<-over {
		t.Error("Done was closed before the handler had seen the last completion")
	}
}

// A consumer that posts again on each completion keeps neither its stream nor
// the dispatch of its completions from receiving.
func TestEndlessPostsDoNotStopReceiving(t *testing.T) {
	for _, more := range []bool{false, true} {
		a, b := newEnd(t, Config{}), newEnd(t, Config{})
		looping, got := make(chan struct{}), make(chan struct{})
		n, received := 0, false
		a.useHandler(func(_ *CQ, wcs []WC) {
			for _, wc := range wcs {
				switch {
				case wc.Err != nil || received:
					return
				case wc.Op == WCRecv:
					received = true
					close(got)
					return
				}
				if n++; n == 100 {
					close(looping)
				}
				if wc.Op == WCWrite || !more {
					wc.QP.PostSend(&SendWR{Op: OpWrite, Flags: Signaled})
				}
			}
		})
		memPair(iwarptest.Options{})(t, a, b)
		a.recv(RecvWR{})
		src := b.mr(8, RemoteRead)
		a.post(SendWR{Op: OpRead, Flags: Signaled | More, SGL: whole(a.mr(8, LocalWrite), 8), RemoteSTag: src.STag()})
		if more {
			a.post(SendWR{Op: OpWrite, Flags: Signaled | Fence | More})
		}
		a.qp.Flush()
		wantSignal(t, looping, "the posts do not go round")
		b.post(SendWR{Op: OpSend})
		wantSignal(t, got, "nothing is received while the consumer posts")
		a.qp.Abort(nil)
		a.wantEnd()
	}
}

func TestDeregisteredMemoryCanNotBePosted(t *testing.T) {
	e := newEnd(t, Config{})
	raw, l := iwarptest.Pair(iwarptest.Options{})
	defer raw.Close()
	e.startOn(l)
	good, gone := e.mr(8, LocalWrite), e.mr(8, LocalWrite)
	if err := gone.Deregister(); err != nil {
		t.Fatal(err)
	}
	sgl := []SGE{{MR: good, Len: 8}, {MR: gone, Len: 8}}
	for name, err := range map[string]error{
		"a receive":      e.qp.PostRecv(RecvWR{SGL: sgl}),
		"a send":         e.qp.PostSend(&SendWR{Op: OpSend, SGL: sgl}),
		"an inline send": e.qp.PostSend(&SendWR{Op: OpSend, Flags: Inline, SGL: sgl}),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s that names it: %v", name, err)
		}
	}
	if err := good.Deregister(); err != nil {
		t.Errorf("a failed post keeps memory: %v", err)
	}
	e.post(SendWR{Op: OpWrite, Flags: Signaled})
	e.wantOK(WCWrite)
}

func TestAtomicResultIsEightBytes(t *testing.T) {
	e := newEnd(t, Config{})
	raw, l := iwarptest.Pair(iwarptest.Options{})
	defer raw.Close()
	e.startOn(l)
	mr := e.mr(16, LocalWrite)
	for name, wr := range map[string]SendWR{
		"7 bytes":    {Op: OpFetchAdd, SGL: whole(mr, 7)},
		"16 bytes":   {Op: OpCmpSwap, SGL: whole(mr, 16)},
		"two pieces": {Op: OpFetchAdd, SGL: []SGE{{MR: mr, Len: 4}, {MR: mr, Off: 4, Len: 4}}},
		"inline":     {Op: OpFetchAdd, Flags: Inline, SGL: whole(mr, 8)},
	} {
		if err := e.qp.PostSend(&wr); err == nil {
			t.Errorf("%s are taken", name)
		}
	}
}

// RFC 5040 section 5.3.
func TestInvalidateOfAnotherPDIsRefused(t *testing.T) {
	e := newEnd(t, Config{})
	raw, l := iwarptest.Pair(iwarptest.Options{})
	e.startOn(l)
	pd, err := e.ulp.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	other, err := pd.RegisterMR(make([]byte, 8), LocalWrite|RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	e.recv(RecvWR{})
	raw.Send(ddp.AppendUntagged(nil, true, rdmap.Control(rdmap.OpSendInvalidate), other.STag(), 0, 1, 0))
	if term := readTerminate(t, raw); term.Layer != ddp.LayerRDMA || term.Type != rdmap.TypeRemoteProtection || term.Code != rdmap.CodeCannotInvalidate {
		t.Errorf("Terminate %+v", term)
	}
	raw.Close()
	e.wantEnd()
	if _, pin, fault := e.dev.acquire(pd, nil, other.STag(), 0, 8, rdmap.RemoteWrite); fault != rdmap.FaultNone {
		t.Errorf("the other protection domain lost its STag: %v", fault)
	} else {
		pin.Unpin()
	}
}

// The DDP segment length of a Terminate is the segment's, also when its payload
// was not there yet (RFC 5040 section 4.8).
func TestTerminateTellsTheWholeSegmentLength(t *testing.T) {
	payload := make([]byte, 100)
	for name, seg := range map[string][]byte{
		"tagged, DDP version 0":     append([]byte{0xc0, 0x40, 13: 0}, payload...),
		"message number skipped":    untagged(true, rdmap.OpSend, 0, 2, 0, payload...),
		"invalidate of no STag":     append(ddp.AppendUntagged(nil, true, rdmap.Control(rdmap.OpSendInvalidate), 0xdead, 0, 1, 0), payload...),
		"write to no STag":          append(ddp.AppendTagged(nil, true, rdmap.Control(rdmap.OpWrite), 0xdead, 0), payload...),
		"queue that does not exist": untagged(true, rdmap.OpSend, 9, 1, 0, payload...),
	} {
		for _, direct := range []bool{false, true} {
			e := newEnd(t, Config{})
			raw, l := iwarptest.Pair(iwarptest.Options{Direct: direct})
			e.startOn(l)
			e.recv(RecvWR{SGL: whole(e.mr(100, LocalWrite), 100)})
			raw.Send(seg)
			if term := readTerminate(t, raw); int(term.SegLen) != len(seg) {
				t.Errorf("%s, direct %v: segment length %d, want %d", name, direct, term.SegLen, len(seg))
			}
			raw.Close()
			e.wantEnd()
		}
	}
}

// deadSender is an LLP that can't send any more and still receives, as a TCP
// socket after the peer's reset.
type deadSender struct{ *iwarptest.LLP }

func (deadSender) TryFlush() (bool, error) {
	return false, &ddp.Error{Layer: ddp.LayerLLP, Type: mpa.TypeMPA, Code: mpa.CodeConnectionLost, Text: "reset"}
}

// What the peer said before it went is the reason, not that it is gone.
func TestLastWordsOutliveTheSendingSide(t *testing.T) {
	term := rdmap.Terminate{Layer: ddp.LayerDDP, Type: 1, Code: 1}
	var te *rdmap.TerminateError
	for name, tc := range map[string]struct {
		say  func(raw *iwarptest.LLP)
		want func(error) bool
	}{
		"terminate": {func(raw *iwarptest.LLP) {
			raw.Send(untagged(true, rdmap.OpTerminate, rdmap.QNTerminate, 1, 0, term.Append(nil)...))
		}, func(err error) bool { return errors.As(err, &te) }},
		"graceful end": {func(raw *iwarptest.LLP) { raw.CloseWrite() },
			func(err error) bool { return errors.Is(err, rdmap.ErrPeerClosed) }},
		"nothing": {func(raw *iwarptest.LLP) { raw.Close() },
			func(err error) bool {
				return errors.Is(err, &ddp.Error{Layer: ddp.LayerLLP, Code: mpa.CodeConnectionLost})
			}},
	} {
		e := newEnd(t, Config{})
		raw, l := iwarptest.Pair(iwarptest.Options{})
		e.startOn(deadSender{l})
		e.post(SendWR{Op: OpWrite})
		tc.say(raw)
		if err := e.wantEnd(); !tc.want(err) {
			t.Errorf("%s: ended with %v", name, err)
		}
	}
}

// lostLLP is an LLP whose connection breaks instead of ending.
type lostLLP struct{ *iwarptest.LLP }

func (l lostLLP) Receive(s ddp.Sink) error {
	l.LLP.Receive(s)
	return &ddp.Error{Layer: ddp.LayerLLP, Type: mpa.TypeMPA, Code: mpa.CodeConnectionLost, Text: "reset"}
}

func TestLostConnectionIsNoFaultOfThePeer(t *testing.T) {
	e := newEnd(t, Config{})
	raw, l := iwarptest.Pair(iwarptest.Options{})
	e.startOn(lostLLP{l})
	raw.Close()
	e.wantEnd()
	for down := false; !down; {
		ev := nextEvent(t, e.dev)
		if ev.Kind == EventPeerFault {
			t.Error("a lost connection is reported as the peer's fault")
		}
		down = ev.Kind == EventStreamDown
	}
}

// A Read Request that crosses our graceful end can't be answered and does not
// spoil it.
func TestReadRequestAfterOurEndIsLeftAlone(t *testing.T) {
	e := newEnd(t, Config{})
	raw, l := iwarptest.Pair(iwarptest.Options{})
	e.startOn(l)
	e.qp.Close()
	if segs, err := raw.Recv(); err == nil {
		t.Fatalf("sent %x", segs)
	}
	req := rdmap.ReadRequest{SinkSTag: 1, Size: 8, SourceSTag: e.mr(8, RemoteRead).STag()}
	raw.Send(append(ddp.AppendUntagged(nil, true, rdmap.Control(rdmap.OpReadRequest), 0, 1, 1, 0), req.Append(nil)...))
	raw.CloseWrite()
	if err := e.wantEnd(); err != nil {
		t.Errorf("ended with %v", err)
	}
}

func TestRefusedPeerLeavesNoAccount(t *testing.T) {
	e := newEnd(t, Config{Peer: Quota{QueueEntries: 1}})
	if _, err := newQP(e.pd, e.cfg, fakeConn{"greedy"}); err == nil {
		t.Fatal("a queue pair past the quota")
	}
	if n := len(e.dev.prm.known); n != 0 {
		t.Errorf("%d accounts are left", n)
	}
}

// lateEnd is an LLP on which our end is overtaken by the peer's: the first
// CloseWrite meets the Close.
type lateEnd struct {
	*iwarptest.LLP
	ends    atomic.Int32
	entered chan struct{}
	closed  chan struct{}
	once    sync.Once
}

func (l *lateEnd) CloseWrite() error {
	if l.ends.Add(1) > 1 {
		return nil
	}
	close(l.entered)
	<-l.closed
	return ddp.ErrClosed
}

func (l *lateEnd) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.LLP.Close()
}

func TestGracefulEndsMayCross(t *testing.T) {
	e := newEnd(t, Config{})
	raw, mem := iwarptest.Pair(iwarptest.Options{})
	l := &lateEnd{LLP: mem, entered: make(chan struct{}), closed: make(chan struct{})}
	e.startOn(l)
	go e.qp.Close()
	wantSignal(t, l.entered, "the stream is not ended")
	raw.CloseWrite()
	if err := e.wantEnd(); err != nil {
		t.Errorf("ended with %v", err)
	}
}
