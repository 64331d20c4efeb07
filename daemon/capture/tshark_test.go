package capture

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/ddp/tap"
	"github.com/ironwarp/ironwarp/internal/crc32c"
	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// tshark runs Wireshark's dissectors over a capture.
func tshark(t *testing.T, capture []byte, args ...string) string {
	t.Helper()
	path, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("tshark is not installed: apt install tshark")
	}
	name := filepath.Join(t.TempDir(), "capture.pcapng")
	if err := os.WriteFile(name, capture, 0o600); err != nil {
		t.Fatal(err)
	}
	if dir := os.Getenv("IRONWARP_KEEP_CAPTURES"); dir != "" {
		os.WriteFile(filepath.Join(dir, strings.ReplaceAll(t.Name(), "/", "_")+".pcapng"), capture, 0o600)
	}
	var errs bytes.Buffer
	cmd := exec.Command(path, append([]string{"-r", name}, args...)...)
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tshark %v: %v: %s", args, err, errs.String())
	}
	return string(out)
}

// plugin is what we ship for Wireshark.
const plugin = "lua_script:../../packaging/wireshark/ironwarp.lua"

// wrong are words by which Wireshark says that something is not as it should be.
var wrong = []string{"Malformed", "Bad CRC32", "Checksum Status: Bad", "[incorrect", "etransmission", "Out-Of-Order", "egment not captured", "unseen segment", "Dissector bug", "Lua Error", "exceeds"}

// The packets are as Wireshark expects them: over each transport, of streams that were there before and of those that were not,
// with payload and without. What was cut off is not there.
func TestWiresharkUnderstands(t *testing.T) {
	for _, x := range []struct {
		name, host    string
		kind          transport.Kind
		setup         verbs.Setup
		late, payload bool
		plain         bool // without our plugin
	}{
		{name: "tcp", host: "127.0.0.1", payload: true, plain: true},
		{name: "tcp, late", host: "127.0.0.1", payload: true, late: true, plain: true},
		{name: "tcp, late, cut", host: "127.0.0.1", late: true},
		{name: "tcp6, cut", host: "::1"},
		{name: "tcp6, late", host: "::1", payload: true, late: true},
		{name: "markers", host: "127.0.0.1", setup: marked, payload: true, plain: true},
		{name: "markers, late", host: "127.0.0.1", setup: marked, payload: true, late: true, plain: true},
		{name: "markers, late, cut", host: "127.0.0.1", setup: marked, late: true},
		{name: "large, late", host: "127.0.0.1", setup: verbs.Setup{LargeFPDU: verbs.MaxLargeFPDU, NoCRC: true}, payload: true, late: true},
		{name: "sctp", host: "127.0.0.1", kind: transport.SCTPUDP, payload: true},
		{name: "sctp, late, cut", host: "127.0.0.1", kind: transport.SCTPUDP, late: true},
		{name: "sctp6, late", host: "::1", kind: transport.SCTPUDP, payload: true, late: true},
	} {
		t.Run(x.name, func(t *testing.T) {
			var c *running
			now := func(caps *Captures) { c = begin(t, caps, About{Payload: x.payload}) }
			first := now
			if x.late {
				first = nil
			}
			s := newStream(t, x.host, x.kind, x.setup, first)
			if x.late {
				s.talk(777) // an odd place in the grid of markers
				now(s.caps)
			}
			sizes := []int{100, 1000, 40000}
			for _, n := range sizes {
				s.talk(n)
			}
			file := c.end(t)
			has := bytes.Count(file, []byte(canary))
			for i := range len(canary) - 1 {
				has += bytes.Count(file, []byte(canary + canary)[i+1:i+1+len(canary)])
			}
			if !x.payload && has > 0 {
				t.Errorf("a capture without payload has 8 bytes of it, %d times", has)
			}
			if least := 2 * 41100 / len(canary) * 8 / 10; x.payload && bytes.Count(file, []byte(canary)) < least {
				t.Errorf("a capture has the payload %d times, want %d at least", bytes.Count(file, []byte(canary)), least)
			}
			args := []string{"-V", "-o", "tcp.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE", "-o", "sctp.checksum:CRC 32c", "-d", fmt.Sprintf("udp.port==%d,sctp", s.carrier.UDPPort)}
			if !x.plain {
				args = append(args, "-X", plugin)
			}
			said := tshark(t, file, args...)
			for _, w := range wrong {
				if i := strings.Index(said, w); i >= 0 {
					t.Errorf("tshark says: ... %s ...", said[max(0, i-600):min(len(said), i+200)])
				}
			}
			want := map[string]int{"OpCode: Read Request": 3, "OpCode: Write": 3, "OpCode: Read Response": 3, "(outbound)": 12, "(inbound)": 3, "peer beta (loopback)": 1}
			switch {
			case x.kind != transport.TCP:
				want["Function: Enhanced Initiate"], want["Function: Enhanced Accept"] = 1, 1
			default:
				want["Request frame header"], want["Reply frame header"] = 1, 1
				if x.payload && !x.setup.NoCRC {
					want["(Good CRC32)"] = 12
				}
			}
			for w, n := range want {
				if got := strings.Count(said, w); got < n {
					t.Errorf("tshark says %q %d times, want %d", w, got, n)
				}
			}
			if x.payload {
				if n := strings.Count(said, "OpCode: Send"); n < 3 {
					t.Errorf("tshark sees %d Sends", n)
				}
			}
			if x.setup.Markers && x.payload && strings.Count(said, "FPDU back pointer") < 2*41100/512 {
				t.Errorf("tshark sees %d markers", strings.Count(said, "FPDU back pointer"))
			}
		})
	}
}

