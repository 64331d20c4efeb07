package nvme

import (
	"bytes"
	"encoding/hex"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/block"
)

// golden compares bytes, without spaces, with what is encoded.
func golden(t *testing.T, what string, got []byte, want string) {
	t.Helper()
	if w := strings.Join(strings.Fields(want), ""); hex.EncodeToString(got) != w {
		t.Errorf("%s\n%x, not\n%s", what, got, w)
	}
}

// TestCommands: entries as the figures of NVMe and NVMe-oF have them; that Linux reads and writes them so is shown in
// integration/initiators.
func TestCommands(t *testing.T) {
	c := NewCommand(Read, 0x1003)
	c.SetNSID(1)
	c.SetRange(0x20, 8)
	c.SetSGL(SGL{Type: KeyedBlockInvalidate, Address: 0x112233445566, Length: 4096, Key: 0xa1b2c3d4})
	golden(t, "read", c, `02400310 01000000 0000000000000000 0000000000000000 6655443322110000 001000 d4c3b2a1 4f
		2000000000000000 0700 0000 00000000 00000000 00000000`)
	if g := c.SGL(); g != (SGL{KeyedBlockInvalidate, 0x112233445566, 4096, 0xa1b2c3d4}) || c.SLBA() != 32 || c.Blocks() != 8 || c.NSID() != 1 || c.ID() != 0x1003 || !c.HasSGL() || c.Fused() {
		t.Errorf("%+v", g)
	}
	c = NewCommand(Write, 1)
	c.SetSGL(SGL{Type: DataBlockOffset, Length: 0x1000200})
	if g := c.SGL(); g != (SGL{Type: DataBlockOffset, Length: 0x1000200}) {
		t.Errorf("%+v", g)
	}
	c = NewCommand(Fabrics, 9)
	k := ConnectCommand{QID: 2, SQSize: 127, NoFlowControl: true, KATO: 5000}
	c.SetConnect(k)
	golden(t, "connect", c, `7f400900 01 00000000000000000000000000000000000000 0000000000000000 000000 00000000 40
		0000 0200 7f00 04 00 88130000 000000000000000000000000`)
	if c.Connect() != k || c.FabricsType() != Connect {
		t.Errorf("%+v", c.Connect())
	}
	c = NewCommand(Fabrics, 10)
	p := Property{Offset: PropCC, Value: CCEnable | CCIOSQES | CCIOCQES}
	c.SetProperty(PropertySet, p)
	golden(t, "property set", c, `7f400a00 00 00000000000000000000000000000000000000 0000000000000000 000000 00000000 40
		00 000000 14000000 0100460000000000 0000000000000000`)
	if c.Property() != p {
		t.Errorf("%+v", c.Property())
	}
	r := Reservation{Action: ActionPreempt, IgnoreKey: true, Type: ExclusiveAccess, Persist: 3}
	c.SetReservation(r)
	if c.Reservation() != r || c.DWord(10) != 0xc0000209 {
		t.Errorf("%+v %x", c.Reservation(), c.DWord(10))
	}
	if _, _, err := ParseCommand(make([]byte, CommandLen-1)); !errors.Is(err, ErrFormat) {
		t.Error(err)
	}
}

// TestCompletion: the phase tag is not part of the status.
func TestCompletion(t *testing.T) {
	e := Completion{Result: 0x0102030405060708, SQHead: 7, ID: 0x1234, Status: LBAOutOfRange | DNR}
	b := e.Append(nil)
	golden(t, "completion", b, "0807060504030201 0700 0000 3412 0081")
	if got, err := ParseCompletion(b); err != nil || got != e {
		t.Errorf("%+v %v", got, err)
	}
	if s := (LBAOutOfRange | DNR).String(); s != "LBA out of range" {
		t.Error(s)
	}
	if s := Status(0x7aa).String(); s != "status 0x7aa" {
		t.Error(s)
	}
	if (InvalidField | DNR).Code() != InvalidField {
		t.Error("DNR is no part of the code")
	}
}

