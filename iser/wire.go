package iser

import (
	"encoding/binary"
	"fmt"

	"github.com/ironwarp/ironwarp/iscsi"
)

// HeaderLen is the length in bytes of the header of all messages (RFC 7145 section 9.1).
const HeaderLen = 28

// Op is the type of a message (RFC 7145 section 9.1).
type Op uint8

// The types of messages.
const (
	OpControl    Op = 1 // an iSCSI control-type PDU follows
	OpHello      Op = 2
	OpHelloReply Op = 3
)

// Version is the version of the protocol in Hello messages (RFC 7145 section 9.3).
const Version = 10

// Header is the header of a message, in the fields of its type.
//
//	control: |Op  WSV RSV|       reserved            | Write STag, Write Base Offset, Read STag, Read Base Offset
//	hello:   |Op  reserved|MaxVer MinVer| iSER-IRD   | reserved
//	reply:   |Op      REJ |MaxVer CurVer| iSER-ORD   | reserved
type Header struct {
	Op Op

	// Of OpControl. The flags say whether tag and base count.
	Write, Read         bool
	WriteTag, ReadTag   uint32
	WriteBase, ReadBase uint64

	// Of OpHello and OpHelloReply. Version is MinVer or CurVer, Depth iSER-IRD or iSER-ORD.
	MaxVersion, Version uint8
	Depth               uint16
	Reject              bool
}

// ParseHeader reads the header of a message. It fails with iscsi.ErrFormat.
func ParseHeader(b []byte) (h Header, err error) {
	if len(b) < HeaderLen {
		return h, fmt.Errorf("an iSER message of %d bytes: %w", len(b), iscsi.ErrFormat)
	}
	h.Op = Op(b[0] >> 4)
	switch h.Op {
	case OpControl:
		if h.Write = b[0]&8 != 0; h.Write {
			h.WriteTag, h.WriteBase = binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint64(b[8:])
		}
		if h.Read = b[0]&4 != 0; h.Read {
			h.ReadTag, h.ReadBase = binary.BigEndian.Uint32(b[16:]), binary.BigEndian.Uint64(b[20:])
		}
	case OpHello, OpHelloReply:
		if len(b) != HeaderLen {
			return h, fmt.Errorf("an iSER Hello of %d bytes: %w", len(b), iscsi.ErrFormat) // section 10.1.3.3
		}
		h.Reject = h.Op == OpHelloReply && b[0]&1 != 0
		h.MaxVersion, h.Version, h.Depth = b[1]>>4, b[1]&0xf, binary.BigEndian.Uint16(b[2:])
	default:
		return h, fmt.Errorf("iSER message of the unassigned type %d: %w", h.Op, iscsi.ErrFormat)
	}
	return h, nil
}

// Put writes the header to b, which has HeaderLen bytes.
func (h *Header) Put(b []byte) {
	clear(b[:HeaderLen])
	b[0] = byte(h.Op) << 4
	if h.Op != OpControl {
		if h.Reject {
			b[0] |= 1
		}
		b[1] = h.MaxVersion<<4 | h.Version
		binary.BigEndian.PutUint16(b[2:], h.Depth)
		return
	}
	if h.Write {
		b[0] |= 8
		binary.BigEndian.PutUint32(b[4:], h.WriteTag)
		binary.BigEndian.PutUint64(b[8:], h.WriteBase)
	}
	if h.Read {
		b[0] |= 4
		binary.BigEndian.PutUint32(b[16:], h.ReadTag)
		binary.BigEndian.PutUint64(b[20:], h.ReadBase)
	}
}

// PrivateData is what initiators and targets say of themselves in the private data of a connection's
// start-up: four bytes, the first of which has flags. RFC 7145 leaves that to implementations; this is
// what Linux' and libiscsi's initiators send.
//
//	|ZBVA not supported|Send with Invalidate not supported| reserved, 30 bits |
type PrivateData struct {
	NoZeroBase, NoInvalidate bool
}

// ParsePrivateData reads private data. Who says nothing, or something else, can do nothing.
func ParsePrivateData(b []byte) PrivateData {
	if len(b) < 4 {
		return PrivateData{NoZeroBase: true, NoInvalidate: true}
	}
	return PrivateData{NoZeroBase: b[0]&0x80 != 0, NoInvalidate: b[0]&0x40 != 0}
}

// Append appends the private data.
func (p PrivateData) Append(b []byte) []byte {
	var flags byte
	if p.NoZeroBase {
		flags |= 0x80
	}
	if p.NoInvalidate {
		flags |= 0x40
	}
	return append(b, flags, 0, 0, 0)
}

// Message is a control-type PDU in its message. What it has refers to the message.
type Message struct {
	Header
	BHS       iscsi.BHS
	AHS, Data []byte
}

// ParseMessage reads a message of any type; only of OpControl there is more than the header. What
// follows the data is their padding, or nothing. It fails with iscsi.ErrFormat.
func ParseMessage(b []byte) (m Message, err error) {
	if m.Header, err = ParseHeader(b); err != nil || m.Op != OpControl {
		return m, err
	}
	const head = HeaderLen + iscsi.BHSLen
	if len(b) < head {
		return m, fmt.Errorf("a message of %d bytes with a PDU: %w", len(b), iscsi.ErrFormat)
	}
	copy(m.BHS[:], b[HeaderLen:])
	ahs, data := m.BHS.AHSLen(), m.BHS.DataLen()
	if n := head + ahs + data; len(b) < n || len(b) > n+iscsi.Pad(n) {
		return m, fmt.Errorf("%v: a message of %d bytes for one of %d: %w", m.BHS.Opcode(), len(b), n, iscsi.ErrFormat)
	}
	m.AHS, m.Data = b[head:head+ahs], b[head+ahs:head+ahs+data]
	return m, nil
}

// AppendMessage appends a message with a PDU, padded. The lengths in h are set.
func AppendMessage(b []byte, head *Header, h *iscsi.BHS, data []byte) []byte {
	h.SetLengths(0, len(data))
	at := len(b)
	b = append(b, make([]byte, HeaderLen)...)
	head.Put(b[at:])
	b = append(append(b, h[:]...), data...)
	var zero [3]byte
	return append(b, zero[:iscsi.Pad(len(data))]...)
}
