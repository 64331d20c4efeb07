package sctp

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/transport/assoc"
)

// golden are packets of Linux' SCTP by what tshark says of them.
type golden struct {
	name string
	p    packet
}

func linuxPackets(t testing.TB) (all []golden) {
	t.Helper()
	f, err := os.Open("testdata/linux-6.1.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		name, digits, ok := strings.Cut(sc.Text(), ": ")
		if strings.HasPrefix(name, "#") {
			continue
		}
		b, err := hex.DecodeString(digits)
		if !ok || err != nil {
			t.Fatalf("line %q: %v", sc.Text(), err)
		}
		all = append(all, golden{name, b})
	}
	if len(all) < 15 {
		t.Fatalf("%d packets", len(all))
	}
	return all
}

// again encodes a packet from what the codec reads in it.
func again(t testing.TB, p packet) []byte {
	b := newBatch()
	b.begin(p.srcPort(), p.dstPort(), p.tag())
	for rest := p.chunks(); len(rest) > 0; {
		c, next, err := cutChunk(rest)
		if err != nil {
			t.Fatal(err)
		}
		rest = next
		switch c.typ() {
		case typeInit, typeInitAck:
			i, err := parseInit(c)
			if err != nil {
				t.Fatal(err)
			}
			params := i.params
			i.params = nil
			for len(params) > 0 {
				var q param
				if q, params, err = cutParam(params); err != nil {
					t.Fatal(err)
				}
				i.params = appendParam(i.params, q.typ(), q.value())
			}
			b.buf = i.append(b.buf, c.typ())
		case typeData:
			d := dataChunk(c)
			b.buf = appendDataHeader(b.buf, c.flags(), d.tsn(), d.stream(), d.ssn(), d.ppid(), len(d.payload()))
			b.buf = pad(append(b.buf, d.payload()...), len(d.payload()))
		case typeSack:
			s, err := parseSack(c)
			if err != nil {
				t.Fatal(err)
			}
			var gaps []gapBlock
			for i := range s.gaps() {
				gaps = append(gaps, s.gap(i))
			}
			var dups []uint32
			for i := range s.dups() {
				dups = append(dups, s.dup(i))
			}
			b.buf = appendSack(b.buf, s.cum(), s.rwnd(), gaps, dups)
		case typeShutdown:
			cum, err := shutdownCum(c)
			if err != nil {
				t.Fatal(err)
			}
			b.buf = appendShutdown(b.buf, cum)
		default:
			b.buf = appendChunk(b.buf, c.typ(), c.flags(), c.value())
		}
	}
	b.end()
	return b.packets[0]
}

// Linux' packets have the right checksum and come back byte for byte.
func TestLinuxPacketsComeBack(t *testing.T) {
	seen := make(map[chunkType]bool)
	for _, g := range linuxPackets(t) {
		if !g.p.intact() {
			t.Errorf("%s: the checksum %08x is held to be wrong", g.name, g.p.checksum())
		}
		if got := again(t, g.p); !bytes.Equal(got, g.p) {
			t.Errorf("%s comes back as\n%x, was\n%x", g.name, got, g.p)
		}
		for i := range g.p { // RFC 9260 section 6.8: no single bit goes unnoticed
			q := slices.Clone(g.p)
			q[i] ^= 0x10
			if q.intact() {
				t.Errorf("%s: a changed bit in byte %d goes unnoticed", g.name, i)
			}
		}
		seen[chunkType(g.p[headerLen])] = true
	}
	for _, c := range []chunkType{typeData, typeInit, typeInitAck, typeSack, typeHeartbeat, typeHeartbeatAck, typeShutdown, typeShutdownAck, typeCookieEcho, typeCookieAck, typeShutdownComplete} {
		if !seen[c] {
			t.Errorf("no packet begins with a chunk of type %d", c)
		}
	}
}

