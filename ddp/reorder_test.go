package ddp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
)

// placer records the calls of a Reorder. A segment is a number of 4 bytes and a
// payload; those with a number above bad are at fault.
type placer struct {
	bad   uint32
	calls []string
}

var errBad = errors.New("bad segment")

func (p *placer) check(seg []byte) error {
	if p.bad > 0 && binary.BigEndian.Uint32(seg) >= p.bad {
		return errBad
	}
	return nil
}

func (p *placer) note(what string, head []byte, n int) {
	p.calls = append(p.calls, fmt.Sprintf("%s %d/%d", what, binary.BigEndian.Uint32(head), n))
}

func (p *placer) Segment(seg []byte) error {
	p.note("segment", seg, len(seg))
	return p.check(seg)
}

func (p *placer) Early(seg []byte, ahead int) (int, error) {
	p.note(fmt.Sprintf("early by %d", ahead), seg, len(seg))
	return 4, p.check(seg)
}

func (p *placer) Turn(head []byte, total int) error {
	p.note("turn", head, total)
	if len(head) != 4 {
		return fmt.Errorf("%d bytes kept", len(head))
	}
	return nil
}

func (p *placer) Direct([]byte, int) (int, bool, error) { return 0, false, nil }
func (p *placer) DirectBuffer() ([]byte, error)         { return nil, io.ErrShortBuffer }
func (p *placer) DirectDone(int) error                  { return nil }
func (p *placer) BatchEnd()                             {}

func numbered(n uint32, payload int) []byte {
	return append(binary.BigEndian.AppendUint32(nil, n), make([]byte, payload)...)
}

func (p *placer) want(t *testing.T, calls ...string) {
	t.Helper()
	if !slices.Equal(p.calls, calls) {
		t.Errorf("the sink got the calls\n%q, want\n%q", p.calls, calls)
	}
	p.calls = nil
}

// RFC 5041 section 5.3: placement may be out of order, delivery is in order.
func TestEarlySegmentsArePlacedAtOnceAndHandedOverInTurn(t *testing.T) {
	p := &placer{}
	r := NewReorder(p, 7, 10)
	for _, n := range []uint16{7, 9, 10} {
		if err := r.Segment(n, numbered(uint32(n), int(n))); err != nil {
			t.Fatal(err)
		}
	}
	p.want(t, "segment 7/11", "early by 1 9/13", "early by 2 10/14")
	for _, n := range []uint16{8, 11} {
		if err := r.Segment(n, numbered(uint32(n), 0)); err != nil {
			t.Fatal(err)
		}
	}
	p.want(t, "segment 8/4", "turn 9/13", "turn 10/14", "segment 11/4")
	if r.Held() != 0 {
		t.Errorf("%d are held", r.Held())
	}
}

// A Sink that can't place early gets whole segments in order.
func TestReorderTowardsAPlainSink(t *testing.T) {
	p := &placer{}
	r := NewReorder(struct{ Sink }{p}, 0, 10)
	for _, n := range []uint16{2, 1, 0} {
		if err := r.Segment(n, numbered(uint32(n), 5)); err != nil {
			t.Fatal(err)
		}
	}
	p.want(t, "segment 0/9", "segment 1/9", "segment 2/9")
}

// The fault of an early segment ends the stream in its turn.
func TestEarlyFaultWaitsForItsTurn(t *testing.T) {
	p := &placer{bad: 2}
	r := NewReorder(p, 0, 10)
	for _, n := range []uint16{3, 2, 1} {
		if err := r.Segment(n, numbered(uint32(n), 0)); err != nil {
			t.Fatal(err)
		}
	}
	p.calls = nil
	if err := r.Segment(0, numbered(0, 0)); err != errBad {
		t.Errorf("error %v", err)
	}
	p.want(t, "segment 0/4", "turn 1/4")
}

