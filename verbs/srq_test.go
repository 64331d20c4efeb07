package verbs

import (
	"errors"
	"runtime"
	"sync"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rdmap"
)

func (e *end) srq(cfg SRQConfig) *SRQ {
	e.t.Helper()
	s, err := e.pd.CreateSRQ(cfg)
	if err != nil {
		e.t.Fatal(err)
	}
	e.cfg.SRQ, e.cfg.MaxRecv = s, 0
	return s
}

// rawStream is a queue pair of e whose peer is the test.
func (e *end) rawStream() (*QP, *iwarptest.LLP) {
	e.t.Helper()
	raw, l := iwarptest.Pair(iwarptest.Options{})
	e.t.Cleanup(func() { raw.Close() })
	e.startOn(l)
	return e.qp, raw
}

func sends(first, n uint32) (segs [][]byte) {
	for i := range n {
		segs = append(segs, untagged(true, rdmap.OpSend, 0, first+i, 0, 'x'))
	}
	return segs
}

// slot is receive id's own memory.
func slot(mr *MR, id uint64) []SGE { return []SGE{{MR: mr, Off: uint32(id) * 8, Len: 8}} }

func (e *end) fillSRQ(s *SRQ, mr *MR, n int) {
	e.t.Helper()
	for i := range n {
		if err := s.PostRecv(RecvWR{ID: uint64(i), SGL: slot(mr, uint64(i))}); err != nil {
			e.t.Fatalf("receive %d: %v", i, err)
		}
	}
}

var noBuffer = &ddp.Error{Layer: ddp.LayerDDP, Type: ddp.TypeUntagged, Code: ddp.CodeUntaggedNoBuffer}

func TestStreamsShareReceives(t *testing.T) {
	for _, opt := range []iwarptest.Options{{}, {Direct: true, MULPDU: 64}} {
		a, b := newEnd(t, Config{}), newEnd(t, Config{})
		s := b.srq(SRQConfig{MaxRecv: 8})
		dst, src := b.mr(8*100, LocalWrite), a.mr(100, 0)
		post := func(id uint64) {
			if err := s.PostRecv(RecvWR{ID: id, SGL: []SGE{{MR: dst, Off: uint32(id) * 100, Len: 40}, {MR: dst, Off: uint32(id)*100 + 40, Len: 60}}}); err != nil {
				t.Fatal(err)
			}
		}
		for id := range uint64(8) {
			post(id)
		}
		if err := s.PostRecv(RecvWR{}); !errors.Is(err, ErrQueueFull) {
			t.Errorf("a receive past MaxRecv: %v", err)
		}
		var qps, peers [3]*QP
		for i := range qps {
			memPair(opt)(t, a, b)
			qps[i], peers[i] = b.qp, a.qp
		}
		if err := qps[0].PostRecv(RecvWR{}); err == nil {
			t.Error("a receive is posted on a queue pair with a shared queue")
		}
		for i := range 60 {
			fill(src.Bytes(), uint64(i))
			a.qp = peers[i%3]
			a.post(SendWR{Op: OpSend, SGL: whole(src, 100)})
			wc := b.wantOK(WCRecv)
			if wc.QP != qps[i%3] || wc.Len != 100 {
				t.Fatalf("message %d completes as %+v", i, wc)
			}
			if got := dst.Bytes()[wc.ID*100:][:100]; string(got) != string(src.Bytes()) {
				t.Fatalf("message %d differs", i)
			}
			post(wc.ID)
		}
		if n := s.Len(); n != 8 {
			t.Errorf("%d receives are left of 8", n)
		}
		if err := s.Destroy(); !errors.Is(err, ErrInUse) {
			t.Errorf("destroyed under its queue pairs: %v", err)
		}
		for i := range peers {
			a.qp = peers[i]
			a.qp.Abort(nil)
			a.wantEnd()
			b.qp = qps[i]
			b.wantEnd()
		}
		if err := dst.Deregister(); !errors.Is(err, ErrInUse) {
			t.Errorf("memory of posted receives is deregistered: %v", err)
		}
		if err := s.Destroy(); err != nil {
			t.Error(err)
		}
		if err := errors.Join(s.Destroy(), dst.Deregister()); err != nil {
			t.Errorf("after Destroy: %v", err)
		}
		if err := s.PostRecv(RecvWR{}); !errors.Is(err, ErrClosed) {
			t.Errorf("a receive after Destroy: %v", err)
		}
		if err := s.Arm(1); !errors.Is(err, ErrClosed) {
			t.Errorf("armed after Destroy: %v", err)
		}
		if _, err := newQP(b.pd, b.cfg, fakeConn{"p"}); !errors.Is(err, ErrClosed) {
			t.Errorf("a queue pair on a destroyed queue: %v", err)
		}
		if n := b.dev.Usage().SRQEntries; n != 0 {
			t.Errorf("%d entries are charged", n)
		}
	}
}

