package capture

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/ddp/enhanced"
	"github.com/ironwarp/ironwarp/ddp/sctpadapt"
	"github.com/ironwarp/ironwarp/ddp/tap"
	"github.com/ironwarp/ironwarp/internal/crc32c"
	"github.com/ironwarp/ironwarp/mpa"
)

// fake is a stream over TCP with a peer, which nobody has dialled.
type fake struct {
	*tap.Stream
	sent uint64
}

func newFake(t *tap.Tap, peer string, n int) *fake {
	f := &fake{Stream: &tap.Stream{Initiator: true, Link: &tap.Link{Tap: t, Peer: peer,
		Local: netip.MustParseAddrPort("192.0.2.1:40000"), Remote: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(n)}), 7471)}}}
	for _, frame := range []mpa.Frame{{CRC: true, Revision: 1}, {Reply: true, CRC: true, Revision: 1}} {
		b := must(frame.Append(nil))
		if frame.Reply {
			f.SetReply(b)
		} else {
			f.SetRequest(b)
		}
	}
	return f
}

// fpdu is an RDMA Write of n bytes.
func fpdu(n int) []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(ddp.TaggedHeaderLen+n))
	b = ddp.AppendTagged(b, true, writeControl, 1, 0)
	b = append(b, make([]byte, n)...)
	b = append(b, make([]byte, -len(b)&3)...)
	return binary.LittleEndian.AppendUint32(b, crc32c.Checksum(b))
}

func (f *fake) write(n int) {
	b := fpdu(n)
	f.Show(&tap.Record{Sent: true, Bytes: [][]byte{b}, Length: len(b), Visible: lengthLen + ddp.TaggedHeaderLen, Position: f.sent})
	f.sent += uint64(len(b))
}

// packets are those of a capture with TCP.
type packets struct {
	tcp     []*layers.TCP
	options []pcapgo.NgPacketOptions
	to      []string
}

func read(t *testing.T, file []byte) (p packets) {
	t.Helper()
	r, err := pcapgo.NewNgReader(bytes.NewReader(file), pcapgo.DefaultNgReaderOptions)
	for err == nil {
		var b []byte
		var o pcapgo.NgPacketOptions
		if b, _, o, err = r.ReadPacketDataWithOptions(); err == nil {
			q := gopacket.NewPacket(b, layers.LinkTypeRaw, gopacket.Default)
			if h, ok := q.TransportLayer().(*layers.TCP); ok {
				p.tcp, p.options, p.to = append(p.tcp, h), append(p.options, o), append(p.to, q.NetworkLayer().NetworkFlow().Dst().String())
			}
		}
	}
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return p
}

