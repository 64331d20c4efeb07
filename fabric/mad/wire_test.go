package mad

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

// attribute is one of the codec's types, for tests of all of them.
type attribute struct {
	name   string
	length int
	parse  func(b []byte) (Record, error)
	// used has ones where the attribute has components, as IBTA's tables have them; the rest is reserved.
	used string
}

func of[R Record](parse func([]byte) (R, error)) func([]byte) (Record, error) {
	return func(b []byte) (Record, error) { return parse(b) }
}

func ones(n int) string  { return strings.Repeat("ff", n) }
func zeros(n int) string { return strings.Repeat("00", n) }

const (
	usedInform   = "ffffffffffffffffffffffffffffffff" + "ffffffff" + "0000" + "ffff" + "ffff" + "ffff" + "ffffff1f" + "00ffffff"
	usedPortInfo = "ffffffffffffffff" + "ffffffffffffffff" + "ffffffff" + "ffffffff" + "ffffffff" + "ffffffff" + "ffff" + "c7" + "ff" + "ffff" + "ffffff" + "ff" + "ff" + "ff" +
		"ffffffffffff" + "ff" + "ff" + "1f" + "ff" + "ffff" + "00ffffff" + "ffff" + "ff" + "1f"
)

var attributes = []attribute{
	{"ServiceRecord", ServiceRecordLen, of(ParseServiceRecord), ones(26) + "0000" + ones(148)},
	{"PathRecord", PathRecordLen, of(ParsePathRecord), ones(44) + "8fffffff" + ones(10) + zeros(6)},
	{"MCMemberRecord", MCMemberRecordLen, of(ParseMCMemberRecord), ones(49) + "800000"},
	{"GUIDInfoRecord", GUIDInfoRecordLen, of(ParseGUIDInfoRecord), "ffffff0000000000" + ones(64)},
	{"InformInfo", InformInfoLen, of(ParseInformInfo), usedInform},
	{"InformInfoRecord", InformInfoRecordLen, of(ParseInformInfoRecord), ones(18) + zeros(6) + usedInform},
	{"ClassPortInfo", ClassPortInfoLen, of(ParseClassPortInfo), ones(32) + "00" + ones(39)},
	{"Notice", NoticeLen, of(ParseNotice), ones(80)},
	{"NodeInfo", NodeInfoLen, of(ParseNodeInfo), ones(40)},
	{"NodeRecord", NodeRecordLen, of(ParseNodeRecord), "ffff0000" + ones(104)},
	{"PortInfo", PortInfoLen, of(ParsePortInfo), usedPortInfo},
	{"PortInfoRecord", PortInfoRecordLen, of(ParsePortInfoRecord), "ffffffff" + usedPortInfo},
	{"GUIDInfo", GUIDInfoLen, of(ParseGUIDInfo), ones(64)},
	{"PKeyTable", PKeyTableLen, of(ParsePKeyTable), ones(64)},
	{"SMInfo", SMInfoLen, of(ParseSMInfo), ones(21)},
	{"SMInfoRecord", SMInfoRecordLen, of(ParseSMInfoRecord), "ffff0000" + ones(21)},
}

// TestReservedBits parses all ones, appends them again, and compares with the bits that IBTA's tables define.
func TestReservedBits(t *testing.T) {
	for _, a := range attributes {
		all := bytes.Repeat([]byte{0xff}, a.length)
		r, err := a.parse(all)
		if err != nil {
			t.Errorf("%s: %v", a.name, err)
			continue
		}
		if got := hex.EncodeToString(r.Append(nil)); got != a.used {
			t.Errorf("%s: components at\n%s, want\n%s", a.name, got, a.used)
		}
	}
}

func TestWrongLengths(t *testing.T) {
	for _, a := range attributes {
		for _, n := range []int{0, 1, a.length - 1, a.length + 1, 256} {
			if a.name == "Notice" && n == SMPNoticeLen {
				continue
			}
			if _, err := a.parse(make([]byte, n)); !errors.Is(err, ErrFormat) {
				t.Errorf("%s of %d bytes: %v, want ErrFormat", a.name, n, err)
			}
		}
	}
	for _, n := range []int{0, MADLen, PacketLen - 1, PacketLen + 1} {
		if _, err := ParsePacket(make([]byte, n)); !errors.Is(err, ErrFormat) {
			t.Errorf("packet of %d bytes: %v, want ErrFormat", n, err)
		}
	}
}

// TestNoticeOfSMP parses the 64 bytes of a notice that fit in an SMP.
func TestNoticeOfSMP(t *testing.T) {
	n := Notice{Generic: true, Type: NoticeSecurity, ProducerType: uint32(NodeCA), TrapNumber: TrapMKey, IssuerLID: 7}
	MKeyDetails{LID: 9, Method: MethodSet, Attribute: AttrPortInfo, MKey: 5}.Set(&n)
	got, err := ParseNotice(n.Append(nil)[:SMPNoticeLen])
	if err != nil || got != n {
		t.Errorf("%+v, %v, want %+v", got, err, n)
	}
}

