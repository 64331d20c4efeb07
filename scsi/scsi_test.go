package scsi

import (
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

func TestSense(t *testing.T) {
	s := Sense{Key: IllegalRequest, Code: InvalidFieldInCDB, Info: 0x01020304, HasInfo: true, Field: 2, Bit: 5, HasField: true, HasBit: true}
	for descriptors, want := range map[bool]string{
		false: "f00005010203040a00000000240000cd0002",
		true:  "7205240000000014" + "000a80000000000001020304" + "02060000cd000200",
	} {
		b := AppendSense(nil, &s, descriptors)
		if hex.EncodeToString(b) != want || len(b) > MaxSense {
			t.Errorf("%x, want %s", b, want)
		}
		if got, err := ParseSense(b); err != nil || got != s {
			t.Errorf("%+v, %v", got, err)
		}
	}
	if _, err := ParseSense([]byte{0x12, 8: 0}); !errors.Is(err, ErrSense) {
		t.Error(err)
	}
	for _, s := range []Sense{
		{Key: NotReady, Code: SanitizeInProgress, HasProgress: true, Progress: 0x8001},
		{Key: CopyAborted, Code: UnreachableCopyTarget, HasField: true, InSegment: true, Segment: 5, Field: 6},
	} {
		for _, descriptors := range []bool{false, true} {
			if got, err := ParseSense(AppendSense(nil, &s, descriptors)); err != nil || got != s {
				t.Errorf("%+v became %+v, %v", s, got, err)
			}
		}
	}
	big := Sense{Key: Miscompare, Info: 1 << 32, HasInfo: true}
	if got, _ := ParseSense(AppendSense(nil, &big, false)); got.HasInfo {
		t.Error("a fixed field has a number that does not fit")
	}
}

func TestLUNs(t *testing.T) {
	for n := range uint16(1 << 14) {
		if got, ok := LUN(PutLUN(n)); !ok || got != n {
			t.Fatal(n, got, ok)
		}
	}
	for _, f := range [][8]byte{{1}, {0x80}, {0xc1}, {0, 1, 0, 1}} {
		if n, ok := LUN(f); ok {
			t.Errorf("%x is LUN %d", f, n)
		}
	}
}

func TestExtents(t *testing.T) {
	for cdb, want := range map[[16]byte]Range{
		{Read6, 0xff, 2, 3, 4}:                             {0x1f0203, 4},
		{Read10, 0, 1, 2, 3, 4, 0, 5, 6}:                   {0x01020304, 0x0506},
		{Read12, 0, 1, 2, 3, 4, 5, 6, 7, 8}:                {0x01020304, 0x05060708},
		{Read16, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}: {0x0102030405060708, 0x090a0b0c},
	} {
		if lba, n := Extent(&cdb); lba != want.LBA || n != want.Blocks {
			t.Errorf("%x: %x %x", cdb, lba, n)
		}
	}
}

func TestParameterLists(t *testing.T) {
	unmap := "0026002000000000" + "00000000000000010000000200000000" + "00000000000000ff0000000000000000"
	if got, err := ParseUnmap(unhex(unmap), 2); err != nil || !reflect.DeepEqual(got, []Range{{1, 2}, {255, 0}}) {
		t.Error(got, err)
	}
	for _, s := range []string{"", unmap[:78], "0000001100000000" + unmap} {
		if _, err := ParseUnmap(unhex(s), 2); !errors.Is(err, ErrList) {
			t.Errorf("%s: %v", s, err)
		}
	}
	if _, err := ParseUnmap(unhex(unmap), 1); !errors.Is(err, ErrList) {
		t.Error("more ranges than may be")
	}
	persistent := "0000000000000001" + "0000000000000002" + "00000000"
	p, err := ParsePersistent(unhex(persistent + "0d000000" + "00000004" + "45000000"))
	if want := (PersistentList{1, 2, true, true, true, unhex("45000000")}); err != nil || !reflect.DeepEqual(p, want) {
		t.Error(p, err)
	}
	for _, s := range []string{persistent, persistent + "00000000" + "00", persistent + "08000000", persistent + "08000000" + "0000000445"} {
		if _, err := ParsePersistent(unhex(s)); !errors.Is(err, ErrList) {
			t.Errorf("%s: %v", s, err)
		}
	}
	move := "0000000000000001" + "0000000000000002" + "00030001"
	m, err := ParseMove(unhex(move + "00000002" + "abcd"))
	if want := (MoveList{1, 2, true, true, 1, unhex("abcd")}); err != nil || !reflect.DeepEqual(m, want) {
		t.Error(m, err)
	}
	if _, err := ParseMove(unhex(move + "00000003" + "abcd")); !errors.Is(err, ErrList) {
		t.Error(err)
	}
	if id := AppendTransportID(nil, "iqn.x,i,0x801200000000"); hex.EncodeToString(id) != "45000018"+hex.EncodeToString([]byte("iqn.x,i,0x801200000000\x00\x00")) {
		t.Errorf("%x", id)
	}
	o, err := ParseOverwrite(unhex("82000002aabb"), 512)
	if want := (OverwriteList{2, true, unhex("aabb")}); err != nil || !reflect.DeepEqual(o, want) {
		t.Error(o, err)
	}
	for _, s := range []string{"010000", "80000002aabb", "01000000", "01000003aabb", "21000002aabb", "01010002aabb", "01000201" + strings.Repeat("00", 513)} {
		if _, err := ParseOverwrite(unhex(s), 512); !errors.Is(err, ErrList) {
			t.Errorf("%s: %v", s, err)
		}
	}
	if pages, err := ParseModes(unhex("0000000800000000000002000a030000"), false); err == nil {
		t.Error(pages, "beyond the end")
	}
	pages, err := ParseModes(unhex("00000008"+"0000000000000200"+"8a020102"+"0801ff"), false)
	if want := []Page{{10, []byte{1, 2}}, {8, []byte{255}}}; err != nil || !reflect.DeepEqual(pages, want) {
		t.Error(pages, err)
	}
	if d := AppendDesignator(nil, Designator{ProtocolISCSI, UTF8, OfPort, TypeName, []byte("abcd")}); hex.EncodeToString(d) != "53980008"+"6162636400000000" {
		t.Errorf("%x", d)
	}
	if s := string(AppendPadded(nil, "a\x01bcdef", 4)); s != "a?bc" || string(AppendPadded(nil, "a", 3)) != "a  " {
		t.Errorf("%q", s)
	}
}

func TestTransportIDs(t *testing.T) {
	isid := [6]byte{0x80, 1, 2, 3, 4, 0xff}
	two := AppendTransportID(AppendTransportID(nil, "iqn.x,i,0x8001020304ff"), "iqn.yyyy,i,0x8001020304FF")
	name, id, rest, err := ParseTransportID(two)
	if err != nil || name != "iqn.x" || id != isid {
		t.Error(name, id, err)
	}
	if name, id, rest, err = ParseTransportID(rest); err != nil || name != "iqn.yyyy" || id != isid || len(rest) > 0 {
		t.Error(name, id, rest, err)
	}
	for _, port := range []string{"iqn.x", "iqn.x,i,0x8001020304f", "iqn.x,i,0x8001020304fg", ",i,0x8001020304ff", "iqn x,i,0x8001020304ff", "iqn.x,t,0x8001020304ff", strings.Repeat("x", 224) + ",i,0x8001020304ff", "iqn.x,i,0x8001020304ff\x00z"} {
		if name, _, _, err := ParseTransportID(AppendTransportID(nil, port)); !errors.Is(err, ErrList) {
			t.Errorf("%q: %q, %v", port, name, err)
		}
	}
	for at, c := range map[int]byte{0: 0x05, 1: 0x45, 3: 0x18} { // of a device only, of another protocol, too long
		b := AppendTransportID(nil, "iqn.x,i,0x8001020304ff")
		if b[at] = c; at == 1 {
			b[0] = 0x46
		}
		if at == 3 {
			b[3] += 8
		}
		if _, _, _, err := ParseTransportID(b); !errors.Is(err, ErrList) {
			t.Errorf("%x: %v", b, err)
		}
	}
}

var (
	copyTarget  = "e4000000" + "01030008" + "3102030405060708" + strings.Repeat("00", 12) + "00000200"
	copySegment = "02020018" + "00000000" + "00000010" + "0000000000000001" + "0000000000000100"
	copyMost    = CopyLimits{2, 2, 200}
)

func TestCopyLists(t *testing.T) {
	header := func(targets, segments string) string { return "0710" + targets + "00000000" + segments + "00000000" }
	one := header("0020", "0000001c") + copyTarget + copySegment
	got, why := ParseCopy(unhex(one), copyMost)
	want := CopyList{7, CopyDiscards,
		[]CopyTarget{{0, Designator{CodeSet: Binary, Type: TypeNAA, Value: unhex("3102030405060708")}, 512}},
		[]CopySegment{{0, 0, true, 16, 1, 256}}}
	if why != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %+v", got, why)
	}
	for s, code := range map[string]Code{
		one[:20]:                                ParameterListLength,
		one[:len(one)-2]:                        ParameterListLength,
		header("ffff", "ffffffff") + copyTarget: ParameterListLength,
		header("0060", "0000001c") + copyTarget + copyTarget + copyTarget + copySegment:   TooManyTargets,
		header("0020", "00000054") + copyTarget + copySegment + copySegment + copySegment: TooManySegments,
		header("0020", "0000001c") + "e0" + copyTarget[2:] + copySegment:                  UnsupportedTarget,
		header("0020", "00000014") + copyTarget + "03" + copySegment[2:40]:                UnsupportedSegment,
		header("0020", "00000014") + copyTarget + copySegment[:40]:                        ParameterListLength,
		header("0020", "0000001c") + copyTarget + "02020019" + copySegment[8:]:            InvalidFieldInParameters,
		header("001f", "0000001c") + copyTarget + copySegment:                             InvalidFieldInParameters,
		header("0020", "00000000") + "e400000001030015" + copyTarget[16:]:                 InvalidFieldInParameters,
		"0008" + one[4:]:                        InvalidFieldInParameters,
		"0118" + one[4:]:                        InvalidFieldInParameters,
		one[:24] + "00000001" + one[32:] + "00": InlineDataTooLong,
	} {
		if _, why := ParseCopy(unhex(s), copyMost); why == nil || why.Code != code || why.Key != IllegalRequest {
			t.Errorf("%s: %+v, want %#x", s, why, code)
		}
	}
}

