package mpa

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"golang.org/x/crypto/cryptobyte"

	"github.com/ironwarp/ironwarp/ddp/enhanced"
)

// Start-up frames, RFC 5044 section 7.1.1 and RFC 6581 section 6:
//
//	 0               1               2               3
//	+---------------------------------------------------------------+
//	|        Key: "MPA ID Req Frame" or "MPA ID Rep Frame"          | 16 bytes
//	+-+-+-+-+-------+---------------+-------------------------------+
//	|M|C|R|S|  Res  |      Rev      |           PD_Length           |
//	+-+-+-+-+-------+---------------+-------------------------------+
//	|A|B|           IRD             |C|D|           ORD             | only with S
//	+---------------------------------------------------------------+
//	|                     ULP's private data                        |
const (
	keyLen       = 16
	startupLen   = 20 // fixed part
	requestKey   = "MPA ID Req Frame"
	replyKey     = "MPA ID Rep Frame"
	flagMarkers  = 0x80
	flagCRC      = 0x40
	flagReject   = 0x20
	flagEnhanced = 0x10
)

// FirstByte is the first byte of a request: of what an initiator sends, unless its ULP begins in
// streaming mode.
const FirstByte = 'M'

// Frame is a start-up frame, request or reply.
type Frame struct {
	Reply    bool
	Markers  bool // M: markers are required in what the sender of the frame receives
	CRC      bool // C
	Reject   bool // R, only in replies
	Revision uint8
	Enhanced *enhanced.Data // S; nil without
	// PrivateData is the ULP's, after the enhanced data. A parsed frame shares
	// it with the parsed bytes.
	PrivateData []byte
}

// parseStartup reads the fixed part of a start-up frame and returns the length
// of the private data that follows it.
func parseStartup(b []byte, reply bool) (f Frame, withData bool, pdLen int, err error) {
	want, other := requestKey, replyKey
	if reply {
		want, other = replyKey, requestKey
	}
	if len(b) < startupLen {
		return f, false, 0, fault(CodeStartup, "start-up frame of %d bytes is cut short", len(b))
	}
	switch key := b[:keyLen]; {
	case string(key) == want:
	case string(key) == other && reply:
		return f, false, 0, fault(CodeStartup, "both ends act as MPA initiator")
	case string(key) == other:
		return f, false, 0, fault(CodeStartup, "both ends act as MPA responder")
	default:
		return f, false, 0, fault(CodeStartup, "not an MPA start-up frame: it begins with %q", key)
	}
	flags := b[16]
	f = Frame{
		Reply:    reply,
		Markers:  flags&flagMarkers != 0,
		CRC:      flags&flagCRC != 0,
		Reject:   flags&flagReject != 0 && reply, // not checked in a request
		Revision: b[17],
	}
	if f.Revision != 1 && f.Revision != 2 {
		return f, false, 0, fault(CodeStartup, "MPA revision %d is not supported", f.Revision)
	}
	pdLen = int(binary.BigEndian.Uint16(b[18:]))
	if pdLen > MaxPrivateData {
		return f, false, 0, fault(CodeStartup, "private data of %d bytes exceeds %d", pdLen, MaxPrivateData)
	}
	// The bit is reserved, and not checked, before revision 2.
	withData = flags&flagEnhanced != 0 && f.Revision >= 2
	if withData && pdLen < enhanced.Len {
		return f, false, 0, fault(CodeStartup, "private data of %d bytes cannot hold the enhanced connection data", pdLen)
	}
	return f, withData, pdLen, nil
}

// setPrivateData completes a frame with the bytes after its fixed part.
func (f *Frame) setPrivateData(pd []byte, withData bool) {
	if withData {
		f.Enhanced = enhanced.Parse(pd)
		pd = pd[enhanced.Len:]
	}
	f.PrivateData = pd
}

// ParseFrame reads one whole start-up frame, which must fill b. The error
// matches ErrStartup.
func ParseFrame(b []byte, reply bool) (Frame, error) {
	f, withData, pdLen, err := parseStartup(b, reply)
	if err != nil {
		return f, err
	}
	if len(b)-startupLen != pdLen {
		return f, fault(CodeStartup, "PD_Length is %d and %d bytes of private data follow", pdLen, len(b)-startupLen)
	}
	f.setPrivateData(b[startupLen:], withData)
	return f, nil
}

// Append appends the frame to b. The error matches ErrPrivateData.
func (f *Frame) Append(b []byte) ([]byte, error) {
	pdLen := len(f.PrivateData)
	key, flags := requestKey, byte(0)
	if f.Reply {
		key = replyKey
	}
	if f.Markers {
		flags |= flagMarkers
	}
	if f.CRC {
		flags |= flagCRC
	}
	if f.Reject {
		flags |= flagReject
	}
	if f.Enhanced != nil {
		flags |= flagEnhanced
		pdLen += enhanced.Len
	}
	if pdLen > MaxPrivateData {
		return b, fmt.Errorf("%w: %d bytes with what MPA adds, at most %d", ErrPrivateData, pdLen, MaxPrivateData)
	}
	b = append(b, key...)
	b = append(b, flags, f.Revision)
	b = binary.BigEndian.AppendUint16(b, uint16(pdLen))
	if f.Enhanced != nil {
		b = f.Enhanced.Append(b)
	}
	return append(b, f.PrivateData...), nil
}

// hello is how two IronWarps agree on FPDUs above the EMSS. It precedes the
// ULP's private data:
//
//	+---------------------------------------------------------------+
//	|                       Magic: "IWrp"                           |
//	+---------------+---------------+-------------------------------+
//	|  Version = 1  |   Flags = 0   |         Reserved = 0          |
//	+---------------+---------------+-------------------------------+
//	|    longest ULPDU that the sender takes and makes, in bytes    |
//	+---------------------------------------------------------------+
//	|                        Reserved = 0                           |
//	+---------------------------------------------------------------+
//
// Reserved fields and flags are ignored by the receiver.
type hello struct {
	maxULPDU uint32
}

const (
	helloMagic   = "IWrp"
	helloVersion = 1
)

func (h hello) append(b []byte) []byte {
	c := cryptobyte.NewBuilder(b)
	c.AddBytes([]byte(helloMagic))
	c.AddUint8(helloVersion)
	c.AddUint8(0)
	c.AddUint16(0)
	c.AddUint32(h.maxULPDU)
	c.AddUint32(0)
	return c.BytesOrPanic()
}

// cutHello splits a hello off private data. ok is false when there is none, or
// one of a version that we do not know.
func cutHello(pd []byte) (h hello, rest []byte, ok bool) {
	if !bytes.HasPrefix(pd, []byte(helloMagic)) {
		return h, pd, false
	}
	s := cryptobyte.String(pd)
	var version, flags uint8
	var reserved uint16
	if !s.Skip(len(helloMagic)) || !s.ReadUint8(&version) || version != helloVersion || !s.ReadUint8(&flags) ||
		!s.ReadUint16(&reserved) || !s.ReadUint32(&h.maxULPDU) || !s.Skip(4) {
		return hello{}, pd, false
	}
	return h, s, true
}
