package sctp

import (
	"encoding/binary"
	"errors"

	"github.com/ironwarp/ironwarp/internal/crc32c"
	"github.com/ironwarp/ironwarp/transport/assoc"
)

// Sizes in bytes (RFC 9260 section 3).
const (
	headerLen      = 12 // common header
	chunkHeaderLen = 4
	dataHeaderLen  = 16 // of a DATA chunk
	paramHeaderLen = 4
)

// chunkType is a chunk type (RFC 9260 section 3.2).
type chunkType uint8

// The known chunk types of RFC 9260, and PAD of RFC 4820.
const (
	typeData             chunkType = 0
	typeInit             chunkType = 1
	typeInitAck          chunkType = 2
	typeSack             chunkType = 3
	typeHeartbeat        chunkType = 4
	typeHeartbeatAck     chunkType = 5
	typeAbort            chunkType = 6
	typeShutdown         chunkType = 7
	typeShutdownAck      chunkType = 8
	typeError            chunkType = 9
	typeCookieEcho       chunkType = 10
	typeCookieAck        chunkType = 11
	typeECNE             chunkType = 12 // reserved for explicit congestion notification
	typeCWR              chunkType = 13
	typeShutdownComplete chunkType = 14
	typePad              chunkType = 0x84
)

// skip reports whether the rest of the packet is processed although this type is unknown,
// report whether the peer is told (RFC 9260 section 3.2).
func (t chunkType) skip() bool   { return t&0x80 != 0 }
func (t chunkType) report() bool { return t&0x40 != 0 }

// flagT in an ABORT or a SHUTDOWN COMPLETE: the Verification Tag is reflected
// (RFC 9260 section 8.5.1).
const flagT = 0x01

// errMalformed reports that lengths in a packet contradict each other.
var errMalformed = errors.New("sctp: malformed packet")

// packet is a view of an SCTP packet of at least headerLen bytes (RFC 9260
// section 3.1).
//
//	0: source port(2) | 2: destination port(2) | 4: Verification Tag(4) | 8: checksum(4)
type packet []byte

func (p packet) srcPort() uint16 { return binary.BigEndian.Uint16(p) }
func (p packet) dstPort() uint16 { return binary.BigEndian.Uint16(p[2:]) }
func (p packet) tag() uint32     { return binary.BigEndian.Uint32(p[4:]) }
func (p packet) chunks() []byte  { return p[headerLen:] }

// checksum returns the CRC32c of the packet with its checksum field taken as 0 (RFC 9260
// section 6.8). It clears the field and restores it.
func (p packet) checksum() uint32 {
	field := p[8:headerLen]
	old := [4]byte(field)
	clear(field)
	crc := crc32c.Checksum(p)
	copy(field, old[:])
	return crc
}

// seal fills in the checksum.
func (p packet) seal() { binary.LittleEndian.PutUint32(p[8:], p.checksum()) }

// appendHeader appends a common header with an empty checksum.
func appendHeader(b []byte, src, dst uint16, tag uint32) []byte {
	b = binary.BigEndian.AppendUint16(b, src)
	b = binary.BigEndian.AppendUint16(b, dst)
	b = binary.BigEndian.AppendUint32(b, tag)
	return append(b, 0, 0, 0, 0)
}

// chunk is a view of one chunk, header included and padding not (RFC 9260
// section 3.2).
//
//	0: type | 1: flags | 2: length(2) | 4: value
type chunk []byte

func (c chunk) typ() chunkType { return chunkType(c[0]) }
func (c chunk) flags() uint8   { return c[1] }
func (c chunk) value() []byte  { return c[chunkHeaderLen:] }

// cutChunk takes the first chunk off b. It checks the length that the chunk claims;
// padding may be missing behind the last chunk.
func cutChunk(b []byte) (c chunk, rest []byte, err error) {
	if len(b) < chunkHeaderLen {
		return nil, nil, errMalformed
	}
	n := int(binary.BigEndian.Uint16(b[2:]))
	if n < chunkHeaderLen || n > len(b) {
		return nil, nil, errMalformed
	}
	return chunk(b[:n:n]), b[min(padded(n), len(b)):], nil
}

// padded returns n rounded up to a multiple of 4.
func padded(n int) int { return (n + 3) &^ 3 }

// beginChunk appends the header of a chunk whose length endChunk fills in.
func beginChunk(b []byte, t chunkType, flags uint8) []byte {
	return append(b, byte(t), flags, 0, 0)
}

// endChunk fills in the length of the chunk that begins at index at, and pads
// it.
func endChunk(b []byte, at int) []byte {
	binary.BigEndian.PutUint16(b[at+2:], uint16(len(b)-at))
	return pad(b, len(b)-at)
}

// pad appends the padding of something of n bytes.
func pad(b []byte, n int) []byte {
	for ; n&3 != 0; n++ {
		b = append(b, 0)
	}
	return b
}