// TestPrivateData of a connection, as NVMe-oF 7.3.6.2 has it.
func TestPrivateData(t *testing.T) {
	r := ConnectRequest{QID: 1, RecvQueue: 128, SendQueue: 127, Controller: 2}
	b := r.Append(nil)
	golden(t, "request", b, "0000 0100 8000 7f00 0200"+strings.Repeat("00", 22))
	if got, err := ParseConnectRequest(b); err != nil || got != r {
		t.Errorf("%+v %v", got, err)
	}
	golden(t, "accept", AppendConnectAccept(nil, 128), "0000 8000"+strings.Repeat("00", 28))
	golden(t, "reject", AppendConnectReject(nil, RejectHSQSize), "0000 0400")
	if why, err := ParseConnectReject(AppendConnectReject(nil, RejectQID)); err != nil || why != RejectQID {
		t.Error(why, err)
	}
}

// TestConnectData: names end within their fields, and are names.
func TestConnectData(t *testing.T) {
	d := ConnectData{HostID: block.ID{1, 2}, Controller: DynamicController, SubsystemNQN: "nqn.2026-01.org.example:a", HostNQN: "nqn.2014-08.org.nvmexpress:uuid:x"}
	b := d.Append(nil)
	if got, err := ParseConnectData(b); err != nil || got != d || len(b) != ConnectDataLen || b[16] != 0xff {
		t.Errorf("%+v %v", got, err)
	}
	for what, change := range map[string]func([]byte){
		"no end":        func(b []byte) { copy(b[256:512], bytes.Repeat([]byte{'a'}, 256)) },
		"no name":       func(b []byte) { b[256] = 0 },
		"a line feed":   func(b []byte) { b[256+25] = '\n' },
		"not ASCII":     func(b []byte) { b[512+30] = 0xe4 },
		"too long":      func(b []byte) { copy(b[512+33:], bytes.Repeat([]byte{'a'}, 200)) },
		"another month": func(b []byte) { b[256+8] = 'x' },
	} {
		c := bytes.Clone(b)
		change(c)
		if _, err := ParseConnectData(c); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := ParseConnectData(b[:1023]); !errors.Is(err, ErrFormat) {
		t.Error(err)
	}
}

// TestDiscoveryEntry: where nvme-cli looks for what it prints.
func TestDiscoveryEntry(t *testing.T) {
	b := AppendDiscovery(nil, 3, []DiscoveryEntry{{NQN: "nqn.2026-01.org.example:a", Address: netip.MustParseAddrPort("[2001:db8::1]:4420"), PortID: 1, MaxAdmin: 32}})
	if len(b) != 2*DiscoveryEntryLen || b[0] != 3 || b[8] != 1 {
		t.Fatalf("%d %x", len(b), b[:16])
	}
	e := b[DiscoveryEntryLen:]
	golden(t, "entry", e[:16], "01 02 02 04 0100 ffff 2000 0000 00000000")
	for at, want := range map[int]string{32: "4420   ", 256: "nqn.2026-01.org.example:a\x00", 512: "2001:db8::1   "} {
		if got := string(e[at : at+len(want)]); got != want {
			t.Errorf("at %d: %q", at, got)
		}
	}
	golden(t, "transport", e[768:771], "010501")
}

// TestIdentify: the fields of the structures are where they have to be, and the structures as long.
func TestIdentify(t *testing.T) {
	c := IdentifyController{Serial: "7", Model: "m", Firmware: "f", Controller: 0x1234, MDTS: 8, MaxCommands: 128, Namespaces: 1024, SGLs: 5, SubsystemNQN: "nqn.x", CommandCapsule: 8256, WriteCache: true, Optional: 0x2d}
	b := c.Append(nil)
	if len(b) != IdentifyLen || string(b[4:7]) != "7  " || b[77] != 8 || le.Uint16(b[78:]) != 0x1234 || le.Uint32(b[80:]) != Version || b[111] != 1 || le.Uint16(b[514:]) != 128 || le.Uint32(b[1792:]) != 516 || string(b[768:773]) != "nqn.x" || b[525] != 5 {
		t.Errorf("%x", b[:128])
	}
	n := IdentifyNamespace{Blocks: 8192, BlockShift: 9, Thin: true, Shared: true, Kept: true, ID: block.ID{0xaa}}
	if b = n.Append(nil); len(b) != IdentifyLen || le.Uint64(b[8:]) != 8192 || b[24] != 1 || b[30] != 1 || b[31] != 0x7f || b[33] != 9 || b[104] != 0xaa || b[130] != 9 {
		t.Errorf("%x", b[:136])
	}
	if b = AppendDescriptors(nil, block.ID{0xaa}); len(b) != IdentifyLen || b[0] != 2 || b[4] != 0xaa || b[20] != 3 || b[40] != 4 || b[41] != 1 {
		t.Errorf("%x", b[:48])
	}
	if b = AppendActive(nil, []uint32{1, 9}); len(b) != IdentifyLen || b[4] != 9 {
		t.Errorf("%x", b[:16])
	}
}

// TestRanges: whole ranges, and no more than there may be.
func TestRanges(t *testing.T) {
	b := Range{SLBA: 5, Blocks: 7}.Append(nil)
	golden(t, "range", b, "00000000 07000000 0500000000000000")
	if all, err := ParseRanges(b); err != nil || len(all) != 1 || all[0] != (Range{5, 7}) {
		t.Errorf("%+v %v", all, err)
	}
	for _, n := range []int{1, 15, 257 * RangeLen} {
		if _, err := ParseRanges(make([]byte, n)); !errors.Is(err, ErrFormat) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	for _, n := range []int{0, 7, 9, 24} {
		if _, _, err := ParseKeys(make([]byte, n)); !errors.Is(err, ErrFormat) {
			t.Errorf("keys of %d bytes: %v", n, err)
		}
	}
}

// FuzzCommand: whatever a capsule has, it is parsed without reading beyond it, and an SGL that is written is the one that
// is read.
func FuzzCommand(f *testing.F) {
	f.Add([]byte(NewCommand(Read, 1)))
	f.Add(append([]byte(NewCommand(Write, 2)), 1, 2, 3))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, data, err := ParseCommand(b)
		if err != nil {
			if len(b) >= CommandLen {
				t.Fatal(err)
			}
			return
		}
		if len(data) != len(b)-CommandLen || c.Blocks() == 0 || c.Blocks() > 65536 {
			t.Fatal(len(data), c.Blocks())
		}
		_, _, _ = c.Connect(), c.Property(), c.Reservation()
		s := c.SGL()
		d := NewCommand(Read, 1)
		d.SetSGL(s)
		if g := d.SGL(); g != s {
			t.Fatalf("%+v became %+v", s, g)
		}
	})
}

