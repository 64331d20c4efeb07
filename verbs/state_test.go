package verbs

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/transport"
)

// callAll calls every method of a queue pair that does not end it.
func callAll(qp *QP) {
	_ = qp.State().String()
	_, _, _, _, _ = qp.ID(), qp.PD(), qp.Context(), qp.Established(), qp.ORD()
	_, _, _, _ = qp.Peer(), qp.Protection(), qp.Flow(), qp.Paused()
	_, _ = qp.Stats(), qp.Err()
	qp.Flush()
}

// establish runs prepare by each way to a stream and returns what that way says.
func establish(t *testing.T, prepare func(*QP) error) map[string]error {
	t.Helper()
	got := make(map[string]error)
	e := newEnd(t, Config{})
	raw, l := iwarptest.Pair(iwarptest.Options{})
	defer raw.Close()
	_, got["Adopt"] = e.pd.Adopt(AdoptConfig{QP: e.cfg, Prepare: prepare, LLP: l, Conn: fakeConn{"peer"}})

	a, b := newEnd(t, Config{}), newEnd(t, Config{})
	ln := listen(t, b, ListenConfig{})
	_, got["Dial"] = a.pd.Dial(testContext(t), DialConfig{QP: a.cfg, Prepare: prepare, Remote: ln.Addr(), Transport: &transport.Config{Protector: transport.LoopbackOnly()}})

	accepted := make(chan error)
	ln2 := listen(t, b, ListenConfig{})
	go func() {
		cr, err := ln2.Accept(testContext(t))
		if err == nil {
			_, err = cr.Accept(testContext(t), b.pd, AcceptConfig{QP: b.cfg, Prepare: prepare})
			cr.Reject(testContext(t), nil)
		}
		accepted <- err
	}()
	if _, err := a.dial(ln2.Addr()); err == nil {
		t.Error("dialled a stream that was not accepted")
	}
	got["Accept"] = <-accepted
	for _, d := range []*Device{e.dev, a.dev, b.dev} {
		if u := d.Usage(); u.Streams != 0 || u.QueueEntries != 0 || u.IRRQEntries != 0 {
			t.Errorf("an ended queue pair is still charged: %+v", u)
		}
	}
	return got
}

func TestIdleQueuePairTakesEveryCall(t *testing.T) {
	stop := errors.New("seen enough")
	for how, err := range establish(t, func(qp *QP) error {
		if qp.State() != QPIdle {
			t.Errorf("state %v inside prepare", qp.State())
		}
		if err := qp.PostSend(&SendWR{Op: OpSend}); !errors.Is(err, ErrIdle) {
			t.Errorf("a send is posted: %v", err)
		}
		if err := qp.PostRecv(RecvWR{}); err != nil {
			t.Errorf("a receive is refused: %v", err)
		}
		callAll(qp)
		if !qp.Established().IsZero() {
			t.Error("an idle queue pair says that it is established")
		}
		return stop
	}) {
		if !errors.Is(err, stop) {
			t.Errorf("%s: %v", how, err)
		}
	}
}

// Ending a queue pair inside prepare makes its start-up fail with the reason.
func TestEndInsidePrepareFailsTheStartUp(t *testing.T) {
	reason := errors.New("changed my mind")
	for name, tc := range map[string]struct {
		end  func(*QP)
		want error
	}{
		"abort":             {func(qp *QP) { qp.Abort(reason) }, reason},
		"abort by EOF":      {func(qp *QP) { qp.Abort(io.EOF) }, io.EOF}, // no reason to try again with revision 1
		"abort for nothing": {func(qp *QP) { qp.Abort(nil) }, ErrClosed},
		"close":             {func(qp *QP) { qp.Close() }, ErrClosed},
		"shutdown":          {func(qp *QP) { qp.Shutdown(context.Background()) }, ErrClosed},
		"abort twice":       {func(qp *QP) { qp.Abort(reason); qp.Abort(nil); qp.Close() }, reason},
	} {
		var seen []*QP
		for how, err := range establish(t, func(qp *QP) error {
			seen = append(seen, qp)
			tc.end(qp)
			return nil
		}) {
			if !errors.Is(err, tc.want) {
				t.Errorf("%s, %s: %v", how, name, err)
			}
		}
		if len(seen) != 3 {
			t.Errorf("%s: prepare was called %d times for 3 streams", name, len(seen))
		}
		for _, qp := range seen {
			<-qp.Done()
			if qp.State() != QPError || !errors.Is(qp.Err(), tc.want) {
				t.Errorf("%s: state %v, %v", name, qp.State(), qp.Err())
			}
			if err := qp.PostSend(&SendWR{Op: OpSend}); !errors.Is(err, ErrClosed) {
				t.Errorf("%s: a send is posted: %v", name, err)
			}
			if err := qp.PostRecv(RecvWR{}); !errors.Is(err, ErrClosed) {
				t.Errorf("%s: a receive is posted: %v", name, err)
			}
			callAll(qp)
		}
	}
}

