package rtrs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/ironwarp/ironwarp/internal/printable"
)

var le = binary.LittleEndian

// Magic is at offset 2 of the private data of every RTRS connection.
const Magic = 0x1BBD

// Protocol is a version of the protocol: the major number in the high byte, the minor one in
// the low byte. Two ends whose major numbers are the same speak the lower minor one of both.
type Protocol uint16

// Version is the newest version that this package speaks: major 0x4A, minor 1. (Linux's RTRS,
// whose messages have nearly the same layout but whose immediates have 32 bits, is major 2.)
const Version Protocol = 0x4A01

func (v Protocol) String() string { return fmt.Sprintf("%d.%d", v>>8, v&0xff) }

// Agrees reports whether two versions have the same major number, and the ends that speak them
// the lower one.
func (v Protocol) Agrees(o Protocol) bool { return v>>8 == o>>8 }

// Differs says why an end that speaks another major version of a protocol is not understood,
// and what to do.
func (v Protocol) Differs(protocol string, theirs Protocol) string {
	return fmt.Sprintf("it speaks %s %v, and this host %v; update the host that has the lower one: hosts whose versions begin with the same number understand each other", protocol, theirs, v)
}

// Message types.
const (
	msgInfoReq  = 0
	msgInfoRsp  = 1
	msgWrite    = 2
	msgRead     = 3
	nameMax     = 255
	uuidLen     = 16
	sgDescLen   = 16
	infoHdrLen  = 8 + uuidLen
	writeMsgLen = 8
	readMsgLen  = 8 + sgDescLen + 4
)

// Sizes in bytes of the fixed messages.
const (
	ConReqLen  = 56
	ConRspLen  = 56
	infoReqLen = 2 + nameMax + 15
)

// ErrWire is wrapped by every error about a malformed message.
var ErrWire = errors.New("rtrs: malformed message")

func wireErr(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrWire, fmt.Sprintf(format, args...))
}

// uuid names a session or a path.
type uuid [uuidLen]byte

func (u uuid) String() string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// IsRequest reports whether private data is for this service.
func IsRequest(pd []byte) bool {
	return len(pd) >= 4 && pd[0] == 0 && pd[1] == 0 && le.Uint16(pd[2:]) == Magic
}

// ConReq is the private data of a connection request.
type ConReq struct {
	Version     Protocol // on a path's first connection the newest that the client speaks, then what was agreed on
	CID         uint16   // this connection
	CIDNum      uint16   // connections of the path
	Incarnation uint64   // greater with each attempt to connect the path
	Path        [16]byte
	Session     [16]byte
	First       bool // the session's first connection ever
}

// Append appends the message's 56 bytes to b.
func (m *ConReq) Append(b []byte) []byte {
	b = append(b, 0, 0)
	b = le.AppendUint16(b, Magic)
	b = le.AppendUint16(b, uint16(m.Version))
	b = le.AppendUint16(b, m.CID)
	b = le.AppendUint16(b, m.CIDNum)
	b = le.AppendUint16(b, uint16(m.Incarnation))
	b = append(b, m.Path[:]...)
	b = append(b, m.Session[:]...)
	var flags byte
	if m.First {
		flags = 1
	}
	b = append(b, flags, 0, 0, 0)
	return le.AppendUint64(b, m.Incarnation)
}

// Parse parses the message. The caller checks the version; only unreadable messages are
// errors.
func (m *ConReq) Parse(b []byte) error {
	if len(b) < ConReqLen {
		return wireErr("connection request of %d bytes, want %d", len(b), ConReqLen)
	}
	if !IsRequest(b) {
		return wireErr("connection request without the magic %#x", Magic)
	}
	m.Version = Protocol(le.Uint16(b[4:]))
	m.CID = le.Uint16(b[6:])
	m.CIDNum = le.Uint16(b[8:])
	recon := le.Uint16(b[10:])
	copy(m.Path[:], b[12:])
	copy(m.Session[:], b[28:])
	m.First = b[44]&1 != 0
	m.Incarnation = le.Uint64(b[48:])
	if m.Version.Agrees(Version) && uint16(m.Incarnation) != recon {
		return wireErr("reconnect counter %d is not the low half of incarnation %#x", recon, m.Incarnation)
	}
	return nil
}

// flagNewRKey in ConRsp.Flags: each response carries the chunk's new STag.
const flagNewRKey = 1 << 1

// ConRsp is the private data that accepts or rejects a connection.
type ConRsp struct {
	Version    Protocol      // agreed on, or with an errno the newest that the server speaks
	Errno      syscall.Errno // 0 if accepted
	QueueDepth uint16        // chunks
	MaxIO      uint32        // bytes of data in one request
	MaxHeader  uint32        // bytes of a chunk beyond MaxIO: user header and message
	Flags      uint32
}

// Append appends the message's 56 bytes to b.
func (m *ConRsp) Append(b []byte) []byte {
	b = le.AppendUint16(b, Magic)
	b = le.AppendUint16(b, uint16(m.Version))
	b = le.AppendUint16(b, uint16(m.Errno))
	b = le.AppendUint16(b, m.QueueDepth)
	b = le.AppendUint32(b, m.MaxIO)
	b = le.AppendUint32(b, m.MaxHeader)
	b = le.AppendUint32(b, m.Flags)
	return append(b, make([]byte, ConRspLen-20)...)
}

