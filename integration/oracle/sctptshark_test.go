package oracle

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// sctpData is a DATA chunk as tshark decodes it.
type sctpData struct {
	from    int
	fields  map[string]string
	payload []byte // with its DDP-SSN
}

func (d *sctpData) number(name string) uint64 {
	v, _ := strconv.ParseUint(d.fields["sctp."+name], 0, 64)
	return v
}

// sctpFinding is what tshark finds in the packets of an association.
type sctpFinding struct {
	chunks      map[string]int // by type
	checksums   map[string]int // by status
	indications []string       // of the adaptation layer, in INIT and INIT ACK
	data        []sctpData
	problems    []string
}

func askSCTP(t testing.TB, path string) *sctpFinding {
	t.Helper()
	out := tshark(t, path, "-o", "sctp.checksum:CRC 32c", "-Y", "sctp")
	f := &sctpFinding{chunks: map[string]int{}, checksums: map[string]int{}}
	if err := f.parse(bytes.NewReader(out)); err != nil {
		t.Fatalf("tshark's answer: %v", err)
	}
	return f
}

func (f *sctpFinding) parse(r io.Reader) error {
	packet, from, message := 0, 0, ""
	var cur *sctpData // the DATA chunk that is being read
	return elements(r, func(element, name string, a map[string]string) (err error) {
		switch {
		case element == "packet":
			packet++
			cur = nil
		case name == "udp.srcport":
			if from = client; a["show"] == strconv.Itoa(udpPort) {
				from = server
			}
		case strings.HasPrefix(name, "_ws.malformed"), strings.HasPrefix(name, "_ws.short"), name == "_ws.unreassembled":
			f.problems = append(f.problems, fmt.Sprintf("packet %d of %s: %s", packet, endNames[from], a["showname"]))
		case name == "_ws.expert.message":
			message = a["show"]
		case name == "_ws.expert.severity":
			// SCTP sends a TSN again after a loss.
			if s, _ := strconv.Atoi(a["show"]); s >= severityWarn && !strings.Contains(message, "etransmitted") {
				f.problems = append(f.problems, fmt.Sprintf("packet %d of %s: %s", packet, endNames[from], message))
			}
		case name == "sctp.checksum.status":
			_, status, _ := strings.Cut(a["showname"], ": ")
			f.checksums[status]++
		case name == "sctp.adaptation_layer_indication":
			f.indications = append(f.indications, a["show"])
		case name == "sctp.chunk_type":
			_, kind, _ := strings.Cut(a["showname"], ": ")
			f.chunks[kind]++
			if cur = nil; a["show"] == "0" {
				f.data = append(f.data, sctpData{from: from, fields: map[string]string{}})
				cur = &f.data[len(f.data)-1]
			}
		case cur == nil:
		case name == "data.data":
			cur.payload, err = hex.DecodeString(a["value"])
		case name == "sctp.data_payload_proto_id":
			cur.fields["protocol"] = a["showname"]
			cur.fields[name] = a["show"]
		case strings.HasPrefix(name, "sctp."):
			cur.fields[name] = a["show"]
		}
		return err
	})
}

// complaints lists what is wrong with an association: tshark's findings compared to
// what the ends of its streams meant.
func (f *sctpFinding) complaints(t testing.TB, ends [][2]*end) (all []string) {
	complain := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	for _, p := range f.problems {
		complain("%s", p)
	}
	if len(f.checksums) != 1 || f.checksums["Good"] == 0 {
		complain("checksums: %v", f.checksums)
	}
	// RFC 5043 section 5.1; an INIT may be repeated.
	if len(f.indications) < 2 || slices.ContainsFunc(f.indications, func(s string) bool { return s != "0x00000001" }) {
		complain("adaptation indications: %v", f.indications)
	}
	var chunks []sctpData
	seen := map[[2]uint64]bool{}
	for _, d := range f.data {
		if want := [...]string{"DDP Segment Chunk (16)", "DDP Stream Session Control (17)"}; !strings.HasSuffix(d.fields["protocol"], want[0]) && !strings.HasSuffix(d.fields["protocol"], want[1]) {
			complain("a chunk of %s: %s", endNames[d.from], d.fields["protocol"])
		}
		// RFC 5043 section 5.2: unordered, and one chunk each.
		if d.number("data_u_bit") != 1 || d.number("data_b_bit") != 1 || d.number("data_e_bit") != 1 {
			complain("a chunk of %s: %v", endNames[d.from], d.fields)
		}
		// tshark does not look into what is sent again, which may come late. First
		// transmissions are in order.
		if id := [2]uint64{uint64(d.from), d.number("data_tsn_raw")}; !seen[id] {
			seen[id] = true
			chunks = append(chunks, d)
		}
	}
	var sids []uint64
	for _, d := range chunks {
		if sid := d.number("data_sid"); !slices.Contains(sids, sid) {
			sids = append(sids, sid)
		}
	}
	if len(sids) != len(ends) {
		complain("chunks of the streams %v, of %d there should be some", sids, len(ends))
		return all
	}
	for i, pair := range ends {
		all = append(all, streamComplaints(t, chunks, sids[i], pair)...)
	}
	return all
}

