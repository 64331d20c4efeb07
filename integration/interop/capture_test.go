package main

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/integration/siw"
	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/rdmap"
)

var (
	siwAddr = netip.MustParseAddrPort("10.9.0.1:40000")
	ourAddr = netip.MustParseAddrPort("10.9.0.2:7200")
)

// tape is a capture that is being made.
type tape struct{ bytes.Buffer }

func newTape() *tape {
	t := &tape{}
	head := make([]byte, pcapHeader)
	binary.LittleEndian.PutUint32(head, pcapMagic)
	t.Write(head)
	return t
}

// packet adds a TCP segment. flags: 2 for SYN.
func (t *tape) packet(src, dst netip.AddrPort, seq uint32, flags byte, payload []byte) {
	tcp := make([]byte, minTCP, minTCP+len(payload))
	binary.BigEndian.PutUint16(tcp, src.Port())
	binary.BigEndian.PutUint16(tcp[2:], dst.Port())
	binary.BigEndian.PutUint32(tcp[4:], seq)
	tcp[12], tcp[13] = minTCP/4<<4, flags
	tcp = append(tcp, payload...)
	frame := make([]byte, etherLen)
	if src.Addr().Is4() {
		binary.BigEndian.PutUint16(frame[12:], etherIPv4)
		ip := make([]byte, 20)
		ip[0], ip[9] = 0x45, protoTCP
		binary.BigEndian.PutUint16(ip[2:], uint16(20+len(tcp)))
		copy(ip[12:], src.Addr().AsSlice())
		copy(ip[16:], dst.Addr().AsSlice())
		frame = append(frame, ip...)
	} else {
		binary.BigEndian.PutUint16(frame[12:], etherIPv6)
		ip := make([]byte, 40)
		ip[0], ip[6] = 0x60, protoTCP
		binary.BigEndian.PutUint16(ip[4:], uint16(len(tcp)))
		copy(ip[8:], src.Addr().AsSlice())
		copy(ip[24:], dst.Addr().AsSlice())
		frame = append(frame, ip...)
	}
	frame = append(frame, tcp...)
	frame = append(frame, make([]byte, max(0, 60-len(frame)))...) // Ethernet's padding
	rec := make([]byte, 16)
	binary.LittleEndian.PutUint32(rec[8:], uint32(len(frame)))
	t.Write(rec)
	t.Write(frame)
}

// open adds the two SYNs and the start-up frames, and returns the next sequence
// numbers.
func (t *tape) open(tb testing.TB, client, server netip.AddrPort, crc bool) (up, down uint32) {
	tb.Helper()
	up, down = 0xfffffff0, 500 // the first one wraps
	t.packet(client, server, up, 2, nil)
	t.packet(server, client, down, 2, nil)
	up, down = up+1, down+1
	for _, f := range []mpa.Frame{{CRC: crc, Revision: 2, PrivateData: []byte("abc")}, {Reply: true, CRC: crc, Revision: 2}} {
		b, err := f.Append(nil)
		if err != nil {
			tb.Fatal(err)
		}
		if f.Reply {
			t.packet(server, client, down, 0, b)
			down += uint32(len(b))
		} else {
			t.packet(client, server, up, 0, b)
			up += uint32(len(b))
		}
	}
	return up, down
}

func (t *tape) read(tb testing.TB) *capture {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "wire.pcap")
	if err := os.WriteFile(path, t.Bytes(), 0o600); err != nil {
		tb.Fatal(err)
	}
	c, err := readCapture(path)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// fpdu is an FPDU with n bytes of an RDMA Write, whose CRC is off by harm.
func fpdu(n int, harm uint32) []byte {
	u := append(ddp.AppendTagged(nil, true, rdmap.Control(rdmap.OpWrite), 7, 1000), bytes.Repeat([]byte{byte(n)}, n)...)
	return enclose(u, harm)
}

func enclose(u []byte, harm uint32) []byte {
	b := append(binary.BigEndian.AppendUint16(nil, uint16(len(u))), u...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))^harm)
}

