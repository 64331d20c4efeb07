package verbs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ironwarp/ironwarp/rdmap"
)

// Every offset and length around the edges of a window, against the obvious
// model (R11, R16).
func TestWindowIsExactToTheByte(t *testing.T) {
	e := newEnd(t, Config{})
	mr := e.mr(32, LocalWrite)
	for _, win := range [][2]int{{0, 32}, {0, 1}, {31, 1}, {5, 8}} {
		stag, err := mr.Reregister(win[0], win[1], RemoteRead|RemoteWrite)
		if err != nil {
			t.Fatal(err)
		}
		size := uint64(win[1])
		for _, to := range []uint64{0, 1, size - 1, size, size + 1, 1 << 32, ^uint64(0) - 1, ^uint64(0)} {
			for n := uint32(1); n < 40; n++ {
				buf, pin, fault := e.dev.acquire(e.pd, nil, stag, to, n, rdmap.RemoteWrite)
				end := to + uint64(n)
				want := rdmap.FaultNone
				switch {
				case end < to:
					want = rdmap.FaultTOWrap
				case end > size:
					want = rdmap.FaultBounds
				}
				if fault != want {
					t.Fatalf("window %v, %d bytes at %d: %v, want %v", win, n, to, fault, want)
				}
				if fault != rdmap.FaultNone {
					continue
				}
				if len(buf) != int(n) || &buf[0] != &mr.Bytes()[win[0]+int(to)] {
					t.Fatalf("window %v, %d bytes at %d: not the memory meant", win, n, to)
				}
				pin.Unpin()
			}
		}
	}
	if _, _, fault := e.dev.acquire(e.pd, nil, mr.STag(), 0, 1, rdmap.RemoteAtomic); fault != rdmap.FaultAccess {
		t.Errorf("a right that was not granted: %v", fault)
	}
	if n := mr.win.pins.Load(); n != 0 {
		t.Errorf("%d pins are left", n)
	}
}

func TestReregisterRejectsWindowsOutsideTheRegion(t *testing.T) {
	e := newEnd(t, Config{})
	mr := e.mr(16, LocalWrite)
	for _, w := range [][2]int{{-1, 4}, {0, 0}, {0, -1}, {0, 17}, {16, 1}, {1, 16}, {int(^uint(0) >> 1), 1}} {
		if _, err := mr.Reregister(w[0], w[1], RemoteRead); err == nil {
			t.Errorf("a window of %d bytes at %d is accepted", w[1], w[0])
		}
	}
	ro := e.mr(16, 0)
	if _, err := ro.Reregister(0, 16, RemoteWrite); err == nil {
		t.Error("RemoteWrite on memory without LocalWrite is accepted")
	}
	if _, err := e.pd.RegisterMR(make([]byte, 1), RemoteAtomic); err == nil {
		t.Error("RemoteAtomic without LocalWrite is accepted")
	}
}

// When a revocation has returned, no writer changes the memory (R12).
func TestRevocationIsFinal(t *testing.T) {
	e := newEnd(t, Config{})
	mr := e.mr(64, LocalWrite)
	var stag atomic.Uint32
	var stop atomic.Bool
	var wrote atomic.Int64
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for !stop.Load() {
				buf, pin, fault := e.dev.acquire(e.pd, nil, stag.Load(), uint64(w*16), 16, rdmap.RemoteWrite)
				if fault != rdmap.FaultNone {
					runtime.Gosched()
					continue
				}
				for i := range buf {
					buf[i]++
				}
				wrote.Add(1)
				pin.Unpin()
			}
		})
	}
	for i := 0; i < 200 || wrote.Load() == 0; i++ {
		s, err := mr.Reregister(0, 64, RemoteWrite)
		if err != nil {
			t.Fatal(err)
		}
		stag.Store(s)
		before := wrote.Load()
		for i%8 == 0 && wrote.Load() == before {
			runtime.Gosched()
		}
		if err := mr.Invalidate(); err != nil {
			t.Fatal(err)
		}
		first := bytes.Clone(mr.Bytes())
		second := bytes.Clone(mr.Bytes())
		if !bytes.Equal(first, second) {
			t.Fatal("the memory changed after Invalidate had returned")
		}
	}
	stop.Store(true)
	wg.Wait()
}