// inAnyPieces removes from lines how many segments a message has: that depends on what
// the association knows of its path by then.
func inAnyPieces(lines []string) (out []string) {
	for _, l := range lines {
		if i := strings.LastIndex(l, " in "); i >= 0 {
			l = l[:i]
		}
		out = append(out, l)
	}
	return out
}

// streamComplaints are those about one stream: its session control, its DDP-SSNs
// and its messages.
func streamComplaints(t testing.TB, chunks []sctpData, sid uint64, ends [2]*end) (all []string) {
	complain := func(format string, args ...any) {
		all = append(all, fmt.Sprintf("stream %d: ", sid)+fmt.Sprintf(format, args...))
	}
	var ssn [2]uint16
	var control [2][]uint16
	var segments []sctpData
	for _, d := range chunks {
		if d.number("data_sid") != sid {
			continue
		}
		if len(d.payload) < 2 {
			complain("%s: a chunk of %d bytes", endNames[d.from], len(d.payload))
			continue
		}
		got := binary.BigEndian.Uint16(d.payload)
		if len(control[d.from]) == 0 {
			ssn[d.from] = got - 1
		}
		if ssn[d.from]++; got != ssn[d.from] {
			complain("%s: DDP-SSN %d, want %d", endNames[d.from], got, ssn[d.from])
			ssn[d.from] = got
		}
		if d.number("data_payload_proto_id") == 17 {
			control[d.from] = append(control[d.from], binary.BigEndian.Uint16(d.payload[2:]))
			continue
		}
		segments = append(segments, d)
	}
	// Enhanced Initiate, Enhanced Accept (RFC 6581 section 7) and Terminate.
	if want := [2][]uint16{{5, 4}, {6, 4}}; !slices.Equal(control[client], want[client]) || !slices.Equal(control[server], want[server]) {
		complain("session control %v, want %v", control, want)
	}
	frames, problems := askSegments(t, segments)
	for _, p := range problems {
		complain("%s", p)
	}
	h := understand(frames, 0)
	for _, odd := range h.odd {
		complain("%s", odd)
	}
	for from, e := range ends {
		if s := firstDifference(inAnyPieces(e.meant), inAnyPieces(h.lines[from])); s != "" {
			complain("%s: %s", endNames[from], s)
			continue
		}
		for _, line := range h.wrong(from, e) {
			complain("%s: the payload of %s is not what was sent", endNames[from], line)
		}
	}
	return all
}

// askSegments has tshark decode DDP segments. It knows what a DDP Segment Chunk is and
// does not look into it: so its DDP dissector gets the segments in a capture of
// exported units (link type 252 of tcpdump.org's list).
func askSegments(t testing.TB, segments []sctpData) (frames []fpdu, problems []string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "segments.pcap")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := pcapgo.NewWriter(f)
	if err := w.WriteFileHeader(1<<18, layers.LinkType(252)); err != nil {
		t.Fatal(err)
	}
	const dissector = "iwarp_ddp_rdmap\x00"
	for i, d := range segments {
		p := append([]byte{0, 12, 0, byte(len(dissector))}, dissector...)
		p = append(append(p, 0, 0, 0, 0), d.payload[2:]...)
		if err := w.WritePacket(gopacket.CaptureInfo{Timestamp: time.Unix(1, int64(i)), CaptureLength: len(p), Length: len(p)}, p); err != nil {
			t.Fatal(err)
		}
	}
	found, err := parsePDML(bytes.NewReader(tshark(t, path)), "iwarp_ddp_rdmap", 0)
	if err != nil {
		t.Fatalf("tshark's answer: %v", err)
	}
	if len(found.frames) != len(segments) {
		return nil, append(found.problems, fmt.Sprintf("tshark understands %d of %d DDP segments", len(found.frames), len(segments)))
	}
	for i := range found.frames {
		found.frames[i].from = segments[i].from
		found.frames[i].fields["iwarp_mpa.ulpdulength"] = strconv.Itoa(len(segments[i].payload) - 2)
	}
	return found.frames, found.problems
}
