package verbs

import (
	"bytes"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rdmap"
)

// When Invalidate of a window has returned, no writer changes the memory (R12):
// not in flight, and not while the peer floods.
func TestWindowRevocationIsFinal(t *testing.T) {
	for _, opt := range []iwarptest.Options{{}, {Direct: true}} {
		a, b := newEnd(t, Config{}), newEnd(t, Config{})
		mr, mw, src := b.mr(4096, LocalWrite|WindowBind), b.mw(), a.mr(4096, 0)
		for round := range 20 {
			memPair(opt)(t, a, b)
			stag := b.bind(mw, mr, 0, 4096, RemoteWrite)
			fill(src.Bytes(), uint64(round))
			var stop atomic.Bool
			var wg sync.WaitGroup
			wg.Add(1)
			qp := a.qp
			go func() {
				defer wg.Done()
				for !stop.Load() {
					err := qp.PostSend(&SendWR{Op: OpWrite, SGL: whole(src, 4096), RemoteSTag: stag})
					if errors.Is(err, ErrQueueFull) {
						runtime.Gosched()
					} else if err != nil {
						return
					}
				}
			}()
			for before := b.qp.Stats().RecvBytes; b.qp.Stats().RecvBytes == before; {
				runtime.Gosched()
			}
			if err := mw.Invalidate(); err != nil {
				t.Fatal(err)
			}
			first := bytes.Clone(mr.Bytes())
			if err := b.wantEnd(); !errors.Is(err, &ddp.Error{Layer: ddp.LayerDDP, Type: ddp.TypeTagged, Code: ddp.CodeTaggedInvalidSTag}) {
				t.Fatalf("ended with %v", err)
			}
			if !bytes.Equal(first, mr.Bytes()) {
				t.Fatal("the memory changed after Invalidate had returned")
			}
			stop.Store(true)
			wg.Wait()
			a.wantEnd()
			for a.cq.Poll(make([]WC, 64)) > 0 {
			}
		}
	}
}

// Binding and invalidating allocate nothing, and neither does a lookup between.
func TestBindAllocatesNothing(t *testing.T) {
	e := newEnd(t, Config{})
	e.rawStream()
	mr, mw := e.mr(64, LocalWrite|WindowBind), e.mw()
	sgl := whole(mr, 64)
	var wcs [4]WC
	if n := testing.AllocsPerRun(500, func() {
		if err := e.qp.PostSend(&SendWR{Op: OpBind, Flags: Signaled, MW: mw, SGL: sgl, Access: RemoteWrite}); err != nil {
			t.Fatal(err)
		}
		e.reach(e.qp, mw.STag(), 0, 64, rdmap.RemoteWrite)
		if err := e.qp.PostSend(&SendWR{Op: OpInvalidateLocal, Flags: Signaled, InvalidateSTag: mw.STag()}); err != nil {
			t.Fatal(err)
		}
		for n := 0; n < 2; n += e.cq.Poll(wcs[:]) {
			runtime.Gosched()
		}
	}); n >= 1 {
		t.Errorf("%v allocations", n)
	}
}

// Binds, invalidations of every kind, accesses and stream ends cross; what is
// left is consistent.
func TestWindowsUnderChurn(t *testing.T) {
	e := newEnd(t, Config{})
	mr := e.mr(256, LocalWrite|WindowBind)
	e.useHandler(func(*CQ, []WC) {})
	var wg sync.WaitGroup
	for range 3 {
		mw := e.mw()
		raw, l := iwarptest.Pair(iwarptest.Options{})
		e.startOn(l)
		qp := e.qp
		wg.Add(2)
		var stop atomic.Bool
		go func() {
			defer wg.Done()
			defer raw.Close()
			defer stop.Store(true)
			for range 500 {
				switch err := qp.PostSend(&SendWR{Op: OpBind, MW: mw, SGL: whole(mr, 256), Access: RemoteWrite}); {
				case err == nil:
				case errors.Is(err, ErrQueueFull), errors.Is(err, ErrInUse):
					runtime.Gosched()
					continue
				default:
					return
				}
				if mw.Invalidate() != nil {
					return
				}
			}
		}()
		go func() {
			defer wg.Done()
			for !stop.Load() {
				e.reach(qp, mw.STag(), 0, 256, rdmap.RemoteWrite)
				qp.invalidateRemote(mw.STag())
				runtime.Gosched()
			}
		}()
		defer func() {
			raw.Close()
			<-qp.Done()
			if err := mw.Dealloc(); err != nil {
				t.Error(err)
			}
		}()
	}
	wg.Wait()
	t.Cleanup(func() {
		if err := mr.Deregister(); err != nil {
			t.Error(err)
		}
	})
}
