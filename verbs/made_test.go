package verbs

import (
	"context"
	"errors"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/transport"
)

// made creates the end's queue pair, before there is a stream.
func (e *end) made() {
	e.t.Helper()
	qp, err := e.pd.CreateQP(e.cfg)
	if err != nil {
		e.t.Fatal(err)
	}
	e.qp = qp
}

// joinMade connects two ends whose queue pairs are made.
func joinMade(t *testing.T, a, b *end, local netip.AddrPort) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ln, err := b.dev.Listen(ctx, local, ListenConfig{Transport: b.tc})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	accepted := make(chan error, 1)
	go func() {
		req, err := ln.Accept(ctx)
		if err == nil {
			_, err = req.Accept(ctx, b.pd, AcceptConfig{Made: b.qp, QP: QPConfig{IRD: 3, ORD: 2}})
		}
		accepted <- err
	}()
	qp, err := a.pd.Dial(ctx, DialConfig{Remote: ln.Addr(), Transport: a.tc, Made: a.qp, QP: QPConfig{IRD: 2, ORD: 3}})
	if err := errors.Join(err, <-accepted); err != nil {
		t.Fatal(err)
	}
	if qp != a.qp {
		t.Error("Dial returned another queue pair")
	}
}

func localOf(e *end) netip.AddrPort {
	if e.tc.Kind == transport.TCP {
		return netip.MustParseAddrPort("127.0.0.1:0")
	}
	return sctpLocal
}

// A queue pair may be made and given receives before it connects, has the depths of the connection, and is charged to the
// peer from then on.
func TestQueuePairMadeBeforeItConnects(t *testing.T) {
	overEachCarrier(t, Config{}, Config{}, func(t *testing.T, a, b *end) {
		a.made()
		b.made()
		in, out := b.mr(64, LocalWrite), a.mr(64, LocalWrite)
		b.recv(RecvWR{ID: 7, SGL: whole(in, 64)})
		if s := b.qp.State(); s != QPIdle {
			t.Errorf("before there is a stream the state is %v", s)
		}
		if err := a.qp.PostSend(&SendWR{Op: OpSend, SGL: whole(out, 8)}); !errors.Is(err, ErrIdle) {
			t.Errorf("a send before there is a stream: %v", err)
		}
		if a.qp.Peer() != "" {
			t.Errorf("the peer of nobody is %q", a.qp.Peer())
		}
		joinMade(t, a, b, localOf(b))
		fill(out.Bytes(), 1)
		a.post(SendWR{Op: OpSend, SGL: whole(out, 64)})
		if wc := b.wantOK(WCRecv); wc.ID != 7 || string(in.Bytes()) != string(out.Bytes()) {
			t.Errorf("receive %d of %x", wc.ID, in.Bytes())
		}
		if got := a.qp.ORD(); got != 3 {
			t.Errorf("ORD %d, want 3", got)
		}
		var streams int64
		for _, u := range a.dev.Resources().Peers {
			streams += u.Used.Streams
		}
		if streams != 1 {
			t.Errorf("%d streams are charged to peers", streams)
		}
	})
}

// One whose stream does not come up completes its receives, once.
func TestReceivesOfAQueuePairThatNeverConnects(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, e *end){
		"closed":  func(_ *testing.T, e *end) { e.qp.Close() },
		"aborted": func(_ *testing.T, e *end) { e.qp.Abort(ErrKilled) },
		"refused by the host": func(t *testing.T, e *end) {
			if _, err := e.pd.Dial(t.Context(), DialConfig{Remote: netip.MustParseAddrPort("127.0.0.1:1"), Transport: tcp, Made: e.qp}); err == nil {
				t.Error("it connects to nobody")
			}
			if s := e.qp.State(); s != QPIdle {
				t.Errorf("its state is %v, although there was no connection", s)
			}
			e.qp.Close()
		},
		"rejected": func(t *testing.T, e *end) {
			b := newEnd(t, Config{})
			ln, err := b.dev.Listen(t.Context(), localOf(b), ListenConfig{Transport: tcp})
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			go func() {
				if req, err := ln.Accept(t.Context()); err == nil {
					req.Reject(t.Context(), []byte("no"))
				}
			}()
			_, err = e.pd.Dial(t.Context(), DialConfig{Remote: ln.Addr(), Transport: tcp, Made: e.qp})
			if rej := (*RejectedError)(nil); !errors.As(err, &rej) || string(rej.PrivateData) != "no" {
				t.Errorf("a rejected stream: %v", err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnd(t, Config{})
			e.made()
			mr := e.mr(64, LocalWrite)
			for id := range uint64(3) {
				e.recv(RecvWR{ID: id, SGL: whole(mr, 64)})
			}
			end(t, e)
			for id := range uint64(3) {
				if wc := e.next(); wc.ID != id || !errors.Is(wc.Err, ErrFlushed) {
					t.Errorf("completion %d, %v; want %d, flushed", wc.ID, wc.Err, id)
				}
			}
			e.wantEnd()
			if n := e.cq.Poll(make([]WC, 1)); n != 0 {
				t.Error("one completes twice")
			}
			if err := mr.Deregister(); err != nil {
				t.Error(err)
			}
			if u := e.dev.Usage(); u.Streams != 0 || u.QueueEntries != 0 {
				t.Errorf("in use afterwards: %+v", u)
			}
			if _, err := e.pd.Dial(t.Context(), DialConfig{Remote: netip.MustParseAddrPort("127.0.0.1:1"), Transport: tcp, Made: e.qp}); !errors.Is(err, ErrClosed) && err == nil {
				t.Errorf("a queue pair that is over connects: %v", err)
			}
		})
	}
}

