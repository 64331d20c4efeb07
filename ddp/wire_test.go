package ddp

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"testing"
)

// The layouts of RFC 5041 Figures 4 and 5.
func TestHeaderLayouts(t *testing.T) {
	tagged := AppendTagged(nil, true, 0x40, 0x01020304, 0x05060708090a0b0c)
	if got := hex.EncodeToString(tagged); got != "c1400102030405060708090a0b0c" {
		t.Errorf("tagged header %s", got)
	}
	untagged := AppendUntagged(nil, false, 0x43, 0x01020304, 2, 3, 4)
	if got := hex.EncodeToString(untagged); got != "014301020304000000020000000300000004" {
		t.Errorf("untagged header %s", got)
	}
	for n := range len(untagged) {
		if HeaderLen(untagged[:n]) != 0 || n < TaggedHeaderLen && HeaderLen(tagged[:n]) != 0 {
			t.Errorf("%d bytes pass for a header", n)
		}
	}
}

func FuzzHeaders(f *testing.F) {
	f.Add(AppendTagged(nil, true, 0x40, 1, 2))
	f.Add(AppendUntagged([]byte(nil), true, 0x43, 1, 2, 3, 4))
	f.Fuzz(func(t *testing.T, seg []byte) {
		n := HeaderLen(seg)
		if n == 0 {
			return
		}
		var back []byte
		if IsTagged(seg) {
			v := Tagged(seg)
			back = AppendTagged(nil, v.Last(), v.ULP(), v.STag(), v.TO())
		} else {
			v := Untagged(seg)
			back = AppendUntagged(nil, v.Last(), v.ULP(), v.ULPWord(), v.QN(), v.MSN(), v.MO())
		}
		// The reserved bits are not kept, and the version is ours.
		want := bytes.Clone(seg[:n])
		want[0] = want[0]&(flagTagged|flagLast) | Version
		if !bytes.Equal(back, want) {
			t.Errorf("%x comes back as %x", want, back)
		}
	})
}

func TestQueueAcceptsOnlyTheNextSegment(t *testing.T) {
	q := NewRecvQueue(0, FirstMSN)
	seg := func(msn, mo uint32, last bool) Untagged {
		return AppendUntagged(nil, last, 0x43, 0, 0, msn, mo)
	}
	step := func(u Untagged, n int) {
		t.Helper()
		if err := q.Accept(u); err != nil {
			t.Fatalf("message %d at %d: %v", u.MSN(), u.MO(), err)
		}
		q.Placed(n, u.Last())
	}
	step(seg(1, 0, false), 10)
	step(seg(1, 10, false), 0)
	for _, bad := range []struct {
		u    Untagged
		code uint8
	}{{seg(1, 0, true), CodeUntaggedInvalidMO}, {seg(1, 11, true), CodeUntaggedInvalidMO}, {seg(2, 0, true), CodeUntaggedMSNRange}, {seg(0, 10, true), CodeUntaggedMSNRange}} {
		if err := q.Accept(bad.u); !errors.Is(err, &Error{Layer: LayerDDP, Type: TypeUntagged, Code: bad.code}) {
			t.Errorf("message %d at %d: %v", bad.u.MSN(), bad.u.MO(), err)
		}
	}
	step(seg(1, 10, true), 5)
	step(seg(2, 0, true), 0)
	q.msn = ^uint32(0)
	step(seg(^uint32(0), 0, true), 0)
	step(seg(0, 0, true), 0) // MSN wraps to 0 (RFC 5041 section 4.3)
}

func TestErrorsMatchByCodeAndNameTheLayer(t *testing.T) {
	e := fmt.Errorf("stream: %w", Faultf(LayerDDP, TypeTagged, CodeTaggedBounds, AppendTagged(nil, true, 0, 1, 2), "too far"))
	if !errors.Is(e, &Error{Layer: LayerDDP, Type: TypeTagged, Code: CodeTaggedBounds}) || errors.Is(e, &Error{Layer: LayerRDMA, Type: 1, Code: 1}) {
		t.Error("errors.Is does not go by layer, type and code")
	}
	if got := e.Error(); got != "stream: DDP error 1.0x01: too far" {
		t.Errorf("text %q", got)
	}
}
