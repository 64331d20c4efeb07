package verbs

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rdmap"
)

// word is 8 aligned bytes of registered memory for local use beside Atomics.
func word(mr *MR, off int) *uint64 { return (*uint64)(unsafe.Pointer(&mr.Bytes()[off])) }

// atomicStream is one of many streams to the same device.
type atomicStream struct {
	*end
	stag uint32 // of the target memory, as this stream may use it
	old  *MR    // where results go
}

// do carries out one Atomic and returns the original value.
func (s *atomicStream) do(wr SendWR) uint64 {
	s.t.Helper()
	wr.Flags, wr.RemoteSTag, wr.SGL = Signaled, s.stag, whole(s.old, 8)
	s.post(wr)
	wc := s.wantOK(WCAtomic)
	if got := binary.NativeEndian.Uint64(s.old.Bytes()); got != wc.Imm {
		s.t.Errorf("the result in memory is %#x, in the completion %#x", got, wc.Imm)
	}
	return wc.Imm
}

// overStreams runs f on each of n streams to one memory region at a time, all at
// once. A third of the streams uses a memory window.
func overStreams(t *testing.T, n int, mr *MR, b *end, pair func(testing.TB, *end, *end), f func(s *atomicStream)) {
	streams := make([]*atomicStream, n)
	for i := range streams {
		a := newEnd(t, Config{})
		pair(t, a, b)
		s := &atomicStream{end: a, stag: mr.STag(), old: a.mr(8, LocalWrite)}
		if i%3 == 2 {
			s.stag = b.bind(b.mw(), mr, 0, uint32(mr.Len()), RemoteAtomic)
		}
		streams[i] = s
	}
	var wg sync.WaitGroup
	for _, s := range streams {
		wg.Go(func() {
			f(s)
		})
	}
	wg.Wait()
	for _, s := range streams {
		s.qp.Abort(nil)
		s.wantEnd()
	}
}

var atomicPairs = map[string]func(testing.TB, *end, *end){
	"memory": memPair(iwarptest.Options{}),
	"MPA":    tcpPair(Setup{}, Setup{}),
}

// Atomics of 32 streams on one region, through its STag and through windows, and
// local ones beside them lose nothing (RFC 7306 section 5.3).
func TestFetchAddIsAtomicAcrossStreams(t *testing.T) {
	const streams, rounds = 32, 100
	for name, pair := range atomicPairs {
		t.Run(name, func(t *testing.T) {
			b := newEnd(t, Config{})
			mr := b.mr(24, LocalWrite|RemoteAtomic|WindowBind)
			var mu sync.Mutex
			seen := make(map[uint64]bool) // each original value occurs once
			var local atomic.Bool
			done := make(chan uint64)
			go func() {
				n := uint64(0)
				for ; !local.Load(); n++ {
					atomic.AddUint64(word(mr, 8), 1<<32)
					runtime.Gosched()
				}
				done <- n
			}()
			overStreams(t, streams, mr, b, pair, func(s *atomicStream) {
				for range rounds {
					old := s.do(SendWR{Op: OpFetchAdd, Add: 3, RemoteTO: 0})
					mu.Lock()
					if seen[old] || old%3 != 0 {
						t.Errorf("the original value %d twice, or impossible", old)
					}
					seen[old] = true
					mu.Unlock()
					s.do(SendWR{Op: OpFetchAdd, Add: 1, RemoteTO: 8})
					// Four fields of 16 bits: none carries into the next (section 5.1.1).
					s.do(SendWR{Op: OpFetchAdd, Add: 0xffff_0001_ffff_0001, AddMask: 0x8000_8000_8000_8000, RemoteTO: 16})
				}
			})
			local.Store(true)
			locals := <-done
			if got, want := atomic.LoadUint64(word(mr, 0)), uint64(3*streams*rounds); got != want {
				t.Errorf("the sum is %d, want %d", got, want)
			}
			if got, want := atomic.LoadUint64(word(mr, 8)), locals<<32+streams*rounds; got != want {
				t.Errorf("with local additions %#x, want %#x", got, want)
			}
			n := uint64(streams * rounds)
			want := (-n&0xffff)<<48 | n<<32 | (-n&0xffff)<<16 | n
			if got := atomic.LoadUint64(word(mr, 16)); got != want {
				t.Errorf("the masked sums are %#x, want %#x", got, want)
			}
		})
	}
}

