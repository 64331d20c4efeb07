package verbs

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/iwarptest"
)

// edges are lengths of elements around the payload of one segment of a MULPDU of
// 64 bytes: 46 bytes of an untagged one, 50 of a tagged one.
var edges = []uint32{0, 1, 46, 47, 50}

// lists calls f with every list of four such elements, and their sum.
func lists(f func(l [DefaultSGE]uint32, total uint32)) {
	n := len(edges)
	for i := range n * n * n * n {
		l := [DefaultSGE]uint32{edges[i%n], edges[i/n%n], edges[i/n/n%n], edges[i/n/n/n]}
		f(l, l[0]+l[1]+l[2]+l[3])
	}
}

// scatter makes a list with the lengths of l; the elements lie apart and in no
// order.
func scatter(mr *MR, l [DefaultSGE]uint32) []SGE {
	return []SGE{{mr, 300, l[0]}, {mr, 100, l[1]}, {mr, 200, l[2]}, {mr, 0, l[3]}}
}

// gathered is what the list holds.
func gathered(sgl []SGE) (b []byte) {
	for _, e := range sgl {
		b = append(b, e.MR.Bytes()[e.Off:e.Off+e.Len]...)
	}
	return b
}

// besides are the bytes of mr that no element of sgl covers.
func besides(mr *MR, sgl []SGE) []byte {
	b := bytes.Clone(mr.Bytes())
	for _, e := range sgl {
		clear(b[e.Off : e.Off+e.Len])
	}
	return b
}

// Four elements, some of them empty, cut by segments' borders in every way, are
// sent, received, written and read in order, and nothing beside them changes.
func TestListsAcrossSegmentBorders(t *testing.T) {
	for _, direct := range []bool{false, true} {
		for _, flags := range []Flags{0, Inline} {
			t.Run(fmt.Sprintf("direct %v, inline %v", direct, flags == Inline), func(t *testing.T) {
				a, b := newEnd(t, Config{}), newEnd(t, Config{})
				memPair(iwarptest.Options{MULPDU: 64, Direct: direct})(t, a, b)
				src, dst := a.mr(400, LocalWrite), b.mr(400, LocalWrite)
				window, sink := b.mr(400, LocalWrite|RemoteRead|RemoteWrite), a.mr(400, LocalWrite)
				lists(func(l [DefaultSGE]uint32, total uint32) {
					fill(src.Bytes(), uint64(total))
					from := scatter(src, l)
					want := gathered(from)
					into := scatter(dst, [DefaultSGE]uint32{l[3], l[0], l[2], l[1]})
					beside := besides(dst, into)
					b.recv(RecvWR{SGL: into})
					a.post(SendWR{Op: OpSend, Flags: flags | More, SGL: from})
					if flags == Inline {
						clear(src.Bytes())
					}
					a.qp.Flush()
					if wc := b.wantOK(WCRecv); wc.Len != total || !bytes.Equal(gathered(into), want) {
						t.Fatalf("a Send of %v arrives as %d bytes, not what was sent", l, wc.Len)
					}
					if !bytes.Equal(besides(dst, into), beside) {
						t.Fatalf("a Send of %v changes memory beside the receive's", l)
					}
					if flags == Inline {
						copy(src.Bytes()[300:], want[:l[0]])
						return
					}
					a.post(SendWR{Op: OpWrite, SGL: from, RemoteSTag: window.STag(), RemoteTO: 3})
					back := scatter(sink, [DefaultSGE]uint32{l[1], l[2], l[3], l[0]})
					beside = besides(sink, back)
					a.post(SendWR{Op: OpRead, Flags: Signaled, SGL: back, RemoteSTag: window.STag(), RemoteTO: 3})
					if wc := a.wantOK(WCRead); wc.Len != total || !bytes.Equal(window.Bytes()[3:][:total], want) || !bytes.Equal(gathered(back), want) {
						t.Fatalf("a Write or Read of %v brings other data", l)
					}
					if !bytes.Equal(besides(sink, back), beside) {
						t.Fatalf("a Read into %v changes memory beside its sink", l)
					}
				})
			})
		}
	}
}