func FuzzAttributes(f *testing.F) {
	for i, a := range attributes {
		used, _ := hex.DecodeString(a.used)
		f.Add(uint8(i), used)
	}
	f.Fuzz(func(t *testing.T, which uint8, b []byte) {
		a := attributes[int(which)%len(attributes)]
		r, err := a.parse(b)
		if err != nil {
			if !errors.Is(err, ErrFormat) {
				t.Errorf("%v, want ErrFormat", err)
			}
			return
		}
		again := r.Append(nil)
		used, _ := hex.DecodeString(a.used)
		for i := range used {
			if i < len(b) && again[i] != b[i]&used[i] {
				t.Fatalf("%s: byte %d is %#x, was %#x of %#x", a.name, i, again[i], b[i], used[i])
			}
		}
	})
}

func FuzzPacket(f *testing.F) {
	p := Packet{GRH: GRH{SGID: MakeGID(LinkLocalPrefix, 1), HopLimit: 1}}
	p.MAD.SetHeader(Header{Class: ClassSubnAdm, Method: MethodGet})
	f.Add(p.Append(nil))
	p.MAD.SetHeader(Header{Class: ClassSubnDirected, Method: MethodGetResp, Status: 0x8000})
	f.Add(p.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := ParsePacket(b)
		if err != nil {
			if !errors.Is(err, ErrFormat) {
				t.Errorf("%v, want ErrFormat", err)
			}
			return
		}
		again, err := ParsePacket(p.Append(nil))
		if err != nil || again != p {
			t.Fatalf("%+v, %v, was %+v", again, err, p)
		}
		h := p.MAD.Header()
		if h.Class != p.MAD.Class() || h.TransactionID != p.MAD.TransactionID() {
			t.Fatalf("header %+v, class %v, transaction %#x", h, p.MAD.Class(), p.MAD.TransactionID())
		}
		switch h.Class {
		case ClassSubnAdm:
			sa, err := ParseSA(&p.MAD)
			if err != nil {
				t.Fatal(err)
			}
			m := sa.MAD()
			if back, err := ParseSA(&m); err != nil || back != sa {
				t.Fatalf("%+v, %v, was %+v", back, err, sa)
			}
		case ClassSubn, ClassSubnDirected:
			smp, err := ParseSMP(&p.MAD)
			if err != nil {
				t.Fatal(err)
			}
			m := smp.MAD()
			if back, err := ParseSMP(&m); err != nil || back != smp {
				t.Fatalf("%+v, %v, was %+v", back, err, smp)
			}
		}
	})
}

// TestSecretsArePrintedAsSuch prints what holds keys in every way.
func TestSecretsArePrintedAsSuch(t *testing.T) {
	const key = 0x1234567890abcdef
	for _, v := range []any{
		Key(key), SMInfo{SMKey: key}, PortInfo{MKey: key}, &SA{Key: key}, SMP{MKey: key}, MKeyDetails{MKey: key},
		ServiceRecord{Key: ServiceKey{0x12, 0x34, 0x56, 0x78, 0x90, 0xab, 0xcd, 0xef}},
	} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%d", "%x", "%q", "%s"} {
			got := fmt.Sprintf(verb, v)
			if !strings.Contains(got, "[secret]") || strings.Contains(got, "1311768467294899695") || strings.Contains(got, "1234567890abcdef") || strings.Contains(got, "18 52 86") {
				t.Errorf("%T with %s: %s", v, verb, got)
			}
		}
	}
}

func TestNames(t *testing.T) {
	if n, err := MakeName("größe"); err != nil || n.String() != "größe" {
		t.Errorf("%q, %v", n, err)
	}
	for _, s := range []string{strings.Repeat("x", 64), "a\x1b[2J", "a\x00b", "\xff", "a\u202eb"} {
		if _, err := MakeName(s); !errors.Is(err, ErrName) {
			t.Errorf("%q: %v, want ErrName", s, err)
		}
	}
	for _, raw := range []string{"a\x1b[2J", "a\x00b", "\xff", "a\u202eb"} {
		n := padded(raw)
		if text, err := n.Text(); !errors.Is(err, ErrName) {
			t.Errorf("%q: %q, %v, want ErrName", raw, text, err)
		}
		if strings.ContainsAny(n.String(), "\x00\x1b\u202e") || !utf8.ValidString(n.String()) {
			t.Errorf("%q prints as %q", raw, n.String())
		}
	}
	full := padded(strings.Repeat("x", 64))
	if text, err := full.Text(); err != nil || len(text) != 64 {
		t.Errorf("%q, %v", text, err)
	}
}
