package rdmap_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/ddp/enhanced"
	"github.com/ironwarp/ironwarp/internal/capture"
	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/rdmap"
)

// segment is a DDP segment of RDMAP in typed form: everything that is on the
// wire and nothing else.
type segment struct {
	Tagged bool
	Last   bool
	Op     rdmap.Opcode

	STag uint32 // tagged, or the STag to invalidate
	TO   uint64

	QN, MSN, MO uint32 // untagged

	Read      *rdmap.ReadRequest
	Terminate *rdmap.Terminate
	Payload   []byte // of all others
}

func decode(b []byte) (s segment, err error) {
	if ddp.HeaderLen(b) == 0 {
		return s, fmt.Errorf("%d bytes hold no DDP header", len(b))
	}
	var dv, control uint8
	if s.Tagged = ddp.IsTagged(b); s.Tagged {
		t := ddp.Tagged(b)
		dv, control = t.Version(), t.ULP()
		s.Last, s.STag, s.TO, s.Payload = t.Last(), t.STag(), t.TO(), t.Payload()
	} else {
		u := ddp.Untagged(b)
		dv, control = u.Version(), u.ULP()
		s.Last, s.STag, s.QN, s.MSN, s.MO, s.Payload = u.Last(), u.ULPWord(), u.QN(), u.MSN(), u.MO(), u.Payload()
	}
	rv, op := rdmap.ParseControl(control)
	if dv != ddp.Version || rv != rdmap.Version {
		return s, fmt.Errorf("versions %d of DDP and %d of RDMAP", dv, rv)
	}
	ok := true
	switch s.Op = op; op {
	case rdmap.OpReadRequest:
		var r rdmap.ReadRequest
		r, ok = rdmap.ParseReadRequest(s.Payload)
		s.Read, s.Payload = &r, nil
	case rdmap.OpTerminate:
		var t rdmap.Terminate
		t, ok = rdmap.ParseTerminate(s.Payload)
		s.Terminate, s.Payload = &t, nil
	}
	if !ok {
		return s, fmt.Errorf("the header of a %v does not parse", op)
	}
	return s, nil
}

func (s segment) encode() []byte {
	control := rdmap.Control(s.Op)
	var b []byte
	if s.Tagged {
		b = ddp.AppendTagged(nil, s.Last, control, s.STag, s.TO)
	} else {
		b = ddp.AppendUntagged(nil, s.Last, control, s.STag, s.QN, s.MSN, s.MO)
	}
	switch {
	case s.Read != nil:
		b = s.Read.Append(b)
	case s.Terminate != nil:
		b = s.Terminate.Append(b)
	}
	return append(b, s.Payload...)
}

// played is a net.Conn on which the peer's bytes are those of a capture.
type played struct{ io.Reader }

func (played) Write(p []byte) (int, error)      { return len(p), nil }
func (played) Close() error                     { return nil }
func (played) LocalAddr() net.Addr              { return nil }
func (played) RemoteAddr() net.Addr             { return nil }
func (played) SetDeadline(time.Time) error      { return nil }
func (played) SetReadDeadline(time.Time) error  { return nil }
func (played) SetWriteDeadline(time.Time) error { return nil }

// typed is a Sink that decodes each segment and proves that it encodes to the
// same bytes.
type typed struct {
	t    *testing.T
	segs []segment
}

func (k *typed) Segment(b []byte) error {
	s, err := decode(bytes.Clone(b))
	if err != nil {
		k.t.Fatalf("segment %d: %v: %x", len(k.segs), err, b)
	}
	if back := s.encode(); !bytes.Equal(back, b) {
		k.t.Fatalf("segment %d: encoded again: %x\ncaptured:                  %x", len(k.segs), back, b)
	}
	k.segs = append(k.segs, s)
	return nil
}

func (*typed) Direct([]byte, int) (int, bool, error) { return 0, false, nil }
func (*typed) DirectBuffer() ([]byte, error)         { return nil, io.ErrShortBuffer }
func (*typed) DirectDone(int) error                  { return io.ErrShortBuffer }
func (*typed) BatchEnd()                             {}

