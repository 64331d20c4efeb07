package netfuzz

import (
	"encoding/binary"
	"math/bits"

	"github.com/ironwarp/ironwarp/integration/attack/raw"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/rtrs"
)

var (
	be = binary.BigEndian
	le = binary.LittleEndian
)

// serviceRequest is the private data of a request for a stream; bits 0 and 1 of how are
// the service.
func serviceRequest(s *script, how byte) []byte {
	switch how & 3 {
	case 0:
		return raw.PingRequest(s.byte()&1 != 0)
	case 3:
		return s.bytes(int(s.byte()))
	}
	how = s.byte()
	r := rtrs.ConReq{Version: rtrs.Version, CIDNum: 1, Incarnation: 1, First: how&1 == 0}
	r.Path[0], r.Session[0] = how>>1&3, how>>3&3
	if how >= 0xe0 {
		r.CID, r.CIDNum = uint16(s.byte()&7), uint16(s.byte()&7)
	}
	return r.Append(nil)
}

// readOffer reads the private data of the answer.
func (f *stream) readOffer(private []byte) {
	if r, ok := raw.PingRegion(private); ok {
		f.regions = []raw.Region{r}
	}
	if len(private) >= 20 && le.Uint16(private) == rtrs.Magic {
		if depth := le.Uint16(private[6:]); depth > 0 {
			f.offBits = 28 - bits.Len(uint(depth-1))
		}
	}
}

// info asks for the chunks of a session, and learns where they are.
func (f *stream) info(how byte) {
	b := raw.InfoRequest("fuzz")
	seg := f.untagged(rdmap.OpSend, rdmap.QNSend)
	seg.Payload = b
	if how != 0 {
		seg.Payload = f.s.alter(b)
	}
	f.segment(seg)
	if how == 0 {
		f.learn(true)
	}
	for _, m := range f.msgs {
		if rs, err := raw.Chunks(m); err == nil {
			f.regions = rs
		}
	}
	f.msgs = nil
}

// answered takes the chunk's new STag from the immediate of a response.
func (f *stream) answered(b []byte) {
	if len(b) < 8 {
		return
	}
	imm := be.Uint64(b)
	id := int(imm & (1<<19 - 1))
	if uint32(imm)>>28 == 1 {
		f.answers++
		if id < len(f.regions) && imm>>32 != 0 {
			f.regions[id].STag = uint32(imm >> 32)
		}
	}
}

// request makes a request of the block service in the next chunk.
func (f *stream) request(how byte) {
	if len(f.regions) == 0 {
		return
	}
	s := f.s
	id := f.next % len(f.regions)
	f.next++
	if how&8 != 0 {
		id = int(s.byte()) % len(f.regions)
	}
	var hdr, data []byte
	read := false
	switch kind := s.byte(); kind % 6 {
	case 0: // the session's version
		hdr, read = append([]byte{0, 0, 0, 0, 2}, make([]byte, 31)...), true
		data = make([]byte, 36)
	case 1: // open a disk
		name := []string{"open", "readonly", "secret", "none"}[kind/6%4]
		hdr = append([]byte{2, 0, 0, 0, s.byte() & 1, 0}, name...)
		hdr = append(hdr, make([]byte, 312-len(hdr))...)
		data, read = make([]byte, 56), true
	case 2, 3: // I/O on a disk
		write := kind%6 == 3
		size := 512 * (1 + uint32(kind/6))
		rw := uint32(0)
		if write {
			rw = 1
		}
		if kind/6 > 16 {
			rw, size = uint32(kind/6-16), size+s.small()
		}
		hdr = le.AppendUint32([]byte{4, 0, 0, 0}, 1+s.small())
		hdr = le.AppendUint64(hdr, uint64(s.byte())*16)
		hdr = le.AppendUint32(hdr, rw)
		hdr = le.AppendUint32(hdr, size)
		hdr = append(hdr, make([]byte, 32-len(hdr))...)
		data, read = make([]byte, size%(1<<18)), !write
	case 4: // close a disk
		hdr = le.AppendUint32([]byte{5, 0, 0, 0}, 1+s.small())
	case 5: // list the disks
		hdr = le.AppendUint32([]byte{6, 0, 0, 0}, s.small())
		data, read = make([]byte, 4096), true
	}
	if how&1 != 0 {
		hdr = s.alter(hdr)
	}
	f.write(id, data, hdr, read, how&4 != 0)
	if how&2 != 0 {
		for n := f.answers; n == f.answers && f.learn(true); {
		}
	}
}

// write writes a request into a chunk and announces it.
func (f *stream) write(id int, data, hdr []byte, read, wrong bool) {
	msg := le.AppendUint16([]byte{2, 0}, uint16(len(hdr)))
	if read {
		msg = le.AppendUint16([]byte{3, 0}, uint16(len(hdr)))
		msg = append(msg, 0, 0, 1, 0)
		msg = le.AppendUint64(msg, 0)
		msg = le.AppendUint32(msg, 0x100)
		msg = le.AppendUint32(msg, uint32(len(data)))
	}
	off := len(data) + len(hdr)
	at := 0
	if read {
		at, data = len(data), nil
	}
	if wrong {
		msg = f.s.alter(msg)
		off += int(int32(f.s.small()))
	}
	c := f.regions[id]
	b := append(append(data, hdr...), msg...)
	for first := true; first || len(b) > 0; first = false {
		n := min(len(b), 1024)
		seg := iwarptest.Segment{Tagged: true, Last: n == len(b), Op: rdmap.OpWrite, STag: c.STag, TO: c.TO + uint64(at), Payload: b[:n]}
		f.sendSegment(seg.Append(nil), f.s)
		at, b = at+n, b[n:]
	}
	f.immediate(uint64(uint32(id)<<f.offBits | uint32(off)&(1<<f.offBits-1)))
}
