package rnbd

import (
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/block"
)

// The layouts are those of Linux' rnbd-proto.h; these bytes were put together
// by hand from it.
func TestIOMsgGolden(t *testing.T) {
	var b [ioLen]byte
	m := ioMsg{Device: 3, Sector: 0x123456789a, RW: opWrite | fFUA, Size: 4096}
	m.Put(&b)
	want := "0400" + "0000" + "03000000" + "9a78563412000000" + "01020000" + "00100000" + "0000" + "000000000000"
	if got := hex.EncodeToString(b[:]); got != want {
		t.Fatalf("got  %s\nwant %s", got, want)
	}
	var back ioMsg
	if !back.Parse(b[:]) || back != m {
		t.Fatalf("%+v", back)
	}
	if back.Parse(b[:31]) || back.Parse(nil) {
		t.Error("a short message was accepted")
	}
}

func TestOpenGolden(t *testing.T) {
	m := openMsg{Access: accessRW, Name: "docs", Device: 0x010203, Claim: Claim{Disk: block.ID{1}, Attachment: block.ID{2}, Life: block.ID{3}}}
	zero := strings.Repeat("00", 15)
	want := "0200" + "0000" + "01" + "00" + "646f6373" + strings.Repeat("00", 251) + "030201" + "01" + zero + "02" + zero + "03" + zero
	b := m.Append(nil)
	if got := hex.EncodeToString(b); got != want || len(b) != 312 {
		t.Fatalf("%d bytes\ngot  %s\nwant %s", len(b), got, want)
	}
	var back openMsg
	if err := back.Parse(b); err != nil || back != m {
		t.Fatalf("%+v, %v", back, err)
	}
}

func TestOpenRspGolden(t *testing.T) {
	m := openRsp{Device: 1, Sectors: 2048, MaxIO: 512, MaxZeroes: 7, MaxDiscard: 8, DiscardGran: 4096, DiscardAlign: 0,
		Physical: 4096, Logical: 512, Rotational: true, CachePolicy: cacheFUA | cacheWriteback, Flags: flagReadOnly | flagKept,
		Identity: block.Identity{Disk: block.ID{1}, Life: block.ID{2}}, Detail: "ok"}
	want := "0300" + "0000" + "01000000" + "0008000000000000" + "00020000" + "07000000" + "08000000" + "00100000" + "00000000" +
		"0010" + "0002" + "0100" + "0000" + "01" + "03" + "03" + strings.Repeat("00", 9) +
		"01" + strings.Repeat("00", 15) + "02" + strings.Repeat("00", 15) + "00" + "02" + "6f6b" + strings.Repeat("00", 116)
	b := m.Append(nil)
	if got := hex.EncodeToString(b); got != want || len(b) != 208 {
		t.Fatalf("%d bytes\ngot  %s\nwant %s", len(b), got, want)
	}
	var back openRsp
	if err := back.Parse(b); err != nil || back != m {
		t.Fatalf("%+v, %v", back, err)
	}
}

// A text that does not fit is cut between two characters.
func TestOpenRefusalsHaveWords(t *testing.T) {
	m := openRsp{Result: openInUse, Detail: strings.Repeat("ü", 100)}
	var back openRsp
	if err := back.Parse(m.Append(nil)); err != nil || back.Result != openInUse || back.Detail != strings.Repeat("ü", 59) {
		t.Fatalf("%+v, %v", back, err)
	}
}

func TestListIsPaged(t *testing.T) {
	var all []Listed
	for i := range 40 {
		all = append(all, Listed{Name: fmt.Sprintf("%0200d", i), Size: uint64(i) * SectorSize, ReadOnly: i%2 == 1})
	}
	var got []Listed
	for len(got) < len(all) {
		b, n := (&listRsp{Entries: all[len(got):]}).Append(nil, 1000)
		if n == 0 || len(b) > 1000 {
			t.Fatalf("%d entries in %d bytes", n, len(b))
		}
		var part listRsp
		if err := part.Parse(b); err != nil {
			t.Fatal(err)
		}
		got = append(got, part.Entries...)
	}
	if !reflect.DeepEqual(got, all) {
		t.Error("the list came back different")
	}
}