func TestEachDirectionsCRCsAreJudged(t *testing.T) {
	for _, c := range []struct {
		name           string
		client, server netip.AddrPort
		crc            bool
		up, down       uint32 // harm
		want           []bool // faults: siw's?
	}{
		{"all is right", siwAddr, ourAddr, true, 0, 0, nil},
		{"siw is wrong, as client", siwAddr, ourAddr, true, 1, 0, []bool{true}},
		{"siw is wrong, as server", ourAddr, siwAddr, true, 0, 1 << 31, []bool{true}},
		{"we are wrong, as server", siwAddr, ourAddr, true, 0, 4, []bool{false}},
		{"we are wrong, as client", ourAddr, siwAddr, true, 9, 0, []bool{false}},
		{"both are", ourAddr, siwAddr, true, 9, 9, []bool{false, true}},
		{"there are no CRCs", siwAddr, ourAddr, false, 1, 1, nil},
		{"IPv6", netip.MustParseAddrPort("[fd09::1]:5"), netip.MustParseAddrPort("[fd09::2]:7200"), true, 1, 0, []bool{true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tp := newTape()
			up, down := tp.open(t, c.client, c.server, c.crc)
			for i, n := range []int{0, 1, 2, 3, 4, 1444} {
				a, b := fpdu(n, 0), fpdu(n+1, 0)
				if i == 3 {
					a, b = fpdu(n, c.up), fpdu(n+1, c.down)
				}
				tp.packet(c.client, c.server, up, 0, a)
				tp.packet(c.server, c.client, down, 0, b)
				up, down = up+uint32(len(a)), down+uint32(len(b))
			}
			got := tp.read(t)
			fs := got.ofPort(int(c.server.Port()))
			if len(fs) != len(c.want) {
				t.Fatalf("faults: %+v", fs)
			}
			for i, f := range fs {
				if f.Siw != c.want[i] || !strings.HasPrefix(f.What, "FPDU 3, ULPDU of 1") {
					t.Errorf("fault %d: %+v", i, f)
				}
			}
			if s := got.startup(int(c.server.Port())); s.Request == nil || s.Reply == nil || string(s.Request.PrivateData) != "abc" || s.CRC() != c.crc || !bytes.Equal(s.First, fpdu(0, 0)[2:16]) {
				t.Errorf("start-up: %+v", s)
			}
			if w := got.all[0].wire; w.up.fpdus != 6 || w.down.fpdus != 6 {
				t.Errorf("%d and %d FPDUs", w.up.fpdus, w.down.fpdus)
			}
		})
	}
}

// However TCP cuts, repeats and reorders them, the bytes are the same.
func TestStreamIsPutTogetherFromItsSegments(t *testing.T) {
	var stream []byte
	for n := range 60 {
		stream = append(stream, fpdu(n*7, 0)...)
	}
	bad := len(stream)
	stream = append(stream, fpdu(5, 1)...)
	stream = append(stream, fpdu(6, 0)...)
	for name, cut := range map[string]func(func(from, to int)){
		"byte by byte": func(f func(from, to int)) {
			for i := range stream {
				f(i, i+1)
			}
		},
		"backwards": func(f func(from, to int)) {
			for to := len(stream); to > 0; to -= 1000 {
				f(max(0, to-1000), to)
			}
		},
		"overlapping": func(f func(from, to int)) {
			for from := 0; from < len(stream); from += 300 {
				f(max(0, from-77), min(len(stream), from+400))
			}
		},
		"twice": func(f func(from, to int)) {
			for range 2 {
				f(0, bad)
				f(bad, len(stream))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			tp := newTape()
			up, _ := tp.open(t, siwAddr, ourAddr, true)
			cut(func(from, to int) { tp.packet(siwAddr, ourAddr, up+uint32(from), 0, stream[from:to]) })
			c := tp.read(t)
			if d := c.all[0].wire.up; d.fpdus != 62 || len(d.wrong) != 1 || d.wrong[0].index != 60 || d.garbage != "" {
				t.Errorf("%d FPDUs, wrong: %v, garbage: %q", d.fpdus, d.wrong, d.garbage)
			}
		})
	}
}

// Packets that the capture has missed are nobody's fault.
func TestMissedPacketsProveNothing(t *testing.T) {
	tp := newTape()
	up, _ := tp.open(t, siwAddr, ourAddr, true)
	tp.packet(siwAddr, ourAddr, up, 0, fpdu(100, 0))
	tp.packet(siwAddr, ourAddr, up+1000, 0, fpdu(100, 1))
	if fs := tp.read(t).ofPort(7200); len(fs) != 0 {
		t.Errorf("faults: %+v", fs)
	}
}

func TestBytesThatAreNoFPDUAreAFault(t *testing.T) {
	for name, b := range map[string][]byte{
		"too short for a DDP header": append([]byte{0, 3}, make([]byte, 40)...),
		"no DDP version":             enclose(make([]byte, 40), 0),
	} {
		tp := newTape()
		_, down := tp.open(t, ourAddr, siwAddr, false)
		tp.packet(siwAddr, ourAddr, down, 0, append(fpdu(3, 0), b...))
		fs := tp.read(t).ofPort(int(siwAddr.Port()))
		if len(fs) != 1 || !fs[0].Siw {
			t.Errorf("%s: %+v", name, fs)
		}
	}
}