// run writes what is in a ring.
func run(t *testing.T, r *Ring) []byte {
	t.Helper()
	var out bytes.Buffer
	w := must(NewWriter(&out, About{Version: "test", Payload: true, Name: func(string) string { return "" }}))
	for b := r.next(); b != nil; b = r.next() {
		if err := w.write(b); err != nil {
			t.Fatal(err)
		}
		r.giveBack(b)
	}
	taken, dropped := r.Counts()
	if err := w.finish(time.Now(), taken, dropped); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestOnePeerOfMany(t *testing.T) {
	var x tap.Tap
	one, all := NewRing("peer 7", true), NewRing("", true)
	x.Attach(one)
	x.Attach(all)
	for i := range 50 {
		newFake(&x, fmt.Sprintf("peer %d", i), i+2).write(10)
	}
	if n, _ := all.Counts(); n != 50 {
		t.Errorf("%d of 50 streams are captured", n)
	}
	for _, to := range read(t, run(t, one)).to {
		if to != "192.0.2.9" && to != "192.0.2.1" {
			t.Errorf("a packet of another peer, to %s", to)
		}
	}
	if n, _ := one.Counts(); n != 1 {
		t.Errorf("%d records of one peer", n)
	}
	if seen := map[string]bool{}; true {
		for _, to := range read(t, run(t, all)).to {
			seen[to] = true
		}
		if len(seen) != 51 {
			t.Errorf("packets to %d hosts", len(seen))
		}
	}
}

// What a full ring drops is said where it is missing, and sequence numbers have a gap of its length.
func TestGapsAreThoseOfTheRing(t *testing.T) {
	var x tap.Tap
	r := NewRing("", true)
	x.Attach(r)
	s := newFake(&x, "beta", 2)
	const n = 60000
	dropped := func() uint64 { _, d := r.Counts(); return d }
	for dropped() < 3 {
		s.write(n)
	}
	taken, _ := r.Counts()
	if most := uint64(ringBlocks * blockLen / n); taken > most {
		t.Errorf("a ring of %d MiB has %d records of %d bytes", ringBlocks*blockLen>>20, taken, n)
	}
	b := r.next()
	var out bytes.Buffer
	w := must(NewWriter(&out, About{Name: func(string) string { return "" }}))
	if err := w.write(b); err != nil {
		t.Fatal(err)
	}
	r.giveBack(b)
	s.write(n)
	for b := r.next(); b != nil; b = r.next() {
		if err := w.write(b); err != nil {
			t.Fatal(err)
		}
	}
	p := read(t, out.Bytes())
	last := len(p.tcp) - 1
	if gap := p.tcp[last].Seq - p.tcp[last-1].Seq; gap != uint32(4*len(fpdu(n))) {
		t.Errorf("the gap is %d bytes, want that of 3 FPDUs", gap)
	}
	if d := p.options[last].DropCount; d == nil || *d != 3 {
		t.Errorf("the packet after the gap says that %v are lost", d)
	}
}

// A capture that nobody takes from costs streams no time, and memory within its bound.
func TestRingRefusesWhatIsTooLong(t *testing.T) {
	var x tap.Tap
	r := NewRing("", true)
	x.Attach(r)
	s := newFake(&x, "beta", 2)
	s.Show(&tap.Record{Bytes: [][]byte{make([]byte, blockLen+1)}, Length: blockLen + 1})
	if taken, dropped := r.Counts(); taken != 0 || dropped != 1 {
		t.Errorf("%d taken, %d dropped", taken, dropped)
	}
}

// The end of a stream is that of its connection, and what comes after it is not of another one.
func TestEnd(t *testing.T) {
	var x tap.Tap
	r := NewRing("", true)
	x.Attach(r)
	s := newFake(&x, "beta", 2)
	s.Show(&tap.Record{Kind: tap.Began})
	s.write(4)
	s.Show(&tap.Record{Kind: tap.Ended})
	s.write(4)
	var said []string
	for _, h := range read(t, run(t, r)).tcp {
		said = append(said, fmt.Sprintf("%v%v%v %d", h.SYN, h.FIN, h.ACK, len(h.Payload)))
	}
	want := "truefalsefalse 0, truefalsetrue 0, falsefalsetrue 0, falsefalsetrue 20, falsefalsetrue 20, falsefalsetrue 24, falsetruetrue 0, falsetruetrue 0, falsefalsetrue 0"
	if got := strings.Join(said, ", "); got != want {
		t.Errorf("packets %s,\nwant    %s", got, want)
	}
}

// The FPDU that stands for what was before has its markers in their places, points to its beginning, and ends where it should.
func TestFiller(t *testing.T) {
	for grid := 8; grid < spacing; grid += 4 { // no FPDU ends at 4, which is within or right behind a marker
		b := appendFiller(nil, grid, true)
		if len(b)%spacing != grid {
			t.Fatalf("grid %d: %d bytes", grid, len(b))
		}
		if got := binary.LittleEndian.Uint32(b[len(b)-crcLen:]); got != crc32c.Checksum(b[:len(b)-crcLen]) {
			t.Errorf("grid %d: wrong CRC", grid)
		}
		markers := 0
		for at := 0; at < len(b); at += spacing {
			markers++
			if ptr := int(binary.BigEndian.Uint16(b[at+2:])); ptr != max(0, at-markerLen) {
				t.Errorf("grid %d: the marker at %d points back by %d", grid, at, ptr)
			}
		}
		n := int(binary.BigEndian.Uint16(b[markerLen:]))
		if whole := lengthLen + n + -(lengthLen+n)&3 + crcLen + markers*markerLen; whole != len(b) || n < ddp.TaggedHeaderLen {
			t.Errorf("grid %d: a ULPDU of %d bytes in an FPDU of %d", grid, n, len(b))
		}
	}
}

// Packets of the kernel's SCTP are like those in UDP, and both ends have numbers of their own.
func TestKernelSCTP(t *testing.T) {
	var x tap.Tap
	r := NewRing("", true)
	x.Attach(r)
	l := &tap.Link{Tap: &x, Protocol: tap.SCTP, Local: netip.MustParseAddrPort("192.0.2.1:40000"), Remote: netip.MustParseAddrPort("192.0.2.2:7471"), Peer: "beta"}
	s := &tap.Stream{Number: 5}
	c := sctpadapt.Control{Function: sctpadapt.FunctionEnhancedInitiate, Enhanced: &enhanced.Data{}, PrivateData: []byte("hello")}
	s.SetRequest(must(c.Append(nil)))
	for i := range uint16(3) {
		b := ddp.AppendUntagged(binary.BigEndian.AppendUint16(nil, i), true, 0x43, 0, 0, uint32(i)+1, 0)
		l.ShowChunk(s, tap.Data, i&1 == 0, [][]byte{b, make([]byte, 100+i)}, len(b))
	}
	said := tshark(t, run(t, r), "-V", "-X", plugin, "-o", "sctp.checksum:CRC 32c")
	for want, n := range map[string]int{"[Checksum Status: Good]": 4, "Function: Enhanced Initiate (5)": 1, "OpCode: Send": 3, "Stream identifier: 0x0005": 4} {
		if got := strings.Count(said, want); got != n {
			t.Errorf("tshark says %q %d times, want %d", want, got, n)
		}
	}
	for _, w := range wrong {
		if strings.Contains(said, w) {
			t.Errorf("tshark says %s", w)
		}
	}
}
