package mpa

import (
	"encoding/binary"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/internal/crc32c"
)

// Markers, RFC 5044 sections 4.2 and 4.3: every 512 bytes of the stream, from
// the first byte of full operation on, stand 16 reserved bits and the distance
// in bytes from the FPDU's length field to the marker, or 0 where the marker
// precedes the length field.
const (
	markerLen     = 4
	markerSpacing = 512
)

// markersIn is the number of markers within an FPDU of size bytes that begins
// at offset pos of the grid. A marker right before the FPDU counts; one right
// behind it belongs to the next.
func markersIn(pos, size int) int {
	n := 0
	if pos == 0 {
		n, pos = 1, markerLen
	}
	if rest := size - (markerSpacing - pos); rest > 0 {
		n += (rest + markerSpacing - markerLen - 1) / (markerSpacing - markerLen)
	}
	return n
}

// marking is an FPDU with markers on its way into the batch.
type marking struct {
	c     *Conn
	b     []byte // room in the arena
	start int    // bytes of the FPDU, markers included, since the length field
	crc   uint32

	watched bool
}

// appendMarked is Append with markers.
func (c *Conn) appendMarked(hdr []byte, sgl [][]byte, n int, watched bool) error {
	t := &c.tx
	size, grid := fpduLen(n), t.pos
	markers := markersIn(t.pos, size)
	pad := padLen(n)
	need := lengthLen + len(hdr) + pad + crcLen + markers*markerLen
	m := marking{c: c, b: c.room(need), watched: watched}
	if t.pos == 0 {
		m.copy(0, 0, 0, 0)
		t.pos, m.start = markerLen, 0
	}
	m.copy(byte(n>>8), byte(n))
	m.advance(lengthLen)
	m.copyAll(hdr)
	for _, p := range sgl {
		for len(p) > 0 {
			m.marker()
			k := min(len(p), markerSpacing-t.pos)
			m.sum(p[:k])
			m.put(p[:k])
			m.advance(k)
			p = p[k:]
		}
	}
	m.copyAll(padding[:pad])
	m.marker()
	m.b = binary.LittleEndian.AppendUint32(m.b, m.crc)
	m.put(m.b[len(m.b)-crcLen:])
	m.advance(crcLen)
	if watched {
		c.showSent(hdr, n, grid)
	}
	t.pos %= markerSpacing
	t.used += need
	t.fpdus++
	return nil
}

// marker puts a marker here if one is due.
func (m *marking) marker() {
	if t := &m.c.tx; t.pos == markerSpacing {
		m.copy(0, 0, byte(m.start>>8), byte(m.start))
		t.pos = 0
		m.advance(markerLen)
	}
}

// advance moves on the grid.
func (m *marking) advance(n int) {
	m.c.tx.pos += n
	m.start += n
}

func (m *marking) sum(p []byte) {
	if m.c.p.crc {
		m.crc = crc32c.Update(m.crc, p)
	}
}

// copy appends bytes by way of the arena.
func (m *marking) copy(p ...byte) {
	from := len(m.b)
	m.b = append(m.b, p...)
	m.sum(m.b[from:])
	m.put(m.b[from:])
}

// put hands bytes to the batch.
func (m *marking) put(b []byte) {
	m.c.tx.w.Append(b)
	if m.watched {
		m.c.tx.seen = append(m.c.tx.seen, b)
	}
}

// copyAll appends p by way of the arena, with the markers that fall into it.
func (m *marking) copyAll(p []byte) {
	for len(p) > 0 {
		m.marker()
		k := min(len(p), markerSpacing-m.c.tx.pos)
		m.copy(p[:k]...)
		m.advance(k)
		p = p[k:]
	}
}