var someDevice = openRsp{Sectors: 1, MaxIO: 1, Physical: 512, Logical: 512, Identity: block.Identity{Disk: block.ID{1}, Life: block.ID{2}}}

func TestParseRefuses(t *testing.T) {
	open := (&openMsg{Name: "x"}).Append(nil)
	full := (&openMsg{Name: strings.Repeat("x", 254)}).Append(nil)
	full[260] = 'x'
	rsp := func(f func(*openRsp)) []byte {
		m := someDevice
		f(&m)
		return m.Append(nil)
	}
	refusal := rsp(func(m *openRsp) { m.Result = openInUse })
	list, _ := (&listRsp{Entries: []Listed{{Name: "abc"}}}).Append(nil, 100)
	listOf := func(name string) []byte {
		b, _ := (&listRsp{Entries: []Listed{{Name: name}}}).Append(nil, 100)
		return b
	}
	for name, err := range map[string]error{
		"short OPEN":                new(openMsg).Parse(open[:311]),
		"OPEN of another type":      new(openMsg).Parse(append([]byte{9}, open[1:]...)),
		"OPEN without a name":       new(openMsg).Parse((&openMsg{}).Append(nil)),
		"OPEN of an unknown mode":   new(openMsg).Parse((&openMsg{Access: 3, Name: "x"}).Append(nil)),
		"unterminated name":         new(openMsg).Parse(full),
		"too large":                 new(openRsp).Parse(rsp(func(m *openRsp) { m.Sectors = 1 << 60 })),
		"4 KiB logical blocks":      new(openRsp).Parse(rsp(func(m *openRsp) { m.Logical = 4096 })),
		"odd physical blocks":       new(openRsp).Parse(rsp(func(m *openRsp) { m.Physical = 513 })),
		"no I/O":                    new(openRsp).Parse(rsp(func(m *openRsp) { m.MaxIO = 0 })),
		"no UUID":                   new(openRsp).Parse(rsp(func(m *openRsp) { m.Identity.Disk = block.ID{} })),
		"no life":                   new(openRsp).Parse(rsp(func(m *openRsp) { m.Identity.Life = block.ID{} })),
		"unknown result":            new(openRsp).Parse(rsp(func(m *openRsp) { m.Result = openResults })),
		"a terminal's controls":     new(openRsp).Parse(rsp(func(m *openRsp) { m.Result, m.Detail = openInUse, "\x1b[2J" })),
		"bidi controls":             new(openRsp).Parse(rsp(func(m *openRsp) { m.Result, m.Detail = openInUse, "a\u202eb" })),
		"a text that is too long":   new(openRsp).Parse(append(append(make([]byte, 0, openRspLen), refusal[:89]...), append([]byte{detailField + 1}, refusal[90:]...)...)),
		"short answer":              new(openRsp).Parse(make([]byte, 10)),
		"list with a C1 control":    new(listRsp).Parse(listOf("a\u009b31mb")),
		"list with a bidi override": new(listRsp).Parse(listOf("txt.\u202egpj")),
		"list that is no UTF-8":     new(listRsp).Parse(listOf("a\x9bb")),
		"OPEN with a bidi override": new(openMsg).Parse((&openMsg{Name: "\u2066a"}).Append(nil)),
		"list that is cut off":      new(listRsp).Parse(list[:len(list)-1]),
		"list with an unnamed disk": new(listRsp).Parse(append([]byte{7, 0, 0, 0, 1}, make([]byte, 30)...)),
		"short LIST":                new(numMsg).Parse([]byte{6, 0, 0, 0}, msgList),
		"short SESS_INFO":           new(sessInfo).Parse(make([]byte, 35), msgSessInfo),
	} {
		if !errors.Is(err, ErrWire) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzOpen(f *testing.F) {
	f.Add((&openMsg{Access: 1, Name: "docs", Device: 7}).Append(nil))
	f.Add(someDevice.Append(nil))
	f.Add((&openMsg{Name: "x", Claim: Claim{Disk: block.ID{1}, Attachment: block.ID{2}, Life: block.ID{3}}}).Append(nil))
	f.Add((&openRsp{Result: openInUse, Detail: "beta (since yesterday)"}).Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m, back openMsg
		if m.Parse(b) == nil {
			if err := back.Parse(m.Append(nil)); err != nil || back != m {
				t.Fatalf("%+v became %+v: %v", m, back, err)
			}
		}
		var r, rBack openRsp
		if r.Parse(b) == nil && r.Result != openDone {
			if err := rBack.Parse(r.Append(nil)); err != nil || rBack.Result != r.Result || rBack.Detail != r.Detail {
				t.Fatalf("%+v became %+v: %v", r, rBack, err)
			}
		} else if r.Result == openDone && r.Sectors != 0 && r.Parse(b) == nil {
			if err := rBack.Parse(r.Append(nil)); err != nil || rBack != r {
				t.Fatalf("%+v became %+v: %v", r, rBack, err)
			}
		}
	})
}

func FuzzList(f *testing.F) {
	b, _ := (&listRsp{Entries: []Listed{{"a", 512, true}, {"b", 1024, false}}}).Append(nil, 100)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		var m, back listRsp
		if m.Parse(b) != nil {
			return
		}
		out, n := m.Append(nil, 1<<20)
		if n != len(m.Entries) || back.Parse(out) != nil || len(back.Entries) != n {
			t.Fatalf("%d of %d entries", n, len(m.Entries))
		}
	})
}