// FuzzConnectData: what is accepted has names, which are the same when they are encoded again.
func FuzzConnectData(f *testing.F) {
	f.Add(ConnectData{Controller: 1, SubsystemNQN: "nqn.2026-01.org.example:a", HostNQN: "nqn.2014-08.org.nvmexpress:uuid:x"}.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := ParseConnectData(b)
		if err != nil {
			return
		}
		if CheckNQN(d.HostNQN) != nil || CheckNQN(d.SubsystemNQN) != nil {
			t.Fatalf("%+v", d)
		}
		if again, err := ParseConnectData(d.Append(nil)); err != nil || again != d {
			t.Fatalf("%+v %v", again, err)
		}
	})
}

// FuzzSmall: the other parsers, of private data, completions, ranges and keys.
func FuzzSmall(f *testing.F) {
	f.Add(ConnectRequest{QID: 1, SendQueue: 31}.Append(nil))
	f.Add(Completion{ID: 3}.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := ParseConnectRequest(b); err == nil {
			if again, err := ParseConnectRequest(r.Append(nil)); err != nil || again != r {
				t.Fatalf("%+v %v", again, err)
			}
		}
		if e, err := ParseCompletion(b); err == nil {
			if again, err := ParseCompletion(e.Append(nil)); err != nil || again != e {
				t.Fatalf("%+v %v", again, err)
			}
		}
		if all, err := ParseRanges(b); err == nil && len(all)*RangeLen != len(b) {
			t.Fatal(len(all))
		}
		_, _ = ParseConnectReject(b)
		_, _, _ = ParseKeys(b)
	})
}