// silent is a server that takes connections and says nothing.
func silent(t *testing.T) netip.AddrPort {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return netip.MustParseAddrPort(ln.Addr().String())
}

// A queue pair that is ended before its start-up could be told does not wait for its peer.
func TestEndBeforeTheStartUpCanBeTold(t *testing.T) {
	reason := errors.New("changed my mind")
	r := newRules("hpc lab", withLoopback)
	e := inLab(t, r)
	e.made()
	r.asked = func(string, string, error) { // last before Prepare
		e.qp.mu.Lock()
		taken := e.qp.taken
		e.qp.mu.Unlock()
		if taken {
			e.qp.Abort(reason)
		}
	}
	ctx, stop := context.WithTimeout(testContext(t), 20*time.Second)
	defer stop()
	prepare := func(*QP) error {
		t.Error("a queue pair that is over is prepared")
		return nil
	}
	if _, err := e.pd.Dial(ctx, DialConfig{Made: e.qp, Prepare: prepare, Remote: silent(t), Transport: tcp, Setup: Setup{Timeout: time.Hour}}); !errors.Is(err, reason) || ctx.Err() != nil {
		t.Errorf("%v; context: %v", err, ctx.Err())
	}
}

// No stream begins on a device that is being closed: Close would not wait for its goroutine.
func TestNoStreamBeginsWhileTheDeviceIsClosed(t *testing.T) {
	e := newEnd(t, Config{})
	asked, held := make(chan struct{}), make(chan struct{})
	ln := listen(t, e, ListenConfig{PeerSetup: func(transport.Flow, transport.Identity) Setup {
		close(asked)
		<-held // and so does Close, which waits for the listener
		return Setup{}
	}})
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	<-asked
	raw, l := iwarptest.Pair(iwarptest.Options{})
	defer raw.Close()
	closed := make(chan struct{})
	_, err = e.pd.Adopt(AdoptConfig{QP: e.cfg, LLP: l, Conn: fakeConn{"peer"}, Prepare: func(*QP) error {
		go func() {
			defer close(closed)
			e.dev.Close()
		}()
		for isOpen := true; isOpen; runtime.Gosched() {
			e.dev.mu.Lock()
			isOpen = !e.dev.closed
			e.dev.mu.Unlock()
		}
		return nil
	}})
	close(held)
	<-closed
	if !errors.Is(err, ErrClosed) {
		t.Errorf("a stream begins: %v", err)
	}
}

// An Abort, and the device's Close, end a start-up that waits for its peer.
func TestStartUpInProgressEnds(t *testing.T) {
	reason := errors.New("waited enough")
	for name, end := range map[string]func(*end, *QP){
		"abort":         func(_ *end, qp *QP) { qp.Abort(reason) },
		"device closed": func(e *end, _ *QP) { e.dev.Close() },
	} {
		e := newEnd(t, Config{})
		prepared := make(chan *QP, 1)
		go func() {
			qp := <-prepared
			end(e, qp)
		}()
		_, err := e.pd.Dial(context.Background(), DialConfig{
			QP: e.cfg, Prepare: func(qp *QP) error {
				prepared <- qp
				return nil
			},
			Remote: silent(t), Transport: &transport.Config{Protector: transport.LoopbackOnly()}, Setup: Setup{Timeout: time.Hour},
		})
		if !errors.Is(err, reason) && !errors.Is(err, ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestStatesOfAStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnd(t, Config{})
		raw, l := iwarptest.Pair(iwarptest.Options{})
		e.startOn(l)
		if e.qp.State() != QPRTS || e.qp.Established().IsZero() || len(e.dev.QPs()) != 1 {
			t.Errorf("state %v of a live stream", e.qp.State())
		}
		e.qp.Close()
		if s := e.qp.State(); s != QPClosing {
			t.Errorf("state %v after Close", s)
		}
		callAll(e.qp)
		if err := e.qp.PostSend(&SendWR{Op: OpSend}); !errors.Is(err, ErrClosed) {
			t.Errorf("a send after Close: %v", err)
		}
		raw.CloseWrite()
		if err := e.wantEnd(); err != nil || e.qp.State() != QPError {
			t.Errorf("state %v after a graceful end: %v", e.qp.State(), err)
		}
		callAll(e.qp)

		raw, l = iwarptest.Pair(iwarptest.Options{})
		e.startOn(l)
		raw.Stall(true) // the Terminate can't leave
		raw.Send(untagged(true, rdmap.OpSend, 0, 1, 0))
		for e.qp.State() == QPRTS {
			select {
			case <-e.qp.Done():
				t.Fatal("the stream ended at once")
			default:
			}
		}
		if s := e.qp.State(); s != QPTerminate {
			t.Errorf("state %v after a fault", s)
		}
		callAll(e.qp)
		raw.Stall(false)
		raw.CloseWrite()
		if err := e.wantEnd(); !errors.Is(err, &ddp.Error{Layer: ddp.LayerDDP, Type: 2, Code: 2}) {
			t.Errorf("ended with %v", err)
		}
		e.qp.Abort(nil)
		e.qp.Close()
		callAll(e.qp)
		if len(e.dev.QPs()) != 0 {
			t.Error("an ended queue pair is listed")
		}
	})
}