// startup takes the start-up frame from the head of a stream.
func startup(t *testing.T, stream []byte, reply bool) mpa.Frame {
	t.Helper()
	f, err := mpa.ParseFrame(stream[:20+int(binary.BigEndian.Uint16(stream[18:]))], reply)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// segments plays a connection to our own MPA, as server and as client, and
// returns what each end of the capture sent.
func segments(t *testing.T, c capture.Conn) (client, server []segment) {
	t.Helper()
	req, rep := startup(t, c.FromClient, false), startup(t, c.FromServer, true)
	if rep.Reject {
		return nil, nil
	}
	cfg := mpa.Config{CRC: mpa.CRCAvoid, Revision: req.Revision, IRD: enhanced.MaxDepth}
	if req.CRC || rep.CRC {
		cfg.CRC = mpa.CRCPrefer
	}
	if e := req.Enhanced; e != nil && e.PeerToPeer {
		cfg.PeerToPeer = e.RTR
	}
	r, err := mpa.Server(context.Background(), played{bytes.NewReader(c.FromClient)}, &cfg)
	if err != nil {
		t.Fatal(err)
	}
	asServer, err := r.Accept(context.Background(), mpa.AcceptOptions{})
	if err != nil {
		t.Fatal(err)
	}
	asClient, err := mpa.Client(context.Background(), played{bytes.NewReader(c.FromServer)}, &cfg)
	if err != nil {
		t.Fatal(err)
	}
	fromClient, fromServer := &typed{t: t}, &typed{t: t}
	if err := asServer.Receive(fromClient); err != io.EOF {
		t.Fatalf("the client's FPDUs: %v", err)
	}
	if err := asClient.Receive(fromServer); err != io.EOF {
		t.Fatalf("the server's FPDUs: %v", err)
	}
	return fromClient.segs, fromServer.segs
}

// messages puts one end's segments together, checks their sequence by RFC 5041
// section 5.2, and adds each message to sum. A Terminate must quote what the
// other end sent.
func messages(t *testing.T, from string, segs, other []segment, sum tally) {
	t.Helper()
	var msn [4]uint32
	var first segment
	n, open := 0, false
	for i, s := range segs {
		if !open {
			first, n = s, 0
			if !s.Tagged {
				msn[s.QN]++
			}
		}
		if s.Op != first.Op || s.Tagged && (s.STag != first.STag || s.TO != first.TO+uint64(n)) || !s.Tagged && (s.MSN != msn[s.QN] || int(s.MO) != n) {
			t.Fatalf("%s, segment %d does not follow: %+v", from, i, s)
		}
		n += len(s.Payload)
		if open = !s.Last; open {
			continue
		}
		line := fmt.Sprintf("%s %v", from, s.Op)
		switch s.Op {
		case rdmap.OpReadRequest:
			n = int(s.Read.Size)
		case rdmap.OpSendInvalidate, rdmap.OpSendSEInvalidate:
			line += fmt.Sprintf(" of %#08x", s.STag)
		case rdmap.OpTerminate:
			line += " " + (&rdmap.TerminateError{Terminate: *s.Terminate}).Error()
			quoted(t, *s.Terminate, other)
		}
		sum.add(line, n)
	}
	if open {
		sum.add(from+" unfinished "+first.Op.String(), n)
	}
}

// tally counts messages and their bytes by what they are.
type tally map[string][2]int

func (c tally) add(line string, n int) {
	line = strings.Replace(line, "rdmap: peer terminated the stream: ", "", 1)
	v := c[line]
	c[line] = [2]int{v[0] + 1, v[1] + n}
}

// quoted checks that a Terminate of siw quotes the headers of a segment that
// the other end sent. Against RFC 5040 section 4.8 its segment length is the
// payload's alone, and a Read Request has its size where its MSN should be.
func quoted(t *testing.T, term rdmap.Terminate, other []segment) {
	t.Helper()
	if !term.Swapped {
		t.Error("a Terminate of siw with its bits in the RFC's order")
	}
	for _, s := range other {
		if s.Read != nil {
			s.MSN = s.Read.Size
		}
		whole := s.encode()
		h := ddp.HeaderLen(whole)
		if !bytes.Equal(term.DDP, whole[:h]) {
			continue
		}
		if s.Read != nil && !bytes.Equal(term.RDMAP, whole[h:]) {
			t.Errorf("the Read Request %x is quoted as %x", whole[h:], term.RDMAP)
		}
		if int(term.SegLen) != len(s.Payload) {
			t.Errorf("segment length %d for %d bytes of payload", term.SegLen, len(s.Payload))
		}
		return
	}
	t.Errorf("a Terminate quotes %x, which was not sent", term.DDP)
}

// What Linux' siw (both ends) put on the wire: by sender, c for the client, and
// operation, the number of messages and their bytes in all.
var siwCaptures = map[string]tally{
	"ib_read_lat_crc1":  {"c Read Request": {20, 81920}, "c Send": {11, 418}, "s Read Response": {20, 81920}, "s Send": {11, 418}},
	"ib_send_lat_crc1":  {"c Send": {31, 40418}, "s Send": {31, 40418}},
	"ib_write_bw_crc1":  {"c Send": {16, 458}, "c Write": {20, 1310720}, "s Send": {16, 458}},
	"iser":              {"c Read Response": {5, 262656}, "c Send": {83, 6992}, "s Read Request": {5, 262656}, "s Send": {85, 7039}, "s Write": {70, 276274}},
	"iser_crc0":         {"c Read Response": {5, 262656}, "c Send": {83, 6992}, "s Read Request": {5, 262656}, "s Send": {84, 6963}, "s Write": {70, 276274}},
	"op_badread":        {"c Read Request": {1, 3000}, "s Terminate RDMAP error 1.0x00 (invalid STag)": {1, 0}},
	"op_badreadbounds":  {"c Read Request": {1, 3000}, "s Terminate RDMAP error 1.0x01 (base or bounds violation)": {1, 0}},
	"op_badwrite":       {"c Write": {1, 3000}, "s Terminate DDP error 1.0x00 (invalid STag)": {1, 0}},
	"op_badwritebounds": {"c unfinished Write": {1, 2856}, "s Terminate DDP error 1.0x01 (base or bounds violation)": {1, 0}},
	"op_norecv":         {"c Send": {9, 72}, "s Terminate DDP error 2.0x02 (no receive buffer posted)": {1, 0}},
	"op_read":           {"c Read Request": {1, 3000}, "s Read Response": {1, 3000}},
	"op_reject":         {},
	"op_send":           {"c Send": {1, 3000}},
	"op_send0":          {"c Send": {1, 0}},
	"op_sendinv":        {"c Send with Invalidate of 0xb0097100": {1, 3000}},
	"op_sendinvse":      {"c Send with SE and Invalidate of 0xf0b65100": {1, 3000}},
	"op_sendse":         {"c Send with SE": {1, 3000}},
	"op_toolong":        {"c Send": {1, 3000}, "s Terminate DDP error 2.0x02 (no receive buffer posted)": {1, 0}},
	"op_write":          {"c Write": {1, 3000}},
	"op_write0":         {"c Write": {1, 0}},
	"rping_crc0":        {"c Read Response": {5, 500}, "c Send": {10, 160}, "s Read Request": {5, 500}, "s Send": {10, 160}, "s Write": {5, 500}},
	"rping_crc1":        {"c Read Response": {5, 500}, "c Send": {10, 160}, "s Read Request": {5, 500}, "s Send": {10, 160}, "s Write": {5, 500}},
	"rping_mpav1":       {"c Send": {1, 16}},
	"rping_p2p":         {"c Read Response": {3, 192}, "c Send": {6, 96}, "c Write": {1, 0}, "s Read Request": {3, 192}, "s Send": {6, 96}, "s Write": {3, 192}},
	"rping_v6":          {"c Read Response": {3, 192}, "c Send": {6, 96}, "s Read Request": {3, 192}, "s Send": {6, 96}, "s Write": {3, 192}},
}

// Each FPDU of the captures decodes to typed headers and encodes to the same
// bytes, and is the operation that was asked of siw.
func TestCapturesOfSiwAreTyped(t *testing.T) {
	files, err := filepath.Glob("../mpa/testdata/*.pcap*")
	if err != nil || len(files) != len(siwCaptures) {
		t.Fatalf("%d captures, %v; the table has %d", len(files), err, len(siwCaptures))
	}
	for _, file := range files {
		name, _, _ := strings.Cut(filepath.Base(file), ".")
		t.Run(name, func(t *testing.T) {
			conns, err := capture.Read(file)
			if err != nil {
				t.Fatal(err)
			}
			got := tally{}
			for _, c := range conns {
				client, server := segments(t, c)
				messages(t, "c", client, server, got)
				messages(t, "s", server, client, got)
			}
			for line, v := range got {
				if want, ok := siwCaptures[name][line]; !ok || v != want {
					t.Errorf("%q: %v, want %v", line, v, want)
				}
			}
			for line, want := range siwCaptures[name] {
				if _, ok := got[line]; !ok {
					t.Errorf("%q: none, want %v", line, want)
				}
			}
		})
	}
}
