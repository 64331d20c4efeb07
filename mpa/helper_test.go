package mpa

import (
	"context"
	"io"
	"net"
	"testing"

	"go.uber.org/goleak"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/iwarptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// netPair returns two ends of a connection: "tcp" over loopback or "pipe".
func netPair(t testing.TB, kind string) (net.Conn, net.Conn) {
	t.Helper()
	if kind == "pipe" {
		a, b := net.Pipe()
		t.Cleanup(func() { a.Close(); b.Close() })
		return a, b
	}
	return iwarptest.TCPPair(t)
}

// accepted is the outcome of a start-up that went on elsewhere.
type accepted struct {
	c   *Conn
	err error
}

// serve runs Server and Accept on b.
func serve(t testing.TB, b net.Conn, cfg *Config) chan accepted {
	done := make(chan accepted, 1)
	var o AcceptOptions
	if cfg != nil {
		o.IRD, o.ORD = cfg.IRD, cfg.ORD
	}
	go func() {
		r, err := Server(context.Background(), b, cfg)
		if err != nil {
			done <- accepted{nil, err}
			return
		}
		c, err := r.Accept(context.Background(), o)
		done <- accepted{c, err}
	}()
	t.Cleanup(func() { b.Close() })
	return done
}

// connect starts MPA on a connection of the given kind.
func connect(t testing.TB, kind string, ccfg, scfg *Config) (client, server *Conn) {
	t.Helper()
	a, b := netPair(t, kind)
	done := serve(t, b, scfg)
	client, err := Client(context.Background(), a, ccfg)
	r := <-done
	if err != nil || r.err != nil {
		t.Fatalf("start-up: client %v, server %v", err, r.err)
	}
	t.Cleanup(func() { client.Close(); r.c.Close() })
	return client, r.c
}

// collector is a Sink that keeps what it gets. With direct set it takes
// segments directly, in pieces of at most that many bytes, after a header of
// 14 bytes.
type collector struct {
	direct  int
	segs    [][]byte
	directs int
	batches int
	held    bool
	cur     []byte
	total   int
	buf     []byte
	onSeg   func(seg []byte) error
}

func (s *collector) Segment(seg []byte) error {
	if s.held {
		panic("Segment while a direct buffer is held")
	}
	s.segs = append(s.segs, append([]byte(nil), seg...))
	if s.onSeg != nil {
		return s.onSeg(seg)
	}
	return nil
}

func (s *collector) Direct(head []byte, total int) (int, bool, error) {
	if len(head) < ddp.MaxHeaderLen && len(head) < total {
		panic("Direct without the header")
	}
	if len(head) > total {
		panic("Direct with more than the segment")
	}
	if s.direct == 0 || total <= 14 {
		return 0, false, nil
	}
	s.cur, s.total = append([]byte(nil), head[:14]...), total
	return 14, true, nil
}

func (s *collector) DirectBuffer() ([]byte, error) {
	if s.held {
		panic("two direct buffers at a time")
	}
	s.held = true
	s.buf = make([]byte, min(s.direct, s.total-len(s.cur)))
	return s.buf, nil
}

func (s *collector) DirectDone(n int) error {
	if !s.held {
		panic("DirectDone without DirectBuffer")
	}
	s.held = false
	s.cur = append(s.cur, s.buf[:n]...)
	if len(s.cur) == s.total {
		s.directs++
		s.segs = append(s.segs, s.cur)
		if s.onSeg != nil {
			return s.onSeg(s.cur)
		}
	}
	return nil
}

func (s *collector) BatchEnd() {
	if s.held {
		panic("BatchEnd while a direct buffer is held")
	}
	s.batches++
}

var errEnough = io.ErrNoProgress // any error that no code under test makes

// until returns a collector that ends Receive after n segments.
func until(n, direct int) *collector {
	s := &collector{direct: direct}
	s.onSeg = func([]byte) error {
		if len(s.segs) == n {
			return errEnough
		}
		return nil
	}
	return s
}

// appendCRC completes an FPDU by a CRC computed octet by octet, independently
// of the code under test.
func appendCRC(b []byte) []byte {
	crc := ^uint32(0)
	for _, x := range b {
		crc = crc>>8 ^ crcTable[byte(crc)^x]
	}
	crc = ^crc
	return append(b, byte(crc), byte(crc>>8), byte(crc>>16), byte(crc>>24))
}

// crcTable is CRC32c of each octet, bit by bit.
var crcTable = func() (t [256]uint32) {
	for i := range t {
		crc := uint32(i)
		for range 8 {
			crc = crc>>1 ^ 0x82f63b78*(crc&1)
		}
		t[i] = crc
	}
	return t
}()
