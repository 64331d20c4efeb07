package mpa

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
)

// refSender and refReceive are RFC 5044 section 4 taken literally, byte by
// byte, over a stream position that is not reduced modulo anything.

// refSender frames ULPDUs. Its stream begins at octet pos of full operation.
type refSender struct {
	crc, markers bool
	pos          uint64
	out          []byte
}

func (r *refSender) fpdu(ulpdu []byte) {
	body := append([]byte{byte(len(ulpdu) >> 8), byte(len(ulpdu))}, ulpdu...)
	for len(body)%4 != 0 {
		body = append(body, 0)
	}
	var fpdu []byte
	start := r.pos // of the ULPDU Length field
	put := func(b []byte) {
		for _, x := range b {
			if r.markers && r.pos%markerSpacing == 0 {
				ptr := r.pos - start
				if len(fpdu) == 0 {
					start += markerLen
				}
				fpdu = append(fpdu, 0, 0, byte(ptr>>8), byte(ptr))
				r.pos += markerLen
			}
			fpdu = append(fpdu, x)
			r.pos++
		}
	}
	put(body)
	// A marker right behind the pad belongs to what the CRC covers.
	if r.markers && r.pos%markerSpacing == 0 {
		ptr := r.pos - start
		fpdu = append(fpdu, 0, 0, byte(ptr>>8), byte(ptr))
		r.pos += markerLen
	}
	if r.crc {
		fpdu = appendCRC(fpdu)
	} else {
		fpdu = append(fpdu, 0, 0, 0, 0)
	}
	r.pos += crcLen
	r.out = append(r.out, fpdu...)
}

// refReceive takes a stream apart. code is 0 where the stream ends between
// FPDUs, otherwise section 8's code of the fault.
func refReceive(stream []byte, crc, markers bool, pos uint64) (segs [][]byte, code uint8) {
	for at := 0; at < len(stream); {
		type marker struct{ ptr, pos uint64 }
		var seen []marker
		var body []byte
		from := at
		cut := false
		take := func(n int) {
			for n > 0 && !cut {
				if markers && pos%markerSpacing == 0 {
					if at+markerLen > len(stream) {
						cut = true
						return
					}
					seen = append(seen, marker{uint64(stream[at+2])<<8 | uint64(stream[at+3])&^3, pos})
					at += markerLen
					pos += markerLen
				}
				if at >= len(stream) {
					cut = true
					return
				}
				body = append(body, stream[at])
				at++
				pos++
				n--
			}
		}
		take(1)
		start := pos - 1
		take(1)
		if cut {
			return segs, CodeConnectionLost
		}
		n := int(body[0])<<8 | int(body[1])
		take(n + (4-(n+2)%4)%4)
		take(crcLen)
		if cut {
			return segs, CodeConnectionLost
		}
		if crc && !bytes.Equal(appendCRC(bytes.Clone(stream[from:at-crcLen])), stream[from:at]) {
			return segs, CodeCRC
		}
		for _, m := range seen {
			want := uint64(0)
			if m.pos > start {
				want = m.pos - start
			}
			if m.ptr != want {
				return segs, CodeMarker
			}
		}
		segs = append(segs, body[2:2+n])
	}
	return segs, 0
}

// received runs Receive over a stream and returns the outcome as refReceive
// does.
func received(t *testing.T, c *Conn, s *collector) uint8 {
	t.Helper()
	err := c.Receive(s)
	if err == io.EOF {
		return 0
	}
	var fault *ddp.Error
	if !errors.As(err, &fault) || fault.Layer != ddp.LayerLLP || fault.Type != TypeMPA {
		t.Fatalf("Receive: %v, want a fault of the LLP", err)
	}
	return fault.Code
}

func sameSegments(t *testing.T, got, want [][]byte) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d segments, want %d", len(got), len(want))
	}
	for i := range want {
		if !bytes.Equal(got[i], want[i]) {
			t.Fatalf("segment %d: %d bytes arrived, want %d, or they differ", i, len(got[i]), len(want[i]))
		}
	}
}

// connAt is a Conn without start-up, on memory, whose stream is at octet pos of
// full operation in both directions.
func connAt(mc *memConn, crc, markers bool, pos uint64) *Conn {
	c := newConn(mc, &Config{Pool: &Pool{}}, params{initiator: true, crc: crc, txMarkers: markers, rxMarkers: markers})
	c.tx.pos, c.rx.pos = int(pos%markerSpacing), int(pos%markerSpacing)
	return c
}