// What tshark reads in Linux' packets.
func TestLinuxFields(t *testing.T) {
	packets := make(map[string]packet)
	for _, g := range linuxPackets(t) {
		packets[g.name] = g.p
	}
	c, _, _ := cutChunk(packets["INIT"].chunks())
	i, err := parseInit(c)
	if err != nil || i.tag != 0xa21eea4f || i.rwnd != 106496 || i.out != 16 || i.in != 16 || i.tsn != 155149127 {
		t.Errorf("INIT: %+v, %v", i, err)
	}
	p, err := parseParams(i.params)
	if err != nil || !p.hasAdaptation || p.adaptation != 1 || len(p.unrecognized) != 0 || p.cookie != nil {
		t.Errorf("parameters of INIT: %+v, %v", p, err)
	}
	c, _, _ = cutChunk(packets["INIT_ACK"].chunks())
	if i, err = parseInit(c); err != nil || i.tag != 0xc6826d33 {
		t.Errorf("INIT ACK: %+v, %v", i, err)
	}
	if p, err = parseParams(i.params); err != nil || len(p.cookie) != 228 || !p.hasAdaptation {
		t.Errorf("parameters of INIT ACK: %d bytes of cookie, %v", len(p.cookie), err)
	}
	c, _, _ = cutChunk(packets["SACK (Ack=19+6, Arwnd=79076)"].chunks())
	s, err := parseSack(c)
	if err != nil || s.cum() != 155149127+19 || s.rwnd() != 79076 || s.gaps() != 2 || s.gap(0) != (gapBlock{3, 3}) || s.gap(1) != (gapBlock{6, 6}) || s.dups() != 0 {
		t.Errorf("SACK: %x, %v", s, err)
	}
	d := dataChunk(packets["DATA (TSN=1)"].chunks())
	if d.tsn() != 155149128 || d.ppid() != 16 || chunk(d).flags() != flagB|flagE|flagU {
		t.Errorf("DATA: TSN %d, protocol %d, flags %x", d.tsn(), d.ppid(), chunk(d).flags())
	}
}

// RFC 9260 sections 3.2 and 3.2.1: the high bits of an unknown type say what to
// do.
func TestUnknownParameters(t *testing.T) {
	adapt := appendAdaptation(nil, 7)
	for _, tc := range []struct {
		typ      paramType
		skips    bool
		reported bool
	}{{0x00ff, false, false}, {0x40ff, false, true}, {0x80ff, true, false}, {0xc0ff, true, true}} {
		q := appendParam(nil, tc.typ, []byte("hello"))
		p, err := parseParams(append(slices.Clone(q), adapt...))
		if err != nil || p.hasAdaptation != tc.skips || (len(p.unrecognized) > 0) != tc.reported || tc.reported && !bytes.Equal(p.unrecognized, q) {
			t.Errorf("type %04x: %+v, %v", tc.typ, p, err)
		}
	}
	for _, known := range []paramType{paramForwardTSN, paramECN, paramExtensions, paramAddressTypes} {
		if p, err := parseParams(appendParam(nil, known, []byte{1, 2, 3, 4})); err != nil || len(p.unrecognized) > 0 {
			t.Errorf("type %04x: %+v, %v", known, p, err)
		}
	}
}

// Lengths that contradict each other are found wherever they stand.
func TestMalformed(t *testing.T) {
	for name, b := range map[string][]byte{
		"cut header":     {3, 0, 0},
		"length 0":       {3, 0, 0, 0},
		"length 3":       {3, 0, 0, 3},
		"beyond the end": {3, 0, 0, 9, 1, 2, 3, 4},
	} {
		if c, _, err := cutChunk(b); err == nil {
			t.Errorf("chunk, %s: %x", name, c)
		}
		if p, _, err := cutParam(b); err == nil {
			t.Errorf("parameter, %s: %x", name, p)
		}
		if k, _, err := cutCause(b); err == nil {
			t.Errorf("cause, %s: %v", name, k)
		}
	}
	sack := appendSack(nil, 1, 2, []gapBlock{{2, 3}}, []uint32{7})
	sack[13] = 200
	if _, err := parseSack(chunk(sack)); err == nil {
		t.Error("a SACK with more blocks than it has bytes passes")
	}
	if _, err := parseInit(make(chunk, 19)); err == nil {
		t.Error("an INIT of 19 bytes passes")
	}
	if _, err := parseParams(appendParam(nil, paramAdaptation, []byte{1})); err == nil {
		t.Error("an indication of 1 byte passes")
	}
}

// A State Cookie is what was signed, to the bit, for two lives of a key.
func TestCookies(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	s := signer{random: func(b []byte) {
		for i := range b {
			b[i] = byte(rnd.Uint32())
		}
	}}
	now := time.Hour
	k := cookie{created: now, life: cookieLife, localTag: 1, localTSN: 3, peerTSN: 4, localTie: 5, peerTie: 6, peerRwnd: 7,
		peer: peer{tag: 2, out: 8, in: 9}, localPort: 10, peerPort: 11, addr: netip.MustParseAddr("192.0.2.7")}
	b := s.sign(now, &k)
	if got, ok := s.open(now, b); !ok || got != k {
		t.Errorf("%+v, %v; was %+v", got, ok, k)
	}
	k6 := k
	k6.addr = netip.MustParseAddr("2001:db8::1")
	if got, ok := s.open(now, s.sign(now, &k6)); !ok || got != k6 {
		t.Errorf("%+v, %v; was %+v", got, ok, k6)
	}
	for i := range b {
		c := slices.Clone(b)
		c[i] ^= 1
		if _, ok := s.open(now, c); ok {
			t.Errorf("a changed bit in byte %d goes unnoticed", i)
		}
	}
	if _, ok := s.open(now, b[:len(b)-1]); ok {
		t.Error("a short cookie passes")
	}
	if _, ok := s.open(now+cookieKeyLife, b); !ok {
		t.Error("a cookie of the key before is not known")
	}
	if _, ok := s.open(now+2*cookieKeyLife, b); ok {
		t.Error("a cookie of a key of long ago passes")
	}
}

