package mpa

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/ddp/enhanced"
)

// FuzzStartup feeds arbitrary bytes to the parsers of start-up frames. What is
// taken encodes to the same frame again.
func FuzzStartup(f *testing.F) {
	for _, fr := range []Frame{
		{Revision: 1},
		{Revision: 2, CRC: true, Markers: true, Enhanced: &enhanced.Data{IRD: 1, ORD: enhanced.DepthULP}, PrivateData: []byte("private")},
		{Revision: 2, Reply: true, Reject: true, Enhanced: &enhanced.Data{PeerToPeer: true, RTR: enhanced.RTRSend | enhanced.RTRRead}},
		{Revision: 1, PrivateData: hello{maxULPDU: 65534}.append(nil)},
	} {
		b, err := fr.Append(nil)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, fr.Reply)
		f.Add(b[:len(b)-1], !fr.Reply)
	}
	f.Fuzz(func(t *testing.T, b []byte, reply bool) {
		fr, err := ParseFrame(b, reply)
		rd, _, n, rerr := readFrame(bytes.NewReader(b), reply)
		if n > startupLen+MaxPrivateData {
			t.Fatalf("read %d bytes", n)
		}
		if err != nil {
			if !errors.Is(err, ErrStartup) {
				t.Fatalf("ParseFrame: %v", err)
			}
			return
		}
		if rerr != nil || n != len(b) {
			t.Fatalf("parsed, but reading it gave %v after %d of %d bytes", rerr, n, len(b))
		}
		if len(fr.PrivateData) > MaxPrivateData || !bytes.Equal(fr.PrivateData, rd.PrivateData) {
			t.Fatal("private data")
		}
		cutHello(fr.PrivateData)
		again, err := fr.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		g, err := ParseFrame(again, reply)
		if err != nil {
			t.Fatal(err)
		}
		same(t, "frame", g, fr)
	})
}

// chunks is a Reader that gives at most n bytes at a time.
type chunks struct {
	r io.Reader
	n int
}

func (c chunks) Read(p []byte) (int, error) { return c.r.Read(p[:min(len(p), c.n)]) }

// FuzzReceive feeds a stream of arbitrary bytes to Receive. It has to end, with
// io.EOF, an unexpected end or a fault of the peer's, and may not allocate more
// than its buffer and what was received.
func FuzzReceive(f *testing.F) {
	const noCRC, markers, direct = 1, 2, 4
	for mode := range byte(8) {
		out := &memConn{}
		tx := newConn(out, &Config{}, params{initiator: true, crc: mode&noCRC == 0, txMarkers: mode&markers != 0})
		for _, n := range []int{0, 1, 18, 100, 503, 2000} {
			if err := tx.Append(nil, [][]byte{make([]byte, n)}); err != nil {
				f.Fatal(err)
			}
		}
		if err := tx.Flush(); err != nil {
			f.Fatal(err)
		}
		f.Add(out.out.Bytes(), mode, uint16(1000))
		f.Add(out.out.Bytes(), mode, uint16(3))
		f.Add([]byte{0xff, 0xff, 1}, mode, uint16(1))
	}
	pool := &Pool{}
	f.Fuzz(func(t *testing.T, stream []byte, mode byte, chunk uint16) {
		c := newConn(&memConn{in: chunks{bytes.NewReader(stream), int(chunk) + 1}}, &Config{Pool: pool},
			params{crc: mode&noCRC == 0, rxMarkers: mode&markers != 0})
		s := &collector{}
		if mode&direct != 0 {
			s.direct = int(chunk)%100 + 1
		}
		err := c.Receive(s)
		var fault *ddp.Error
		if err != io.EOF && !errors.As(err, &fault) {
			t.Fatalf("Receive: %v", err)
		}
		got := 0
		for _, seg := range s.segs {
			got += fpduLen(len(seg)) - crcLen - padLen(len(seg))
		}
		if got > len(stream) {
			t.Fatalf("%d bytes of segments out of a stream of %d", got, len(stream))
		}
		if c.rx.buf != nil || len(pool.reads) > 1 {
			t.Fatal("a read buffer was not given back")
		}
	})
}

// FuzzSegments sends segments of arbitrary sizes with every framing and
// compares what arrives.
func FuzzSegments(f *testing.F) {
	f.Add([]byte{0, 0, 1, 0, 200, 3, 255, 255}, byte(0), uint16(100))
	f.Add([]byte{18, 0, 1, 2, 250, 1, 246, 1}, byte(3), uint16(7))
	f.Fuzz(func(t *testing.T, sizes []byte, mode byte, chunk uint16) {
		if len(sizes) > 64 {
			sizes = sizes[:64]
		}
		p := params{initiator: true, crc: mode&1 == 0, txMarkers: mode&2 != 0, rxMarkers: mode&2 != 0}
		out := &memConn{}
		cfg := &Config{Pool: &Pool{}}
		tx := newConn(out, cfg, p)
		var want [][]byte
		for i := 0; i+1 < len(sizes); i += 2 {
			n := int(sizes[i]) | int(sizes[i+1])<<8
			seg := bytes.Repeat([]byte{byte(i + 1)}, min(n, 60000))
			hdr := min(len(seg), int(chunk)%40)
			if err := tx.Append(seg[:hdr], [][]byte{seg[hdr:]}); err != nil {
				t.Fatal(err)
			}
			want = append(want, seg)
			if i%8 == 6 {
				tx.Detach()
			}
		}
		if err := tx.Flush(); err != nil {
			t.Fatal(err)
		}
		rx := newConn(&memConn{in: chunks{&out.out, int(chunk) + 1}}, cfg, p)
		s := &collector{direct: int(mode>>2) * 50}
		if err := rx.Receive(s); err != io.EOF {
			t.Fatal(err)
		}
		if len(s.segs) != len(want) {
			t.Fatalf("%d segments, want %d", len(s.segs), len(want))
		}
		for i := range want {
			if !bytes.Equal(s.segs[i], want[i]) {
				t.Fatalf("segment %d of %d bytes differs", i, len(want[i]))
			}
		}
	})
}