// One stream floods one-byte Sends while the consumer is slow: it is ended when
// its share is used up, and the others never find the queue empty (R21).
func TestFloodUsesUpOnlyItsOwnShare(t *testing.T) {
	e := newEnd(t, Config{})
	s := e.srq(SRQConfig{MaxRecv: 16, MaxPerQP: 4, HighWater: 3})
	e.fillSRQ(s, e.mr(256, LocalWrite), 16)
	flooder, flood := e.rawStream()
	flood.Send(sends(1, 50)...)
	if term := readTerminate(t, flood); term.Layer != noBuffer.Layer || term.Type != noBuffer.Type || term.Code != noBuffer.Code {
		t.Errorf("Terminate %+v", term)
	}
	flood.CloseWrite()
	if err := e.wantEnd(); !errors.Is(err, noBuffer) || !errors.Is(err, ErrSRQShare) {
		t.Errorf("the flooder ended with %v", err)
	}
	if n := s.Len(); n != 12 {
		t.Errorf("%d receives are left, want 12", n)
	}
	wantEvents(t, e.dev, flooder.ID(), EventStreamUp, EventSRQHighWater, EventPeerFault, EventStreamDown)
	for range 3 {
		qp, raw := e.rawStream()
		raw.Send(sends(1, 4)...)
		for qp.Stats().RecvOps < 4 {
			if qp.State() != QPRTS {
				t.Fatalf("a modest stream ended: %v", qp.Err())
			}
			runtime.Gosched()
		}
		if n := qp.RecvHeld(); n != 4 {
			t.Errorf("holds %d, want 4", n)
		}
	}
	for n := 0; n < 16; n++ {
		e.wantOK(WCRecv)
	}
	if n := e.qp.RecvHeld(); n != 0 {
		t.Errorf("holds %d after all have been polled", n)
	}
}

// A consumer that keeps up gives the share back, and the high-water mark is
// raised again each time it is reached anew.
func TestPollingGivesTheShareBack(t *testing.T) {
	e := newEnd(t, Config{})
	s := e.srq(SRQConfig{MaxRecv: 8, MaxPerQP: 4, HighWater: 4})
	mr := e.mr(256, LocalWrite)
	e.fillSRQ(s, mr, 8)
	qp, raw := e.rawStream()
	msn := uint32(1)
	for range 3 {
		before := qp.Stats().RecvOps
		raw.Send(sends(msn, 4)...)
		msn += 4
		for qp.Stats().RecvOps < before+4 {
			runtime.Gosched()
		}
		for range 4 {
			wc := e.wantOK(WCRecv)
			if err := s.PostRecv(RecvWR{ID: wc.ID, SGL: slot(mr, wc.ID)}); err != nil {
				t.Fatal(err)
			}
		}
		raw.Send(sends(msn, 1)...) // below half of the mark
		msn++
		wc := e.wantOK(WCRecv)
		if err := s.PostRecv(RecvWR{ID: wc.ID, SGL: slot(mr, wc.ID)}); err != nil {
			t.Fatal(err)
		}
	}
	if qp.State() != QPRTS || s.Len() != 8 {
		t.Errorf("state %v, %d receives left", qp.State(), s.Len())
	}
	wantEvents(t, e.dev, qp.ID(), EventStreamUp, EventSRQHighWater, EventSRQHighWater, EventSRQHighWater)
}

