package oracle

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/ddp/enhanced"
	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/rdmap"
)

// take is one connection in a capture, and its expected content.
type take struct {
	name    string
	port    int
	ends    [2]*end
	crc     bool
	markers [2]bool // in an end's stream
	silent  [2]bool // ends whose messages are left out
}

// complaints lists what is wrong with a take by tshark's findings.
func (k *take) complaints(found finding) (all []string) {
	complain := func(format string, args ...any) {
		all = append(all, k.name+": "+fmt.Sprintf(format, args...))
	}
	h := understand(found.frames, k.port)
	for _, odd := range h.odd {
		complain("%s", odd)
	}
	good := 0
	if k.crc {
		good = h.fpdus
	}
	if h.fpdus == 0 || h.badCRC > 0 || h.goodCRC != good {
		complain("of %d FPDUs %d have a good CRC and %d a bad one, %d should be good", h.fpdus, h.goodCRC, h.badCRC, good)
	}
	for from, e := range k.ends {
		if s := h.startup[from].fields; s["iwarp_mpa.rej_flag"] != "0" {
			complain("%s: start-up frame %v", endNames[from], s)
		}
		if k.silent[from] {
			continue
		}
		if k.markers[from] != (h.markers[from] > 0) {
			complain("%s: %d markers", endNames[from], h.markers[from])
		}
		meant, found := e.meant, h.lines[from]
		if k.silent[1-from] {
			meant, found = unasked(meant), unasked(found)
		}
		if s := firstDifference(meant, found); s != "" {
			complain("%s: %s", endNames[from], s)
			continue
		}
		if k.markers[from] {
			// When tshark removes markers, the second one of an FPDU remains in the payload: it
			// copies 512 bytes where 508 lie between two.
			continue
		}
		for _, line := range h.wrong(from, e) {
			complain("%s: the payload of %s is not what was sent", endNames[from], line)
		}
	}
	return all
}

// wrong are the messages of an end whose payload is not from its source.
func (h *decoded) wrong(from int, e *end) (lines []string) {
	for i, line := range h.lines[from] {
		p := h.payload[from][i]
		if isOfSource := strings.HasPrefix(line, "Send") || strings.HasPrefix(line, "Write"); isOfSource && !bytes.Equal(p, e.local.Bytes()[:len(p)]) {
			lines = append(lines, line)
		}
	}
	return lines
}

var asked = regexp.MustCompile(`Response (.*)#\d+`)

// unasked removes the request's number from answers, where tshark does not see the
// requests.
func unasked(lines []string) []string {
	out := make([]string, len(lines))
	for i, line := range lines {
		out[i] = asked.ReplaceAllString(line, "Response $1#")
	}
	return out
}

// firstDifference describes it, "" if there is none.
func firstDifference(want, got []string) string {
	at := func(lines []string, i int) string {
		if i < len(lines) {
			return lines[i]
		}
		return "nothing"
	}
	for i := range max(len(want), len(got)) {
		if w, g := at(want, i), at(got, i); w != g {
			return fmt.Sprintf("message %d of %d: meant %q, found %q", i+1, len(want), w, g)
		}
	}
	return ""
}

// report fails the test for each complaint and each problem of tshark's.
func report(t *testing.T, found finding, takes []take) {
	t.Helper()
	for _, p := range append(found.tcp, found.problems...) {
		t.Error(p)
	}
	for i := range takes {
		for _, c := range takes[i].complaints(found) {
			t.Error(c)
		}
	}
}

// startups are the ways of getting into full operation.
var startups = []struct {
	name string
	cfg  mpa.Config
}{
	{"revision 1", mpa.Config{Revision: 1}},
	{"revision 2", mpa.Config{}},
	{"peer-to-peer by Write", mpa.Config{PeerToPeer: enhanced.RTRWrite}},
	{"peer-to-peer by Read", mpa.Config{PeerToPeer: enhanced.RTRRead}},
	{"peer-to-peer by Send", mpa.Config{PeerToPeer: enhanced.RTRSend}},
}

// marking is a combination of markers: who sends them.
var markings = []struct {
	name string
	sent [2]bool
}{
	{"no markers", [2]bool{}},
	{"markers to the server", [2]bool{client: true}},
	{"markers to the client", [2]bool{server: true}},
	{"markers both ways", [2]bool{true, true}},
}

// tshark decodes every operation as intended: in both directions, after every kind of
// start-up, with and without markers and CRC, over IPv4 and IPv6.
func TestTsharkReadsEveryOperation(t *testing.T) {
	requireTshark(t)
	for _, m := range markings {
		for _, crc := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, CRC %v", m.name, crc), func(t *testing.T) {
				f := newFile(t)
				var takes []take
				for i, s := range startups {
					ccfg, scfg := s.cfg, mpa.Config{PeerToPeer: s.cfg.PeerToPeer}
					ccfg.Markers, scfg.Markers = m.sent[server], m.sent[client]
					// It is enough that one side asks for CRCs (RFC 5044 section 7.1.1).
					if !crc || i%3 == 1 {
						ccfg.CRC = mpa.CRCAvoid
					}
					if !crc || i%3 == 2 {
						scfg.CRC = mpa.CRCAvoid
					}
					tp, ends := recordedOffGrid(t, ccfg, scfg)
					for _, how := range cuts {
						for _, k := range takesOf(m.sent, how) {
							n := len(takes)
							k.port, k.ends, k.crc = 44818+n, ends, crc // the first port is EtherNet/IP's
							ip6 := n%2 == 1
							k.name = fmt.Sprintf("%s, %s, IPv6 %v", s.name, how.name, ip6)
							f.add(tp.without(k.silent), uint16(k.port), how, ip6, m.sent)
							takes = append(takes, k)
						}
					}
				}
				report(t, ask(t, f.path, serverPort), takes)
			})
		}
	}
}

