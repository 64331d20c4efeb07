package mpa

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/ddp/enhanced"
)

// TestFINAtEachOctet ends a stream of FPDUs at each of its octets, markers
// among them, in reads of two sizes. What is complete is delivered; then it is
// a graceful end between FPDUs and the loss of the connection elsewhere.
func TestFINAtEachOctet(t *testing.T) {
	for mode := range 4 {
		crc, markers := mode&1 == 0, mode&2 != 0
		directs := []int{0}
		if !crc && !markers {
			directs = append(directs, 100)
		}
		for _, pos := range []uint64{0, 440} {
			ref := refSender{crc: crc, markers: markers, pos: pos}
			for _, n := range []int{1, 17, 60, 0, 44, 600, 30} {
				ref.fpdu(pattern(n, n))
			}
			pool := &Pool{}
			for cut := range len(ref.out) + 1 {
				want, wantCode := refReceive(ref.out[:cut], crc, markers, pos)
				for _, chunk := range []int{7, 1 << 20} {
					for _, direct := range directs {
						rx := connAt(&memConn{in: chunks{bytes.NewReader(ref.out[:cut]), chunk}}, crc, markers, pos)
						rx.cfg = &Config{Pool: pool}
						s := &collector{direct: direct}
						if code := received(t, rx, s); code != wantCode {
							t.Fatalf("mode %d from %d, cut at %d of %d: code %d, want %d", mode, pos, cut, len(ref.out), code, wantCode)
						}
						if direct == 0 {
							sameSegments(t, s.segs, want)
						} else if len(s.segs) != len(want) && len(s.segs) != len(want)+1 {
							// Without CRC a segment that is placed directly counts when its payload is here.
							t.Fatalf("mode %d, cut at %d: %d segments, want %d", mode, cut, len(s.segs), len(want))
						}
						if rx.rx.buf != nil || len(pool.reads) > 1 {
							t.Fatal("a read buffer was not given back")
						}
					}
				}
			}
		}
	}
}

// TestRSTInEachPart resets a TCP connection in the length, the header, the
// payload, the pad and the CRC of an FPDU, on a receiver that waits for the
// rest.
func TestRSTInEachPart(t *testing.T) {
	whole := frame("an untagged header, and a payload", true)
	parts := map[string]int{"before": 0, "length": 1, "header": 10, "payload": 25, "pad": 2 + 33, "CRC": len(whole) - 2}
	for name, n := range parts {
		for _, crc := range []CRCMode{CRCPrefer, CRCAvoid} {
			for _, markers := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/crc=%v/markers=%v", name, crc == CRCPrefer, markers), func(t *testing.T) {
					client, server := connect(t, "tcp", &Config{CRC: crc}, &Config{CRC: crc, Markers: markers})
					data := whole[:n]
					if markers && n > 0 {
						data = append(make([]byte, markerLen), data...)
					}
					ended := make(chan error, 1)
					go func() { ended <- server.Receive(&collector{direct: 5}) }()
					if _, err := client.NetConn().Write(data); err != nil {
						t.Fatal(err)
					}
					client.NetConn().(*net.TCPConn).SetLinger(0)
					client.Close()
					if err := <-ended; !errors.Is(err, ErrConnectionLost) || !errors.Is(err, syscall.ECONNRESET) {
						t.Fatalf("Receive: %v, want the loss of the connection by a reset", err)
					}
					// The sending half finds out by itself, and is not held.
					err := errors.Join(server.Append([]byte("terminate"), nil), server.Flush())
					if !errors.Is(err, ErrConnectionLost) {
						t.Fatalf("Flush: %v", err)
					}
				})
			}
		}
	}
}

