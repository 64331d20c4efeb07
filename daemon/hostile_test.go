package daemon

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/internal/crc32c"
	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/rdmap"
)

// segments is a Sink that hands segments over by a channel.
type segments chan []byte

func (s segments) Segment(seg []byte) error              { s <- append([]byte(nil), seg...); return nil }
func (s segments) Direct([]byte, int) (int, bool, error) { return 0, false, nil }
func (s segments) DirectBuffer() ([]byte, error)         { return nil, errors.ErrUnsupported }
func (s segments) DirectDone(int) error                  { return errors.ErrUnsupported }
func (s segments) BatchEnd()                             {}

// rawStream is a stream of which a test makes every byte.
type rawStream struct {
	t    *testing.T
	mpa  *mpa.Conn
	segs segments
	end  error // once segs is closed
	msn  uint32
}

// openRaw asks beta for its ping service.
func openRaw(t *testing.T, port uint16) *rawStream {
	t.Helper()
	c, err := net.Dial("tcp", netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port).String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(waitTime)); err != nil {
		t.Fatal(err)
	}
	m, err := mpa.Client(t.Context(), c, &mpa.Config{IRD: 16, ORD: 16, PrivateData: []byte("IWpg\x01\x00\x00\x00")})
	if err != nil {
		t.Fatal(err)
	}
	r := &rawStream{t: t, mpa: m, segs: make(segments, 100)}
	go func() {
		r.end = m.Receive(r.segs)
		close(r.segs)
	}()
	return r
}

func (r *rawStream) message(text string) []byte {
	r.msn++
	return append(ddp.AppendUntagged(nil, true, rdmap.Control(rdmap.OpSend), 0, rdmap.QNSend, r.msn, 0), text...)
}

func (r *rawStream) next() ddp.Untagged {
	r.t.Helper()
	seg, more := <-r.segs
	if !more {
		r.t.Fatalf("waiting for a segment: %v", r.end)
	}
	return ddp.Untagged(seg)
}

// fpdu frames a segment whose length needs no padding (RFC 5044 section 4.1).
func fpdu(seg []byte) []byte {
	b := append(binary.BigEndian.AppendUint16(nil, uint16(len(seg))), seg...)
	return binary.LittleEndian.AppendUint32(b, crc32c.Checksum(b))
}

func TestWrongCRCEndsThatStreamWithATerminateAndNothingElse(t *testing.T) {
	alpha, beta, _ := pair(t, 1<<20)
	c := alpha.attach("disk")
	ok(t, c, cmdRead, 0, 512, nil)
	streams := func() string {
		var ids []string
		for _, s := range alpha.status().Streams {
			ids = append(ids, s.ID)
		}
		return fmt.Sprint(ids)
	}
	before := streams()

	r := openRaw(t, beta.port)
	if !r.mpa.CRC() {
		t.Fatal("the stream has no CRC")
	}
	good := fpdu(r.message("Echo"))
	if _, err := r.mpa.NetConn().Write(good); err != nil {
		t.Fatal(err)
	}
	if got := r.next(); got.QN() != rdmap.QNSend || string(got.Payload()) != "Echo" {
		t.Fatalf("before the fault the stream does not work: %x", []byte(got))
	}
	bad := fpdu(r.message("Echo"))
	bad[len(bad)-1] ^= 1
	if _, err := r.mpa.NetConn().Write(bad); err != nil {
		t.Fatal(err)
	}
	got := r.next()
	term, parsed := rdmap.ParseTerminate(got.Payload())
	if got.QN() != rdmap.QNTerminate || !parsed || term.Layer != ddp.LayerLLP || term.Type != 0 || term.Code != 2 {
		t.Errorf("answered with %x (%+v), want a Terminate of the LLP with the code of a CRC error", []byte(got), term)
	}
	if seg, more := <-r.segs; more || !errors.Is(r.end, io.EOF) {
		t.Errorf("after the Terminate: %x, %v, want the end of the stream", seg, r.end)
	}
	eventually(t, "the fault is logged with the peer and what it did", func() bool {
		return strings.Contains(beta.log.String(), "peer fault") && strings.Contains(beta.log.String(), "CRC")
	})
	ok(t, c, cmdRead, 0, 512, nil)
	if after := streams(); after != before {
		t.Errorf("alpha's streams were %s and are %s", before, after)
	}
	if _, err := alpha.api.Ping(t.Context(), api.PingRequest{Peer: "beta", Count: 1}, nil); err != nil {
		t.Error(err)
	}
}

// flipper is the wire between two daemons, and falsifies a byte when told.
type flipper struct {
	port uint16
	next atomic.Int64 // bytes from now on until the one that is falsified; 0: none
}

func startFlipper(t *testing.T, target uint16) *flipper {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &flipper{port: uint16(ln.Addr().(*net.TCPAddr).Port)}
	done := make(chan struct{})
	conns := make(chan net.Conn, 1000)
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			s, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", target))
			if err != nil {
				c.Close()
				continue
			}
			conns <- c
			conns <- s
			go f.carry(s, c)
			go f.carry(c, s)
		}
	}()
	t.Cleanup(func() {
		ln.Close()
		<-done
		close(conns)
		for c := range conns {
			c.Close()
		}
	})
	return f
}

func (f *flipper) carry(dst, src net.Conn) {
	defer dst.Close()
	defer src.Close()
	b := make([]byte, 64<<10)
	for {
		n, err := src.Read(b)
		if at := f.next.Load(); at > 0 && int64(n) >= at && f.next.CompareAndSwap(at, 0) {
			b[at-1] ^= 0x10
		}
		if _, werr := dst.Write(b[:n]); err != nil || werr != nil {
			return
		}
	}
}

// TestBytesThatTheWireFalsifiesNeverReachTheDisk flips bits of requests and of
// answers while a disk is written and read: the CRC finds each, the session
// comes back, and no client sees an error or wrong data.
func TestBytesThatTheWireFalsifiesNeverReachTheDisk(t *testing.T) {
	alpha, beta, _ := pair(t, 1<<20)
	wire := startFlipper(t, beta.port)
	alpha.write("peers.d/beta.yaml", fmt.Sprintf("name: beta\naddress: 127.0.0.1\nport: %d\nprotection: loopback\n", wire.port))
	if _, err := alpha.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := alpha.attach("disk")
	const size = 32 << 10
	data := make([]byte, size)
	flipped := 0
	for round := range 12 {
		for i := range data {
			data[i] = byte(round*31 + i*7 + i>>8)
		}
		// Early and late bytes: headers, payload, CRCs.
		wire.next.Store([]int64{3, 17, 21, 40, 4000, 20000}[round%6])
		ok(t, c, cmdWrite, uint64(round)*size, size, data)
		if got := ok(t, c, cmdRead, uint64(round)*size, size, nil); string(got) != string(data) {
			t.Fatalf("round %d: the data differs", round)
		}
		if wire.next.Swap(0) == 0 {
			flipped++
		}
	}
	if flipped < 6 {
		t.Errorf("only %d bytes were falsified", flipped)
	}
	if n := alpha.status().Sessions[0].Reconnects; n == 0 {
		t.Error("the session never had to come back: nothing was found out")
	}
	t.Logf("%d bytes falsified, %d reconnects", flipped, alpha.status().Sessions[0].Reconnects)
}