// Lists as long as the queues are made for, cut by segments' borders, are sent, received, written and read in order over
// every LLP, from queues of one's own and shared ones; one element more is refused.
func TestLongLists(t *testing.T) {
	for _, l := range llps {
		for _, n := range []int{DefaultSGE + 1, MaxSGE} {
			for _, shared := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, %d, shared %v", l.name, n, shared), func(t *testing.T) {
					a, b := newEnd(t, Config{}), newEnd(t, Config{})
					a.cfg.MaxSendSGE, b.cfg.MaxRecvSGE = n, n
					post := func(wr RecvWR) error { return b.qp.PostRecv(wr) }
					if shared {
						post = b.srq(SRQConfig{MaxRecv: 4, MaxPerQP: 2, MaxSGE: n}).PostRecv
						b.cfg.MaxRecvSGE = 0
					}
					l.pair(t, a, b)
					const area, stride = 1 << 16, 2000
					src, dst := a.mr(area, LocalWrite), b.mr(area, LocalWrite)
					window, sink := b.mr(area, LocalWrite|RemoteRead|RemoteWrite), a.mr(area, LocalWrite)
					list := func(mr *MR, turn int) (sgl []SGE, total uint32) {
						for i := range n {
							length := uint32((i*i*97 + turn*31) % (stride - 1))
							sgl = append(sgl, SGE{mr, uint32((i*7+turn)%n) * stride, length}) // 7 and n have no divisor in common
							total += length
						}
						return sgl, total
					}
					for turn := range 20 {
						fill(src.Bytes(), uint64(turn))
						from, total := list(src, turn)
						into, _ := list(dst, turn)
						into[0].Len, into[n-1].Len = into[n-1].Len, into[0].Len // borders lie elsewhere than the source's
						beside := besides(dst, into)
						if err := post(RecvWR{SGL: into}); err != nil {
							t.Fatal(err)
						}
						flags := Flags(turn%2) * Inline
						a.post(SendWR{Op: OpSend, Flags: flags, SGL: from})
						if wc := b.wantOK(WCRecv); wc.Len != total || !bytes.Equal(gathered(into)[:total], gathered(from)) || !bytes.Equal(besides(dst, into), beside) {
							t.Fatalf("turn %d: a Send brings %d bytes, want %d, or other ones", turn, wc.Len, total)
						}
						back, _ := list(sink, turn+1)
						size := uint32(0)
						for i := range back {
							back[i].Len = min(back[i].Len, total-size)
							size += back[i].Len
						}
						beside = besides(sink, back)
						a.post(SendWR{Op: OpWrite, Flags: flags, SGL: from, RemoteSTag: window.STag(), RemoteTO: 3})
						a.post(SendWR{Op: OpRead, Flags: Signaled, SGL: back, RemoteSTag: window.STag(), RemoteTO: 3})
						if a.wantOK(WCRead); !bytes.Equal(window.Bytes()[3:][:total], gathered(from)) || !bytes.Equal(gathered(back), gathered(from)[:size]) || !bytes.Equal(besides(sink, back), beside) {
							t.Fatalf("turn %d: a Write or Read brings other data", turn)
						}
					}
					long := slices.Repeat(whole(src, 1), n+1)
					if err := a.qp.PostSend(&SendWR{Op: OpWrite, SGL: long, RemoteSTag: window.STag()}); err == nil {
						t.Error("a send of one element more is posted")
					}
					if err := post(RecvWR{SGL: slices.Repeat(whole(dst, 1), n+1)}); err == nil {
						t.Error("a receive of one element more is posted")
					}
				})
			}
		}
	}
}

// Lists of queues are as long as they are made for, which is charged.
func TestQueuesForLongListsAreCharged(t *testing.T) {
	// A quarter is kept for a newcomer.
	e := newEnd(t, Config{Limits: Limits{QueueEntries: 400, SRQEntries: 80}})
	for _, tc := range []struct{ depth, sges, most int }{{150, 0, 0}, {150, DefaultSGE, 0}, {37, 4 * DefaultSGE, 0}, {18, MaxSGE, 0}, {151, 0, 1}, {38, 4 * DefaultSGE, 1}, {19, MaxSGE, 1}, {1, MaxSGE + 1, 2}, {1, -1, 2}} {
		qp, err := e.pd.CreateQP(QPConfig{SendCQ: e.cfg.SendCQ, RecvCQ: e.cfg.RecvCQ, MaxSend: tc.depth, MaxRecv: tc.depth, MaxSendSGE: tc.sges, MaxRecvSGE: tc.sges})
		var quota *QuotaError
		if (err != nil) != (tc.most > 0) || errors.As(err, &quota) != (tc.most == 1) {
			t.Errorf("a queue pair of %d work requests of %d elements each way: %v", tc.depth, tc.sges, err)
		}
		if err == nil {
			qp.Abort(nil)
			<-qp.Done()
		}
	}
	for sges, good := range map[int]bool{0: true, DefaultSGE: true, 4 * DefaultSGE: true, 4*DefaultSGE + 1: false, MaxSGE + 1: false} {
		s, err := e.pd.CreateSRQ(SRQConfig{MaxRecv: 15, MaxSGE: sges})
		if (err == nil) != good {
			t.Errorf("a shared receive queue of 15 receives of %d elements: %v", sges, err)
		}
		if err == nil {
			s.Destroy()
		}
	}
	if _, err := e.pd.CreateQP(QPConfig{SendCQ: e.cfg.SendCQ, RecvCQ: e.cfg.RecvCQ, MaxSend: 1, MaxRecvSGE: 4, SRQ: e.srq(SRQConfig{MaxRecv: 1})}); err == nil {
		t.Error("a queue pair with a shared receive queue has lists of its own")
	}
}