// A lock by CmpSwap keeps 32 streams apart: what it guards is changed by plain
// Reads and Writes, and never loses an update. A masked CmpSwap of the other half
// of the lock's word does not disturb it.
func TestCmpSwapLocksAcrossStreams(t *testing.T) {
	const streams, rounds = 32, 8
	for name, pair := range atomicPairs {
		t.Run(name, func(t *testing.T) {
			b := newEnd(t, Config{})
			lock := b.mr(8, LocalWrite|RemoteAtomic|WindowBind)
			guarded := b.mr(8, LocalWrite|RemoteRead|RemoteWrite)
			var id atomic.Uint64
			overStreams(t, streams, lock, b, pair, func(s *atomicStream) {
				me := id.Add(1)
				mine := s.mr(8, LocalWrite)
				for round := range uint64(rounds) {
					// Count in the upper half: the compare is of the lower half only.
					for s.do(SendWR{Op: OpCmpSwap, Compare: 0, CompareMask: 1<<32 - 1, Add: me, AddMask: 1<<32 - 1})&(1<<32-1) != 0 {
						if t.Failed() {
							return // whoever has locked may be gone
						}
					}
					s.post(SendWR{Op: OpRead, Flags: Signaled, SGL: whole(mine, 8), RemoteSTag: guarded.STag()})
					s.wantOK(WCRead)
					binary.NativeEndian.PutUint64(mine.Bytes(), binary.NativeEndian.Uint64(mine.Bytes())+1)
					s.post(SendWR{Op: OpWrite, Flags: Signaled, SGL: whole(mine, 8), RemoteSTag: guarded.STag()})
					s.wantOK(WCWrite)
					s.do(SendWR{Op: OpFetchAdd, Add: 1 << 32})
					if old := s.do(SendWR{Op: OpCmpSwap, Compare: me, CompareMask: 1<<32 - 1, Add: 0, AddMask: 1<<32 - 1}); old&(1<<32-1) != me {
						t.Errorf("stream %d, round %d: unlocks what %d has locked", me, round, old&(1<<32-1))
						return
					}
				}
			})
			if got := binary.NativeEndian.Uint64(guarded.Bytes()); got != streams*rounds {
				t.Errorf("%d updates are left of %d", got, streams*rounds)
			}
			if got := atomic.LoadUint64(word(lock, 0)); got != streams*rounds<<32 {
				t.Errorf("the lock's word is %#x", got)
			}
		})
	}
}

// Each way to carry an Atomic out does what RFC 7306 section 5.1 defines.
func TestAtomicsFollowTheirDefinition(t *testing.T) {
	a, b := newEnd(t, Config{}), newEnd(t, Config{})
	memPair(iwarptest.Options{})(t, a, b)
	mr := b.mr(8, LocalWrite|RemoteAtomic)
	s := &atomicStream{end: a, stag: mr.STag(), old: a.mr(8, LocalWrite)}
	r := rand.New(rand.NewPCG(7, 7))
	for i := range 2000 {
		old := r.Uint64()
		atomic.StoreUint64(word(mr, 0), old)
		mask := []uint64{0, 1 << 63, 1 << 31, ^uint64(0), r.Uint64()}[i%5]
		wr := SendWR{Op: OpFetchAdd, Add: r.Uint64(), AddMask: mask}
		req := rdmap.AtomicRequest{Op: rdmap.AtomicFetchAdd, AddSwap: wr.Add, AddSwapMask: mask}
		if i%2 == 1 {
			wr = SendWR{Op: OpCmpSwap, Add: r.Uint64(), AddMask: mask, Compare: old ^ uint64(i%3), CompareMask: ^uint64(i % 4)}
			req = rdmap.AtomicRequest{Op: rdmap.AtomicCmpSwap, AddSwap: wr.Add, AddSwapMask: mask, Compare: wr.Compare, CompareMask: wr.CompareMask}
		}
		if got := s.do(wr); got != old {
			t.Fatalf("%+v brings %#x of %#x", req, got, old)
		}
		if got := atomic.LoadUint64(word(mr, 0)); got != req.Apply(old) {
			t.Fatalf("%+v makes %#x of %#x, want %#x", req, got, old, req.Apply(old))
		}
	}
}

func TestAtomicNeedsItsRight(t *testing.T) {
	for _, window := range []bool{false, true} {
		t.Run(fmt.Sprint("window ", window), func(t *testing.T) {
			a, b := newEnd(t, Config{}), newEnd(t, Config{})
			memPair(iwarptest.Options{})(t, a, b)
			mr := b.mr(16, LocalWrite|RemoteRead|RemoteWrite|WindowBind)
			stag := mr.STag()
			if window {
				stag = b.bind(b.mw(), mr, 0, 16, RemoteRead|RemoteWrite)
			}
			a.post(SendWR{Op: OpFetchAdd, Flags: Signaled, Add: 1, RemoteSTag: stag})
			if wc := a.next(); wc.Err == nil {
				t.Error("an Atomic without the right succeeds")
			}
			b.wantEnd()
			if *word(mr, 0) != 0 {
				t.Error("the memory changed")
			}
		})
	}
}
