package verbs

import (
	"bytes"
	"runtime"
	"sync/atomic"
	"testing"
)

// memTarget is a Target that places in memory of its own what it takes.
type memTarget struct {
	mem   []byte
	let   func(off uint64) bool // nil: all is taken
	calls atomic.Int64
}

func (m *memTarget) Place(off uint64, p []byte) bool {
	m.calls.Add(1)
	if m.let != nil && !m.let(off) {
		return false
	}
	copy(m.mem[off:], p)
	return true
}

// writeAll writes all of src to a region of b and waits until it is there.
func (e *end) writeAll(b *end, src *MR, stag uint32) {
	e.t.Helper()
	b.recv(RecvWR{})
	e.post(SendWR{Op: OpWrite, SGL: whole(src, src.Len()), RemoteSTag: stag, Flags: Signaled})
	e.post(SendWR{Op: OpImmediate, Flags: Signaled})
	b.wantOK(WCRecvImm)
	e.wantOK(WCWrite)
	e.wantOK(WCImmediate)
}

// What a peer writes to a region with a target goes there and not to the region's memory, over
// each lower layer; what the target refuses goes to the region. After Divert all goes to the
// region, by the same STag, on the same stream.
func TestTarget(t *testing.T) {
	const n = 200<<10 + 13
	overEachLLP(t, func(t *testing.T, a, b *end) {
		src, dst := a.mr(n, LocalWrite), b.mr(n+1, LocalWrite)
		fill(src.Bytes(), 1)
		to := &memTarget{mem: make([]byte, n)}
		stag, err := dst.ReregisterTo(n, to)
		if err != nil {
			t.Fatal(err)
		}
		a.writeAll(b, src, stag)
		if !bytes.Equal(to.mem, src.Bytes()) || !bytes.Equal(dst.Bytes(), make([]byte, n+1)) {
			t.Fatal("the target has other data, or the region has some")
		}

		dst.Divert()
		dst.Divert()
		calls := to.calls.Load()
		fill(src.Bytes(), 2)
		a.writeAll(b, src, stag)
		if !bytes.Equal(dst.Bytes()[:n], src.Bytes()) || to.calls.Load() != calls || bytes.Equal(to.mem, src.Bytes()) {
			t.Fatal("what comes after Divert is not in the region alone")
		}

		clear(dst.Bytes())
		half := &memTarget{mem: make([]byte, n), let: func(off uint64) bool { return off < n/2 }}
		if stag, err = dst.ReregisterTo(n, half); err != nil {
			t.Fatal(err)
		}
		a.writeAll(b, src, stag)
		for i, v := range src.Bytes() {
			if half.mem[i]|dst.Bytes()[i] != v || half.mem[i] != 0 && dst.Bytes()[i] != 0 {
				t.Fatalf("byte %d is %#x in the target and %#x in the region, want %#x in one", i, half.mem[i], dst.Bytes()[i], v)
			}
		}

		// Reregister takes no target over.
		if stag, err = dst.Reregister(0, n, RemoteWrite); err != nil {
			t.Fatal(err)
		}
		calls = half.calls.Load()
		a.writeAll(b, src, stag)
		if !bytes.Equal(dst.Bytes()[:n], src.Bytes()) || half.calls.Load() != calls {
			t.Error("a target outlives its STag")
		}
		if err := dst.Deregister(); err != nil {
			t.Fatal(err)
		}
		dst.Divert()
	})
}

// The window of a region with a target has bounds and rights like others: nothing of what
// breaks them reaches the target.
func TestTargetIsWithinBoundsAndRights(t *testing.T) {
	for what, wr := range map[string]SendWR{
		"a byte past the end":  {Op: OpWrite, RemoteTO: 1},
		"far beyond":           {Op: OpWrite, RemoteTO: 1 << 40},
		"an offset that wraps": {Op: OpWrite, RemoteTO: 1<<64 - 8},
		"a read":               {Op: OpRead},
	} {
		t.Run(what, func(t *testing.T) {
			a, b := newEnd(t, Config{}), newEnd(t, Config{})
			tcpPair(Setup{}, Setup{})(t, a, b)
			src, dst := a.mr(64, LocalWrite), b.mr(128, LocalWrite)
			to := &memTarget{mem: make([]byte, 64)}
			stag, err := dst.ReregisterTo(64, to)
			if err != nil {
				t.Fatal(err)
			}
			wr.RemoteSTag, wr.SGL = stag, whole(src, 64)
			a.post(wr)
			if err := b.wantEnd(); err == nil {
				t.Error("the stream goes on")
			}
			if to.calls.Load() != 0 {
				t.Error("it reached the target")
			}
		})
	}
}

// Divert, and each way to end an STag, waits for what the target is taking; others' data
// that comes meanwhile does not keep it waiting.
func TestDivertWaitsForTheTarget(t *testing.T) {
	for name, end := range map[string]func(mr *MR){
		"Divert":     func(mr *MR) { mr.Divert() },
		"Invalidate": func(mr *MR) { mr.Invalidate() },
		"Reregister": func(mr *MR) { mr.Reregister(0, 1, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newEnd(t, Config{}), newEnd(t, Config{})
			tcpPair(Setup{}, Setup{})(t, a, b)
			src, dst := a.mr(64, LocalWrite), b.mr(64, LocalWrite)
			inside, goOn := make(chan struct{}), make(chan struct{})
			var over atomic.Bool
			to := &memTarget{mem: make([]byte, 64), let: func(uint64) bool {
				close(inside)
				<-goOn
				over.Store(true)
				return true
			}}
			stag, err := dst.ReregisterTo(64, to)
			if err != nil {
				t.Fatal(err)
			}
			a.post(SendWR{Op: OpWrite, SGL: whole(src, 64), RemoteSTag: stag})
			<-inside
			ended := make(chan bool)
			go func() {
				end(dst)
				ended <- over.Load()
			}()
			for dst.win.placing.Load() > 0 && dst.win.pins.Load() > 0 { // it has begun
				runtime.Gosched()
			}
			select {
			case <-ended:
				t.Error("it did not wait")
			default:
			}
			close(goOn)
			if !<-ended {
				t.Error("it returned before the target had taken all")
			}
		})
	}
}

// Placing in a target allocates nothing, nor do setting and diverting it.
func TestTargetAllocatesNothing(t *testing.T) {
	e := newEnd(t, Config{})
	mr := e.mr(64, LocalWrite)
	to := &memTarget{mem: make([]byte, 64)}
	p := make([]byte, 64)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := mr.ReregisterTo(64, to); err != nil {
			t.Fatal(err)
		}
		if !(*pin)(&mr.win).Place(0, p) {
			t.Fatal("refused")
		}
		mr.Divert()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
