package rdmap

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/ironwarp/ironwarp/ddp"
)

// Version is the RDMAP version of RFC 5040, carried in the RV field (section 4.1).
const Version = 1

// Opcode is the RDMA Message operation code (RFC 5040 section 4.1, RFC 7306 section 4.1).
type Opcode uint8

// The opcodes.
const (
	OpWrite             Opcode = 0x0
	OpReadRequest       Opcode = 0x1
	OpReadResponse      Opcode = 0x2
	OpSend              Opcode = 0x3
	OpSendInvalidate    Opcode = 0x4
	OpSendSE            Opcode = 0x5
	OpSendSEInvalidate  Opcode = 0x6
	OpTerminate         Opcode = 0x7
	OpImmediate         Opcode = 0x8
	OpImmediateSE       Opcode = 0x9
	OpAtomicRequest     Opcode = 0xa
	OpAtomicResponse    Opcode = 0xb
	opcodeMask                 = 0x0f
	versionShift               = 6
	immediateLen               = 8
	terminateControlLen        = 4
)

var opcodeNames = [...]string{"Write", "Read Request", "Read Response", "Send", "Send with Invalidate",
	"Send with SE", "Send with SE and Invalidate", "Terminate", "Immediate Data", "Immediate Data with SE",
	"Atomic Request", "Atomic Response"}

func (o Opcode) String() string {
	if int(o) < len(opcodeNames) {
		return opcodeNames[o]
	}
	return fmt.Sprintf("opcode %#x", uint8(o))
}

// extension reports whether RFC 7306 added the operation.
func (o Opcode) extension() bool { return o >= OpImmediate && o <= OpAtomicResponse }

// Control makes the RDMAP control octet for an opcode (RFC 5040 section 4.1):
// RV(2) reserved(2) opcode(4).
func Control(op Opcode) uint8 { return Version<<versionShift | uint8(op) }

// ParseControl splits a control octet.
func ParseControl(c uint8) (version uint8, op Opcode) {
	return c >> versionShift, Opcode(c & opcodeMask)
}

// Queue numbers of the untagged messages (RFC 5040 section 4.1, RFC 7306 section 4.1).
const (
	QNSend           = 0
	QNReadRequest    = 1
	QNTerminate      = 2
	QNAtomicResponse = 3
)

// ReadRequestLen is the size in bytes of the RDMA Read Request header (RFC 5040 section 4.4).
const ReadRequestLen = 28

// ReadRequest is the RDMA Read Request header (RFC 5040 section 4.4).
type ReadRequest struct {
	SinkSTag   uint32
	SinkTO     uint64
	Size       uint32 // bytes to read
	SourceSTag uint32
	SourceTO   uint64
}

// Append appends the header to b.
func (r ReadRequest) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, r.SinkSTag)
	b = binary.BigEndian.AppendUint64(b, r.SinkTO)
	b = binary.BigEndian.AppendUint32(b, r.Size)
	b = binary.BigEndian.AppendUint32(b, r.SourceSTag)
	return binary.BigEndian.AppendUint64(b, r.SourceTO)
}

// ParseReadRequest reads the header from b; ok is false unless b has exactly
// ReadRequestLen bytes.
func ParseReadRequest(b []byte) (r ReadRequest, ok bool) {
	if len(b) != ReadRequestLen {
		return r, false
	}
	r.SinkSTag = binary.BigEndian.Uint32(b)
	r.SinkTO = binary.BigEndian.Uint64(b[4:])
	r.Size = binary.BigEndian.Uint32(b[12:])
	r.SourceSTag = binary.BigEndian.Uint32(b[16:])
	r.SourceTO = binary.BigEndian.Uint64(b[20:])
	return r, true
}

// AtomicOp is the Atomic Operation Code (RFC 7306 section 5.2.1).
type AtomicOp uint8

// The atomic operations.
const (
	AtomicFetchAdd AtomicOp = 0x0
	AtomicCmpSwap  AtomicOp = 0x2
)

// Sizes in bytes of the atomic headers (RFC 7306 sections 5.2.1 and 5.2.2).
const (
	AtomicRequestLen  = 52
	AtomicResponseLen = 12
)

// AtomicRequest is the Atomic Operation Request header (RFC 7306 section 5.2.1).
type AtomicRequest struct {
	Op          AtomicOp
	ID          uint32 // reflected in the response
	STag        uint32
	TO          uint64 // 64-bit aligned
	AddSwap     uint64
	AddSwapMask uint64
	Compare     uint64
	CompareMask uint64
}

// Append appends the header to b.
func (a AtomicRequest) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(a.Op))
	b = binary.BigEndian.AppendUint32(b, a.ID)
	b = binary.BigEndian.AppendUint32(b, a.STag)
	for _, v := range [...]uint64{a.TO, a.AddSwap, a.AddSwapMask, a.Compare, a.CompareMask} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	return b
}

