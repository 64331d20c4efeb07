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
// at offset pos of the grid: with the one right before it, without the one
// right behind it, which belongs to the next.
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
}

// appendMarked is Append with markers.
func (c *Conn) appendMarked(hdr []byte, sgl [][]byte, n int) error {
	t := &c.tx
	size := fpduLen(n)
	markers := markersIn(t.pos, size)
	pad := padLen(n)
	need := lengthLen + len(hdr) + pad + crcLen + markers*markerLen
	m := marking{c: c, b: c.room(need)}
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
			t.w.Append(p[:k])
			m.advance(k)
			p = p[k:]
		}
	}
	m.copyAll(padding[:pad])
	m.marker()
	m.b = binary.LittleEndian.AppendUint32(m.b, m.crc)
	t.w.Append(m.b[len(m.b)-crcLen:])
	m.advance(crcLen)
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
	m.c.tx.w.Append(m.b[from:])
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
		body, err := stripMarkers(fpdu, r.pos)
		if err != nil {
			return false, err
		}
		if c.held.Load() {
			c.release()
		}
		r.head += wire
		r.pos = (r.pos + wire) % markerSpacing
		r.batch = true
		if err := s.Segment(body[lengthLen : lengthLen+n : lengthLen+n]); err != nil {
			return false, err
		}
	}
}

// stripMarkers takes the markers out of an FPDU that begins at offset pos of
// the grid, in place, and checks each.
func stripMarkers(fpdu []byte, pos int) ([]byte, error) {
	start := 0 // of the length field
	if pos == 0 {
		start = markerLen
	}
	out := fpdu[start:start]
	next := 0 // of the next marker
	if pos > 0 {
		next = markerSpacing - pos
	}
	for at := 0; at < len(fpdu); {
		if at == next {
			// The lowest two bits are treated as zero (RFC 5044 section 4.2).
			ptr, want := int(binary.BigEndian.Uint16(fpdu[at+2:]))&^3, max(0, at-start)
			if ptr != want {
				return nil, fault(CodeMarker, "marker points %d bytes back and the FPDU begins %d bytes back", ptr, want)
			}
			at += markerLen
			next += markerSpacing
			continue
		}
		end := min(next, len(fpdu))
		out = append(out, fpdu[at:end]...)
		at = end
	}
	return out, nil
}
