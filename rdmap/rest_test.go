package rdmap_test

import (
	"slices"
	"sync"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rdmap"
)

// narrow is an LLP whose batches are full with one segment. It writes down how many each had.
type narrow struct {
	ddp.LLP
	mu      sync.Mutex // guards the fields below it
	pending int
	batches []int
}

func (n *narrow) Append(hdr []byte, sgl [][]byte) error {
	n.mu.Lock()
	n.pending++
	n.mu.Unlock()
	return n.LLP.Append(hdr, sgl)
}

func (n *narrow) Full() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.pending > 0
}

func (n *narrow) TryFlush() (bool, error) {
	n.flushed()
	return n.LLP.TryFlush()
}

func (n *narrow) Flush() error {
	n.flushed()
	return n.LLP.Flush()
}

func (n *narrow) flushed() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.pending > 0 {
		n.batches = append(n.batches, n.pending)
		n.pending = 0
	}
}

// What is left of a message goes along with a full batch if it is short, and the next message does not.
func TestShortRestGoesAlongWithAFullBatch(t *testing.T) {
	const mulpdu = 16 << 10
	const room = mulpdu - ddp.TaggedHeaderLen
	for n, want := range map[int][]int{
		room:             {1},
		room + 1:         {2},
		room + 4<<10:     {2},
		room + 4<<10 + 1: {1, 1},
		2*room + 100:     {1, 2},
	} {
		raw, l := iwarptest.Pair(iwarptest.Options{MULPDU: mulpdu})
		llp := &narrow{LLP: l}
		p := openOn(t, rdmap.Config{}, raw, llp, nil)
		for range 2 {
			p.post(sgl(rdmap.Op{Kind: rdmap.OpWrite, ID: 1, STag: 7}, make([]byte, n)))
			for !ddp.Tagged(p.next()).Last() {
			}
		}
		llp.mu.Lock()
		if got := llp.batches; !slices.Equal(got, append(slices.Clone(want), want...)) {
			t.Errorf("two Writes of %d bytes left in batches of %d segments, want %d each", n, got, want)
		}
		llp.mu.Unlock()
	}
}