// TestRSTInStartup resets in each part of both frames.
func TestRSTInStartup(t *testing.T) {
	for _, n := range []int{0, 1, 15, 16, 17, 19, 20, 23, 24, 28} {
		req := frameBytes(t, Frame{Revision: 2, Enhanced: &enhanced.Data{}, PrivateData: []byte("private")})
		rep := frameBytes(t, Frame{Reply: true, Revision: 2, Enhanced: &enhanced.Data{}, PrivateData: []byte("private")})
		a, b := netPair(t, "tcp")
		done := serve(t, b, nil)
		a.Write(req[:n])
		a.(*net.TCPConn).SetLinger(0)
		a.Close()
		if r := <-done; !errors.Is(r.err, ErrConnectionLost) || !errors.Is(r.err, syscall.ECONNRESET) {
			t.Errorf("reset after %d bytes of the request: %v", n, r.err)
		}
		wantClosed(t, b)

		a, b = netPair(t, "tcp")
		go func() {
			readFrame(b, false)
			b.Write(rep[:n])
			b.(*net.TCPConn).SetLinger(0)
			b.Close()
		}()
		_, err := Client(context.Background(), a, nil)
		if !errors.Is(err, ErrConnectionLost) || RetryRevision1(err) != (n == 0) {
			t.Errorf("reset after %d bytes of the reply: %v", n, err)
		}
		wantClosed(t, a)
	}
}

// TestEveryULPDULength sends every value of the length field, with the whole FPDU
// and with less than the field announces.
func TestEveryULPDULength(t *testing.T) {
	data := make([]byte, 70000)
	lengths := []int{0, 1, 2, 3, 13, 14, 17, 18, 19, 127, 128, 505, 506, 507, 64767, 64768, 64769, 65533, 65534, 65535}
	for _, n := range lengths {
		for mode := range 4 {
			crc, markers := mode&1 == 0, mode&2 != 0
			ref := refSender{crc: crc, markers: markers}
			ref.fpdu(data[:n])
			rx := connAt(&memConn{in: chunks{bytes.NewReader(ref.out), 60000}}, crc, markers, 0)
			s := &collector{}
			code := received(t, rx, s)
			switch {
			case markers && n > 65000:
				// No 16-bit pointer reaches that far back.
				if code != CodeMarker || len(s.segs) != 0 {
					t.Errorf("length %d with markers: code %d", n, code)
				}
			case code != 0 || len(s.segs) != 1 || len(s.segs[0]) != n:
				t.Errorf("length %d, mode %d: code %d, %d segments", n, mode, code, len(s.segs))
			}
			rx = connAt(&memConn{in: bytes.NewReader(ref.out[:len(ref.out)-1])}, crc, markers, 0)
			if code := received(t, rx, &collector{}); code != CodeConnectionLost {
				t.Errorf("length %d, mode %d, the last octet missing: code %d", n, mode, code)
			}
		}
	}
	// A length that says too little or too much puts the CRC elsewhere.
	f := append(frame("abcdefghijklmnopqrstuvwxyz", true), make([]byte, 65600)...)
	for n := 0; n < 0x10000; n += 1 + n/64 {
		if n == 26 {
			continue
		}
		binary.BigEndian.PutUint16(f, uint16(n))
		rx := connAt(&memConn{in: bytes.NewReader(f)}, true, false, 0)
		s := &collector{}
		if code := received(t, rx, s); code != CodeCRC || len(s.segs) != 0 {
			t.Fatalf("length %d in place of 26: code %d, %d segments", n, code, len(s.segs))
		}
	}
}

// TestEveryStartupField has each field of the frames at its limits and past
// them. What is refused is refused as code 4.
func TestEveryStartupField(t *testing.T) {
	type field struct {
		name string
		at   int
		vals []byte
		ok   func(v byte) bool
	}
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	always := func(byte) bool { return true }
	for _, isReply := range []bool{false, true} {
		good := frameBytes(t, Frame{Reply: isReply, CRC: true, Revision: 2, Enhanced: &enhanced.Data{PeerToPeer: true, RTR: enhanced.RTRWrite, IRD: 1, ORD: 1}})
		fields := []field{
			{"first of the key", 0, all, func(v byte) bool { return v == 'M' }},
			{"last of the key", 15, all, func(v byte) bool { return v == 'e' }},
			// Without S the four bytes are private data.
			{"flags", 16, all, always},
			{"revision", 17, all, func(v byte) bool { return v == 1 || v == 2 }},
			{"length, high", 18, all, func(v byte) bool { return v == 0 }},
			{"length, low", 19, all, func(v byte) bool { return v == 4 }},
			{"IRD, high", 20, all, always}, {"IRD, low", 21, all, always},
			{"ORD, high", 22, all, always}, {"ORD, low", 23, all, always},
		}
		for _, f := range fields {
			for _, v := range f.vals {
				b := bytes.Clone(good)
				b[f.at] = v
				_, err := ParseFrame(b, isReply)
				if (err == nil) != f.ok(v) || err != nil && !errors.Is(err, ErrStartup) {
					t.Errorf("reply %v, %s %#x: %v", isReply, f.name, v, err)
				}
			}
		}
		for n := range len(good) {
			if _, err := ParseFrame(good[:n], isReply); !errors.Is(err, ErrStartup) {
				t.Errorf("reply %v of %d bytes: %v", isReply, n, err)
			}
		}
		if _, err := ParseFrame(append(good, 0), isReply); !errors.Is(err, ErrStartup) {
			t.Errorf("reply %v with a byte too many: %v", isReply, err)
		}
	}
}

