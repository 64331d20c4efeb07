package oracle

import (
	"bytes"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// requireTshark skips the test where tshark is missing.
func requireTshark(t testing.TB) {
	t.Helper()
	if _, err := exec.LookPath("tshark"); err != nil {
		t.Skip("tshark, the oracle, is missing: apt install tshark")
	}
}

// fpdu is an FPDU, or a start-up frame, as tshark decodes it.
type fpdu struct {
	port    int // the client's
	from    int
	fields  map[string]string // name to value
	crc     string            // what is said of the CRC, "" if nothing
	markers []marker
	payload []byte
}

// marker is where in its FPDU a marker is and how far back it points, both in bytes.
type marker struct{ at, pointer int }

// finding is all that tshark finds in a capture.
type finding struct {
	frames   []fpdu
	problems []string // malformed packets, and warnings or worse
	tcp      []string // the same about TCP: a real kernel may cause it by retransmitting
}

// ask makes tshark decode a capture whose server's port is given. Heuristics that take
// the payload of our Sends for protocols on top of RDMA are off.
func ask(t testing.TB, path string, serverPort int) finding {
	t.Helper()
	out := tshark(t, path, "-Y", fmt.Sprintf("tcp.port == %d", serverPort))
	f, err := parsePDML(bytes.NewReader(out), "iwarp_mpa", serverPort)
	if err != nil {
		t.Fatalf("tshark's answer: %v", err)
	}
	return f
}

// tshark returns its XML of a capture.
func tshark(t testing.TB, path string, args ...string) []byte {
	t.Helper()
	// Heuristics first: MPA has no port, and a client's may be another protocol's (44818 is EtherNet/IP's).
	argv := []string{"-n", "-r", path, "-T", "pdml", "-o", "tcp.try_heuristic_first:TRUE", "-o", "iwarp_ddp_rdmap.reassemble_iwarp_rdma_send:FALSE"}
	for _, p := range []string{"rpcordma", "smb_direct", "nvme-tcp", "nvme-rdma", "iser", "nbap"} { // nbap takes random bytes over SCTP for its own
		argv = append(argv, "--disable-protocol", p)
	}
	cmd := exec.Command("tshark", append(argv, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tshark -r %s: %v: %s", path, err, &stderr)
	}
	return out
}

// severity at which tshark's experts complain: PI_WARN. Less severe are its remarks on
// the life of a TCP connection.
const severityWarn = 0x600000

// parsePDML reads tshark's XML: a packet has protocols in order, those of several FPDUs
// one after the other. unit is the protocol that each FPDU begins with.
func parsePDML(r io.Reader, unit string, serverPort int) (f finding, err error) {
	packet, proto, message := 0, "", ""
	var ports [2]int // source and destination
	begin := 0       // of the FPDU in its packet
	var cur *fpdu
	err = elements(r, func(element, name string, a map[string]string) (err error) {
		if element == "proto" {
			proto = name
		}
		switch {
		case element == "packet":
			packet++
			cur = nil
		case element == "proto" && name == unit:
			frame := fpdu{from: client, port: ports[0], fields: map[string]string{}}
			if ports[0] == serverPort {
				frame.from, frame.port = server, ports[1]
			}
			f.frames = append(f.frames, frame)
			cur = &f.frames[len(f.frames)-1]
			begin, _ = strconv.Atoi(a["pos"])
		case name == "tcp.srcport":
			ports[0], _ = strconv.Atoi(a["show"])
		case name == "tcp.dstport":
			ports[1], _ = strconv.Atoi(a["show"])
		case strings.HasPrefix(name, "_ws.malformed"), strings.HasPrefix(name, "_ws.short"):
			f.problems = append(f.problems, fmt.Sprintf("packet %d of %v: %s", packet, ports, a["showname"]))
		case name == "_ws.expert.message":
			message = a["show"]
		case name == "_ws.expert.severity":
			of := &f.problems
			if proto == "tcp" {
				of = &f.tcp
			}
			if s, _ := strconv.Atoi(a["show"]); s >= severityWarn {
				*of = append(*of, fmt.Sprintf("packet %d of %v: %s", packet, ports, message))
			}
		case cur == nil:
		case name == "iwarp_mpa.crc_check":
			_, crc, _ := strings.Cut(a["showname"], "(")
			cur.crc = strings.TrimSuffix(crc, ")")
		case name == "iwarp_mpa.marker_fpduptr":
			// The pointer follows two reserved bytes.
			pos, _ := strconv.Atoi(a["pos"])
			pointer, _ := strconv.Atoi(a["show"])
			cur.markers = append(cur.markers, marker{pos - 2 - begin, pointer})
		case name == "data.data":
			cur.payload, err = hex.DecodeString(strings.ReplaceAll(a["show"], ":", ""))
		case name == "iwarp_rdma.opcode":
			cur.fields[name] = a["show"]
			_, cur.fields["opcode name"], _ = strings.Cut(a["showname"], "OpCode: ")
			cur.fields["opcode name"], _, _ = strings.Cut(cur.fields["opcode name"], " (")
		case strings.HasPrefix(name, "iwarp_"):
			if _, ok := cur.fields[name]; !ok {
				cur.fields[name] = a["show"]
			}
		}
		return err
	})
	return f, err
}

// elements calls f for each element of tshark's XML, with the value of its
// attribute name and with all of them.
func elements(r io.Reader, f func(element, name string, a map[string]string) error) error {
	for d := xml.NewDecoder(r); ; {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		e, ok := tok.(xml.StartElement)
		if !ok {
			continue
		}
		a := map[string]string{}
		for _, attr := range e.Attr {
			a[attr.Name.Local] = attr.Value
		}
		if err := f(e.Name.Local, a["name"], a); err != nil {
			return err
		}
	}
}