func FuzzGrown(f *testing.F) {
	b, _ := (&grownRsp{Devices: []grownDevice{{1, 8}, {7, 1 << 40}}}).Append(nil, 100)
	f.Add(b)
	f.Add(b[:len(b)-1])
	f.Fuzz(func(t *testing.T, b []byte) {
		var m, back grownRsp
		if m.Parse(b) != nil {
			return
		}
		out, n := m.Append(nil, 1<<20)
		if n != len(m.Devices) || back.Parse(out) != nil || !slices.Equal(back.Devices, m.Devices) {
			t.Fatalf("%d of %d entries", n, len(m.Devices))
		}
	})
}

func FuzzIOMsg(f *testing.F) {
	var b [ioLen]byte
	(&ioMsg{Device: 1, Sector: 2, RW: 3, Size: 4}).Put(&b)
	f.Add(b[:])
	f.Fuzz(func(t *testing.T, b []byte) {
		var m, back ioMsg
		if !m.Parse(b) {
			return
		}
		var out [ioLen]byte
		m.Put(&out)
		if !back.Parse(out[:]) || back != m {
			t.Fatalf("%+v became %+v", m, back)
		}
	})
}

// TestOperations are the numbers of Linux' RNBD, and ours.
func TestOperations(t *testing.T) {
	for op, want := range map[block.Op]uint32{block.OpRead: 0, block.OpWrite: 1, block.OpFlush: 2, block.OpTrim: 3, block.OpWriteZeroes: 5, block.OpCache: 16, block.OpStatus: 17} {
		for fl, bits := range map[block.Flags]uint32{0: 0, block.FUA: 1 << 9, block.NoUnmap: 1 << 11, block.FUA | block.NoUnmap: 1<<9 | 1<<11, block.FastZero: 1 << 16} {
			rw := rwOf(op, fl)
			if rw != want|bits {
				t.Errorf("%v with flags %d is %#x, want %#x", op, fl, rw, want|bits)
			}
			if o, f, ok := operation(rw | fSync); o != op || f != fl || !ok {
				t.Errorf("%#x is %v with flags %d, %v", rw, o, f, ok)
			}
		}
	}
	for _, rw := range []uint32{4, 6, 18, 0xff, opWrite | 1<<17, opWrite | 1<<10, opRead | 1<<31} {
		if op, _, ok := operation(rw); ok {
			t.Errorf("%#x is %v", rw, op)
		}
	}
}

// What is not supported is refused in words.
func TestRefusedOperationsAreNamed(t *testing.T) {
	for rw, want := range map[uint32]string{opSecureErase: "secure erase", opWrite | fPreflush: "flush first", 77: "operation 77", opWrite | 1<<20: "flags 0x100000"} {
		if _, _, ok := operation(rw); ok || !strings.Contains(refusal(rw), want) {
			t.Errorf("%#x: %q", rw, refusal(rw))
		}
	}
}
