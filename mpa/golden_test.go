package mpa

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ddp/enhanced"
	"github.com/ironwarp/ironwarp/internal/capture"
)

// The captures in testdata are of Linux soft-iWARP (siw) on both ends.

// memConn is a net.Conn that reads from in and collects what is written.
type memConn struct {
	in  io.Reader
	out bytes.Buffer
}

func (c *memConn) Read(p []byte) (int, error)       { return c.in.Read(p) }
func (c *memConn) Write(p []byte) (int, error)      { return c.out.Write(p) }
func (c *memConn) Close() error                     { return nil }
func (c *memConn) LocalAddr() net.Addr              { return nil }
func (c *memConn) RemoteAddr() net.Addr             { return nil }
func (c *memConn) SetDeadline(time.Time) error      { return nil }
func (c *memConn) SetReadDeadline(time.Time) error  { return nil }
func (c *memConn) SetWriteDeadline(time.Time) error { return nil }

// conns reads the connections of a capture.
func conns(t *testing.T, file string) []capture.Conn {
	t.Helper()
	c, err := capture.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// splitStartup takes the start-up frame off a stream, and proves that it
// encodes to the same bytes.
func splitStartup(t *testing.T, stream []byte, reply bool) (Frame, []byte) {
	t.Helper()
	if len(stream) < startupLen {
		t.Fatalf("%d bytes are no start-up frame", len(stream))
	}
	n := startupLen + int(binary.BigEndian.Uint16(stream[18:]))
	f, err := ParseFrame(stream[:n], reply)
	if err != nil {
		t.Fatal(err)
	}
	b, err := f.Append(nil)
	if err != nil || !bytes.Equal(b, stream[:n]) {
		t.Fatalf("encoded again: %x\ncaptured:      %x (%v)", b, stream[:n], err)
	}
	g, _, m, err := readFrame(bytes.NewReader(stream), reply)
	if err != nil || m != n || g.Revision != f.Revision || !bytes.Equal(g.PrivateData, f.PrivateData) {
		t.Fatalf("read from a stream: %+v, %d bytes, %v", g, m, err)
	}
	return f, stream[n:]
}

// segments decodes a stream of FPDUs and proves that they encode to the same
// bytes. siw leaves old memory in some padding, against RFC 5044 section 4.1;
// there the padding and the CRC over it are not compared.
func segments(t *testing.T, stream []byte, crc bool) [][]byte {
	t.Helper()
	cfg := &Config{Pool: &Pool{}}
	rx := newConn(&memConn{in: bytes.NewReader(stream)}, cfg, params{crc: crc})
	s := &collector{}
	if err := rx.Receive(s); err != io.EOF {
		t.Fatalf("Receive: %v", err)
	}
	out := &memConn{}
	tx := newConn(out, cfg, params{initiator: true, crc: crc})
	for _, seg := range s.segs {
		hdr := min(14, len(seg))
		if err := tx.Append(seg[:hdr], [][]byte{seg[hdr:]}); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Flush(); err != nil {
		t.Fatal(err)
	}
	back := out.out.Bytes()
	if len(back) != len(stream) {
		t.Fatalf("%d bytes encode to %d", len(stream), len(back))
	}
	for i, seg := range s.segs {
		n := fpduLen(len(seg))
		want, got := stream[:n], back[:n]
		stream, back = stream[n:], back[n:]
		if pad := want[lengthLen+len(seg) : n-crcLen]; !bytes.Equal(pad, padding[:len(pad)]) {
			want, got = want[:lengthLen+len(seg)], got[:lengthLen+len(seg)]
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("FPDU %d encoded again: %x\ncaptured:           %x", i, got, want)
		}
	}
	return s.segs
}

func TestCapturesOfSiwDecodeAndEncode(t *testing.T) {
	files, err := filepath.Glob("testdata/*.pcap*")
	if err != nil || len(files) < 25 {
		t.Fatalf("%d captures, %v", len(files), err)
	}
	sort.Strings(files)
	for _, file := range files {
		name, _, _ := strings.Cut(filepath.Base(file), ".")
		t.Run(name, func(t *testing.T) {
			for _, c := range conns(t, file) {
				req, cdata := splitStartup(t, c.FromClient, false)
				rep, sdata := splitStartup(t, c.FromServer, true)
				crc := req.CRC || rep.CRC
				n := len(segments(t, cdata, crc)) + len(segments(t, sdata, crc))
				if n == 0 && !rep.Reject {
					t.Errorf("no FPDU from %v to %v", c.Client, c.Server)
				}
			}
		})
	}
}

func TestCapturedStartupFields(t *testing.T) {
	depths := func(ird, ord uint16) *enhanced.Data { return &enhanced.Data{IRD: ird, ORD: ord} }
	tests := []struct {
		file     string
		req, rep Frame
	}{
		{"rping_crc1",
			Frame{CRC: true, Revision: 2, Enhanced: depths(1, 1)},
			Frame{Reply: true, CRC: true, Revision: 2, Enhanced: depths(1, 1)}},
		{"rping_crc0",
			Frame{Revision: 2, Enhanced: depths(1, 1)},
			Frame{Reply: true, Revision: 2, Enhanced: depths(1, 1)}},
		{"rping_mpav1",
			Frame{CRC: true, Revision: 1},
			Frame{Reply: true, CRC: true, Revision: 1}},
		{"rping_p2p",
			Frame{CRC: true, Revision: 2, Enhanced: &enhanced.Data{PeerToPeer: true, RTR: enhanced.RTRWrite | enhanced.RTRRead, IRD: 1, ORD: 1}},
			Frame{Reply: true, CRC: true, Revision: 2, Enhanced: &enhanced.Data{PeerToPeer: true, RTR: enhanced.RTRWrite, IRD: 1, ORD: 1}}},
		{"op_reject",
			Frame{CRC: true, Revision: 2, Enhanced: depths(4, 4), PrivateData: []byte{12: 0xad, 13: 0xde, 15: 0}},
			Frame{Reply: true, CRC: true, Reject: true, Revision: 2, Enhanced: depths(4, 4), PrivateData: []byte("no thanks")}},
	}
	for _, tt := range tests {
		t.Run(tt.file, func(t *testing.T) {
			c := conns(t, "testdata/"+tt.file+".pcap")[0]
			req, _ := splitStartup(t, c.FromClient, false)
			rep, _ := splitStartup(t, c.FromServer, true)
			same(t, "request", req, tt.req)
			same(t, "reply", rep, tt.rep)
		})
	}
}

func same(t *testing.T, what string, got, want Frame) {
	t.Helper()
	ge, we := got.Enhanced, want.Enhanced
	got.Enhanced, want.Enhanced = nil, nil
	gp, wp := got.PrivateData, want.PrivateData
	got.PrivateData, want.PrivateData = nil, nil
	if got.Reply != want.Reply || got.CRC != want.CRC || got.Reject != want.Reject || got.Markers != want.Markers ||
		got.Revision != want.Revision || !bytes.Equal(gp, wp) || (ge == nil) != (we == nil) || ge != nil && *ge != *we {
		t.Errorf("%s:\n%+v %+v %x, want\n%+v %+v %x", what, got, ge, gp, want, we, wp)
	}
}

// TestExamplesOfRFC5044 checks the annotated dumps of figures 5 and 6, markers
// and CRCs included, in both directions.
func TestExamplesOfRFC5044(t *testing.T) {
	send := func(msn byte, payload int) []byte {
		seg := make([]byte, 18+payload)
		seg[0], seg[1], seg[13] = 0x41, 0x43, msn
		return seg
	}
	first := []byte{0, 0, 0, 0, 0, 0x2a, 0x41, 0x43}
	first = append(first, make([]byte, 0x30-len(first))...)
	first[0x13] = 1
	first = append(first, 0x52, 0x23, 0x99, 0x83)

	second := []byte{0, 0x2a, 0x41, 0x43}
	second = append(second, make([]byte, 0x200-0x1ec-len(second))...)
	second[0x1fb-0x1ec] = 2
	second = append(second, 0, 0, 0, 0x14)
	second = append(second, make([]byte, 24)...)
	second = append(second, 0x84, 0x92, 0x58, 0x98)

	figures := []struct {
		name string
		segs [][]byte
		from int // where in the stream the figure begins
		want []byte
	}{
		{"figure 5", [][]byte{send(1, 24)}, 0, first},
		// The first FPDU takes 492 bytes, its marker included.
		{"figure 6", [][]byte{send(1, 492-4-2-18-4), send(2, 24)}, 492, second},
	}
	for _, f := range figures {
		t.Run(f.name, func(t *testing.T) {
			cfg := &Config{}
			out := &memConn{}
			tx := newConn(out, cfg, params{initiator: true, crc: true, txMarkers: true})
			for _, seg := range f.segs {
				if err := tx.Append(seg[:18], [][]byte{seg[18:]}); err != nil {
					t.Fatal(err)
				}
			}
			if err := tx.Flush(); err != nil {
				t.Fatal(err)
			}
			stream := out.out.Bytes()
			if got := stream[f.from:]; !bytes.Equal(got, f.want) {
				t.Fatalf("sent\n%x, want\n%x", got, f.want)
			}
			rx := newConn(&memConn{in: bytes.NewReader(stream)}, cfg, params{crc: true, rxMarkers: true})
			s := &collector{}
			if err := rx.Receive(s); err != io.EOF {
				t.Fatal(err)
			}
			if len(s.segs) != len(f.segs) || !bytes.Equal(s.segs[len(s.segs)-1], f.segs[len(f.segs)-1]) {
				t.Fatalf("received %x", s.segs)
			}
		})
	}
}
