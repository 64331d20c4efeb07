package rdmap

import (
	"bytes"
	"encoding/hex"
	"reflect"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
)

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The control words are what RFC 5040 Figure 8 makes of the errors that Linux'
// siw reports for the same faults.
func TestTerminateControlWordFollowsFigure8(t *testing.T) {
	hdr := ddp.AppendTagged(nil, true, Control(OpWrite), 1, 2)
	req := ReadRequest{SinkSTag: 1, Size: 4, SourceSTag: 2}.Append(nil)
	uhdr := ddp.AppendUntagged(nil, true, Control(OpSend), 0, 0, 1, 0)
	rhdr := ddp.AppendUntagged(nil, true, Control(OpReadRequest), 0, 1, 1, 0)
	for _, tc := range []struct {
		name string
		term Terminate
		want string
	}{
		{"bad Read STag", Terminate{Layer: ddp.LayerRDMA, Type: TypeRemoteProtection, Code: CodeInvalidSTag, SegLen: 46, DDP: rhdr, RDMAP: req}, "0100e000"},
		{"no receive buffer", Terminate{Layer: ddp.LayerDDP, Type: ddp.TypeUntagged, Code: ddp.CodeUntaggedNoBuffer, SegLen: 18, DDP: uhdr}, "1202c000"},
		{"bad Write STag", Terminate{Layer: ddp.LayerDDP, Type: ddp.TypeTagged, Code: ddp.CodeTaggedInvalidSTag, SegLen: 14, DDP: hdr}, "1100c000"},
		{"local catastrophe", Terminate{}, "00000000"},
		{"bad Read STag, as siw says it", Terminate{Swapped: true, Layer: ddp.LayerRDMA, Type: TypeRemoteProtection, Code: CodeInvalidSTag, SegLen: 46, DDP: rhdr, RDMAP: req}, "10000700"},
		{"no receive buffer, as siw says it", Terminate{Swapped: true, Layer: ddp.LayerDDP, Type: ddp.TypeUntagged, Code: ddp.CodeUntaggedNoBuffer, SegLen: 18, DDP: uhdr}, "21020300"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := tc.term.Append(nil)
			if got := hex.EncodeToString(b[:4]); got != tc.want {
				t.Errorf("control word %s, want %s", got, tc.want)
			}
			back, ok := ParseTerminate(b)
			if !ok || !reflect.DeepEqual(back, tc.term) {
				t.Errorf("parsed back to %+v, %v, want %+v", back, ok, tc.term)
			}
			for i := range b {
				if _, ok := ParseTerminate(b[:i]); ok {
					t.Errorf("the first %d of %d bytes parse", i, len(b))
				}
			}
		})
	}
}

func TestReadRequestLayoutFollowsRFC5040(t *testing.T) {
	want := ReadRequest{SinkSTag: 0x01020304, SinkTO: 0x05060708090a0b0c, Size: 0x0d0e0f10, SourceSTag: 0x11121314, SourceTO: 0x15161718191a1b1c}
	b := want.Append(nil)
	if !bytes.Equal(b, unhex(t, "0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c")) {
		t.Errorf("encoded to %x", b)
	}
	if got, ok := ParseReadRequest(b); !ok || got != want {
		t.Errorf("parsed back to %+v, %v", got, ok)
	}
	for _, n := range []int{0, ReadRequestLen - 1, ReadRequestLen + 1} {
		if _, ok := ParseReadRequest(make([]byte, n)); ok {
			t.Errorf("%d bytes parse", n)
		}
	}
}

func TestAtomicHeadersRoundTrip(t *testing.T) {
	want := AtomicRequest{Op: AtomicCmpSwap, ID: 7, STag: 9, TO: 16, AddSwap: 1, AddSwapMask: 2, Compare: 3, CompareMask: 4}
	b := want.Append(nil)
	if got, ok := ParseAtomicRequest(b); !ok || got != want || len(b) != AtomicRequestLen {
		t.Errorf("request: %+v, %v, %d bytes", got, ok, len(b))
	}
	resp := AtomicResponse{ID: 7, Original: 1 << 60}
	b = resp.Append(nil)
	if got, ok := ParseAtomicResponse(b); !ok || got != resp || len(b) != AtomicResponseLen {
		t.Errorf("response: %+v, %v, %d bytes", got, ok, len(b))
	}
}

// referenceAdd is the pseudocode of RFC 7306 section 5.1.1.
func referenceAdd(old, add, mask uint64) (sum uint64) {
	var carry uint64
	for bit := range 64 {
		loc := uint64(1) << bit
		s := carry + old>>bit&1 + add>>bit&1
		carry = s >> 1
		if s&1 != 0 {
			sum |= loc
		}
		if mask&loc != 0 {
			carry = 0
		}
	}
	return sum
}

func FuzzFetchAddMatchesThePseudocode(f *testing.F) {
	f.Add(uint64(0xffffffff), uint64(1), uint64(1<<31))
	f.Add(^uint64(0), ^uint64(0), ^uint64(0))
	f.Add(uint64(1<<63), uint64(1<<63), uint64(0))
	f.Fuzz(func(t *testing.T, old, add, mask uint64) {
		a := AtomicRequest{Op: AtomicFetchAdd, AddSwap: add, AddSwapMask: mask}
		if got, want := a.Apply(old), referenceAdd(old, add, mask); got != want {
			t.Errorf("fetch and add %#x to %#x mask %#x: %#x, want %#x", add, old, mask, got, want)
		}
	})
}

func TestCmpSwapMasks(t *testing.T) {
	for _, tc := range []struct{ old, cmp, cmpMask, swap, swapMask, want uint64 }{
		{5, 5, ^uint64(0), 9, ^uint64(0), 9},
		{5, 6, ^uint64(0), 9, ^uint64(0), 5},
		{0xff05, 0x0005, 0xff, 0xabcd, 0x00ff, 0xffcd},
		{7, 0, 0, 1, 1, 7},
		{6, 0, 0, 1, 1, 7},
	} {
		a := AtomicRequest{Op: AtomicCmpSwap, AddSwap: tc.swap, AddSwapMask: tc.swapMask, Compare: tc.cmp, CompareMask: tc.cmpMask}
		if got := a.Apply(tc.old); got != tc.want {
			t.Errorf("%+v: %#x", tc, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(Terminate{Layer: ddp.LayerDDP, Type: 1, DDP: ddp.AppendTagged(nil, true, 0x40, 1, 2)}.Append(nil))
	f.Add(ReadRequest{Size: 1}.Append(nil))
	f.Add(AtomicRequest{ID: 3}.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if term, ok := ParseTerminate(b); ok {
			back, ok := ParseTerminate(term.Append(nil))
			if !ok || !reflect.DeepEqual(back.DDP, term.DDP) || !bytes.Equal(back.RDMAP, term.RDMAP) {
				t.Errorf("Terminate %+v comes back as %+v", term, back)
			}
		}
		if r, ok := ParseReadRequest(b); ok && !bytes.Equal(r.Append(nil), b) {
			t.Errorf("Read Request %x comes back as %x", b, r.Append(nil))
		}
		if a, ok := ParseAtomicResponse(b); ok && !bytes.Equal(a.Append(nil), b) {
			t.Errorf("Atomic Response %x comes back as %x", b, a.Append(nil))
		}
	})
}
