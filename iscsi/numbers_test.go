package iscsi

import (
	"slices"
	"testing"
)

func TestWindow(t *testing.T) {
	for _, first := range []uint32{1, 0xfffffffe, 0x7ffffffe} {
		w := NewWindow(first, 6)
		for off, want := range map[uint32]Turn{6: Never, 0xffffffff: Never} {
			if got := w.Admit(first + off); got != want {
				t.Errorf("%d: %v", off, got)
			}
		}
		// Out of turn: 2, 1, 1 again, then 0.
		var got []Turn
		for _, off := range []uint32{2, 1, 1, 0, 0} {
			got = append(got, w.Admit(first+off))
		}
		if want := []Turn{Later, Later, Never, Now, Never}; !slices.Equal(got, want) {
			t.Error(got)
		}
		for _, off := range []uint32{1, 2} {
			if sn, ok := w.Next(); !ok || sn != first+off {
				t.Error(sn, ok)
			}
		}
		if _, ok := w.Next(); ok {
			t.Error("a command that did not come is next")
		}
		if w.Includes(first+2) || !w.Includes(first+3) || w.Includes(first+6) {
			t.Error("Includes")
		}
		// What came out of turn and was discarded may come again; nothing else is forgotten.
		w.Admit(first + 5)
		if w.Forget(first + 4); !w.Waiting() {
			t.Error("another command was forgotten")
		}
		w.Forget(first + 5 + uint32(len(w.early)))
		if w.Forget(first + 5); w.Waiting() || w.Admit(first+5) != Later {
			t.Error("a discarded command may not come again")
		}
		if w.Forget(first + 5); w.Waiting() {
			t.Error("it is waited for")
		}
		w.Open(3)
		if exp, max := w.Numbers(); exp != first+3 || max != first+5 {
			t.Errorf("%d %d: a promise was taken back, or given twice", exp-first, max-first)
		}
		w.Open(4)
		if w.Admit(first+6) != Later || w.Admit(first+7) != Never {
			t.Error("the window is not as wide as it says")
		}
		w.Open(1 << 20)
		if exp, max := w.Numbers(); max-exp >= uint32(len(w.early)) {
			t.Error("numbers of one place in the window")
		}
	}
}

func TestSequence(t *testing.T) {
	type pdu struct {
		d DataOut
		n int
	}
	for name, c := range map[string]struct {
		pdus  []pdu
		whole bool
	}{
		"as it should be":         {[]pdu{{DataOut{Offset: 100}, 6}, {DataOut{DataSN: 1, Offset: 106, Final: true}, 4}}, true},
		"with an empty end":       {[]pdu{{DataOut{Offset: 100}, 10}, {DataOut{DataSN: 1, Offset: 110, Final: true}, 0}}, true},
		"a number twice":          {[]pdu{{DataOut{Offset: 100}, 6}, {DataOut{Offset: 106, Final: true}, 4}}, false},
		"a wrong first number":    {[]pdu{{DataOut{DataSN: 0xffffffff, Offset: 100, Final: true}, 10}}, false},
		"backwards":               {[]pdu{{DataOut{DataSN: 1, Offset: 106}, 4}, {DataOut{Offset: 100, Final: true}, 6}}, false},
		"a wrong offset":          {[]pdu{{DataOut{Offset: 0, Final: true}, 10}}, false},
		"too much":                {[]pdu{{DataOut{Offset: 100, Final: true}, 11}}, false},
		"too little":              {[]pdu{{DataOut{Offset: 100, Final: true}, 9}}, false},
		"an offset that overlaps": {[]pdu{{DataOut{Offset: 100}, 6}, {DataOut{DataSN: 1, Offset: 105, Final: true}, 5}}, false},
	} {
		s := NewSequence(100, 10)
		for i, p := range c.pdus {
			place, ended := s.Take(&p.d, p.n)
			if ended != (i == len(c.pdus)-1) {
				t.Errorf("%s: ended is %v", name, ended)
			}
			if place && (p.d.Offset < 100 || p.d.Offset+uint32(p.n) > 110) {
				t.Errorf("%s: data are placed at %d", name, p.d.Offset)
			}
		}
		if _, whole := s.Received(); whole != c.whole {
			t.Errorf("%s: whole is %v", name, whole)
		}
	}
}