// The set of TSNs that are here, against one kept in a map.
func TestReceivedAgainstAMap(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for round := range 200 {
		first := rnd.Uint32()
		if round%2 == 0 {
			first = ^uint32(0) - uint32(rnd.IntN(100))
		}
		r := received{cum: first, high: first}
		here := make(map[uint32]bool)
		cum, high := uint32(0), uint32(0)
		spread := 1 + rnd.IntN(2000)
		for range 500 {
			off := cum + uint32(rnd.IntN(spread))
			if rnd.IntN(50) == 0 {
				off = cum + maxAhead + uint32(rnd.IntN(5))
			}
			tsn := first + off
			want := fresh
			switch {
			case off <= cum || here[off]:
				want = duplicate
			case off-cum > maxAhead:
				want = tooFar
			}
			if got := r.judge(tsn); got != want {
				t.Fatalf("TSN %d (%d behind the first): %d, want %d", tsn, off, got, want)
			}
			if want != fresh {
				continue
			}
			r.add(tsn)
			here[off] = true
			high = max(high, off)
			for here[cum+1] {
				cum++
			}
			if r.cum != first+cum || r.high != first+high {
				t.Fatalf("cumulative %d, highest %d; want %d, %d", r.cum-first, r.high-first, cum, high)
			}
		}
		var want []gapBlock
		for off := cum + 1; off <= high; off++ {
			if !here[off] {
				continue
			}
			if n := len(want); n > 0 && uint32(want[n-1].last) == off-cum-1 {
				want[n-1].last++
			} else {
				want = append(want, gapBlock{uint16(off - cum), uint16(off - cum)})
			}
		}
		if got := r.gaps(make([]gapBlock, 0, 4096)); !slices.Equal(got, want) {
			t.Fatalf("gap blocks\n%v, want\n%v", got, want)
		}
		if got := r.gaps(make([]gapBlock, 0, 3)); !slices.Equal(got, want[:min(3, len(want))]) {
			t.Fatalf("the first gap blocks are %v", got)
		}
	}
}

// FuzzPacket: whatever a packet holds, taking it apart ends without a fault, and
// what can be read comes back when it is written and read again.
func FuzzPacket(f *testing.F) {
	for _, g := range linuxPackets(f) {
		f.Add([]byte(g.p))
	}
	f.Add(append(make([]byte, headerLen), appendAbort(nil, flagT, assoc.Cause{Code: assoc.CauseUserAbort, Info: []byte("why")})...))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < headerLen {
			packet(b).intact()
			return
		}
		for rest := packet(b).chunks(); len(rest) > 0; {
			c, next, err := cutChunk(rest)
			if err != nil {
				return
			}
			if len(next) >= len(rest) {
				t.Fatal("a chunk takes nothing")
			}
			rest = next
			firstCause(c)
			shutdownCum(c)
			if i, err := parseInit(c); err == nil {
				parseParams(i.params)
			}
			if s, err := parseSack(c); err == nil && c.typ() == typeSack {
				for i := range s.gaps() {
					s.gap(i)
				}
				for i := range s.dups() {
					s.dup(i)
				}
			}
			enc := appendChunk(nil, c.typ(), c.flags(), c.value())
			if d, _, err := cutChunk(enc); err != nil || !bytes.Equal(c, d) {
				t.Fatalf("%x comes back as %x, %v", c, d, err)
			}
		}
	})
}

// FuzzCookie: no bytes pass for a cookie that was not signed.
func FuzzCookie(f *testing.F) {
	s := signer{random: randomBytes}
	f.Add(make([]byte, cookieLen))
	f.Fuzz(func(t *testing.T, b []byte) {
		if k, ok := s.open(time.Hour, b); ok {
			t.Fatalf("%x passes for %+v", b, k)
		}
		if len(b) >= cookieBodyLen {
			k := parseCookie(b)
			if k2 := parseCookie(k.append(nil)); k != k2 {
				t.Fatalf("%+v comes back as %+v", k, k2)
			}
		}
	})
}