// A queue pair with a stream is not given another.
func TestQueuePairConnectsOnce(t *testing.T) {
	a, b := newEnd(t, Config{}), newEnd(t, Config{})
	a.made()
	b.made()
	joinMade(t, a, b, localOf(b))
	ln, err := b.dev.Listen(t.Context(), localOf(b), ListenConfig{Transport: tcp})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if _, err := a.pd.Dial(t.Context(), DialConfig{Remote: ln.Addr(), Transport: tcp, Made: a.qp}); !errors.Is(err, ErrInUse) {
		t.Errorf("a second stream: %v", err)
	}
	if s := a.qp.State(); s != QPRTS {
		t.Errorf("the first is %v", s)
	}
	other, err := a.ulp.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	c, err := a.pd.CreateQP(a.cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := other.Dial(t.Context(), DialConfig{Remote: ln.Addr(), Transport: tcp, Made: c}); err == nil {
		t.Error("a queue pair connects for another protection domain")
	}
}

// Peers reach memory from its base on, to the byte.
func TestTaggedOffsetsCountFromTheBase(t *testing.T) {
	a, b := newEnd(t, Config{}), newEnd(t, Config{})
	tcpPair(Setup{}, Setup{})(t, a, b)
	const base = 0xffff_8000_0000_1000
	buf := make([]byte, 64)
	mr, err := b.pd.RegisterMRAt(base, buf, LocalWrite|RemoteWrite|RemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	src := a.mr(64, LocalWrite)
	fill(src.Bytes(), 2)
	a.post(SendWR{Op: OpWrite, SGL: whole(src, 16), RemoteSTag: mr.STag(), RemoteTO: base + 48})
	a.post(SendWR{Op: OpRead, SGL: []SGE{{MR: src, Off: 32, Len: 16}}, RemoteSTag: mr.STag(), RemoteTO: base + 48, Flags: Signaled})
	a.wantOK(WCRead)
	if string(src.Bytes()[32:48]) != string(src.Bytes()[:16]) || string(buf[48:]) != string(src.Bytes()[:16]) {
		t.Error("what was written is elsewhere")
	}
	if _, err := b.pd.RegisterMRAt(1<<64-32, make([]byte, 33), LocalWrite); err == nil {
		t.Error("tagged offsets wrap")
	}
	top, err := b.pd.RegisterMRAt(1<<64-32, make([]byte, 32), LocalWrite|RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]struct {
		mr *MR
		to uint64
	}{
		"the byte before": {mr, base - 1}, "offset 0": {mr, 0}, "beyond the end": {mr, base + 49}, "far beyond": {mr, base + 1<<40},
		"past 2^64": {top, 1<<64 - 8}, "below the top": {top, 1<<64 - 33},
	} {
		t.Run(name, func(t *testing.T) {
			a2 := &end{t: t, tc: tcp, dev: a.dev, ulp: a.ulp, pd: a.pd, cq: a.cq, cfg: a.cfg}
			b2 := &end{t: t, tc: tcp, dev: b.dev, ulp: b.ulp, pd: b.pd, cq: b.cq, cfg: b.cfg}
			tcpPair(Setup{}, Setup{})(t, a2, b2)
			before := string(buf)
			a2.post(SendWR{Op: OpWrite, SGL: whole(src, 16), RemoteSTag: x.mr.STag(), RemoteTO: x.to})
			if err := b2.wantEnd(); err == nil {
				t.Error("the stream goes on")
			}
			a2.wantEnd()
			if string(buf) != before {
				t.Error("memory was changed")
			}
		})
	}
	// A window has a base of its own.
	open := b.mr(64, LocalWrite|WindowBind)
	mw, err := b.pd.AllocMW()
	if err != nil {
		t.Fatal(err)
	}
	for b.cq.Poll(make([]WC, 16)) > 0 {
	}
	b.post(SendWR{Op: OpBind, MW: mw, SGL: []SGE{{MR: open, Off: 8, Len: 16}}, Access: RemoteWrite, Base: 5000, Flags: Signaled})
	b.wantOK(WCBind)
	for a.cq.Poll(make([]WC, 16)) > 0 {
	}
	a.post(SendWR{Op: OpWrite, SGL: whole(src, 4), RemoteSTag: mw.STag(), RemoteTO: 5012})
	a.post(SendWR{Op: OpRead, SGL: []SGE{{MR: src, Off: 60, Len: 1}}, RemoteSTag: mr.STag(), RemoteTO: base, Flags: Signaled}) // behind the Write
	a.wantOK(WCRead)
	if string(open.Bytes()[20:24]) != string(src.Bytes()[:4]) {
		t.Errorf("through the window came %x", open.Bytes())
	}
}

// What is sent inline need not be registered, and may be reused at once.
func TestInlineDataNeedNoRegion(t *testing.T) {
	a, b := newEnd(t, Config{}), newEnd(t, Config{})
	tcpPair(Setup{}, Setup{})(t, a, b)
	in := b.mr(64, LocalWrite|RemoteWrite)
	b.recv(RecvWR{SGL: []SGE{{MR: in, Len: 32}}})
	data := []byte("written, sent")
	a.post(SendWR{Op: OpWrite, Flags: Inline | More, Data: data[:7], RemoteSTag: in.STag(), RemoteTO: 32})
	a.post(SendWR{Op: OpSend, Flags: Inline | More, Data: data[9:]})
	clear(data)
	a.qp.Flush()
	if wc := b.wantOK(WCRecv); string(in.Bytes()[:wc.Len]) != "sent" || string(in.Bytes()[32:39]) != "written" {
		t.Errorf("there is %q", in.Bytes())
	}
	for name, wr := range map[string]SendWR{
		"not inline":        {Op: OpSend, Data: []byte("x")},
		"with a list":       {Op: OpSend, Data: []byte("x"), Flags: Inline, SGL: whole(a.mr(1, LocalWrite), 1)},
		"of a Read":         {Op: OpRead, Data: []byte("x"), Flags: Inline},
		"of a registration": {Op: OpRegister, Data: []byte("x")},
	} {
		if err := a.qp.PostSend(&wr); err == nil {
			t.Errorf("data %s are taken", name)
		}
	}
}

// Memory may be withdrawn although receives name it. What the peer sends for them ends the stream and changes nothing.
func TestWithdrawnMemoryIsNotReceivedInto(t *testing.T) {
	for _, shared := range []bool{false, true} {
		a, b := newEnd(t, Config{}), newEnd(t, Config{})
		var srq *SRQ
		if shared {
			var err error
			if srq, err = b.pd.CreateSRQ(SRQConfig{MaxRecv: 8}); err != nil {
				t.Fatal(err)
			}
			b.cfg.SRQ, b.cfg.MaxRecv = srq, 0
		}
		tcpPair(Setup{}, Setup{})(t, a, b)
		first, gone := b.mr(64, LocalWrite), b.mr(64, LocalWrite)
		for i, mr := range []*MR{first, gone} {
			wr := RecvWR{ID: uint64(i), SGL: whole(mr, 64)}
			if shared {
				if err := srq.PostRecv(wr); err != nil {
					t.Fatal(err)
				}
			} else {
				b.recv(wr)
			}
		}
		src := a.mr(64, LocalWrite)
		fill(src.Bytes(), 3)
		if err := gone.Deregister(); !errors.Is(err, ErrInUse) {
			t.Errorf("Deregister: %v", err)
		}
		if err := gone.Withdraw(); err != nil {
			t.Fatal(err)
		}
		if err := gone.Withdraw(); err != nil {
			t.Errorf("again: %v", err)
		}
		if u := b.dev.Usage(); u.MRs != 1 {
			t.Errorf("%d regions are registered", u.MRs)
		}
		a.post(SendWR{Op: OpSend, SGL: whole(src, 64)})
		if wc := b.wantOK(WCRecv); wc.ID != 0 {
			t.Errorf("receive %d", wc.ID)
		}
		a.post(SendWR{Op: OpSend, SGL: whole(src, 64)})
		if err := b.wantEnd(); !errors.Is(err, ErrWithdrawn) {
			t.Errorf("the stream ends: %v", err)
		}
		if wc := b.next(); wc.ID != 1 || !errors.Is(wc.Err, ErrFlushed) {
			t.Errorf("completion %d: %v", wc.ID, wc.Err)
		}
		a.wantEnd()
		for _, x := range gone.Bytes() {
			if x != 0 {
				t.Fatal("withdrawn memory was received into")
			}
		}
		if shared {
			if err := srq.Destroy(); err != nil {
				t.Error(err)
			}
		}
	}
}

// A stream that is sending from memory, or receiving into it, has ended when the memory is withdrawn.
func TestWithdrawEndsWhatUsesTheMemory(t *testing.T) {
	const long = 64 << 20 // more than sockets take
	t.Run("sends", func(t *testing.T) {
		a, b := newEnd(t, Config{}), newEnd(t, Config{})
		tcpPair(Setup{}, Setup{})(t, a, b)
		in, src := b.mr(long, LocalWrite|RemoteWrite), a.mr(long, LocalWrite)
		a.post(SendWR{Op: OpWrite, SGL: whole(src, long), RemoteSTag: in.STag()})
		if err := src.Withdraw(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-a.qp.Done():
		default:
			if a.qp.uses(src) {
				t.Error("the stream still sends from it")
			}
		}
		for i := range src.Bytes() {
			src.Bytes()[i] = 1 // the race detector sees who still reads it
		}
		a.qp.Close()
		a.wantEnd()
	})
	t.Run("receives", func(t *testing.T) {
		a, b := newEnd(t, Config{}), newEnd(t, Config{})
		tcpPair(Setup{}, Setup{})(t, a, b)
		in := b.mr(long, LocalWrite)
		b.recv(RecvWR{SGL: whole(in, long)})
		src := a.mr(long, LocalWrite)
		a.post(SendWR{Op: OpSend, SGL: whole(src, long)})
		for b.qp.rq.filling() == 0 && b.qp.State() == QPRTS {
			runtime.Gosched()
		}
		if err := in.Withdraw(); err != nil {
			t.Fatal(err)
		}
		for i := range in.Bytes() {
			in.Bytes()[i] = 1
		}
		for _, x := range in.Bytes() {
			if x != 1 {
				t.Fatal("it is still received into")
			}
		}
		b.qp.Close()
		b.wantEnd()
		a.wantEnd()
	})
}

// filling is how many receives are being filled.
func (q *recvQueue) filling() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.next - q.head
}

// Memory that a window opens is not withdrawn, and nothing of that is left over.
func TestWithdrawMindsWindows(t *testing.T) {
	a, b := newEnd(t, Config{}), newEnd(t, Config{})
	tcpPair(Setup{}, Setup{})(t, a, b)
	mr := b.mr(64, LocalWrite|WindowBind)
	mw, err := b.pd.AllocMW()
	if err != nil {
		t.Fatal(err)
	}
	b.post(SendWR{Op: OpBind, MW: mw, SGL: whole(mr, 64), Access: RemoteWrite, Flags: Signaled})
	b.wantOK(WCBind)
	if err := mr.Withdraw(); !errors.Is(err, ErrInUse) {
		t.Errorf("Withdraw: %v", err)
	}
	src := a.mr(8, LocalWrite)
	fill(src.Bytes(), 4)
	a.post(SendWR{Op: OpWrite, SGL: whole(src, 8), RemoteSTag: mw.STag()})
	a.qp.Close()
	b.wantEnd()
	if string(mr.Bytes()[:8]) != string(src.Bytes()) {
		t.Error("the window is shut")
	}
	if err := mr.Withdraw(); err != nil {
		t.Errorf("with the stream the window ends: %v", err)
	}
}

// An attempt to withdraw memory that a window opens changes nothing, not even for a moment: what names the memory meanwhile is
// posted, and what comes for it is received.
func TestFailedWithdrawIsNotNoticed(t *testing.T) {
	a, b := newEnd(t, Config{}), newEnd(t, Config{})
	tcpPair(Setup{}, Setup{})(t, a, b)
	mr, src := b.mr(64, LocalWrite|WindowBind), a.mr(8, LocalWrite)
	b.bind(b.mw(), mr, 0, 64, RemoteWrite)
	ctx, stop := context.WithCancel(testContext(t))
	var other sync.WaitGroup
	other.Go(func() {
		for ctx.Err() == nil {
			if err := mr.Withdraw(); !errors.Is(err, ErrInUse) {
				t.Errorf("Withdraw: %v", err)
				return
			}
		}
	})
	defer other.Wait()
	defer stop()
	for range 3000 {
		b.recv(RecvWR{SGL: whole(mr, 8)})
		a.post(SendWR{Op: OpSend, SGL: whole(src, 8)})
		b.wantOK(WCRecv)
	}
}