// Parse reads the message from b. It fails with ErrWire.
func (m *ConRsp) Parse(b []byte) error {
	if len(b) < ConRspLen {
		return wireErr("connection response of %d bytes, want %d", len(b), ConRspLen)
	}
	if magic := le.Uint16(b); magic != Magic {
		return wireErr("connection response with magic %#x, want %#x", magic, Magic)
	}
	m.Version = Protocol(le.Uint16(b[2:]))
	m.Errno = syscall.Errno(le.Uint16(b[4:]))
	m.QueueDepth = le.Uint16(b[6:])
	m.MaxIO = le.Uint32(b[8:])
	m.MaxHeader = le.Uint32(b[12:])
	m.Flags = le.Uint32(b[16:])
	return nil
}

// infoReq names the session.
type infoReq struct{ Name string }

func (m *infoReq) Append(b []byte) []byte {
	start := len(b)
	b = le.AppendUint16(b, msgInfoReq)
	b = append(b, m.Name...)
	return append(b, make([]byte, start+infoReqLen-len(b))...)
}

func (m *infoReq) Parse(b []byte) error {
	if len(b) != infoReqLen {
		return wireErr("INFO_REQ of %d bytes, want %d", len(b), infoReqLen)
	}
	if t := le.Uint16(b); t != msgInfoReq {
		return wireErr("message type %d, want INFO_REQ (%d)", t, msgInfoReq)
	}
	name := b[2 : 2+nameMax]
	end := bytes.IndexByte(name, 0)
	if end <= 0 {
		return wireErr("INFO_REQ with an empty or unterminated session name")
	}
	m.Name = string(name[:end])
	if err := printable.Check(m.Name); err != nil {
		return wireErr("INFO_REQ with a session name: %v", err)
	}
	return nil
}

// sgDesc describes memory that a peer may write to.
type sgDesc struct {
	TO   uint64
	STag uint32
	Len  uint32
}

func (d sgDesc) append(b []byte) []byte {
	b = le.AppendUint64(b, d.TO)
	b = le.AppendUint32(b, d.STag)
	return le.AppendUint32(b, d.Len)
}

func parseSG(b []byte) sgDesc {
	return sgDesc{TO: le.Uint64(b), STag: le.Uint32(b[8:]), Len: le.Uint32(b[12:])}
}

// infoRsp describes the chunks.
type infoRsp struct {
	Errno syscall.Errno
	Epoch uuid // drawn by the server when it began the session
	Desc  []sgDesc
}

func infoRspLen(chunks int) int { return infoHdrLen + chunks*sgDescLen }

func (m *infoRsp) Append(b []byte) []byte {
	b = le.AppendUint16(b, msgInfoRsp)
	b = le.AppendUint16(b, uint16(len(m.Desc)))
	b = le.AppendUint16(b, uint16(m.Errno))
	b = append(b, 0, 0)
	b = append(b, m.Epoch[:]...)
	for _, d := range m.Desc {
		b = d.append(b)
	}
	return b
}

func (m *infoRsp) Parse(b []byte) error {
	if len(b) < infoHdrLen {
		return wireErr("INFO_RSP of %d bytes", len(b))
	}
	if t := le.Uint16(b); t != msgInfoRsp {
		return wireErr("message type %d, want INFO_RSP (%d)", t, msgInfoRsp)
	}
	n := int(le.Uint16(b[2:]))
	m.Errno = syscall.Errno(le.Uint16(b[4:]))
	if len(b) != infoRspLen(n) {
		return wireErr("INFO_RSP of %d bytes announces %d chunks (%d bytes)", len(b), n, infoRspLen(n))
	}
	m.Epoch = uuid(b[8:])
	m.Desc = make([]sgDesc, n)
	for i := range m.Desc {
		m.Desc[i] = parseSG(b[infoHdrLen+i*sgDescLen:])
	}
	return nil
}

// ioMsg is the message at the end of a request: WRITE or READ.
type ioMsg struct {
	Type   uint16
	UsrLen uint16
	Seq    uint32 // of the slot's requests: the same when the request is sent again
	Desc   sgDesc // READ: where the result goes
}

func (m *ioMsg) Append(b []byte) []byte {
	b = le.AppendUint16(b, m.Type)
	b = le.AppendUint16(b, m.UsrLen)
	if m.Type == msgRead {
		b = append(b, 0, 0, 1, 0)
		b = m.Desc.append(b)
	}
	return le.AppendUint32(b, m.Seq)
}

// Errors of ioMsg.Parse are preallocated, because requests may fail on the data path.
var (
	errMsgShort = fmt.Errorf("%w: a request's message reaches beyond its chunk", ErrWire)
	errMsgType  = fmt.Errorf("%w: a request is neither WRITE nor READ", ErrWire)
	errMsgSG    = fmt.Errorf("%w: a READ with other than one target, or with flags", ErrWire)
)

// Parse parses the message from b, which may be memory that the peer still changes: each
// field is read once.
func (m *ioMsg) Parse(b []byte) error {
	if len(b) < writeMsgLen {
		return errMsgShort
	}
	m.Type = le.Uint16(b)
	m.UsrLen = le.Uint16(b[2:])
	switch m.Type {
	case msgWrite:
		m.Desc, m.Seq = sgDesc{}, le.Uint32(b[4:])
		return nil
	case msgRead:
		if len(b) < readMsgLen {
			return errMsgShort
		}
		if le.Uint16(b[4:]) != 0 || le.Uint16(b[6:]) != 1 {
			return errMsgSG
		}
		m.Desc, m.Seq = parseSG(b[8:]), le.Uint32(b[8+sgDescLen:])
		return nil
	}
	return errMsgType
}