// FuzzCopy proves that no list is read beyond its end, and none has more than it may.
func FuzzCopy(f *testing.F) {
	f.Add(unhex("071000200000000000" + "00001c00000000" + copyTarget + copySegment))
	f.Add(unhex("0718004000000000" + "0000003800000000" + copyTarget + copyTarget + copySegment + copySegment))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, why := ParseCopy(b, copyMost)
		if why != nil {
			if why.Key != IllegalRequest || why.HasField && int(why.Field) >= len(b) {
				t.Fatalf("%+v", why)
			}
			return
		}
		n := CopyHeaderLen + CopyTargetLen*len(l.Targets) + CopySegmentLen*len(l.Segments)
		if n > len(b) || len(l.Targets) > copyMost.Targets || len(l.Segments) > copyMost.Segments {
			t.Fatalf("%+v of %d bytes", l, len(b))
		}
	})
}

func unhex(s string) []byte {
	b, err := hex.DecodeString(s)
	if err != nil {
		panic(err)
	}
	return b
}

// FuzzParameters proves that no parameter list and no sense data are read beyond their end.
func FuzzParameters(f *testing.F) {
	f.Add(unhex("00160010000000000000000000000001000000020000000000"), true)
	f.Add(AppendTransportID(nil, "iqn.x,i,0x8001020304ff"), false)
	f.Add(AppendSense(nil, &Sense{Key: CopyAborted, HasField: true, InSegment: true, Segment: 3}, true), false)
	f.Add(AppendSense(nil, &Sense{Key: IllegalRequest, HasField: true, HasInfo: true}, true), false)
	f.Fuzz(func(t *testing.T, b []byte, ten bool) {
		if all, err := ParseUnmap(b, 64); err == nil && (len(all) > 64 || len(b) < 8+16*len(all)) {
			t.Fatal(all)
		}
		if all, err := ParseModes(b, ten); err == nil {
			n := 0
			for _, p := range all {
				n += 2 + len(p.Payload)
			}
			if n > len(b) {
				t.Fatal(all)
			}
		}
		if p, err := ParsePersistent(b); err == nil && len(p.TransportIDs) > len(b)-persistentListLen {
			t.Fatal(p)
		}
		if m, err := ParseMove(b); err == nil && len(m.TransportID) != len(b)-persistentListLen {
			t.Fatal(m)
		}
		if name, isid, rest, err := ParseTransportID(b); err == nil {
			port := fmt.Sprintf("%s,i,0x%x", name, isid)
			if again := AppendTransportID(nil, port); len(again) > len(b)-len(rest) || !strings.EqualFold(string(again[4:]), string(b[4:len(again)])) {
				t.Fatalf("%q of %x", port, b)
			}
		}
		if o, err := ParseOverwrite(b, 512); err == nil && (len(o.Pattern) > 512 || o.Count == 0) {
			t.Fatal(o)
		}
		if s, err := ParseSense(b); err == nil {
			if again, err := ParseSense(AppendSense(nil, &s, true)); err != nil || again != s {
				t.Fatalf("%+v became %+v", s, again)
			}
		}
	})
}
