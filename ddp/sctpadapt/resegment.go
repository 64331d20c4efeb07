package sctpadapt

import (
	"bytes"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/transport/assoc"
)

// resegment replaces the first unsent message of the batch with shorter ones, after
// the path's MTU and so MULPDU have shrunk (RFC 5041 section 5.1, RFC 5043 section
// 9). The payload is copied. It reports whether it could.
func (s *Stream) resegment() bool {
	t := &s.tx
	seg := bytes.Join(t.msgs[t.sent].Bufs, nil)[ssnLen:]
	hdr := ddp.HeaderLen(seg)
	room := s.MULPDU() - hdr
	if hdr == 0 || room <= 0 || len(seg)-hdr <= room {
		return false
	}
	rest := t.msgs[t.sent+1:]
	msgs := append([]assoc.Outgoing(nil), t.msgs[:t.sent]...)
	for payload, at := seg[hdr:], 0; at < len(payload); at += room {
		piece := payload[at:min(at+room, len(payload))]
		b := make([]byte, ssnLen, ssnLen+hdr+len(piece))
		b = appendHeader(b, seg, at, at+len(piece) == len(payload))
		msgs = append(msgs, assoc.Outgoing{Stream: s.id, PPID: PPIDSegment, Bufs: [][]byte{append(b, piece...)}})
	}
	t.msgs = append(msgs, rest...)
	return true
}

// appendHeader appends the header of a part of seg, whose payload begins at offset
// at of the payload of seg. end: it is the last part.
func appendHeader(b, seg []byte, at int, end bool) []byte {
	if ddp.IsTagged(seg) {
		h := ddp.Tagged(seg)
		return ddp.AppendTagged(b, end && h.Last(), h.ULP(), h.STag(), h.TO()+uint64(at))
	}
	h := ddp.Untagged(seg)
	return ddp.AppendUntagged(b, end && h.Last(), h.ULP(), h.ULPWord(), h.QN(), h.MSN(), h.MO()+uint32(at))
}