// ParseAtomicRequest reads the header from b; ok is false unless b has exactly
// AtomicRequestLen bytes.
func ParseAtomicRequest(b []byte) (a AtomicRequest, ok bool) {
	if len(b) != AtomicRequestLen {
		return a, false
	}
	a.Op = AtomicOp(b[3] & 0x0f)
	a.ID = binary.BigEndian.Uint32(b[4:])
	a.STag = binary.BigEndian.Uint32(b[8:])
	a.TO = binary.BigEndian.Uint64(b[12:])
	a.AddSwap = binary.BigEndian.Uint64(b[20:])
	a.AddSwapMask = binary.BigEndian.Uint64(b[28:])
	a.Compare = binary.BigEndian.Uint64(b[36:])
	a.CompareMask = binary.BigEndian.Uint64(b[44:])
	return a, true
}

// Apply computes the value that the operation leaves in place of old (RFC 7306
// sections 5.1.1 and 5.1.2).
func (a AtomicRequest) Apply(old uint64) uint64 {
	switch a.Op {
	case AtomicFetchAdd:
		return fetchAdd(old, a.AddSwap, a.AddSwapMask)
	case AtomicCmpSwap:
		if (a.Compare^old)&a.CompareMask == 0 {
			return old&^a.AddSwapMask | a.AddSwap&a.AddSwapMask
		}
	}
	return old
}

// fetchAdd adds field by field: a mask bit of 1 marks the most significant bit
// of a field, whose carry is not propagated (RFC 7306 section 5.1.1).
func fetchAdd(old, add, mask uint64) uint64 {
	low := (old &^ mask) + (add &^ mask)
	return low ^ (old^add)&mask
}

// AtomicResponse is the Atomic Operation Response header (RFC 7306 section 5.2.2).
type AtomicResponse struct {
	ID       uint32
	Original uint64
}

// Append appends the header to b.
func (a AtomicResponse) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, a.ID)
	return binary.BigEndian.AppendUint64(b, a.Original)
}

// ParseAtomicResponse reads the header from b; ok is false unless b has
// exactly AtomicResponseLen bytes.
func ParseAtomicResponse(b []byte) (a AtomicResponse, ok bool) {
	if len(b) != AtomicResponseLen {
		return a, false
	}
	return AtomicResponse{ID: binary.BigEndian.Uint32(b), Original: binary.BigEndian.Uint64(b[4:])}, true
}

// Terminate is the Terminate header (RFC 5040 section 4.8).
type Terminate struct {
	Layer  ddp.Layer
	Type   uint8
	Code   uint8
	SegLen uint16 // valid when DDP is not nil: length in bytes of the DDP segment at fault
	DDP    []byte // its DDP header, nil if not quoted
	RDMAP  []byte // its Read Request header, nil if not quoted

	// Swapped reports whether the control word has its bit fields in the order in
	// which Linux' siw lays them out, against RFC 5040 Figure 8: the error type
	// before the layer, the header control bits from the other end. Layer, Type
	// and what is quoted mean the same as ever.
	Swapped bool
}

const (
	hdrCtM = 0x80 // DDP Segment Length valid
	hdrCtD = 0x40 // DDP header included
	hdrCtR = 0x20 // RDMAP header included

	hdrCtMask        = hdrCtM | hdrCtD | hdrCtR
	swappedHdrCtMask = 0x07 // reserved bits, 0 in a control word of the RFC
)

// Append appends the header to b.
func (t Terminate) Append(b []byte) []byte {
	var ct byte
	if t.DDP != nil {
		ct |= hdrCtM | hdrCtD
	}
	if t.RDMAP != nil {
		ct |= hdrCtR
	}
	kind := byte(t.Layer)<<4 | t.Type&0x0f
	if t.Swapped {
		kind, ct = bits.RotateLeft8(kind, 4), bits.Reverse8(ct)
	}
	b = append(b, kind, t.Code, ct, 0)
	if t.DDP != nil {
		b = binary.BigEndian.AppendUint16(b, t.SegLen)
		b = append(b, t.DDP...)
	}
	return append(b, t.RDMAP...)
}

// ParseTerminate reads the header from b. The slices point into b. ok is false
// when b is shorter than what its own control bits announce.
func ParseTerminate(b []byte) (t Terminate, ok bool) {
	if len(b) < terminateControlLen {
		return t, false
	}
	kind, ct, rest := b[0], b[2], b[terminateControlLen:]
	if t.Swapped = ct&hdrCtMask == 0 && ct&swappedHdrCtMask != 0; t.Swapped {
		kind, ct = bits.RotateLeft8(kind, 4), bits.Reverse8(ct)
	}
	t.Layer, t.Type, t.Code = ddp.Layer(kind>>4), kind&0x0f, b[1]
	if ct&(hdrCtM|hdrCtD) != 0 {
		if len(rest) < 2 {
			return t, false
		}
		t.SegLen, rest = binary.BigEndian.Uint16(rest), rest[2:]
	}
	if ct&hdrCtD != 0 {
		n := ddp.HeaderLen(rest)
		if n == 0 {
			return t, false
		}
		t.DDP, rest = rest[:n:n], rest[n:]
	}
	if ct&hdrCtR != 0 {
		if len(rest) < ReadRequestLen {
			return t, false
		}
		t.RDMAP = rest[:ReadRequestLen:ReadRequestLen]
	}
	return t, true
}
