package rdmap_test

import (
	"slices"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rdmap"
)

// even is an LLP that likes segments of one length.
type even struct{ ddp.LLP }

func (even) EvenSegments() {}

// Messages are cut into as few segments as they need, of about the same length
// where the LLP asks for that, else into full ones and a rest.
func TestHowMessagesAreCut(t *testing.T) {
	const room = 1424 - ddp.TaggedHeaderLen
	for n, want := range map[int]struct{ even, full []int }{
		1:            {[]int{1}, []int{1}},
		room:         {[]int{room}, []int{room}},
		room + 1:     {[]int{706, 705}, []int{room, 1}},
		2 * room:     {[]int{room, room}, []int{room, room}},
		4096:         {[]int{1366, 1365, 1365}, []int{room, room, 4096 - 2*room}},
		3*room - 1:   {[]int{room, room, room - 1}, []int{room, room, room - 1}},
		10*room + 10: {[]int{1283, 1283, 1283, 1283, 1283, 1283, 1283, 1283, 1282, 1282, 1282}, nil},
	} {
		for _, isEven := range []bool{true, false} {
			raw, l := iwarptest.Pair(iwarptest.Options{MULPDU: 1424})
			llp, lengths := ddp.LLP(l), want.full
			if isEven {
				llp, lengths = even{l}, want.even
			}
			p := openOn(t, rdmap.Config{}, raw, llp, nil)
			p.post(sgl(rdmap.Op{Kind: rdmap.OpWrite, ID: 1, STag: 7}, make([]byte, n)))
			var got []int
			for to := uint64(0); ; {
				h := ddp.Tagged(p.next())
				if h.TO() != to {
					t.Fatalf("%d bytes: a segment for %d follows those up to %d", n, h.TO(), to)
				}
				got = append(got, len(h)-ddp.TaggedHeaderLen)
				to += uint64(got[len(got)-1])
				if h.Last() {
					break
				}
			}
			if lengths != nil && !slices.Equal(got, lengths) {
				t.Errorf("%d bytes, even %v: %d, want %d", n, isEven, got, lengths)
			}
		}
	}
}
