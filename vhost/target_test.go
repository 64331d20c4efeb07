package vhost

import (
	"bytes"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/block"
)

// newPiece is a piece of a read, at byte at of its request, whose data is in parts of these
// lengths.
func newPiece(at uint32, lengths []byte) (p *piece, mem []byte) {
	n := 0
	for _, l := range lengths {
		n += int(l)
	}
	mem = make([]byte, n)
	q := &request{r: &runner{f: &frontend{srv: &Server{}}}, op: block.OpRead, n: uint32(n)}
	for rest := mem; len(lengths) > 0; lengths = lengths[1:] {
		l := lengths[0]
		q.data = append(q.data, rest[:l:l])
		rest = rest[l:]
	}
	p = &piece{req: q, at: at, n: uint32(n) - at}
	p.to.state.Store(targetFree)
	return p, mem
}

// Whatever parts a request's memory is in, and in whatever order, how often and in what
// pieces its data comes, each byte is in its place.
func FuzzPlace(f *testing.F) {
	f.Add(uint8(0), []byte{1, 2, 3, 255, 0, 7}, []byte{0, 10, 10, 20, 0, 255})
	f.Add(uint8(3), []byte{0, 0, 5, 0}, []byte{0, 1, 1, 1, 0, 2})
	f.Fuzz(func(t *testing.T, at uint8, lengths, writes []byte) {
		p, mem := newPiece(0, lengths)
		p.at = min(uint32(at), uint32(len(mem)))
		want := make([]byte, len(mem))
		for i := 0; i+1 < len(writes); i += 2 {
			room := len(mem) - int(p.at)
			from := min(int(writes[i])*3, room)
			b := bytes.Repeat([]byte{byte(i + 1)}, min(int(writes[i+1]), room-from))
			copy(want[int(p.at)+from:], b)
			if !p.Place(uint64(from), b) {
				t.Fatal("refused")
			}
			if !bytes.Equal(mem, want) {
				t.Fatalf("after %d bytes at %d: % x, want % x", len(b), from, mem, want)
			}
		}
	})
}

// Placing allocates nothing.
func TestPlacingAllocatesNothing(t *testing.T) {
	p, _ := newPiece(0, []byte{100, 100, 100})
	b := make([]byte, 150)
	if n := testing.AllocsPerRun(100, func() { p.Place(75, b) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Patience is over after a burst, or a share, of what memory takes beyond the usual, comes back
// when all has been made up for, and is not over for what stays below.
func TestPatience(t *testing.T) {
	var p faultBudget
	now := time.Hour
	p.spend(now, -time.Hour)
	p.spend(now, faultBurst)
	if p.isSpent(now) {
		t.Error("it is over for a burst that may be")
	}
	p.spend(now, time.Millisecond)
	back := now + faultShare*(faultBurst+time.Millisecond)
	if !p.isSpent(now) || !p.isSpent(back-1) || p.isSpent(back) {
		t.Error("it is not over until all has been made up for")
	}
	for now = back; now < 2*time.Hour; now += faultShare * time.Millisecond {
		if p.spend(now, time.Millisecond); p.isSpent(now) {
			t.Fatal("it is over for a share that may be")
		}
	}
	for n := 0; !p.isSpent(now); n++ {
		if p.spend(now, time.Millisecond); n > int(2*faultBurst/time.Millisecond) {
			t.Fatal("it has no end")
		}
		now += (faultShare - 1) * time.Millisecond / 2
	}
}
