package iwarptest_test

import (
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/iwarptest"
)

// arrivals is a ddp.Placer that writes down in which order segments come and
// in which they are handed over.
type arrivals struct{ came, turns []byte }

func (a *arrivals) Segment(seg []byte) error {
	a.came, a.turns = append(a.came, seg[0]), append(a.turns, seg[0])
	return nil
}

func (a *arrivals) Early(seg []byte, ahead int) (int, error) {
	if ahead > 8 {
		return 0, fmt.Errorf("%d ahead", ahead)
	}
	a.came = append(a.came, seg[0])
	return 1, nil
}

func (a *arrivals) Turn(head []byte, _ int) error {
	a.turns = append(a.turns, head[0])
	return nil
}

func (a *arrivals) Direct([]byte, int) (int, bool, error) { return 0, false, nil }
func (a *arrivals) DirectBuffer() ([]byte, error)         { return nil, io.ErrShortBuffer }
func (a *arrivals) DirectDone(int) error                  { return nil }
func (a *arrivals) BatchEnd()                             {}

// receive runs n segments through a pair.
func receive(t *testing.T, o iwarptest.Options, n int) arrivals {
	t.Helper()
	x, y := iwarptest.Pair(o)
	for i := range n {
		if err := x.Append([]byte{byte(i)}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := x.Flush(); err != nil {
		t.Fatal(err)
	}
	x.CloseWrite()
	var a arrivals
	if err := y.Receive(&a); err != io.EOF {
		t.Fatal(err)
	}
	return a
}

func TestShuffleIsSeededAndWithinItsWindow(t *testing.T) {
	var inOrder []byte
	for i := range 40 {
		inOrder = append(inOrder, byte(i))
	}
	o := iwarptest.Options{Window: 8, Shuffle: true, Seed: 5}
	a, again := receive(t, o, 40), receive(t, o, 40)
	o.Seed = 6
	other := receive(t, o, 40)
	if slices.Equal(a.came, inOrder) || !slices.Equal(a.came, again.came) || slices.Equal(a.came, other.came) {
		t.Errorf("arrivals %v, again %v, with another seed %v", a.came, again.came, other.came)
	}
	if !slices.Equal(a.turns, inOrder) {
		t.Errorf("handed over %v", a.turns)
	}
	o.Shuffle = false
	if plain := receive(t, o, 40); !slices.Equal(plain.came, inOrder) {
		t.Errorf("without Shuffle they come as %v", plain.came)
	}
}

// A raw peer sees the sender's order.
func TestRecvUndoesTheShuffle(t *testing.T) {
	x, y := iwarptest.Pair(iwarptest.Options{Window: 8, Shuffle: true})
	for i := range 16 {
		x.Append([]byte{byte(i)}, nil)
	}
	x.Flush()
	segs, err := y.Recv()
	if err != nil || len(segs) != 16 {
		t.Fatal(segs, err)
	}
	for i, seg := range segs {
		if seg[0] != byte(i) {
			t.Fatalf("received %x", segs)
		}
	}
	x.Close()
}

var _ ddp.Placer = (*arrivals)(nil)