func TestTransfer(t *testing.T) {
	v := DefaultValues()
	v[KeyMaxBurstLength], v[KeyMaxOutstandingR2T] = 1000, 2
	tr := NewTransfer(500, 3100)
	type ask struct{ sn, off, n uint32 }
	var asked []ask
	for !tr.Done() {
		n := 0
		for {
			sn, off, k, ok := tr.Next(&v)
			if !ok {
				break
			}
			asked = append(asked, ask{sn, off, k})
			n++
		}
		if tr.outstanding > 2 || tr.outstanding == 0 {
			t.Fatalf("%d are outstanding", tr.outstanding)
		}
		tr.Answered()
	}
	if want := []ask{{0, 500, 1000}, {1, 1500, 1000}, {2, 2500, 600}}; !slices.Equal(asked, want) {
		t.Error(asked)
	}
	if tr := NewTransfer(4, 4); !tr.Done() {
		t.Error("nothing is not done")
	}
	tr = NewTransfer(0, 5000)
	tr.Next(&v)
	tr.Cancel()
	if _, _, _, ok := tr.Next(&v); ok || tr.Done() {
		t.Error("more is asked for after Cancel, or less is waited for")
	}
	if tr.Answered(); !tr.Done() {
		t.Error("it does not end")
	}
}

// TestPieces: the PDUs of all divisions of some data follow each other, fill their sequences, and ask for
// acknowledgement nowhere else than at the end of one (RFC 7143 sections 11.7.1 and 11.7.2).
func TestPieces(t *testing.T) {
	for _, p := range []Pieces{
		{Segment: 512, Burst: 512, End: 1},
		{Segment: 512, Burst: 1536, End: 10 * 512},
		{Segment: 1024, Burst: 1536, End: 10 * 512},
		{Segment: 8192, Burst: 512, End: 5000},
		{Segment: 600, Burst: 1000, End: 4000},
		{SN: 0xfffffffe, Offset: 700, Segment: 600, Burst: 1000, End: 4001},
	} {
		off, left := p.Offset, p.Burst
		var all []Piece
		for sn := p.SN; sn != p.Next(); sn++ {
			d := p.At(sn)
			all = append(all, d)
			left -= d.Len
			if d.SN != sn || d.Offset != off || d.Len == 0 || d.Len > p.Segment || left > p.Burst || d.Last != (off+d.Len == p.End) || d.Final != (d.Last || left == 0) {
				t.Fatalf("%+v: %+v", p, d)
			}
			if d.Len < p.Segment && !d.Final {
				t.Fatalf("%+v: a short one in the middle: %+v", p, d)
			}
			if off += d.Len; d.Final {
				left = p.Burst
			}
		}
		if off != p.End {
			t.Errorf("%+v: they end at %d", p, off)
		}
		for i, d := range all {
			again := p.Again(d.SN, 512)
			if again.SN != d.SN || again.Offset != d.Offset || again.End != p.End || again.At(again.Next()-1).Last != true || i == 0 && p.Segment == 512 && again != p {
				t.Errorf("%+v: %+v", d, again)
			}
		}
		if again := p.Again(p.Next(), 512); again.Next() != p.Next() {
			t.Errorf("%+v: %+v after the end", p, again)
		}
	}
}

// TestLostData: data that were taken and then turn out damaged are to be asked for again, from their
// beginning on, under the next R2TSN (section 11.8).
func TestLostData(t *testing.T) {
	v := DefaultValues()
	v[KeyMaxBurstLength] = 1000
	tr := NewTransfer(0, 2000)
	tr.Next(&v)
	s := NewSequence(0, 1000)
	s.Take(&DataOut{}, 300)
	s.Take(&DataOut{DataSN: 1, Offset: 300}, 300)
	s.Lose(300)
	if place, ended := s.Take(&DataOut{DataSN: 2, Offset: 600, Final: true}, 400); place || !ended {
		t.Error("what follows damaged data is taken")
	}
	if off, whole := s.Received(); off != 300 || whole || !s.Broken() {
		t.Errorf("%d %v", off, whole)
	}
	if sn := tr.Retry(); sn != 1 || tr.R2TSN() != 2 || tr.Done() {
		t.Errorf("%d, %+v", sn, tr)
	}
	tr.Answered()
	if sn, off, n, ok := tr.Next(&v); sn != 2 || off != 1000 || n != 1000 || !ok {
		t.Errorf("%d %d %d %v", sn, off, n, ok)
	}
	tr.Rewind(1200)
	if sn, off, n, ok := tr.Next(&v); sn != 3 || off != 1200 || n != 800 || !ok || tr.Asked() != 2000 {
		t.Errorf("%d %d %d %v", sn, off, n, ok)
	}
}
