package mpa

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ddp/enhanced"
)

// The rules of RFC 5044 section 7.1.2, one by one, as the peer of a socket sees
// them.

// frameBytes is f on the wire.
func frameBytes(t *testing.T, f Frame) []byte {
	t.Helper()
	b, err := f.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// wantClosed requires that nc was closed here, so that the peer sees its end.
func wantClosed(t *testing.T, nc net.Conn) {
	t.Helper()
	if _, err := nc.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the TCP connection was left open: %v", err)
	}
}

func TestRule1InitiatorSendsAValidRequest(t *testing.T) {
	for _, cfg := range []Config{
		{}, {Revision: 1}, {IRD: 3, ORD: 7}, {CRC: CRCAvoid}, {Markers: true}, {PrivateData: []byte("hello")}, {IRD: 9, PeerToPeer: enhanced.RTRSend | enhanced.RTRWrite | enhanced.RTRRead},
	} {
		a, b := netPair(t, "tcp")
		go func() {
			Client(context.Background(), a, &cfg)
		}()
		raw := make([]byte, startupLen)
		if _, err := io.ReadFull(b, raw); err != nil {
			t.Fatal(err)
		}
		pd := make([]byte, int(raw[18])<<8|int(raw[19]))
		if _, err := io.ReadFull(b, pd); err != nil {
			t.Fatal(err)
		}
		b.Close()
		var flags byte
		if cfg.Markers {
			flags |= 0x80
		}
		if cfg.CRC == CRCPrefer {
			flags |= 0x40
		}
		want := cfg.PrivateData
		if cfg.Revision != 1 {
			flags |= 0x10
			enh := []byte{0, byte(cfg.IRD), 0, byte(cfg.ORD)}
			if cfg.PeerToPeer != 0 {
				enh[0], enh[2] = 0xc0, 0xc0
			}
			want = append(enh, want...)
		}
		if string(raw[:16]) != "MPA ID Req Frame" || raw[16] != flags || raw[17] != cfg.revision() || !bytes.Equal(pd, want) {
			t.Errorf("%+v: sent %x %x, want flags %#x and private data %x", cfg, raw, pd, flags, want)
		}
	}
}

func TestRule2ResponderWaitsForAValidRequest(t *testing.T) {
	t.Run("sends nothing before", func(t *testing.T) {
		a, b := netPair(t, "tcp")
		done := serve(t, b, nil)
		a.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		if n, err := a.Read(make([]byte, 1)); n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("%d bytes before the request, %v", n, err)
		}
		a.SetReadDeadline(time.Time{})
		if c, err := Client(context.Background(), a, nil); err != nil || c.Close() != nil {
			t.Fatal(err)
		}
		if r := <-done; r.err != nil {
			t.Fatal(r.err)
		}
	})
	t.Run("closes on a bad one", func(t *testing.T) {
		a, b := netPair(t, "tcp")
		done := serve(t, b, nil)
		bad := frameBytes(t, Frame{Revision: 1})
		bad[3] ^= 0x20
		a.Write(bad)
		if n, err := a.Read(make([]byte, 1)); n > 0 || err == nil {
			t.Fatalf("an answer of %d bytes, %v", n, err)
		}
		if r := <-done; !errors.Is(r.err, ErrStartup) {
			t.Fatalf("%v", r.err)
		}
		wantClosed(t, b)
	})
}