// marked is TCP with markers in both directions.
var marked = verbs.Setup{Markers: true, EMSS: func() int { return 1448 }}

// What hostile peers send makes no dissector of ours fail: neither what is cut short, nor what says it is longer than it is, nor
// noise. Streams say that they are RTRS's, or say nothing.
func TestPluginOutlivesAnything(t *testing.T) {
	var x tap.Tap
	r := NewRing("", true)
	x.Attach(r)
	random := rand.New(rand.NewPCG(1, 2))
	rtrs := append([]byte{0, 0, 0xbd, 0x1b}, make([]byte, 52)...)
	answer := append([]byte{0xbd, 0x1b}, make([]byte, 54)...)
	for i := range 60 {
		f := newFake(&x, "beta", 2+i)
		switch i % 3 {
		case 0:
			f.SetRequest(must((&mpa.Frame{CRC: true, Revision: 1, PrivateData: rtrs}).Append(nil)))
			f.SetReply(must((&mpa.Frame{Reply: true, CRC: true, Revision: 1, PrivateData: answer}).Append(nil)))
		case 1:
			f.SetRequest(must((&mpa.Frame{CRC: true, Revision: 1, PrivateData: rtrs[:random.IntN(len(rtrs))]}).Append(nil)))
		}
		for range 20 {
			body := make([]byte, random.IntN(400))
			for j := range body {
				body[j] = byte(random.UintN(1 << random.UintN(9)))
			}
			op := byte(0x40 | random.UintN(12))
			seg := ddp.AppendUntagged(nil, true, op, 0, 0, 1, 0)
			if op == 0x40 || op == 0x42 {
				seg = ddp.AppendTagged(nil, true, op, 1, 0)
			}
			visible := lengthLen + len(seg)
			b := append(append(binary.BigEndian.AppendUint16(nil, uint16(len(seg)+len(body))), seg...), body...)
			b = append(b, make([]byte, -len(b)&3)...)
			b = binary.LittleEndian.AppendUint32(b, crc32c.Checksum(b))
			f.Show(&tap.Record{Sent: random.IntN(2) == 0, Bytes: [][]byte{b}, Length: len(b), Visible: visible})
		}
	}
	for _, chunk := range [][]byte{{0, 0}, {0, 0, 0, 1}, {0, 1, 0, 9, 1, 2, 3}, {0, 0, 0, 5, 0}, append([]byte{0, 0, 0, 5, 0, 0, 0, 0}, rtrs...), append([]byte{0, 0, 0, 6, 0, 0, 0, 0}, answer[:40]...), {0, 1, 0x41}, bytes.Repeat([]byte{0x41}, 30)} {
		for _, kind := range []tap.Kind{tap.Control, tap.Data} {
			l := &tap.Link{Tap: &x, Protocol: tap.SCTP, Local: netip.MustParseAddrPort("192.0.2.1:40000"), Remote: netip.MustParseAddrPort("192.0.2.2:7471"), Peer: "beta"}
			l.ShowChunk(&tap.Stream{}, kind, true, [][]byte{chunk}, len(chunk))
		}
	}
	said := tshark(t, run(t, r), "-V", "-X", plugin)
	if i := strings.Index(said, "Lua Error"); i >= 0 {
		t.Errorf("tshark says: %s", said[max(0, i-1500):min(len(said), i+500)])
	}
	if strings.Count(said, "RTRS over iWARP") < 20 {
		t.Error("nothing was taken for RTRS")
	}
}
