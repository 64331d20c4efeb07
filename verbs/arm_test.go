package verbs

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ironwarp/ironwarp/iwarptest"
)

// waiting starts a Wait and returns what it says.
func waiting(t *testing.T, cq *CQ) <-chan error {
	c := make(chan error, 1)
	ctx := testContext(t)
	go func() { c <- cq.Wait(ctx) }()
	return c
}

// idleFor lets others run and reports whether c stayed silent.
func idleFor(c <-chan error) bool {
	for range 2000 {
		runtime.Gosched()
		if len(c) > 0 {
			return false
		}
	}
	return true
}

func (e *end) polled(n int) {
	e.t.Helper()
	if got := e.cq.Poll(make([]WC, 16)); got != n {
		e.t.Errorf("%d completions in the queue, want %d", got, n)
	}
}

// armPair is a stream whose receiving end has receives posted.
func armPair(t *testing.T) (a, b *end) {
	a, b = newEnd(t, Config{}), newEnd(t, Config{})
	memPair(iwarptest.Options{})(t, a, b)
	for i := range 16 {
		b.recv(RecvWR{ID: uint64(i)})
	}
	return a, b
}

func TestSolicitedWaitSleepsThroughOthers(t *testing.T) {
	a, b := armPair(t)
	b.cq.Arm(true)
	woken := waiting(t, b.cq)
	for range 3 {
		a.post(SendWR{Op: OpSend, Flags: Signaled})
		a.wantOK(WCSend)
	}
	if !idleFor(woken) {
		t.Fatal("an unsolicited completion ends the Wait")
	}
	a.post(SendWR{Op: OpSend, Flags: Solicited})
	if err := <-woken; err != nil {
		t.Fatal(err)
	}
	b.polled(4)

	b.cq.Arm(true) // errors always wake
	woken = waiting(t, b.cq)
	a.qp.Abort(nil)
	if err := <-woken; err != nil {
		t.Fatalf("an error completion does not end the Wait: %v", err)
	}
}

// A signaled send of ours is no solicited completion, an error of it is one.
func TestOwnSendsAreNotSolicited(t *testing.T) {
	e := newEnd(t, Config{})
	raw, l := iwarptest.Pair(iwarptest.Options{})
	defer raw.Close()
	e.startOn(l)
	e.cq.Arm(true)
	woken := waiting(t, e.cq)
	e.post(SendWR{Op: OpSend, Flags: Signaled | Solicited})
	if !idleFor(woken) {
		t.Error("a send of ours ends the Wait")
	}
	raw.Stall(true)
	e.post(SendWR{Op: OpSend})
	e.qp.Abort(nil)
	if err := <-woken; err != nil {
		t.Errorf("its error does not: %v", err)
	}
	raw.Stall(false)
}

// What stands in the queue counts, whenever it came.
func TestArmLooksAtWhatIsThere(t *testing.T) {
	a, b := armPair(t)
	send := func(f Flags) {
		before := b.qp.Stats().RecvOps
		a.post(SendWR{Op: OpSend, Flags: f})
		for b.qp.Stats().RecvOps == before {
			runtime.Gosched()
		}
	}
	send(Solicited)
	b.cq.Arm(true)
	if err := b.cq.Wait(testContext(t)); err != nil {
		t.Fatalf("a solicited completion came before Arm: %v", err)
	}
	b.polled(1)
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	b.cq.Arm(true)
	if err := b.cq.Wait(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait returns %v for a completion that has been polled", err)
	}
	send(0)
	if err := b.cq.Wait(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("armed for solicited ones, Wait returns %v", err)
	}
	woken := waiting(t, b.cq)
	if !idleFor(woken) {
		t.Error("an unsolicited completion ends the Wait")
	}
	b.cq.Arm(false)
	if err := <-woken; err != nil {
		t.Errorf("the wider kind does not hold: %v", err)
	}
	b.cq.Arm(false)
	b.cq.Arm(true)
	if err := b.cq.Wait(testContext(t)); err != nil {
		t.Errorf("the narrower kind undoes the wider: %v", err)
	}
	b.polled(1)
}

// Nobody sleeps over a queue that lost a completion for want of room.
func TestOverflowEndsASolicitedWait(t *testing.T) {
	e := newEnd(t, Config{})
	var err error
	if e.cq, err = e.ulp.CreateCQ(1, nil); err != nil {
		t.Fatal(err)
	}
	e.cfg.SendCQ, e.cfg.RecvCQ = e.cq, e.cq
	raw, l := iwarptest.Pair(iwarptest.Options{})
	defer raw.Close()
	e.startOn(l)
	e.cq.Arm(true)
	woken := waiting(t, e.cq)
	for range 2 {
		e.post(SendWR{Op: OpWrite, Flags: Signaled})
	}
	if err := <-woken; err != nil {
		t.Error(err)
	}
	if err := e.wantEnd(); !errors.Is(err, ErrCQOverflow) {
		t.Errorf("ended with %v", err)
	}
}