func TestPortsMayBeUsedAgain(t *testing.T) {
	tp := newTape()
	for _, harm := range []uint32{0, 1} {
		up, _ := tp.open(t, siwAddr, ourAddr, true)
		tp.packet(siwAddr, ourAddr, up, 0, fpdu(1, harm))
		tp.packet(siwAddr, ourAddr, 77, 2, nil) // the next connection has other sequence numbers
		tp.packet(ourAddr, siwAddr, 78, 2, nil)
	}
	c := tp.read(t)
	if fs := c.ofPort(7200); len(fs) != 1 || len(c.all) < 2 {
		t.Errorf("%d connections, faults: %+v", len(c.all), fs)
	}
}

func TestTerminatesOfSiwAreFoundByTheirFlow(t *testing.T) {
	tp := newTape()
	up, down := tp.open(t, siwAddr, ourAddr, true)
	term := func(first byte) []byte {
		return enclose(append(ddp.AppendUntagged(nil, true, rdmap.Control(rdmap.OpTerminate), 0, rdmap.QNTerminate, 1, 0), first, 2, 3, 4), 0)
	}
	tp.packet(siwAddr, ourAddr, up, 0, term(0x11))
	tp.packet(ourAddr, siwAddr, down, 0, term(0x99))
	got := tp.read(t).terminates([]string{ourAddr.String() + "-" + siwAddr.String(), "1.1.1.1:1-2.2.2.2:2"})
	if len(got) != 1 || !bytes.Equal(got[0], []byte{0x11, 2, 3, 4}) {
		t.Errorf("%x", got)
	}
}

func TestBlameFollowsTheWire(t *testing.T) {
	theirs, ours := Fault{Siw: true, What: "x"}, Fault{What: "y"}
	for _, c := range []struct {
		name   string
		fs     []Fault
		worked bool
		want   Blame
	}{
		{"nothing", nil, false, Nobody},
		{"siw, and the case failed", []Fault{theirs, theirs}, false, Peer},
		{"siw, and we did not mind", []Fault{theirs}, true, Us},
		{"we, and the case failed", []Fault{ours}, false, Us},
		{"we, and nobody minded", []Fault{ours}, true, Us},
		{"both", []Fault{ours, theirs}, false, Us},
	} {
		if got, what := judgeWire(c.fs, c.worked); got != c.want || (what == "") != (got == Nobody) {
			t.Errorf("%s: %v, %q", c.name, got, what)
		}
	}
}

// Only what siw is to blame for is run again, and the newer verdict counts.
func TestOnlySiwsFaultsAreTriedAgain(t *testing.T) {
	cs := cases()[:3]
	bad := good(cs[0])
	bad.ClientStatus = 1
	theirs := bad
	theirs.Faults = []Fault{{Siw: true, What: "x"}}
	mine := good(cs[2])
	mine.Startup.Reply.CRC, mine.Faults = cs[2].OurCRC, []Fault{{What: "y"}}
	var o outcome
	first := outcome{rping: []Verdict{judge(cs[0], theirs), judge(cs[1], bad), judge(cs[2], mine)}}
	for _, c := range []struct {
		failed bool
		blame  Blame
	}{{true, Peer}, {true, Nobody}, {true, Us}, {false, Nobody}} {
		first.suite = append(first.suite, SuiteVerdict{Result: siw.Result{Variant: "v", Case: "case " + string(rune('a'+len(first.suite))), Failed: c.failed}, Blame: c.blame})
	}
	o.merge(first, 1)
	p := o.again()
	if len(p.cases) != 1 || p.cases[0] != cs[0] || p.suite != "^Siw$/^v$/^case-a$/^we-act$" {
		t.Fatalf("again: %+v", p)
	}
	e := good(cs[0])
	o.merge(outcome{rping: []Verdict{judge(cs[0], e)}, suite: []SuiteVerdict{{Result: siw.Result{Variant: "v", Case: "case a"}}}}, 2)
	if p := o.again(); len(p.cases) != 0 || p.suite != "" {
		t.Errorf("again: %+v", p)
	}
	if v := o.rping[0]; !v.Worked || v.Tries != 2 || len(o.rping) != 3 || len(o.suite) != 4 || o.suite[0].Failed {
		t.Errorf("merged: %+v, %+v", o.rping, o.suite)
	}
	want := []string{cs[1].Name(), cs[2].Name(), o.suite[1].TestName(), o.suite[2].TestName()}
	if r := (&report{outcome: o}); !slices.Equal(r.unexpected(), want) || r.passed() != 3 {
		t.Errorf("%d passed, unexpected are %q, want %q", r.passed(), r.unexpected(), want)
	}
}
