package mpa

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
)

// pattern is a ULPDU of n bytes in which no shift goes unnoticed.
func pattern(n, seed int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(i*7 + i>>8 + seed)
	}
	return p
}

// TestMarkersAtEveryOffset sends FPDUs that begin at every offset of the
// 512-octet grid, with sizes that bring a marker before the length, right
// behind it, into header, payload and pad, before the CRC and right behind the
// FPDU (RFC 5044 section 4.3).
func TestMarkersAtEveryOffset(t *testing.T) {
	for _, crc := range []bool{true, false} {
		for pos := uint64(0); pos < markerSpacing; pos += 4 {
			left := int(markerSpacing - pos) // bytes before the next marker
			for _, n := range []int{1, 2, 14, 15, left - 14, left - 10, left - 9, left - 8, left - 7, left - 6, left - 5, left - 4, left - 3,
				left - 2, left - 1, left, left + 1, left + 4, left + 502, left + 506, left + 510, 1442, 3000} {
				if n < 1 {
					continue
				}
				segs := [][]byte{pattern(n, 1), pattern(18, 2), pattern(700, 3)}
				ref := refSender{crc: crc, markers: true, pos: pos}
				mc := &memConn{}
				tx := connAt(mc, crc, true, pos)
				for _, s := range segs {
					ref.fpdu(s)
					hdr := min(14, len(s))
					cut := hdr + (len(s)-hdr)/3
					if err := tx.Append(s[:hdr], [][]byte{s[hdr:cut], s[cut:]}); err != nil {
						t.Fatal(err)
					}
				}
				if err := tx.Flush(); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(mc.out.Bytes(), ref.out) {
					t.Fatalf("CRC %v, FPDU of %d at offset %d: sent\n%x, want\n%x", crc, n, pos, mc.out.Bytes(), ref.out)
				}
				rx := connAt(&memConn{in: chunks{bytes.NewReader(ref.out), 509}}, crc, true, pos)
				s := &collector{}
				if code := received(t, rx, s); code != 0 {
					t.Fatalf("CRC %v, FPDU of %d at offset %d: code %d", crc, n, pos, code)
				}
				sameSegments(t, s.segs, segs)
			}
		}
	}
}