// The usual way, arm, poll until empty, wait, loses no wake-up, whichever of
// arming and arrival is first.
func TestNoWakeUpIsLost(t *testing.T) {
	for _, solicited := range []bool{false, true} {
		const rounds = 3000
		a, b := newEnd(t, Config{}), newEnd(t, Config{})
		memPair(iwarptest.Options{})(t, a, b)
		for range 32 {
			b.recv(RecvWR{})
		}
		var flags Flags
		if solicited {
			flags = Solicited
		}
		seen := make(chan struct{}, 1)
		var wg sync.WaitGroup
		wg.Go(func() {
			ctx := testContext(t)
			var wcs [8]WC
			for got := 0; got < rounds; {
				b.cq.Arm(solicited)
				for n := b.cq.Poll(wcs[:]); n > 0; n = b.cq.Poll(wcs[:]) {
					got += n
					for range n {
						if b.qp.PostRecv(RecvWR{}) != nil {
							return
						}
						seen <- struct{}{}
					}
				}
				if got < rounds && b.cq.Wait(ctx) != nil {
					t.Errorf("solicited %v: a wake-up is lost after %d", solicited, got)
					a.qp.Abort(nil)
					return
				}
			}
		})
		for range rounds {
			if a.qp.PostSend(&SendWR{Op: OpSend, Flags: flags}) != nil {
				break
			}
			select {
			case <-seen:
			case <-b.qp.Done():
			}
		}
		wg.Wait()
		a.qp.Abort(nil)
	}
}

// A handler for solicited completions is given all that came before one too,
// and at the stream's end what is left.
func TestHandlerForSolicitedOnly(t *testing.T) {
	a, b := newEnd(t, Config{}), newEnd(t, Config{})
	var calls atomic.Int32
	got := make(chan uint64, 64)
	cq, err := b.ulp.CreateCQ(64, handlerFunc(func(_ *CQ, wcs []WC) {
		calls.Add(1)
		for _, wc := range wcs {
			if wc.Err == nil {
				got <- wc.ID
			}
		}
	}), SolicitedOnly)
	if err != nil {
		t.Fatal(err)
	}
	b.cfg.SendCQ, b.cfg.RecvCQ = cq, cq
	memPair(iwarptest.Options{})(t, a, b)
	for i := range 5 {
		b.recv(RecvWR{ID: uint64(i)})
	}
	send := func(f Flags) {
		before := b.qp.Stats().RecvOps
		a.post(SendWR{Op: OpSend, Flags: f})
		for b.qp.Stats().RecvOps == before {
			runtime.Gosched()
		}
	}
	send(0)
	send(0)
	for range 1000 {
		runtime.Gosched()
	}
	if n := calls.Load(); n != 0 {
		t.Errorf("called %d times for unsolicited completions", n)
	}
	send(Solicited)
	for i := range uint64(3) {
		if id := <-got; id != i {
			t.Errorf("completion %d is number %d", id, i)
		}
	}
	send(0)
	send(0) // the last receive: no error completion will follow it
	b.qp.Abort(nil)
	b.wantEnd()
	if len(got) != 2 {
		t.Errorf("%d completions at the end, want the 2 that were left", len(got))
	}
	if _, err := b.ulp.CreateCQ(8, nil, SolicitedOnly); err == nil {
		t.Error("a polled queue with the option is made")
	}
	if _, err := b.ulp.CreateCQ(8, handlerFunc(func(*CQ, []WC) {}), CQOption(9)); err == nil {
		t.Error("an unknown option is taken")
	}
}

// Waiting, armed or not, allocates nothing.
func TestArmingAllocatesNothing(t *testing.T) {
	e := newEnd(t, Config{})
	raw, l := iwarptest.Pair(iwarptest.Options{})
	defer raw.Close()
	e.startOn(l)
	ctx := testContext(t)
	var wcs [4]WC
	wc := WC{QP: e.qp, Op: WCRecv, Solicited: true}
	if n := testing.AllocsPerRun(1000, func() {
		e.cq.Arm(true)
		e.cq.push(wc)
		e.cq.notify(false)
		if e.cq.Wait(ctx) != nil || e.cq.Poll(wcs[:]) != 1 {
			t.Fatal("no completion")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