// parseMarked hands over what is complete in the buffer, after taking the
// markers out.
func (c *Conn) parseMarked(s ddp.Sink) (again bool, err error) {
	r := &c.rx
	for {
		fpdu := r.buf[r.head:r.tail]
		lead := 0
		if r.pos == 0 {
			lead = markerLen
		}
		if len(fpdu) < lead+lengthLen {
			return false, nil
		}
		n := int(binary.BigEndian.Uint16(fpdu[lead:]))
		wire := fpduLen(n) + markerLen*markersIn(r.pos, fpduLen(n))
		if len(fpdu) < wire {
			return false, nil
		}
		fpdu = fpdu[:wire]
		if c.p.crc && !checkCRC(fpdu) {
			return false, fault(CodeCRC, "wrong CRC in an FPDU with a ULPDU of %d bytes", n)
		}
		if err := checkMarkers(fpdu, r.pos); err != nil {
			return false, err
		}
		if c.held.Load() {
			c.release()
		}
		if c.tap.On() {
			c.showReceived(fpdu, r.pos, n)
		}
		u := unmarked{b: fpdu, next: firstMarker(r.pos)}
		r.head += wire
		r.pos = (r.pos + wire) % markerSpacing
		r.batch = true
		r.turn++
		if n > markerSpacing {
			placed, err := c.placeMarked(s, u, n)
			if err != nil {
				return false, err
			}
			if placed {
				continue
			}
		}
		body := u.strip()
		if err := s.Segment(body[lengthLen : lengthLen+n : lengthLen+n]); err != nil {
			return false, err
		}
	}
}

// placeMarked hands over a verified segment of n bytes piece by piece, so that
// its payload is copied once and without the markers. placed reports whether the
// sink wanted that.
func (c *Conn) placeMarked(s ddp.Sink, u unmarked, n int) (placed bool, err error) {
	r := &c.rx
	for at, h := 0, u; at < len(r.first); {
		at += copy(r.first[at:], h.piece())
	}
	hdrLen, ok, err := s.Direct(r.first[lengthLen:], n)
	if err != nil || !ok {
		return false, err
	}
	u.skip(lengthLen + hdrLen)
	for left := n - hdrLen; left > 0; {
		b, err := s.DirectBuffer()
		if err != nil {
			return false, err
		}
		k := u.read(b[:min(len(b), left)])
		if err := s.DirectDone(k); err != nil {
			return false, err
		}
		if k == 0 {
			return false, errNoDirectBuffer
		}
		left -= k
	}
	return true, nil
}

// firstMarker is the position of the first marker of an FPDU that begins at offset
// pos of the grid.
func firstMarker(pos int) int { return (markerSpacing - pos) % markerSpacing }

// checkMarkers checks each marker of an FPDU that begins at offset pos of the
// grid.
func checkMarkers(fpdu []byte, pos int) error {
	start := 0 // of the length field
	if pos == 0 {
		start = markerLen
	}
	for at := firstMarker(pos); at < len(fpdu); at += markerSpacing {
		// The lowest two bits are treated as zero (RFC 5044 section 4.2).
		ptr, want := int(binary.BigEndian.Uint16(fpdu[at+2:]))&^3, max(0, at-start)
		if ptr != want {
			return fault(CodeMarker, "marker points %d bytes back and the FPDU begins %d bytes back", ptr, want)
		}
	}
	return nil
}

// unmarked walks through the bytes of an FPDU that are not markers.
type unmarked struct {
	b        []byte
	at, next int // offsets of the walk and of the next marker
}

// piece takes the bytes up to the next marker.
func (u *unmarked) piece() []byte {
	if u.at == u.next {
		u.at += markerLen
		u.next += markerSpacing
	}
	p := u.b[u.at:min(u.next, len(u.b))]
	u.at += len(p)
	return p
}

// skip passes over n bytes.
func (u *unmarked) skip(n int) {
	for n > 0 {
		p := u.piece()
		u.at -= max(0, len(p)-n)
		n -= len(p)
	}
}

// read fills p.
func (u *unmarked) read(p []byte) (n int) {
	for n < len(p) {
		q := u.piece()
		k := copy(p[n:], q)
		u.at -= len(q) - k
		n += k
	}
	return n
}

// strip moves the bytes together, in place.
func (u *unmarked) strip() []byte {
	p := u.piece()
	for u.at < len(u.b) {
		p = append(p, u.piece()...)
	}
	return p
}