// recordedOffGrid is recorded with lengths by which no FPDU ends exactly where a
// marker would stand, which then opens the next FPDU (RFC 5044 section 4.3):
// tshark counts such a marker to both.
func recordedOffGrid(t *testing.T, ccfg, scfg mpa.Config) (*tape, [2]*end) {
	t.Helper()
	for lead := range 64 {
		tp, ends := recorded(t, ccfg, scfg, lead)
		if !tp.onGrid(client, scfg.Markers) && !tp.onGrid(server, ccfg.Markers) {
			return tp, ends
		}
	}
	t.Fatal("in 64 variations an FPDU ends on the grid of markers")
	return nil, [2]*end{}
}

func (tp *tape) onGrid(from int, markers bool) bool {
	s := tp.stream(from)
	return markers && slices.ContainsFunc(fpduEnds(s[startupLen(s):], true), func(end int) bool { return end%512 == 0 })
}

// takesOf returns the captures by which tshark can check a connection with these
// markers. It has two limits, see TestWhatTsharkDoesNotKnow: with markers it takes a
// TCP segment for one FPDU, and when only one end sends them it misreads what the other
// sends. So the bytes are cut at FPDUs, and that other end is checked in a connection
// in which the first sends nothing and wants no markers.
func takesOf(markers [2]bool, how cut) []take {
	if markers == [2]bool{} {
		return []take{{}}
	}
	if !how.fpdus {
		return nil
	}
	all := []take{{markers: markers}, {markers: markers}} // IPv4 and IPv6
	if marked := slices.Index(markers[:], true); markers != [2]bool{true, true} {
		all[0].silent[1-marked], all[1].silent[1-marked] = true, true
		plain := take{}
		plain.silent[marked] = true
		all = append(all, plain, plain)
	}
	return all
}

// without returns the record as it would be if the silent ends sent nothing after the
// start-up. If that leaves no markers, nobody has asked for any.
func (tp *tape) without(silent [2]bool) *tape {
	if silent == [2]bool{} {
		return tp
	}
	out := &tape{}
	for i, c := range tp.chunks {
		startup := i < 2
		if !startup && silent[c.from] {
			continue
		}
		if startup && markersOff(tp, silent) {
			c.data = bytes.Clone(c.data)
			c.data[16] &^= 0x80
		}
		out.chunks = append(out.chunks, c)
	}
	return out
}

// markersOff reports whether only silent ends send markers.
func markersOff(tp *tape, silent [2]bool) bool {
	for from := range silent {
		asked := tp.stream(1 - from)[16]&0x80 != 0
		if asked && !silent[from] {
			return false
		}
	}
	return true
}

// What tshark 4.0 does not understand, so that this fails with a version that does:
// bytes that it otherwise decodes (TestTsharkReadsEveryOperation).
func TestWhatTsharkDoesNotKnow(t *testing.T) {
	requireTshark(t)
	for _, tc := range []struct {
		name    string
		markers [2]bool
		how     cut
	}{
		{"markers with many FPDUs in a TCP segment", [2]bool{true, true}, cuts[1]},
		{"an end without markers whose peer sends some", [2]bool{client: true}, cuts[0]},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tp, ends := recordedOffGrid(t, mpa.Config{Markers: tc.markers[server]}, mpa.Config{Markers: tc.markers[client]})
			f := newFile(t)
			f.add(tp, 40000, tc.how, false, tc.markers)
			k := take{name: tc.name, port: 40000, ends: ends, crc: true, markers: tc.markers}
			if k.complaints(ask(t, f.path, serverPort)) == nil {
				t.Skip("this tshark understands them: the detour of takesOf is no longer needed")
			}
		})
	}
	t.Run("Immediate Data", func(t *testing.T) {
		tp, _ := recorded(t, mpa.Config{}, mpa.Config{}, 0)
		f := newFile(t)
		f.add(tp, 40000, cuts[0], false, [2]bool{})
		seen := 0
		for _, frame := range ask(t, f.path, serverPort).frames {
			if op := rdmap.Opcode(frame.number("iwarp_rdma.opcode")); op != rdmap.OpImmediate && op != rdmap.OpImmediateSE {
				continue
			}
			seen++
			if name := frame.fields["opcode name"]; name != "Unknown" {
				t.Skipf("this tshark calls it %q", name)
			}
		}
		if seen != 4 {
			t.Errorf("%d messages of Immediate Data, want 4", seen)
		}
	})
}
