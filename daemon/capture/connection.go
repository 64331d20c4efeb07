package capture

import (
	"encoding/binary"

	"github.com/gopacket/gopacket/layers"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/ddp/tap"
	"github.com/ironwarp/ironwarp/internal/crc32c"
	"github.com/ironwarp/ironwarp/mpa"
)

// connection is a TCP connection in the file.
type connection struct {
	dirs [2]direction // as dir says
	over bool
}

// direction is what one end sends.
type direction struct {
	next     uint32 // sequence number of the next byte
	acked    uint32 // by the other end
	position uint64 // that the next byte should have
	any      bool   // there was an FPDU
}

// segment writes an FPDU as a TCP segment, and before the first of a stream what its connection began with.
func (w *Writer) segment(r *record, body []byte) error {
	c := w.tcp[r.stream]
	if c == nil {
		if len(w.tcp) >= streamsKept {
			clear(w.tcp)
			w.ended = nil
		}
		c = &connection{}
		w.tcp[r.stream] = c
		if err := w.open(c, r); err != nil {
			return err
		}
	}
	switch {
	case c.over || r.kind == tap.Began:
		return nil
	case r.kind == tap.Ended:
		return w.end(c, r)
	}
	d := &c.dirs[dir(r.sent)]
	if !d.any && r.grid != 0 {
		if err := w.fill(c, r); err != nil {
			return err
		}
	}
	if d.any {
		d.next += uint32(r.position - d.position) // what the ring has dropped
	}
	d.any, d.position = true, r.position+uint64(r.length)
	if err := w.send(c, r, r.sent, layers.TCP{PSH: true}, body, r.length); err != nil {
		return err
	}
	if d.next-d.acked >= ackEvery {
		return w.send(c, r, !r.sent, layers.TCP{}, nil, 0)
	}
	return nil
}

// open writes the handshake and the start-up frames.
func (w *Writer) open(c *connection, r *record) error {
	w.about(r, "the connection was there before the capture, and its handshake and MPA's start-up are repeated")
	initiator := r.stream.Initiator
	request, reply := r.stream.Startup()
	for _, s := range []struct {
		sent bool
		h    layers.TCP
		body []byte
	}{
		{initiator, layers.TCP{SYN: true}, nil},
		{!initiator, layers.TCP{SYN: true}, nil},
		{initiator, layers.TCP{}, nil},
		{initiator, layers.TCP{PSH: true}, request},
		{!initiator, layers.TCP{PSH: true}, reply},
	} {
		if err := w.send(c, r, s.sent, s.h, s.body, len(s.body)); err != nil {
			return err
		}
	}
	return nil
}

// end writes that both ends have nothing more to send.
func (w *Writer) end(c *connection, r *record) error {
	for _, s := range []struct {
		sent bool
		h    layers.TCP
	}{{true, layers.TCP{FIN: true}}, {false, layers.TCP{FIN: true}}, {true, layers.TCP{}}} {
		if err := w.send(c, r, s.sent, s.h, nil, 0); err != nil {
			return err
		}
	}
	c.over = true
	w.ended = append(w.ended, r.stream)
	if len(w.ended) > endedKept {
		delete(w.tcp, w.ended[0])
		w.ended = w.ended[1:]
	}
	return nil
}

// send writes a segment of length bytes, of which body are captured.
func (w *Writer) send(c *connection, r *record, sent bool, h layers.TCP, body []byte, length int) error {
	from, to := &c.dirs[dir(sent)], &c.dirs[dir(!sent)]
	h.Seq, h.Ack = from.next, to.next
	h.ACK = !h.SYN || to.next != 0
	if !h.ACK {
		h.Ack = 0
	}
	b, err := w.packet.tcp(between(r.link, sent), h, body, length)
	if err != nil {
		return err
	}
	from.next += uint32(length)
	if h.SYN || h.FIN {
		from.next++
	}
	to.acked = to.next
	return w.put(r.at, sent, b, length-len(body))
}

// Of MPA (RFC 5044 sections 4.1 and 4.3), in bytes.
const (
	spacing   = 512
	markerLen = 4
	lengthLen = 2
	crcLen    = 4
)

// fill writes an FPDU that stands for all those before r, so that markers are where Wireshark looks for them: it takes the
// first FPDU that it sees to begin the grid.
func (w *Writer) fill(c *connection, r *record) error {
	request, reply := r.stream.Startup()
	crc := false
	for i, b := range [][]byte{request, reply} {
		f, err := mpa.ParseFrame(b, i == 1)
		crc = crc || err == nil && f.CRC
	}
	b := appendFiller(nil, r.grid, crc)
	w.comment = append(w.comment, "synthetic: it stands for what was sent before the capture, so that the markers are in their places")
	return w.send(c, r, r.sent, layers.TCP{PSH: true}, b, len(b))
}

// appendFiller appends an FPDU with markers that begins the grid and ends at offset grid of it: an RDMA Write of zeros to STag
// 0.
func appendFiller(b []byte, grid int, crc bool) []byte {
	const least = markerLen + lengthLen + ddp.TaggedHeaderLen + crcLen
	size := grid
	if size < least {
		size += spacing
	}
	markers := 1 + (size-1)/spacing
	n := size - markers*markerLen - crcLen - lengthLen
	ulpdu := ddp.AppendTagged(binary.BigEndian.AppendUint16(nil, uint16(n)), true, writeControl, 0, 0)
	ulpdu = append(ulpdu, make([]byte, n+lengthLen-len(ulpdu))...)
	start := len(b)
	b = append(b, 0, 0, 0, 0)
	first := min(len(ulpdu), spacing-markerLen)
	b = append(b, ulpdu[:first]...)
	if markers > 1 {
		b = binary.BigEndian.AppendUint32(b, spacing-markerLen)
		b = append(b, ulpdu[first:]...)
	}
	sum := uint32(0)
	if crc {
		sum = crc32c.Checksum(b[start:])
	}
	return binary.LittleEndian.AppendUint32(b, sum)
}

// writeControl is RDMAP's control octet of an RDMA Write (RFC 5040 section 4.1).
const writeControl = 0x40
