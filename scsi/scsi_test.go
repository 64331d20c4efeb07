package scsi

import (
	"encoding/hex"
	"errors"
	"reflect"
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
	p, err := ParsePersistent(unhex("0000000000000001" + "0000000000000002" + "000000000d000000"))
	if want := (PersistentList{1, 2, true, true, true}); err != nil || p != want {
		t.Error(p, err)
	}
	if _, err := ParsePersistent(make([]byte, 23)); !errors.Is(err, ErrList) {
		t.Error(err)
	}
	if id := AppendTransportID(nil, "iqn.x", [6]byte{0x80, 0x12}); hex.EncodeToString(id) != "45000018"+hex.EncodeToString([]byte("iqn.x,i,0x801200000000\x00\x00")) {
		t.Errorf("%x", id)
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
		ParsePersistent(b)
		if s, err := ParseSense(b); err == nil {
			if again, err := ParseSense(AppendSense(nil, &s, true)); err != nil || again != s {
				t.Fatalf("%+v became %+v", s, again)
			}
		}
	})
}