// Storage for inline data is kept only while it is small, and a long inline
// message is still a copy.
func TestLongInlineMessages(t *testing.T) {
	a, b := newEnd(t, Config{}), newEnd(t, Config{})
	memPair(iwarptest.Options{})(t, a, b)
	src, dst := a.mr(1<<16, LocalWrite), b.mr(1<<16, LocalWrite)
	for round := range 20 { // slots are used again
		n := []int{1 << 16, 1, 4096, 4097}[round%4]
		fill(src.Bytes()[:n], uint64(round))
		want := bytes.Clone(src.Bytes()[:n])
		b.recv(RecvWR{SGL: whole(dst, 1<<16)})
		a.post(SendWR{Op: OpSend, Flags: Inline | More, SGL: []SGE{{src, 0, uint32(n / 2)}, {src, uint32(n / 2), uint32(n - n/2)}}})
		clear(src.Bytes())
		a.qp.Flush()
		if wc := b.wantOK(WCRecv); int(wc.Len) != n || !bytes.Equal(dst.Bytes()[:n], want) {
			t.Fatalf("%d inline bytes arrive changed", n)
		}
	}
}

// A queue pair that is idle again keeps nothing of long inline messages.
func TestIdleQueuePairForgetsInlineData(t *testing.T) {
	const n = 1 << 20
	e := newEnd(t, Config{})
	raw, l := iwarptest.Pair(iwarptest.Options{MULPDU: 64 << 10})
	defer raw.Close()
	e.startOn(l)
	mr := e.mr(n, 0)
	write := func(size int) {
		e.post(SendWR{Op: OpWrite, Flags: Inline | Signaled, SGL: whole(mr, size)})
		e.wantOK(WCWrite)
		for got := 0; got < size; { // the whole message: what is under way would count as kept
			segs, err := raw.Recv()
			if err != nil {
				t.Fatal(err)
			}
			for _, seg := range segs {
				got += len(seg) - ddp.TaggedHeaderLen
			}
		}
	}
	round := func(size int) uint64 {
		for range 16 {
			write(size)
		}
		write(1) // a slot is emptied after its completion is seen, and before the next one's
		runtime.GC()
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		return s.HeapAlloc
	}
	before := round(1)
	if after := round(n); after > before+n {
		t.Errorf("%d MiB are kept after inline messages of %d bytes", (after-before)>>20, n)
	}
}

func TestListsThatAreRefused(t *testing.T) {
	e := newEnd(t, Config{})
	raw, l := iwarptest.Pair(iwarptest.Options{})
	defer raw.Close()
	e.startOn(l)
	mr, ro := e.mr(64, LocalWrite), e.mr(64, 0)
	for name, sgl := range map[string][]SGE{
		"five elements":             slices.Repeat(whole(mr, 1), DefaultSGE+1),
		"no region":                 {{nil, 0, 0}},
		"one byte past the end":     {{mr, 0, 65}},
		"offset past the end":       {{mr, 65, 0}},
		"an end that wraps 32 bits": {{mr, 1<<32 - 1, 2}},
	} {
		for what, err := range map[string]error{
			"send": e.qp.PostSend(&SendWR{Op: OpSend, SGL: sgl}), "read": e.qp.PostSend(&SendWR{Op: OpRead, SGL: sgl}), "receive": e.qp.PostRecv(RecvWR{SGL: sgl}),
		} {
			if err == nil {
				t.Errorf("%s: a %s is posted", name, what)
			}
		}
	}
	for what, err := range map[string]error{
		"read": e.qp.PostSend(&SendWR{Op: OpRead, SGL: whole(ro, 8)}), "receive": e.qp.PostRecv(RecvWR{SGL: whole(ro, 8)}),
		"fetch and add": e.qp.PostSend(&SendWR{Op: OpFetchAdd, SGL: whole(ro, 8)}),
	} {
		if err == nil {
			t.Errorf("a %s into memory without LocalWrite is posted", what)
		}
	}
	e.post(SendWR{Op: OpSend, SGL: []SGE{{mr, 64, 0}, {ro, 0, 64}}})
}