// stream writes text on from and requires that it arrives on to.
func stream(t *testing.T, from, to net.Conn, text string) {
	t.Helper()
	sent := make(chan error, 1)
	go func() {
		_, err := io.WriteString(from, text)
		sent <- err
	}()
	got := make([]byte, len(text))
	if _, err := io.ReadFull(to, got); err != nil || string(got) != text {
		t.Fatalf("read %q, want %q: %v", got, text, err)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
}

// TestRule2And3RejectionLeavesTCPOpen goes on in streaming mode on both ends,
// with what each end sent right behind its frame.
func TestRule2And3RejectionLeavesTCPOpen(t *testing.T) {
	for _, kind := range []string{"tcp", "pipe"} {
		for _, rev := range []uint8{1, 2} {
			t.Run(fmt.Sprintf("%s/revision %d", kind, rev), func(t *testing.T) {
				a, b := netPair(t, kind)
				done := answer(b, nil, func(r *Request) (*Conn, error) {
					if err := r.Reject(context.Background(), []byte("not now")); err != nil {
						return nil, err
					}
					_, err := io.WriteString(b, "right behind the reply;")
					return nil, err
				})
				_, err := Client(context.Background(), a, &Config{Revision: rev})
				var rej *RejectedError
				if !errors.As(err, &rej) || string(rej.PrivateData) != "not now" {
					t.Fatalf("Client: %v", err)
				}
				got := make([]byte, len("right behind the reply;"))
				if _, err := io.ReadFull(a, got); err != nil || string(got) != "right behind the reply;" {
					t.Fatalf("%q, %v", got, err)
				}
				if err := <-done; err != nil {
					t.Fatal(err)
				}
				stream(t, a, b, strings.Repeat("to the responder;", 5000))
				stream(t, b, a, strings.Repeat("to the initiator;", 5000))

				// Even MPA may be tried again on it.
				res := serve(t, b, nil)
				c, err := Client(context.Background(), a, &Config{Revision: rev})
				if r := <-res; err != nil || r.err != nil {
					t.Fatal(err, r.err)
				}
				c.Close()
			})
		}
	}
}

// TestRule3And6InitiatorMayKeepTheStream: private data that the initiator's ULP
// does not like leaves it the TCP connection.
func TestRule3And6InitiatorMayKeepTheStream(t *testing.T) {
	a, b := netPair(t, "tcp")
	done := serve(t, b, &Config{PrivateData: []byte("unacceptable")})
	c, err := Client(context.Background(), a, nil)
	if r := <-done; err != nil || r.err != nil {
		t.Fatal(err, r.err)
	}
	stream(t, c.NetConn(), b, "no FPDU")
	stream(t, b, c.NetConn(), "none here, either")
}

func TestRule3InitiatorClosesOnABadReply(t *testing.T) {
	good := frameBytes(t, Frame{Reply: true, Revision: 2, Enhanced: &enhanced.Data{}})
	patch := func(at int, v ...byte) []byte {
		b := bytes.Clone(good)
		copy(b[at:], v)
		return b
	}
	for _, tt := range []struct {
		name string
		rep  []byte
		cfg  Config
		want error
	}{
		{name: "key", rep: patch(15, 'E'), want: ErrStartup},
		{name: "revision 0", rep: patch(17, 0), want: ErrStartup},
		{name: "revision 3", rep: patch(17, 3), want: ErrStartup},
		{name: "private data of 513 bytes", rep: patch(18, 2, 1), want: ErrStartup},
		{name: "private data of 65535 bytes", rep: patch(18, 255, 255), want: ErrStartup},
		{name: "no room for the enhanced data", rep: patch(18, 0, 3), want: ErrStartup},
		{name: "enhanced answer to revision 1", rep: good, cfg: Config{Revision: 1}, want: ErrStartup},
		{name: "cut in the key", rep: good[:7], want: ErrConnectionLost},
		{name: "cut in the fixed part", rep: good[:19], want: ErrConnectionLost},
		{name: "cut in the private data", rep: good[:22], want: ErrConnectionLost},
		{name: "none, revision 1", cfg: Config{Revision: 1}, want: ErrConnectionLost},
		{name: "none, revision 2", want: ErrConnectionLost},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := netPair(t, "tcp")
			go func() {
				readFrame(b, false)
				b.Write(tt.rep)
				b.(*net.TCPConn).CloseWrite()
			}()
			if _, err := Client(context.Background(), a, &tt.cfg); !errors.Is(err, tt.want) {
				t.Fatalf("Client: %v, want %v", err, tt.want)
			}
			wantClosed(t, a)
		})
	}
}

// TestRule4ResponderSendsNothingBeforeAnFPDU looks at the socket: no octet, no
// marker.
func TestRule4ResponderSendsNothingBeforeAnFPDU(t *testing.T) {
	for _, markers := range []bool{false, true} {
		client, server := connect(t, "tcp", &Config{Markers: markers}, nil)
		if err := server.Append([]byte("held"), nil); err != nil {
			t.Fatal(err)
		}
		if done, err := server.TryFlush(); done || err != nil {
			t.Fatalf("TryFlush: %v %v", done, err)
		}
		flushed := make(chan error, 1)
		go func() { flushed <- server.Flush() }()
		nc := client.NetConn()
		nc.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		if n, err := nc.Read(make([]byte, 1)); n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("%d bytes before the first FPDU, %v", n, err)
		}
		nc.SetReadDeadline(time.Time{})
		if err := errors.Join(client.Append([]byte("go"), nil), client.Flush()); err != nil {
			t.Fatal(err)
		}
		if err := server.Receive(until(1, 0)); err != errEnough {
			t.Fatal(err)
		}
		if err := <-flushed; err != nil {
			t.Fatal(err)
		}
		if err := client.Receive(until(1, 0)); err != errEnough {
			t.Fatal(err)
		}
	}
}

