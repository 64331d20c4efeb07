package verbs

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"

	"github.com/ironwarp/ironwarp/iwarptest"
)

// edges are lengths of elements around the payload of one segment of a MULPDU of
// 64 bytes: 46 bytes of an untagged one, 50 of a tagged one.
var edges = []uint32{0, 1, 46, 47, 50}

// lists calls f with every list of four such elements, and their sum.
func lists(f func(l [MaxSGE]uint32, total uint32)) {
	n := len(edges)
	for i := range n * n * n * n {
		l := [MaxSGE]uint32{edges[i%n], edges[i/n%n], edges[i/n/n%n], edges[i/n/n/n]}
		f(l, l[0]+l[1]+l[2]+l[3])
	}
}

// scatter makes a list with the lengths of l; the elements lie apart and in no
// order.
func scatter(mr *MR, l [MaxSGE]uint32) []SGE {
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
				lists(func(l [MaxSGE]uint32, total uint32) {
					fill(src.Bytes(), uint64(total))
					from := scatter(src, l)
					want := gathered(from)
					into := scatter(dst, [MaxSGE]uint32{l[3], l[0], l[2], l[1]})
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
					back := scatter(sink, [MaxSGE]uint32{l[1], l[2], l[3], l[0]})
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
	round := func(size int) uint64 {
		for range 16 {
			e.post(SendWR{Op: OpWrite, Flags: Inline | Signaled, SGL: whole(mr, size)})
			e.wantOK(WCWrite)
			raw.Recv()
		}
		runtime.GC()
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		return s.HeapAlloc
	}
	before := round(1)
	if after := round(n); after > before+2*n {
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
		"five elements":             {{mr, 0, 1}, {mr, 1, 1}, {mr, 2, 1}, {mr, 3, 1}, {mr, 4, 1}},
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
