package mpa

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
)

// TestSegmentsArriveWhole sends segments of many sizes over every kind of
// connection and framing and compares what arrives.
func TestSegmentsArriveWhole(t *testing.T) {
	pool := &Pool{}
	for _, kind := range []string{"tcp", "pipe"} {
		for _, crc := range []CRCMode{CRCPrefer, CRCAvoid} {
			for _, markers := range []bool{false, true} {
				for _, direct := range []int{0, 1000, 1 << 20} {
					name := fmt.Sprintf("%s/crc=%v/markers=%v/direct=%d", kind, crc == CRCPrefer, markers, direct)
					t.Run(name, func(t *testing.T) {
						cfg := &Config{CRC: crc, Markers: markers, Pool: pool}
						a, b := connect(t, kind, cfg, cfg)
						if a.CRC() != (crc == CRCPrefer) || a.MarkersSend() != markers || b.MarkersSend() != markers {
							t.Fatalf("negotiated CRC %v, markers %v and %v", a.CRC(), a.MarkersSend(), b.MarkersSend())
						}
						exchangeSegments(t, a, b, direct)
						exchangeSegments(t, b, a, direct)
					})
				}
			}
		}
	}
}

func exchangeSegments(t *testing.T, from, to *Conn, direct int) {
	t.Helper()
	rng := rand.New(rand.NewPCG(7, uint64(direct)))
	sizes := []int{0, 1, 2, 3, 4, 5, 17, 18, 19, 242, 256, 257, 490, 500, 502, 506, 510, 1000, 1446, 1460, 9000, 40000, 64000}
	for range 200 {
		sizes = append(sizes, rng.IntN(3000))
	}
	sizes = append(sizes, 4) // the last one is never direct, so its trailer is read
	var want [][]byte
	for _, n := range sizes {
		p := make([]byte, n)
		for i := range p {
			p[i] = byte(rng.Uint32())
		}
		want = append(want, p)
	}
	sent := make(chan error, 1)
	go func() {
		sent <- func() error {
			for _, p := range want {
				if from.Full() {
					if done, err := from.TryFlush(); err != nil {
						return err
					} else if !done {
						if err := from.Flush(); err != nil {
							return err
						}
					}
				}
				hdr := min(18, len(p))
				body := p[hdr:]
				k := len(body) / 3
				scratch := append([]byte(nil), p[:hdr]...)
				sgl := [][]byte{body[:k], body[k:]}
				if err := from.Append(scratch, sgl); err != nil {
					return err
				}
				clear(scratch) // the header was copied and the list is not kept
				clear(sgl)
			}
			return from.Flush()
		}()
	}()
	s := until(len(want), direct)
	if err := to.Receive(s); err != errEnough {
		t.Fatalf("Receive: %v after %d of %d segments", err, len(s.segs), len(want))
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	for i := range want {
		if !bytes.Equal(s.segs[i], want[i]) {
			t.Fatalf("segment %d of %d bytes arrived as %d bytes, or differs", i, len(want[i]), len(s.segs[i]))
		}
	}
	if s.batches == 0 {
		t.Error("no BatchEnd")
	}
	// With markers the whole FPDU is verified first.
	if canDirect := direct > 0 && (!to.CRC() || to.MarkersRecv()); s.directs > 0 && !canDirect {
		t.Error("segments were placed before they were verified")
	}
	to.rx.err = nil // go on for the next exchange
}

func TestLengthLimit(t *testing.T) {
	a, b := connect(t, "tcp", nil, nil)
	if err := a.Append(make([]byte, 14), [][]byte{make([]byte, 64755)}); !errors.Is(err, ErrTooLong) {
		t.Fatalf("Append of 64769 bytes: %v", err)
	}
	if err := a.Append(make([]byte, 14), [][]byte{make([]byte, 64754)}); err != nil {
		t.Fatal(err)
	}
	if err := a.Flush(); err != nil {
		t.Fatal(err)
	}
	s := until(1, 0)
	if err := b.Receive(s); err != errEnough || len(s.segs[0]) != MaxULPDU {
		t.Fatalf("Receive: %v", err)
	}
}

// TestFirstBatchAfterAPauseIsSmall so that the peer has something to do early;
// while there is more the batches are large.
func TestFirstBatchAfterAPauseIsSmall(t *testing.T) {
	client, server := connect(t, "tcp", &Config{LargeFPDU: MaxLargeFPDU}, &Config{LargeFPDU: MaxLargeFPDU})
	go server.Receive(&counter{mem: make([]byte, 1<<16), hdr: 14, want: math.MaxInt})
	payload := [][]byte{make([]byte, 8<<10)}
	fill := func() (bytes int) {
		for !client.Full() {
			if err := client.Append(make([]byte, 14), payload); err != nil {
				t.Fatal(err)
			}
			bytes += 8 << 10
		}
		return bytes
	}
	flush := func() {
		t.Helper()
		if done, err := client.TryFlush(); err != nil {
			t.Fatal(err)
		} else if !done {
			if err := client.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 3 {
		if n := fill(); n < 32<<10 || n > 40<<10 {
			t.Errorf("the first batch has %d bytes, want 32 KiB", n)
		}
		for range 3 {
			flush()
			if n := fill(); n < 1<<20-16<<10 || n > 1<<20+8<<10 {
				t.Errorf("a batch that follows a full one has %d bytes, want 1 MiB", n)
			}
		}
		flush()
		// The queue has run dry. What is short goes at once.
		if err := client.Append(make([]byte, 14), nil); err != nil {
			t.Fatal(err)
		}
		for done := false; !done; {
			var err error
			if done, err = client.TryFlush(); err != nil {
				t.Fatal(err)
			}
			runtime.Gosched()
		}
	}
}

func TestEndBetweenFPDUsIsEOF(t *testing.T) {
	for _, kind := range []string{"tcp", "pipe"} {
		t.Run(kind, func(t *testing.T) {
			a, b := connect(t, kind, nil, nil)
			go func() {
				a.Append([]byte("segment"), nil)
				a.Flush()
				if kind == "pipe" {
					a.Close()
				} else {
					a.CloseWrite()
				}
			}()
			s := &collector{}
			if err := b.Receive(s); err != io.EOF {
				t.Fatalf("Receive: %v, want io.EOF", err)
			}
			if len(s.segs) != 1 {
				t.Fatalf("%d segments, want 1", len(s.segs))
			}
			if err := b.Receive(s); err != io.EOF {
				t.Fatalf("Receive after its end: %v, want io.EOF again", err)
			}
		})
	}
}

func TestEndInsideAnFPDUIsAnError(t *testing.T) {
	whole := frame("0123456789abcdefghijklmnop", true)
	for _, crc := range []CRCMode{CRCPrefer, CRCAvoid} {
		for cut := 1; cut < len(whole); cut++ {
			a, b := connect(t, "tcp", &Config{CRC: crc}, &Config{CRC: crc})
			if _, err := a.NetConn().Write(whole[:cut]); err != nil {
				t.Fatal(err)
			}
			a.CloseWrite()
			err := b.Receive(&collector{direct: 5})
			if !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatalf("crc %v: end after %d of %d bytes: %v", crc, cut, len(whole), err)
			}
			var de *ddp.Error
			if !errors.As(err, &de) || de.Layer != ddp.LayerLLP || de.Code != CodeConnectionLost {
				t.Fatalf("end inside an FPDU: %v, want the LLP's code 1", err)
			}
		}
	}
}

// frame returns an FPDU around ulpdu, without markers.
func frame(ulpdu string, crc bool) []byte {
	n := len(ulpdu)
	b := append([]byte{byte(n >> 8), byte(n)}, ulpdu...)
	b = append(b, padding[:padLen(n)]...)
	if crc {
		return appendCRC(b)
	}
	return append(b, 0, 0, 0, 0)
}