// TestGridGoesOnBeyond32Bits lets the stream pass octets 2^32 and 2^63: the
// grid is relative to the first octet of full operation, not to any counter
// that wraps (RFC 5044 section 4.3).
func TestGridGoesOnBeyond32Bits(t *testing.T) {
	for _, from := range []uint64{1<<32 - 1000, 1<<32 - 4, 1 << 32, 1<<63 - 2000, 1<<64 - 4096} {
		ref := refSender{crc: true, markers: true, pos: from}
		mc := &memConn{}
		tx := connAt(mc, true, true, from)
		var want [][]byte
		for i := range 12 {
			seg := pattern(100+i*13, i)
			want = append(want, seg)
			ref.fpdu(seg)
			if err := tx.Append(seg, nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := tx.Flush(); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(mc.out.Bytes(), ref.out) {
			t.Fatalf("from octet %d: the grid is lost", from)
		}
		rx := connAt(&memConn{in: bytes.NewReader(ref.out)}, true, true, from)
		s := &collector{}
		if code := received(t, rx, s); code != 0 {
			t.Fatalf("from octet %d: code %d", from, code)
		}
		sameSegments(t, s.segs, want)
		if tx.tx.pos != int(ref.pos%markerSpacing) || rx.rx.pos != tx.tx.pos {
			t.Errorf("from octet %d: sender at %d, receiver at %d of the grid, want %d", from, tx.tx.pos, rx.rx.pos, ref.pos%markerSpacing)
		}
	}
}

// TestMarkersInEachDirection is each combination of what the two ends ask for,
// with and without CRC (RFC 5044 section 7.1.1).
func TestMarkersInEachDirection(t *testing.T) {
	for _, kind := range []string{"tcp", "pipe"} {
		for _, crc := range []CRCMode{CRCPrefer, CRCAvoid} {
			for mask := range 4 {
				toClient, toServer := mask&1 != 0, mask&2 != 0
				t.Run(fmt.Sprintf("%s/crc=%v/client asks=%v/server asks=%v", kind, crc == CRCPrefer, toClient, toServer), func(t *testing.T) {
					pool := &Pool{}
					a, b := connect(t, kind, &Config{CRC: crc, Markers: toClient, Pool: pool}, &Config{CRC: crc, Markers: toServer, Pool: pool})
					if a.MarkersRecv() != toClient || b.MarkersSend() != toClient || b.MarkersRecv() != toServer || a.MarkersSend() != toServer {
						t.Fatalf("markers to the client %v and %v, to the server %v and %v",
							a.MarkersRecv(), b.MarkersSend(), b.MarkersRecv(), a.MarkersSend())
					}
					exchangeSegments(t, a, b, 100)
					exchangeSegments(t, b, a, 100)
				})
			}
		}
	}
}

// TestEachMarkerIsChecked alters the pointer of each marker of a stream, in
// each of its bits but the reserved ones (RFC 5044 sections 4.2 and 8).
func TestEachMarkerIsChecked(t *testing.T) {
	for _, crc := range []bool{true, false} {
		ref := refSender{crc: crc, markers: true}
		for _, n := range []int{100, 390, 20, 1442, 4000, 1} {
			ref.fpdu(pattern(n, n))
		}
		for at := 0; at < len(ref.out); at += markerSpacing {
			for bit := range 32 {
				bad := bytes.Clone(ref.out)
				binary.BigEndian.PutUint32(bad[at:], binary.BigEndian.Uint32(bad[at:])^1<<bit)
				s := &collector{}
				code := received(t, connAt(&memConn{in: bytes.NewReader(bad)}, crc, true, 0), s)
				segs, want := refReceive(bad, crc, true, 0)
				if code != want {
					t.Fatalf("CRC %v, marker at %d, bit %d altered: code %d, want %d", crc, at, bit, code, want)
				}
				sameSegments(t, s.segs, segs)
				if !crc {
					ignored := bit >= 16 || bit < 2
					if (code == 0) != ignored || !ignored && code != CodeMarker {
						t.Fatalf("marker at %d, bit %d altered: code %d", at, bit, code)
					}
				}
			}
		}
	}
}

// TestValidCRCOverAWrongMarker is a sender that miscounts: code 3, not 2
// (RFC 5044 section 8).
func TestValidCRCOverAWrongMarker(t *testing.T) {
	// The sender thinks that it is at another offset of the grid.
	ref := refSender{crc: true, markers: true}
	ref.fpdu(pattern(600, 1))
	bad := ref.out[:len(ref.out)-crcLen]
	bad[markerSpacing+3] += 8
	bad = appendCRC(bad)
	s := &collector{}
	if code := received(t, connAt(&memConn{in: bytes.NewReader(bad)}, true, true, 0), s); code != CodeMarker || len(s.segs) != 0 {
		t.Fatalf("code %d and %d segments, want code %d and none", code, len(s.segs), CodeMarker)
	}
}

// TestMarkersDoNotCopyPayloads looks where the bytes that are written lie.
func TestMarkersDoNotCopyPayloads(t *testing.T) {
	tx := connAt(&memConn{}, true, true, 0)
	payload := make([]byte, 64000)
	if err := tx.Append(make([]byte, 14), [][]byte{payload}); err != nil {
		t.Fatal(err)
	}
	if tx.tx.used > 2+14+3+crcLen+markerLen*(64000/508+2) {
		t.Errorf("%d bytes of an FPDU with a payload of %d were copied", tx.tx.used, len(payload))
	}
}

// TestMarkedPayloadsArePlacedOnceVerified: the payload of a large FPDU goes to
// its place in pieces without markers, but not a byte of it before CRC and
// markers are known to be right.
func TestMarkedPayloadsArePlacedOnceVerified(t *testing.T) {
	for _, crc := range []bool{true, false} {
		ref := refSender{crc: crc, markers: true, pos: 500}
		want := pattern(5000, 9)
		ref.fpdu(want)
		for _, piece := range []int{1, 3, 700, 1 << 20} {
			rx := connAt(&memConn{in: chunks{bytes.NewReader(ref.out), 999}}, crc, true, 500)
			s := &collector{direct: piece}
			if code := received(t, rx, s); code != 0 || s.directs != 1 {
				t.Fatalf("code %d, %d segments placed directly, want 1", code, s.directs)
			}
			sameSegments(t, s.segs, [][]byte{want})
		}
		bad := bytes.Clone(ref.out)
		bad[12+9*markerSpacing+3] ^= 8 // the last marker
		wantCode := CodeMarker
		if crc {
			wantCode = CodeCRC
		}
		s := &collector{direct: 100}
		if code := received(t, connAt(&memConn{in: bytes.NewReader(bad)}, crc, true, 500), s); code != wantCode || s.cur != nil {
			t.Errorf("CRC %v: code %d, want %d; %d bytes were placed", crc, code, wantCode, len(s.cur))
		}
	}
}

// TestRandomStreamsAgreeWithTheReference sends and receives random sizes in
// random pieces, by the code and by the reference.
func TestRandomStreamsAgreeWithTheReference(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 44))
	for round := range 200 {
		crc, markers, pos := round&1 == 0, round&2 == 0, uint64(rng.IntN(128))*4
		ref := refSender{crc: crc, markers: markers, pos: pos}
		mc := &memConn{}
		tx := connAt(mc, crc, markers, pos)
		var want [][]byte
		for range 1 + rng.IntN(20) {
			n := 1 + rng.IntN(2000)
			if rng.IntN(20) == 0 {
				n = 1 + rng.IntN(MaxULPDU)
			}
			seg := pattern(n, rng.IntN(256))
			want = append(want, seg)
			ref.fpdu(seg)
			hdr := rng.IntN(min(n, 40) + 1)
			cut := hdr + rng.IntN(n-hdr+1)
			if err := tx.Append(seg[:hdr], [][]byte{seg[hdr:cut], nil, seg[cut:]}); err != nil {
				t.Fatal(err)
			}
		}
		if err := tx.Flush(); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(mc.out.Bytes(), ref.out) {
			t.Fatalf("round %d: the reference sends something else", round)
		}
		rx := connAt(&memConn{in: chunks{&mc.out, 1 + rng.IntN(5000)}}, crc, markers, pos)
		s := &collector{direct: rng.IntN(2) * 700}
		if code := received(t, rx, s); code != 0 {
			t.Fatalf("round %d: code %d", round, code)
		}
		sameSegments(t, s.segs, want)
	}
}