// The one Read that says ready is charged where the queue pair has no IRD of its
// own (RFC 6581 section 9.2).
func TestReadyReadIsChargedWithoutIRD(t *testing.T) {
	e := newEnd(t, Config{})
	e.cfg.IRD = 0
	adopt := func(ird int) (*QP, *iwarptest.LLP, error) {
		raw, l := iwarptest.Pair(iwarptest.Options{})
		qp, err := e.pd.Adopt(AdoptConfig{QP: e.cfg, LLP: l, Conn: fakeConn{"peer"}, IRD: ird})
		return qp, raw, err
	}
	if _, _, err := adopt(2); err == nil {
		t.Error("an IRD of 2 on a queue pair with none is taken")
	}
	qp, raw, err := adopt(1)
	if err != nil {
		t.Fatal(err)
	}
	if n := e.dev.Usage().IRRQEntries; n != 1 {
		t.Errorf("%d inbound Reads are charged", n)
	}
	req := rdmap.ReadRequest{SinkSTag: 7}
	raw.Send(append(ddp.AppendUntagged(nil, true, rdmap.Control(rdmap.OpReadRequest), 0, 1, 1, 0), req.Append(nil)...))
	segs, err := raw.Recv()
	if err != nil || len(segs) != 1 || !ddp.IsTagged(segs[0]) || ddp.Tagged(segs[0]).STag() != 7 {
		t.Errorf("the Read is answered with %x, %v", segs, err)
	}
	raw.Close()
	<-qp.Done()
	if n := e.dev.Usage().IRRQEntries; n != 0 {
		t.Errorf("%d inbound Reads are charged after the end", n)
	}

	full := newEnd(t, Config{Limits: Limits{IRRQEntries: 1}})
	full.cfg.IRD = 1
	full.rawStream()
	full.cfg.IRD = 0
	other, l := iwarptest.Pair(iwarptest.Options{})
	defer other.Close()
	var q *QuotaError
	if _, err := full.pd.Adopt(AdoptConfig{QP: full.cfg, LLP: l, Conn: fakeConn{"peer"}, IRD: 1}); !errors.As(err, &q) {
		t.Errorf("an entry past the limit: %v", err)
	}
}

// An initiator whose ready-to-receive message is a Read meets a responder
// without IRD.
func TestReadyReadAgainstAListenerWithoutIRD(t *testing.T) {
	a, b := newEnd(t, Config{}), newEnd(t, Config{})
	a.cfg.ORD, b.cfg.IRD = 1, 0
	ln := listen(t, b, ListenConfig{})
	accepted := make(chan error, 1)
	go func() {
		cr, err := ln.Accept(testContext(t))
		if err == nil {
			b.qp, err = cr.Accept(testContext(t), b.pd, AcceptConfig{QP: b.cfg})
		}
		accepted <- err
	}()
	qp, err := a.pd.Dial(testContext(t), DialConfig{
		QP:     a.cfg,
		Remote: ln.Addr(), Transport: &transport.Config{Protector: transport.LoopbackOnly()}, Setup: Setup{PeerToPeer: RTRRead},
	})
	if err := errors.Join(err, <-accepted); err != nil {
		t.Fatal(err)
	}
	a.qp = qp
	b.post(SendWR{Op: OpWrite, Flags: Signaled})
	b.wantOK(WCWrite)
	if err := a.qp.Shutdown(testContext(t)); err != nil {
		t.Errorf("ended with %v", err)
	}
	if err := b.wantEnd(); err != nil && !errors.Is(err, rdmap.ErrPeerClosed) {
		t.Errorf("ended with %v", err)
	}
}