// TestRule4HoldEndsWithTheInitiator: an initiator that ends its direction
// without an FPDU will never let us send, and nobody waits for it.
func TestRule4HoldEndsWithTheInitiator(t *testing.T) {
	client, server := connect(t, "tcp", nil, nil)
	if err := server.Append([]byte("held"), nil); err != nil {
		t.Fatal(err)
	}
	flushed := make(chan error, 1)
	go func() { flushed <- server.Flush() }()
	client.CloseWrite()
	if err := server.Receive(&collector{}); err != io.EOF {
		t.Fatalf("Receive: %v", err)
	}
	if err := <-flushed; !errors.Is(err, ErrNoFPDU) {
		t.Fatalf("Flush: %v, want ErrNoFPDU", err)
	}
	if done, err := server.TryFlush(); done || err != nil {
		t.Fatalf("TryFlush: %v %v", done, err)
	}
}

// TestRule4FaultInTheFirstFPDUIsReported: its sender is in full operation, so a
// Terminate may go out (RFC 5044 section 8).
func TestRule4FaultInTheFirstFPDUIsReported(t *testing.T) {
	good := frame("the first FPDU, which is longer than any header", true)
	badCRC := bytes.Clone(good)
	badCRC[9]++
	ref := refSender{crc: true, markers: true}
	ref.fpdu(pattern(40, 0))
	badMarker := ref.out[:len(ref.out)-crcLen]
	badMarker[3] = 4
	badMarker = appendCRC(badMarker)
	for _, tt := range []struct {
		name string
		scfg Config
		data []byte
		end  bool
		want error
	}{
		{"wrong CRC", Config{}, badCRC, false, ErrCRC},
		{"wrong marker", Config{Markers: true}, badMarker, false, ErrMarker},
		{"cut short", Config{}, good[:20], true, ErrConnectionLost},
	} {
		t.Run(tt.name, func(t *testing.T) {
			client, server := connect(t, "tcp", nil, &tt.scfg)
			flushed := make(chan error, 1)
			if err := server.Append([]byte("held before the fault;"), nil); err != nil {
				t.Fatal(err)
			}
			go func() { flushed <- server.Flush() }()
			client.NetConn().Write(tt.data)
			if tt.end {
				client.CloseWrite()
			}
			if err := server.Receive(&collector{}); !errors.Is(err, tt.want) {
				t.Fatalf("Receive: %v, want %v", err, tt.want)
			}
			if err := <-flushed; err != nil {
				t.Fatalf("Flush: %v", err)
			}
			if err := server.Append([]byte("terminate"), nil); err != nil {
				t.Fatal(err)
			}
			if done, err := server.TryFlush(); !done || err != nil {
				t.Fatalf("TryFlush: %v %v", done, err)
			}
			if s := until(2, 0); client.Receive(s) != errEnough || string(s.segs[1]) != "terminate" {
				t.Fatalf("the peer got %q", s.segs)
			}
		})
	}
}

func TestRule5WrongKeyCloses(t *testing.T) {
	for at := range keyLen {
		req := frameBytes(t, Frame{Revision: 1})
		req[at]++
		a, b := netPair(t, "pipe")
		go a.Write(req)
		if _, err := Server(context.Background(), b, nil); !errors.Is(err, ErrStartup) {
			t.Fatalf("byte %d of the key altered: %v", at, err)
		}
		if _, err := b.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("byte %d of the key altered: the connection was left open: %v", at, err)
		}
	}
}

func TestRule7FirstOctetsOfFullOperation(t *testing.T) {
	for _, markers := range []bool{false, true} {
		client, server := connect(t, "tcp", nil, &Config{Markers: markers})
		if err := errors.Join(client.Append([]byte("abcdef"), nil), client.Flush()); err != nil {
			t.Fatal(err)
		}
		want := []byte{0, 6, 'a', 'b', 'c', 'd', 'e', 'f'}
		if markers {
			want = append([]byte{0, 0, 0, 0}, want...)
		}
		got := make([]byte, len(want))
		if _, err := io.ReadFull(server.NetConn(), got); err != nil || !bytes.Equal(got, want) {
			t.Errorf("markers %v: %x, want %x: %v", markers, got, want, err)
		}
	}
}

func TestRule8InitiatorInitiator(t *testing.T) {
	a, b := netPair(t, "tcp")
	other := make(chan error, 1)
	go func() {
		_, err := Client(context.Background(), b, nil)
		other <- err
	}()
	_, err := Client(context.Background(), a, nil)
	// The first to notice closes: the other may see that instead.
	oerr := <-other
	noticed := 0
	for _, err := range []error{err, oerr} {
		switch {
		case errors.Is(err, ErrStartup) && strings.Contains(err.Error(), "both ends act as MPA initiator"):
			noticed++
		case !errors.Is(err, ErrConnectionLost):
			t.Errorf("Client: %v", err)
		}
	}
	if noticed == 0 {
		t.Errorf("neither end says that both are initiators: %v, %v", err, oerr)
	}
	wantClosed(t, a)
	wantClosed(t, b)
}