func TestNumbersThatCanNotBe(t *testing.T) {
	for name, tc := range map[string]struct {
		before []uint16
		end    int // -1: none
		bad    uint16
	}{
		"delivered before":           {[]uint16{65530, 65531}, -1, 65530},
		"held before":                {[]uint16{65532}, -1, 65532},
		"one past the window":        {nil, -1, 3},
		"far behind":                 {nil, -1, 65530 - 32768},
		"behind the end":             {nil, 65533, 65534},
		"the end's own":              {nil, 65533, 65533},
		"held before, after growing": {[]uint16{65531, 65535, 2}, -1, 65531},
	} {
		r := NewReorder(&placer{}, 65530, 8)
		for _, n := range tc.before {
			if err := r.Segment(n, numbered(uint32(n), 0)); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if tc.end >= 0 {
			if err := r.End(uint16(tc.end)); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		var se *SequenceError
		if err := r.Segment(tc.bad, numbered(0, 0)); !errors.As(err, &se) || se.SSN != tc.bad || se.Window != 8 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// RFC 5043 section 6.2: the Terminate of a session is its last chunk, in the
// order of the numbers.
func TestEndComesInTurn(t *testing.T) {
	p := &placer{}
	r := NewReorder(p, 0, 10)
	var se *SequenceError
	if err := r.Segment(2, numbered(2, 0)); err != nil {
		t.Fatal(err)
	}
	if err := r.End(2); !errors.As(err, &se) {
		t.Errorf("an end with the number of a segment: %v", err)
	}
	if err := r.End(1); !errors.As(err, &se) {
		t.Errorf("an end before a segment: %v", err)
	}
	if err := r.End(3); err != nil {
		t.Fatal(err)
	}
	if err := r.End(3); !errors.As(err, &se) {
		t.Errorf("a second end: %v", err)
	}
	if err := r.Segment(0, numbered(0, 0)); err != nil {
		t.Fatal(err)
	}
	if err := r.Segment(1, numbered(1, 0)); err != io.EOF {
		t.Errorf("the last segment before the end: %v", err)
	}
	if err := NewReorder(p, 5, 10).End(5); err != io.EOF {
		t.Errorf("an end in its turn: %v", err)
	}
}

// Memory for what is ahead is bounded by the window and given back.
func TestReorderGivesMemoryBack(t *testing.T) {
	r := NewReorder(&placer{}, 0, 1<<20)
	for n := MaxReorder; n >= 0; n-- {
		if err := r.Segment(uint16(n), numbered(uint32(n), 0)); err != nil {
			t.Fatal(err)
		}
	}
	if r.Held() != 0 || pageLen*len(r.pages) > keptReorder {
		t.Errorf("%d held, room for %d", r.Held(), pageLen*len(r.pages))
	}
}

// counter is a Placer that allocates nothing.
type counter struct {
	placer
	n int
}

func (c *counter) Segment([]byte) error           { c.n++; return nil }
func (c *counter) Early([]byte, int) (int, error) { return 18, nil }
func (c *counter) Turn([]byte, int) error         { c.n++; return nil }

func TestReorderAllocatesNothing(t *testing.T) {
	c := &counter{}
	r := NewReorder(c, 0, 64)
	seg := make([]byte, 1000)
	next := uint16(0)
	run := func() {
		for _, k := range []uint16{3, 1, 0, 2} {
			if err := r.Segment(next+k, seg); err != nil {
				t.Fatal(err)
			}
		}
		next += 4
	}
	for range 64 {
		run()
	}
	if n := testing.AllocsPerRun(1000, run); n != 0 {
		t.Errorf("%v allocations for 4 segments", n)
	}
}

func BenchmarkReorderInOrder(b *testing.B) {
	r := NewReorder(&counter{}, 0, 64)
	seg := make([]byte, 1000)
	for i := range b.N {
		if err := r.Segment(uint16(i), seg); err != nil {
			b.Fatal(err)
		}
	}
}

// FuzzReorder feeds numbers to a Reorder and to a model that keeps every
// segment in a map: they agree on what is refused, on what is handed over when,
// and on the end.
func FuzzReorder(f *testing.F) {
	f.Add(uint16(0), uint8(4), []byte{1, 0, 2, 0x80 | 3})
	f.Add(uint16(65534), uint8(20), []byte{19, 3, 1, 2, 0, 0, 0x81, 0})
	f.Add(uint16(9), uint8(0), []byte{0x7f, 0, 0x80})
	r := rand.New(rand.NewPCG(1, 2))
	long := make([]byte, 300)
	for i := range long {
		long[i] = byte(r.IntN(24))
	}
	f.Add(uint16(65500), uint8(23), long)
	f.Fuzz(func(t *testing.T, first uint16, window uint8, steps []byte) {
		p := &placer{}
		re := NewReorder(p, first, int(window))
		w := max(int(window), 1)
		here := map[int]bool{} // by distance from first
		due, end := 0, -1
		var want []string
		drain := func() error {
			for here[due] {
				want = append(want, fmt.Sprintf("turn %d/%d", due, 4+due%7))
				due++
			}
			if due == end {
				return io.EOF
			}
			return nil
		}
		for _, s := range steps {
			// The low 7 bits are the distance to what is due, from -16 on.
			k := due + int(s&0x7f) - 16
			refused := k < due || k > due+w || here[k] || end >= 0 && k >= end
			var err, wantErr error
			if s&0x80 != 0 {
				for h := range here {
					refused = refused || h > k
				}
				refused = refused || end >= 0
				if !refused {
					end = k
					wantErr = drain()
				}
				err = re.End(first + uint16(k))
			} else {
				n := 4 + (k+16)%7
				if !refused && k >= 0 {
					n = 4 + k%7
				}
				err = re.Segment(first+uint16(k), numbered(uint32(k), n-4))
				switch {
				case refused:
				case k == due:
					want = append(want, fmt.Sprintf("segment %d/%d", k, n))
					here[k] = true
					due++
					wantErr = drain()
				default:
					want = append(want, fmt.Sprintf("early by %d %d/%d", k-due, k, n))
					here[k] = true
				}
			}
			if refused {
				var se *SequenceError
				if !errors.As(err, &se) {
					t.Fatalf("number %d with %d due, end %d: %v", k, due, end, err)
				}
				continue
			}
			if err != wantErr {
				t.Fatalf("number %d: %v, want %v", k, err, wantErr)
			}
			if err != nil {
				break
			}
		}
		if !slices.Equal(p.calls, want) {
			t.Fatalf("the sink got the calls\n%q, want\n%q", p.calls, want)
		}
	})
}

// A segment that a peer numbers far ahead costs no more than one that is near, except
// 8 bytes for each page in between: it must not cost megabytes (RFC 5042 section 6.4).
func TestRoomIsMadeOnlyForSegmentsThatHaveArrived(t *testing.T) {
	for _, first := range []uint16{0, 1, 31, 40_000, 65_535} {
		r := NewReorder(&placer{}, first, MaxReorder)
		far := []uint16{1, 31, 32, 33, 1000, 20_000, MaxReorder}
		for i, ahead := range far {
			if err := r.Segment(first+ahead, numbered(uint32(i), 0)); err != nil {
				t.Fatal(err)
			}
			if err := r.Segment(first+ahead, numbered(uint32(i), 0)); err == nil {
				t.Fatalf("from %d: the one ahead by %d is taken twice", first, ahead)
			}
		}
		pages := 0
		for _, p := range r.pages {
			if p != nil {
				pages++
			}
		}
		if pages > len(far) || len(r.pages) > numbers/pageLen {
			t.Errorf("from %d: %d pages of %d for %d segments", first, pages, len(r.pages), len(far))
		}
		if r.Held() != len(far) {
			t.Errorf("from %d: %d are held, want %d", first, r.Held(), len(far))
		}
	}
}