// Each mark is raised when so many are held, and again after fewer than half were.
func TestEachHighWaterMark(t *testing.T) {
	for mark := 1; mark <= 5; mark++ {
		e := newEnd(t, Config{})
		s := e.srq(SRQConfig{MaxRecv: 8, MaxPerQP: 6, HighWater: mark})
		mr := e.mr(256, LocalWrite)
		e.fillSRQ(s, mr, 8)
		qp, raw := e.rawStream()
		want := []EventKind{EventStreamUp}
		msn, held, armed := uint32(1), 0, true
		// hold has the stream hold n.
		hold := func(n int) {
			for ; held > n; held-- {
				wc := e.wantOK(WCRecv)
				if err := s.PostRecv(RecvWR{ID: wc.ID, SGL: slot(mr, wc.ID)}); err != nil {
					t.Fatal(err)
				}
			}
			if 2*held < mark {
				armed = true
			}
			for ; held < n; held++ {
				before := qp.Stats().RecvOps
				raw.Send(sends(msn, 1)...)
				msn++
				for qp.Stats().RecvOps == before {
					runtime.Gosched()
				}
			}
			if held >= mark && armed {
				want = append(want, EventSRQHighWater)
				armed = false
			}
		}
		for _, n := range []int{mark - 1, mark, mark + 1, (mark + 1) / 2, mark, (mark - 1) / 2, mark, 0, 1, mark, mark - 1, mark} {
			hold(n)
			wantEvents(t, e.dev, qp.ID(), want...)
			want = want[:0]
		}
	}
}

// What a stream took for a message that never came whole is back in the queue
// when the stream is over.
func TestEndedStreamGivesReceivesBack(t *testing.T) {
	for _, direct := range []bool{false, true} {
		e := newEnd(t, Config{})
		s := e.srq(SRQConfig{MaxRecv: 2})
		mr := e.mr(256, LocalWrite)
		e.fillSRQ(s, mr, 2)
		for range 10 {
			raw, l := iwarptest.Pair(iwarptest.Options{Direct: direct})
			e.startOn(l)
			raw.Send(untagged(false, rdmap.OpSend, 0, 1, 0, 'h', 'a'))
			for s.Len() == 2 {
				runtime.Gosched()
			}
			raw.Close()
			e.wantEnd()
			if n := s.Len(); n != 2 {
				t.Fatalf("direct %v: %d receives after the end, want 2", direct, n)
			}
		}
		e.polled(0)
		_, raw := e.rawStream()
		raw.Send(sends(1, 2)...)
		for range 2 {
			if wc := e.wantOK(WCRecv); wc.Len != 1 {
				t.Errorf("completion %+v", wc)
			}
		}
	}
}

func TestEmptySharedQueueEndsTheStreamThatNeedsIt(t *testing.T) {
	e := newEnd(t, Config{})
	e.srq(SRQConfig{MaxRecv: 4})
	bystander, _ := e.rawStream()
	_, raw := e.rawStream()
	raw.Send(sends(1, 1)...)
	readTerminate(t, raw)
	raw.CloseWrite()
	if err := e.wantEnd(); !errors.Is(err, noBuffer) || !errors.Is(err, ErrSRQEmpty) {
		t.Errorf("ended with %v", err)
	}
	if bystander.State() != QPRTS {
		t.Errorf("another stream of the queue ended: %v", bystander.Err())
	}
}

// The low-water event comes once for each Arm, before the queue is empty (R21).
func TestSRQLimitEvent(t *testing.T) {
	e := newEnd(t, Config{})
	s := e.srq(SRQConfig{MaxRecv: 8})
	mr := e.mr(256, LocalWrite)
	e.fillSRQ(s, mr, 8)
	if err := s.Arm(9); err == nil {
		t.Error("a limit past the queue's size is taken")
	}
	limits := func() (n int) {
		for _, ev := range eventsSoFar(e.dev) {
			if ev.Kind == EventSRQLimit {
				if ev.SRQ != s {
					t.Error("the event names another queue")
				}
				n++
			}
		}
		return n
	}
	if err := s.Arm(3); err != nil {
		t.Fatal(err)
	}
	_, raw := e.rawStream()
	raw.Send(sends(1, 5)...)
	for range 5 {
		e.wantOK(WCRecv)
	}
	if n := limits(); n != 0 {
		t.Errorf("%d events with 3 receives left", n)
	}
	raw.Send(sends(6, 2)...)
	for range 2 {
		e.wantOK(WCRecv)
	}
	if n := limits(); n != 1 {
		t.Errorf("%d events, want one", n)
	}
	s.Arm(2)
	if n := limits(); n != 1 {
		t.Errorf("armed below its level: %d events, want one at once", n)
	}
	e.fillSRQ(s, mr, 7)
	s.Arm(8)
	s.Arm(0)
	raw.Send(sends(8, 1)...)
	e.wantOK(WCRecv)
	if n := limits(); n != 0 {
		t.Errorf("%d events after the wish was taken back", n)
	}
}

