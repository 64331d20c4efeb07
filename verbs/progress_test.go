package verbs

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"github.com/ironwarp/ironwarp/internal/wakes"
)

// keepProgressing has n goroutines call Progress on each of the queues until the test ends, and tell the engine that it need
// not be woken for it, and that it has to be.
func keepProgressing(t *testing.T, n int, cqs ...*CQ) {
	stop := make(chan struct{})
	var all sync.WaitGroup
	t.Cleanup(all.Wait)
	t.Cleanup(func() { close(stop) })
	for _, cq := range cqs {
		for range n {
			all.Go(func() {
				for {
					select {
					case <-stop:
						cq.Polled(false)
						return
					default:
						cq.Progress()
						if rand.IntN(64) == 0 {
							cq.Polled(rand.IntN(2) == 0)
						}
						runtime.Gosched()
					}
				}
			})
		}
	}
}

// With one processor the engine does not run between a peer's post and Progress, which then has to bring the completion itself,
// of a Send and of a Read.
func TestProgressBringsWhatHasCome(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	a, b := newEnd(t, Config{}), newEnd(t, Config{})
	tcpPair(Setup{}, Setup{})(t, a, b)
	mra, mrb := a.mr(64, LocalWrite), b.mr(64, LocalWrite|RemoteRead)
	fill(mrb.buf, 1)
	var wcs [1]WC
	// A preemption in between is rare, and the engine has received then.
	const rounds = 100
	byProgress := map[WCOp]int{}
	await := func(on, other *end, op WCOp) {
		t.Helper()
		n := 0
		for on.cq.Poll(wcs[:]) == 0 {
			n += on.cq.Progress()
			if other != nil {
				other.cq.Progress()
			}
			runtime.Gosched()
		}
		if wcs[0].Op != op || wcs[0].Err != nil {
			t.Fatalf("completion %v, %v; want %v", wcs[0].Op, wcs[0].Err, op)
		}
		byProgress[op] += min(n, 1)
	}
	for range rounds {
		b.recv(RecvWR{SGL: whole(mrb, 0)})
		a.post(SendWR{Op: OpSend})
		await(b, nil, WCRecv)
		a.post(SendWR{Op: OpRead, Flags: Signaled, SGL: whole(mra, 64), RemoteSTag: mrb.STag()})
		await(a, b, WCRead)
		if !bytes.Equal(mra.buf, mrb.buf) {
			t.Fatal("the Read brought something else")
		}
		clear(mra.buf)
	}
	for _, op := range []WCOp{WCRecv, WCRead} {
		if byProgress[op] < rounds/4 {
			t.Errorf("Progress brought %d of %d completions of kind %v", byProgress[op], rounds, op)
		}
	}
}

// While a queue is polled, the engine is not woken for short messages, on streams that come later either, and is as soon as that
// is over.
func TestPolledQueueIsLeftAlone(t *testing.T) {
	a, b := newEnd(t, Config{}), newEnd(t, Config{})
	b.cq.Polled(true)
	tcpPair(Setup{}, Setup{})(t, a, b)
	var wcs [1]WC
	woken, pass := 0, wakes.New(t)
	send := func() {
		b.recv(RecvWR{})
		a.post(SendWR{Op: OpSend})
		pass()
	}
	for range 200 {
		send()
		if b.cq.Poll(wcs[:]) != 0 {
			woken++
			continue
		}
		for b.cq.Poll(wcs[:]) == 0 {
			b.cq.Progress()
		}
	}
	if woken > 20 { // not by what came before
		t.Errorf("the engine was woken for %d of 200 messages", woken)
	}
	send()
	if !b.cq.Polled(false) {
		t.Error("it is not reported that something waited")
	}
	b.wantOK(WCRecv)
	if b.cq.Polled(false) {
		t.Error("something has waited that nobody sent")
	}
}

// Callers of Progress and the engine receive by turns: everything comes once, in order, and whole; the streams end as
// without them, and the queues no longer look at those that are over.
func TestProgressBesideTheEngine(t *testing.T) {
	const rounds, size = 200, 30_000
	overEachLLP(t, func(t *testing.T, a, b *end) {
		keepProgressing(t, 2, a.cq, b.cq)
		src, dst, back := a.mr(size, LocalWrite), b.mr(size, LocalWrite|RemoteWrite|RemoteRead), a.mr(size, LocalWrite)
		for i := range rounds {
			fill(src.buf, uint64(i))
			b.recv(RecvWR{ID: uint64(i)})
			a.post(SendWR{Op: OpWrite, Flags: More, SGL: whole(src, size), RemoteSTag: dst.STag()})
			a.post(SendWR{Op: OpSend})
			if wc := b.wantOK(WCRecv); wc.ID != uint64(i) {
				t.Fatalf("receive %d completed as number %d", wc.ID, i)
			}
			if !bytes.Equal(dst.buf, src.buf) {
				t.Fatalf("round %d: the Write is not whole when the Send behind it has come", i)
			}
			a.post(SendWR{Op: OpRead, Flags: Signaled, SGL: whole(back, size), RemoteSTag: dst.STag()})
			a.wantOK(WCRead)
			if !bytes.Equal(back.buf, src.buf) {
				t.Fatalf("round %d: the Read is not whole", i)
			}
		}
		a.qp.Close()
		if err := a.wantEnd(); err != nil {
			t.Errorf("the stream that was closed ended with %v", err)
		}
		b.wantEnd()
		for _, e := range []*end{a, b} {
			e.cq.mu.Lock()
			if len(e.cq.live) != 0 {
				t.Errorf("the queue still looks at %d streams", len(e.cq.live))
			}
			e.cq.mu.Unlock()
		}
	})
}

// Of many streams each has its turn.
func TestProgressLooksAtAllStreamsByTurns(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const streams = 3*progressStreams + 1
	a, b := newEnd(t, Config{}), newEnd(t, Config{})
	var from []*QP
	for range streams {
		tcpPair(Setup{}, Setup{})(t, a, b)
		b.recv(RecvWR{})
		from = append(from, a.qp)
	}
	for _, qp := range from {
		if err := qp.PostSend(&SendWR{Op: OpSend}); err != nil {
			t.Fatal(err)
		}
	}
	calls, got := 0, 0
	var wcs [streams]WC
	for ; got < streams; calls++ {
		b.cq.Progress()
		got += b.cq.Poll(wcs[:])
	}
	if most := 10 * streams; calls > most {
		t.Errorf("it took %d calls", calls)
	}
}