// appendChunk appends a whole chunk.
func appendChunk(b []byte, t chunkType, flags uint8, value []byte) []byte {
	at := len(b)
	return endChunk(append(beginChunk(b, t, flags), value...), at)
}

// Flags of a DATA chunk (RFC 9260 section 3.3.1).
const (
	flagE = uint8(assoc.End)
	flagB = uint8(assoc.Begin)
	flagU = uint8(assoc.Unordered)
	flagI = uint8(assoc.Immediate)
)

// dataChunk is a view of a DATA chunk of at least dataHeaderLen bytes (RFC 9260
// section 3.3.1).
//
//	4: TSN(4) | 8: stream(2) | 10: SSN(2) | 12: payload protocol identifier(4) | 16: user data
type dataChunk []byte

func (d dataChunk) tsn() uint32     { return binary.BigEndian.Uint32(d[4:]) }
func (d dataChunk) stream() uint16  { return binary.BigEndian.Uint16(d[8:]) }
func (d dataChunk) ssn() uint16     { return binary.BigEndian.Uint16(d[10:]) }
func (d dataChunk) ppid() uint32    { return binary.BigEndian.Uint32(d[12:]) }
func (d dataChunk) payload() []byte { return d[dataHeaderLen:] }

// appendDataHeader appends the header of a DATA chunk with n bytes of user data.
func appendDataHeader(b []byte, flags uint8, tsn uint32, stream, ssn uint16, ppid uint32, n int) []byte {
	b = append(b, byte(typeData), flags)
	b = binary.BigEndian.AppendUint16(b, uint16(dataHeaderLen+n))
	b = binary.BigEndian.AppendUint32(b, tsn)
	b = binary.BigEndian.AppendUint16(b, stream)
	b = binary.BigEndian.AppendUint16(b, ssn)
	return binary.BigEndian.AppendUint32(b, ppid)
}

// sackLen is the length in bytes of a SACK chunk without Gap Ack Blocks and
// duplicates.
const sackLen = 16

// sackChunk is a view of a SACK chunk that parseSack has checked (RFC 9260
// section 3.3.4).
//
//	4: Cumulative TSN Ack(4) | 8: a_rwnd(4) | 12: gap blocks(2) | 14: duplicates(2) | 16: blocks, duplicates
type sackChunk []byte

func parseSack(c chunk) (sackChunk, error) {
	s := sackChunk(c)
	if len(s) < sackLen || len(s) < sackLen+4*(s.gaps()+s.dups()) {
		return nil, errMalformed
	}
	return s, nil
}

func (s sackChunk) cum() uint32  { return binary.BigEndian.Uint32(s[4:]) }
func (s sackChunk) rwnd() uint32 { return binary.BigEndian.Uint32(s[8:]) }
func (s sackChunk) gaps() int    { return int(binary.BigEndian.Uint16(s[12:])) }
func (s sackChunk) dups() int    { return int(binary.BigEndian.Uint16(s[14:])) }

// gap returns the i-th Gap Ack Block: its first and last TSN as offsets from the
// Cumulative TSN Ack.
func (s sackChunk) gap(i int) gapBlock {
	b := s[sackLen+4*i:]
	return gapBlock{binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])}
}

func (s sackChunk) dup(i int) uint32 { return binary.BigEndian.Uint32(s[sackLen+4*(s.gaps()+i):]) }

// gapBlock is a run of received TSNs, as offsets from the Cumulative TSN Ack.
type gapBlock struct{ first, last uint16 }

// appendSack appends a SACK chunk.
func appendSack(b []byte, cum, rwnd uint32, gaps []gapBlock, dups []uint32) []byte {
	at := len(b)
	b = beginChunk(b, typeSack, 0)
	b = binary.BigEndian.AppendUint32(b, cum)
	b = binary.BigEndian.AppendUint32(b, rwnd)
	b = binary.BigEndian.AppendUint16(b, uint16(len(gaps)))
	b = binary.BigEndian.AppendUint16(b, uint16(len(dups)))
	for _, g := range gaps {
		b = binary.BigEndian.AppendUint16(b, g.first)
		b = binary.BigEndian.AppendUint16(b, g.last)
	}
	for _, d := range dups {
		b = binary.BigEndian.AppendUint32(b, d)
	}
	return endChunk(b, at)
}

// shutdownCum returns the Cumulative TSN Ack of a SHUTDOWN chunk (RFC 9260 section
// 3.3.8).
func shutdownCum(c chunk) (uint32, error) {
	if len(c) != chunkHeaderLen+4 {
		return 0, errMalformed
	}
	return binary.BigEndian.Uint32(c[4:]), nil
}

// appendShutdown appends a SHUTDOWN chunk.
func appendShutdown(b []byte, cum uint32) []byte {
	at := len(b)
	b = beginChunk(b, typeShutdown, 0)
	return endChunk(binary.BigEndian.AppendUint32(b, cum), at)
}