// Objects of another PD or ULP, and impossible sizes (R27, R31).
func TestSRQBelongsToItsPD(t *testing.T) {
	e := newEnd(t, Config{})
	pd, err := e.ulp.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	s, err := pd.CreateSRQ(SRQConfig{MaxRecv: 4})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.PostRecv(RecvWR{SGL: whole(e.mr(8, LocalWrite), 8)}); err == nil {
		t.Error("memory of another PD is posted")
	}
	ro, err := pd.RegisterMR(make([]byte, 8), RemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.PostRecv(RecvWR{SGL: whole(ro, 8)}); err == nil {
		t.Error("memory that may not be written is posted")
	}
	before := e.dev.Usage()
	cfg := e.cfg
	cfg.SRQ, cfg.MaxRecv = s, 0
	if _, err := newQP(e.pd, cfg, fakeConn{"p"}); err == nil {
		t.Error("a queue of another PD is attached")
	}
	cfg.MaxRecv = 1
	if _, err := newQP(pd, cfg, fakeConn{"p"}); err == nil {
		t.Error("a queue pair has a shared queue and its own receives")
	}
	if e.dev.Usage() != before {
		t.Errorf("use was %+v, is %+v", before, e.dev.Usage())
	}
	for _, cfg := range []SRQConfig{{}, {MaxRecv: -1}, {MaxRecv: 1<<16 + 1}, {MaxRecv: 4, MaxPerQP: 5}, {MaxRecv: 4, MaxPerQP: -1}, {MaxRecv: 4, MaxPerQP: 2, HighWater: 3}} {
		if _, err := pd.CreateSRQ(cfg); err == nil {
			t.Errorf("%+v is taken", cfg)
		}
	}
	if err := pd.Dealloc(); !errors.Is(err, ErrInUse) {
		t.Errorf("a PD with a queue is freed: %v", err)
	}
	ro.Deregister()
	if err := errors.Join(s.Destroy(), pd.Dealloc()); err != nil {
		t.Error(err)
	}
}

// Many streams take, deliver and end at once; no receive is lost or given twice.
func TestSharedQueueUnderChurn(t *testing.T) {
	e := newEnd(t, Config{})
	s := e.srq(SRQConfig{MaxRecv: 32, MaxPerQP: 8})
	mr := e.mr(256, LocalWrite)
	var mu sync.Mutex
	out := make(map[uint64]bool) // with the consumer
	e.useHandler(func(_ *CQ, wcs []WC) {
		mu.Lock()
		defer mu.Unlock()
		for _, wc := range wcs {
			if wc.Op != WCRecv {
				continue
			}
			if out[wc.ID] {
				t.Errorf("receive %d is given twice", wc.ID)
			}
			out[wc.ID] = true
			if err := s.PostRecv(RecvWR{ID: wc.ID, SGL: slot(mr, wc.ID)}); err != nil {
				t.Error(err)
			}
			delete(out, wc.ID)
		}
	})
	e.fillSRQ(s, mr, 32)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 20 {
				raw, l := iwarptest.Pair(iwarptest.Options{})
				qp, err := e.pd.Adopt(AdoptConfig{QP: e.cfg, LLP: l, Conn: fakeConn{"peer"}})
				if err != nil {
					t.Error(err)
					return
				}
				raw.Send(sends(1, 5)...)
				raw.Send(untagged(false, rdmap.OpSend, 0, 6, 0, 'x'))
				raw.CloseWrite()
				<-qp.Done()
			}
		})
	}
	wg.Wait()
	if n := s.Len(); n != 32 {
		t.Errorf("%d receives are left of 32", n)
	}
}