// TestHostileHello: whatever a peer that claims to be an IronWarp offers, the
// length that is agreed on can be framed.
func TestHostileHello(t *testing.T) {
	for _, theirs := range []uint32{0, 1, 2, 127, 128, 129, 64765, 64766, 64767, 65535, 65536, 1 << 31, 1<<32 - 1} {
		for _, ours := range []int{0, 1, 128, 40000, 1 << 30} {
			cfg := Config{LargeFPDU: ours}
			n := agreeLarge(cfg.largeFPDU(), hello{maxULPDU: theirs}, false)
			if n != 0 && (n < minMULPDU-3 || n > MaxLargeFPDU || uint32(n) > theirs || padLen(n) != 0) {
				t.Errorf("ours %d, theirs %d: %d", ours, theirs, n)
			}
			if agreeLarge(cfg.largeFPDU(), hello{maxULPDU: theirs}, true) != 0 {
				t.Errorf("ours %d, theirs %d: large FPDUs with markers", ours, theirs)
			}
		}
	}
}

// TestFaultsStayOnOneStream: a peer that breaks a rule of MPA ends its stream and
// no other of the same pool.
func TestFaultsStayOnOneStream(t *testing.T) {
	pool := &Pool{}
	good, goodServer := connect(t, "tcp", &Config{Pool: pool}, &Config{Pool: pool})
	for range 20 {
		bad, badServer := connect(t, "tcp", &Config{Pool: pool}, &Config{Pool: pool})
		f := frame("bad", true)
		f[3] ^= 1
		bad.NetConn().Write(f)
		if err := badServer.Receive(&collector{}); !errors.Is(err, ErrCRC) {
			t.Fatal(err)
		}
		badServer.Close()
		exchangeSegments(t, good, goodServer, 0)
	}
	if len(pool.reads) > 2 {
		t.Errorf("%d read buffers for one stream at a time", len(pool.reads))
	}
}

// TestEveryCodeOfSection8 provokes each code.
func TestEveryCodeOfSection8(t *testing.T) {
	is := func(err error, code uint8) bool {
		var f *ddp.Error
		return errors.As(err, &f) && f.Layer == 2 && f.Type == 0 && f.Code == code
	}
	f := frame("segment", true)
	f[3]++
	_, startup := Server(context.Background(), &memConn{in: bytes.NewReader(make([]byte, 20))}, nil)
	_, lostInStartup := Server(context.Background(), &memConn{in: bytes.NewReader(nil)}, nil)
	for _, tt := range []struct {
		name string
		err  error
		code uint8
	}{
		{"connection closed in an FPDU", connAt(&memConn{in: bytes.NewReader(f[:5])}, true, false, 0).Receive(&collector{}), 1},
		{"connection lost", connAt(&memConn{in: errReader{}}, true, false, 0).Receive(&collector{}), 1},
		{"connection closed in start-up", lostInStartup, 1},
		{"CRC", connAt(&memConn{in: bytes.NewReader(f)}, true, false, 0).Receive(&collector{}), 2},
		{"marker", connAt(&memConn{in: bytes.NewReader(append([]byte{0, 0, 0, 4}, f...))}, false, true, 0).Receive(&collector{}), 3},
		{"start-up frame", startup, 4},
		{"local", LocalFault(errReader{}.err()), 5},
	} {
		if !is(tt.err, tt.code) {
			t.Errorf("%s: %v, want code %d of the LLP's type 0", tt.name, tt.err, tt.code)
		}
	}
}

type errReader struct{}

func (errReader) err() error                 { return syscall.ETIMEDOUT }
func (e errReader) Read([]byte) (int, error) { return 0, e.err() }

var _ io.Reader = errReader{}