func TestDeregisterWaitsForPostedWork(t *testing.T) {
	overEachLLP(t, func(t *testing.T, a, b *end) {
		mr := a.mr(64, LocalWrite)
		a.recv(RecvWR{SGL: whole(mr, 64)})
		if err := mr.Deregister(); !errors.Is(err, ErrInUse) {
			t.Errorf("deregister with a posted receive: %v", err)
		}
		a.qp.Abort(nil)
		a.wantEnd()
		if err := mr.Deregister(); err != nil {
			t.Errorf("deregister after the end: %v", err)
		}
	})
}

func TestSTagTableFindsExactlyWhatIsLive(t *testing.T) {
	var tab stagTable
	tab.init()
	live := make(map[uint32]*window)
	var order []uint32
	for i := range 20000 {
		if i%3 == 2 {
			k := order[len(order)/2]
			order = append(order[:len(order)/2], order[len(order)/2+1:]...)
			tab.remove(k)
			delete(live, k)
			if tab.find(k) != nil {
				t.Fatalf("STag %#x is found after its removal", k)
			}
			continue
		}
		mr := new(window)
		k := tab.insert(mr)
		if k == 0 || live[k] != nil {
			t.Fatalf("STag %#x given twice", k)
		}
		live[k] = mr
		order = append(order, k)
	}
	for k, mr := range live {
		if tab.find(k) != mr {
			t.Fatalf("STag %#x is lost", k)
		}
	}
	if tab.find(0) != nil {
		t.Error("STag 0 is found")
	}
}

// A lookup of a live STag must not fail while others come and go around it.
func TestSTagLookupIsSteadyUnderChurn(t *testing.T) {
	var tab stagTable
	tab.init()
	mr := new(window)
	stag := tab.insert(mr)
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for !stop.Load() {
			var keys [40]uint32
			for i := range keys {
				keys[i] = tab.insert(new(window))
			}
			for _, k := range keys {
				tab.remove(k)
			}
		}
	})
	for range 200000 {
		if tab.find(stag) != mr {
			t.Error("a live STag is not found")
			break
		}
	}
	stop.Store(true)
	wg.Wait()
}

// STags differ in every bit about half of the time (R7).
func TestSTagsLookRandom(t *testing.T) {
	var tab stagTable
	tab.init()
	const n = 1 << 16
	var ones [32]int
	for range n {
		k := tab.randomLocked()
		for b := range ones {
			ones[b] += int(k >> b & 1)
		}
	}
	for b, c := range ones {
		if c < n/2-n/64 || c > n/2+n/64 { // 8 standard deviations
			t.Errorf("bit %d is set in %d of %d STags", b, c, n)
		}
	}
}

// An STag that has just gone is not given again, even when chance draws it, before
// many others have gone (R7).
func TestSTagIsNotGivenAgainSoon(t *testing.T) {
	var tab stagTable
	tab.init()
	draw := func(first uint32) uint32 {
		tab.rnd = binary.LittleEndian.AppendUint32(nil, first)
		return tab.insert(new(window))
	}
	gone := tab.insert(new(window))
	tab.remove(gone)
	for i := range retiredSTags {
		got := draw(gone)
		if got == gone {
			t.Fatalf("it is given again after %d others", i)
		}
		tab.remove(got)
	}
	if got := draw(gone); got != gone {
		t.Error("it is never given again")
	}
}

func BenchmarkReregister(b *testing.B) {
	e := newEnd(b, Config{})
	mr := e.mr(4096, LocalWrite)
	b.ReportAllocs()
	for range b.N {
		if _, err := mr.Reregister(0, 4096, RemoteWrite); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLookup(b *testing.B) {
	e := newEnd(b, Config{})
	for range 1000 {
		e.mr(16, LocalWrite)
	}
	mr := e.mr(16, LocalWrite)
	stag := mr.STag()
	for range b.N {
		if e.dev.stags.find(stag) != &mr.win {
			b.Fatal("lost")
		}
	}
}