func TestRule8ResponderResponder(t *testing.T) {
	a, b := netPair(t, "tcp")
	other := make(chan error, 1)
	cfg := &Config{StartupTimeout: 10 * time.Millisecond}
	go func() {
		_, err := Server(context.Background(), b, cfg)
		other <- err
	}()
	_, err := Server(context.Background(), a, cfg)
	oerr := <-other
	timedOut := errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(oerr, os.ErrDeadlineExceeded)
	if err == nil || oerr == nil || !timedOut {
		t.Errorf("%v, %v: want a timeout", err, oerr)
	}
	wantClosed(t, a)
	wantClosed(t, b)
}

// TestRule9PrivateDataLength is every length at the limits, in both
// directions.
func TestRule9PrivateDataLength(t *testing.T) {
	for _, n := range []int{0, 1, 507, 508} {
		a, b := netPair(t, "tcp")
		pd := pattern(n, 5)
		done := serve(t, b, &Config{PrivateData: pattern(n, 6)})
		c, err := Client(context.Background(), a, &Config{PrivateData: pd})
		r := <-done
		if err != nil || r.err != nil {
			t.Fatal(err, r.err)
		}
		if !bytes.Equal(r.c.PrivateData(), pd) || !bytes.Equal(c.PrivateData(), pattern(n, 6)) {
			t.Errorf("%d bytes of private data were altered", n)
		}
	}
	for _, n := range []int{512, 513, 1000, 65535} {
		req := frameBytes(t, Frame{Revision: 1})
		req[18], req[19] = byte(n>>8), byte(n)
		_, err := Server(context.Background(), &memConn{in: bytes.NewReader(append(req, make([]byte, n)...))}, nil)
		if (err == nil) != (n <= MaxPrivateData) || err != nil && !errors.Is(err, ErrStartup) {
			t.Errorf("request with %d bytes of private data: %v", n, err)
		}
	}
	_, b := netPair(t, "tcp")
	r := &Request{nc: b, cfg: &Config{}, Revision: 1}
	if _, err := r.Accept(context.Background(), AcceptOptions{PrivateData: make([]byte, 513)}); !errors.Is(err, ErrPrivateData) {
		t.Errorf("Accept with 513 bytes: %v", err)
	}
}

// TestRule10StartupAsAWholeIsBounded: a peer that drips its frame gets no more
// time than a silent one.
func TestRule10StartupAsAWholeIsBounded(t *testing.T) {
	a, b := netPair(t, "pipe") // in which nothing waits to be read: however late Server begins, not all of it is there
	stop := make(chan struct{})
	dripped := make(chan struct{})
	go func() {
		defer close(dripped)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for _, x := range frameBytes(t, Frame{Revision: 1, PrivateData: make([]byte, 512)}) {
			select {
			case <-tick.C:
				a.Write([]byte{x})
			case <-stop:
				return
			}
		}
	}()
	_, err := Server(context.Background(), b, &Config{StartupTimeout: 40 * time.Millisecond})
	close(stop)
	<-dripped
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("Server: %v", err)
	}
}

// TestReservedBitsAreNotChecked: Res, R in a request, and the S bit of a frame
// of revision 1 (RFC 5044 section 7.1.1, RFC 6581 section 6).
func TestReservedBitsAreNotChecked(t *testing.T) {
	for flags := range 256 {
		for rev := uint8(1); rev <= 2; rev++ {
			for _, isReply := range []bool{false, true} {
				b := frameBytes(t, Frame{Reply: isReply, Revision: rev, PrivateData: []byte("\x00\x07\x00\x09data")})
				b[16] = byte(flags)
				f, err := ParseFrame(b, isReply)
				if err != nil {
					t.Fatalf("flags %#x, revision %d, reply %v: %v", flags, rev, isReply, err)
				}
				isEnhanced := rev == 2 && flags&0x10 != 0
				if f.Markers != (flags&0x80 != 0) || f.CRC != (flags&0x40 != 0) || f.Reject != (isReply && flags&0x20 != 0) || (f.Enhanced != nil) != isEnhanced {
					t.Fatalf("flags %#x, revision %d, reply %v: %+v", flags, rev, isReply, f)
				}
				if isEnhanced && (*f.Enhanced != enhanced.Data{IRD: 7, ORD: 9} || string(f.PrivateData) != "data") {
					t.Fatalf("%+v", f.Enhanced)
				}
			}
		}
	}
}
