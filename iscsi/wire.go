package iscsi

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// BHSLen is the length in bytes of a Basic Header Segment (RFC 7143 section 11.2.1).
const BHSLen = 48

// NoTag is the reserved value of task tags (RFC 7143 section 11.2.1.8).
const NoTag = 0xffffffff

// Opcode is the type of a PDU (RFC 7143 section 11.2.1.2).
type Opcode uint8

// The opcodes of initiators, and those of targets.
const (
	OpNOPOut     Opcode = 0x00
	OpCommand    Opcode = 0x01
	OpTaskMgmt   Opcode = 0x02
	OpLogin      Opcode = 0x03
	OpText       Opcode = 0x04
	OpDataOut    Opcode = 0x05
	OpLogout     Opcode = 0x06
	OpSNACK      Opcode = 0x10
	OpNOPIn      Opcode = 0x20
	OpResponse   Opcode = 0x21
	OpTaskResp   Opcode = 0x22
	OpLoginResp  Opcode = 0x23
	OpTextResp   Opcode = 0x24
	OpDataIn     Opcode = 0x25
	OpLogoutResp Opcode = 0x26
	OpR2T        Opcode = 0x31
	OpAsync      Opcode = 0x32
	OpReject     Opcode = 0x3f
)

var opcodeNames = map[Opcode]string{
	OpNOPOut: "NOP-Out", OpCommand: "SCSI Command", OpTaskMgmt: "Task Management Function Request", OpLogin: "Login Request",
	OpText: "Text Request", OpDataOut: "SCSI Data-Out", OpLogout: "Logout Request", OpSNACK: "SNACK Request", OpNOPIn: "NOP-In",
	OpResponse: "SCSI Response", OpTaskResp: "Task Management Function Response", OpLoginResp: "Login Response",
	OpTextResp: "Text Response", OpDataIn: "SCSI Data-In", OpLogoutResp: "Logout Response", OpR2T: "R2T",
	OpAsync: "Asynchronous Message", OpReject: "Reject",
}

// String returns the name of the PDU.
func (o Opcode) String() string {
	if s, ok := opcodeNames[o]; ok {
		return s
	}
	return fmt.Sprintf("PDU with opcode %#02x", uint8(o))
}

// ErrDigest means that the digest of a header or of data was wrong. At ErrorRecoveryLevel 0 the
// session is recovered as a whole: the connection ends (RFC 7143 section 7.8).
var ErrDigest = errors.New("iscsi: digest error")

// ErrFormat means that a PDU breaks the layout (RFC 7143 section 7.7): the session ends.
var ErrFormat = errors.New("iscsi: format error")

func formatError(o Opcode, what string) error { return fmt.Errorf("%v: %s: %w", o, what, ErrFormat) }

// BHS is a Basic Header Segment.
type BHS [BHSLen]byte

func (h *BHS) u32(off int) uint32          { return binary.BigEndian.Uint32(h[off:]) }
func (h *BHS) put32(off int, v uint32)     { binary.BigEndian.PutUint32(h[off:], v) }
func (h *BHS) u16(off int) uint16          { return binary.BigEndian.Uint16(h[off:]) }
func (h *BHS) put16(off int, v uint16)     { binary.BigEndian.PutUint16(h[off:], v) }
func (h *BHS) bit(off int, mask byte) bool { return h[off]&mask != 0 }

func flag(on bool, mask byte) byte {
	if on {
		return mask
	}
	return 0
}

// Opcode returns the PDU's type.
func (h *BHS) Opcode() Opcode { return Opcode(h[0] & 0x3f) }

// Immediate reports whether a request is for immediate delivery.
func (h *BHS) Immediate() bool { return h.bit(0, 0x40) }

// Final reports whether the F bit, in Login PDUs the T bit, is set.
func (h *BHS) Final() bool { return h.bit(1, 0x80) }

// AHSLen is the length in bytes of the Additional Header Segments, a multiple of 4, up to 1020.
func (h *BHS) AHSLen() int { return int(h[4]) * 4 }

// DataLen is the length in bytes of the data segment without its padding, below 1<<24.
func (h *BHS) DataLen() int { return int(h.u32(4) & 0xffffff) }

// SetLengths sets TotalAHSLength and DataSegmentLength. ahs is a multiple of 4.
func (h *BHS) SetLengths(ahs, data int) { h.put32(4, uint32(ahs/4)<<24|uint32(data)) }

// LUN returns the LUN field.
func (h *BHS) LUN() (lun [8]byte) { return [8]byte(h[8:16]) }

// ITT is the Initiator Task Tag.
func (h *BHS) ITT() uint32 { return h.u32(16) }

// CmdSN is the command sequence number of a request that has one.
func (h *BHS) CmdSN() uint32 { return h.u32(24) }

// ExpStatSN acknowledges the status with lower numbers, in all PDUs of initiators.
func (h *BHS) ExpStatSN() uint32 { return h.u32(28) }

// begin clears the header and sets what all PDUs have.
func (h *BHS) begin(o Opcode, immediate bool, flags byte, itt uint32) {
	*h = BHS{}
	h[0] = byte(o) | flag(immediate, 0x40)
	h[1] = flags
	h.put32(16, itt)
}

// Pad is how many bytes of padding follow n bytes (RFC 7143 section 11.1).
func Pad(n int) int { return -n & 3 }

// Numbers are the sequence numbers in what a target sends (RFC 7143 sections 11.4.9 to 11.4.11).
type Numbers struct{ StatSN, ExpCmdSN, MaxCmdSN uint32 }

// PutNumbers sets them in a target's PDU.
func (h *BHS) PutNumbers(n Numbers) {
	h.put32(24, n.StatSN)
	h.put32(28, n.ExpCmdSN)
	h.put32(32, n.MaxCmdSN)
}

// Numbers returns those of a target's PDU.
func (h *BHS) Numbers() Numbers { return Numbers{h.u32(24), h.u32(28), h.u32(32)} }

// Attr is a task attribute (RFC 7143 section 11.3.1).
type Attr uint8

// The task attributes.
const (
	Untagged Attr = iota
	Simple
	Ordered
	HeadOfQueue
	ACA
)

// Command is a SCSI Command (RFC 7143 section 11.3).
type Command struct {
	Immediate, Final, Read, Write bool
	Attr                          Attr
	LUN                           [8]byte
	ITT, EDTL, CmdSN, ExpStatSN   uint32
	CDB                           [16]byte
}

// ParseCommand reads a SCSI Command. It fails with ErrFormat.
func ParseCommand(h *BHS) (c Command, err error) {
	c = Command{
		Immediate: h.Immediate(), Final: h.Final(), Read: h.bit(1, 0x40), Write: h.bit(1, 0x20), Attr: Attr(h[1] & 7),
		LUN: h.LUN(), ITT: h.ITT(), EDTL: h.u32(20), CmdSN: h.CmdSN(), ExpStatSN: h.ExpStatSN(), CDB: [16]byte(h[32:48]),
	}
	switch {
	case c.Attr > ACA:
		return c, formatError(OpCommand, "reserved task attribute")
	case c.ITT == NoTag:
		return c, formatError(OpCommand, "the reserved task tag")
	case !c.Write && !c.Final:
		return c, formatError(OpCommand, "neither W nor F is set")
	case c.EDTL != 0 && !c.Read && !c.Write:
		return c, formatError(OpCommand, "an expected length without a direction")
	}
	return c, nil
}

// Put writes the header.
func (c *Command) Put(h *BHS) {
	h.begin(OpCommand, c.Immediate, flag(c.Final, 0x80)|flag(c.Read, 0x40)|flag(c.Write, 0x20)|byte(c.Attr), c.ITT)
	copy(h[8:], c.LUN[:])
	h.put32(20, c.EDTL)
	h.put32(24, c.CmdSN)
	h.put32(28, c.ExpStatSN)
	copy(h[32:], c.CDB[:])
}

// Residual says that a command moved another number of bytes than its initiator expected (RFC 7143
// section 11.4.5.2).
type Residual struct {
	Overflow, Underflow bool
	Count               uint32
}

// ResidualOf compares what SCSI wanted to move with what the initiator expected.
func ResidualOf(spdtl, edtl uint32) Residual {
	switch {
	case spdtl > edtl:
		return Residual{Overflow: true, Count: spdtl - edtl}
	case spdtl < edtl:
		return Residual{Underflow: true, Count: edtl - spdtl}
	}
	return Residual{}
}

func (r Residual) flags() byte { return flag(r.Overflow, 4) | flag(r.Underflow, 2) }

func residualAt(h *BHS) Residual {
	return Residual{Overflow: h.bit(1, 4), Underflow: h.bit(1, 2), Count: h.u32(44)}
}

// The service responses of a Response (RFC 7143 section 11.4.3).
const (
	CommandCompleted = 0
	TargetFailure    = 1
)

// Response is a SCSI Response (RFC 7143 section 11.4). Its data segment is what AppendSense makes.
type Response struct {
	Residual
	BidiResidual             Residual
	Response, Status         uint8
	ITT, SNACKTag, ExpDataSN uint32
	Numbers
}

// Put writes the header.
func (r *Response) Put(h *BHS) {
	h.begin(OpResponse, false, 0x80|flag(r.BidiResidual.Overflow, 0x10)|flag(r.BidiResidual.Underflow, 8)|r.Residual.flags(), r.ITT)
	h[2], h[3] = r.Response, r.Status
	h.put32(20, r.SNACKTag)
	h.PutNumbers(r.Numbers)
	h.put32(36, r.ExpDataSN)
	h.put32(40, r.BidiResidual.Count)
	h.put32(44, r.Residual.Count)
}

// ParseResponse reads a SCSI Response. It fails with ErrFormat.
func ParseResponse(h *BHS) (r Response, err error) {
	r = Response{
		Residual: residualAt(h), BidiResidual: Residual{Overflow: h.bit(1, 0x10), Underflow: h.bit(1, 8), Count: h.u32(40)},
		Response: h[2], Status: h[3], ITT: h.ITT(), SNACKTag: h.u32(20), ExpDataSN: h.u32(36), Numbers: h.Numbers(),
	}
	if r.Overflow && r.Underflow || r.BidiResidual.Overflow && r.BidiResidual.Underflow {
		return r, formatError(OpResponse, "overflow and underflow at once")
	}
	return r, nil
}

// AppendSense appends the data segment of a Response or an Async (RFC 7143 section 11.4.7).
func AppendSense(b, sense []byte) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(len(sense))), sense...)
}

// ParseSense returns the sense data of such a data segment. It fails with ErrFormat.
func ParseSense(data []byte) ([]byte, error) {
	if len(data) == 0 {
		return nil, nil
	}
	if len(data) < 2 || int(binary.BigEndian.Uint16(data)) > len(data)-2 {
		return nil, formatError(OpResponse, "sense data longer than the data segment")
	}
	return data[2 : 2+binary.BigEndian.Uint16(data)], nil
}

// Function is a task management function (RFC 7143 section 11.5.1, RFC 7144 section 4).
type Function uint8

// The task management functions.
const (
	AbortTask        Function = 1
	AbortTaskSet     Function = 2
	ClearACA         Function = 3
	ClearTaskSet     Function = 4
	LogicalUnitReset Function = 5
	TargetWarmReset  Function = 6
	TargetColdReset  Function = 7
	TaskReassign     Function = 8
)

// TaskMgmt is a Task Management Function Request (RFC 7143 section 11.5).
type TaskMgmt struct {
	Immediate                                          bool
	Function                                           Function
	LUN                                                [8]byte
	ITT, RefTag, CmdSN, ExpStatSN, RefCmdSN, ExpDataSN uint32
}

// ParseTaskMgmt reads a Task Management Function Request. It fails with ErrFormat.
func ParseTaskMgmt(h *BHS) (t TaskMgmt, err error) {
	t = TaskMgmt{
		Immediate: h.Immediate(), Function: Function(h[1] & 0x7f), LUN: h.LUN(), ITT: h.ITT(), RefTag: h.u32(20),
		CmdSN: h.CmdSN(), ExpStatSN: h.ExpStatSN(), RefCmdSN: h.u32(32), ExpDataSN: h.u32(36),
	}
	if h.AHSLen() != 0 || h.DataLen() != 0 {
		return t, formatError(OpTaskMgmt, "it has data")
	}
	if t.ITT == NoTag {
		return t, formatError(OpTaskMgmt, "the reserved task tag")
	}
	return t, nil
}

// Put writes the header.
func (t *TaskMgmt) Put(h *BHS) {
	h.begin(OpTaskMgmt, t.Immediate, 0x80|byte(t.Function), t.ITT)
	copy(h[8:], t.LUN[:])
	h.put32(20, t.RefTag)
	h.put32(24, t.CmdSN)
	h.put32(28, t.ExpStatSN)
	h.put32(32, t.RefCmdSN)
	h.put32(36, t.ExpDataSN)
}

// TaskResponse is what became of a task management function (RFC 7143 section 11.6.1).
type TaskResponse uint8

// The responses to task management functions.
const (
	FunctionComplete         TaskResponse = 0
	TaskDoesNotExist         TaskResponse = 1
	LUNDoesNotExist          TaskResponse = 2
	TaskStillAllegiant       TaskResponse = 3
	ReassignmentNotSupported TaskResponse = 4
	FunctionNotSupported     TaskResponse = 5
	AuthorizationFailed      TaskResponse = 6
	FunctionRejected         TaskResponse = 255
)

// TaskReply is a Task Management Function Response (RFC 7143 section 11.6).
type TaskReply struct {
	Response TaskResponse
	ITT      uint32
	Numbers
}

// Put writes the header.
func (t *TaskReply) Put(h *BHS) {
	h.begin(OpTaskResp, false, 0x80, t.ITT)
	h[2] = byte(t.Response)
	h.PutNumbers(t.Numbers)
}

// ParseTaskReply reads a Task Management Function Response.
func ParseTaskReply(h *BHS) TaskReply {
	return TaskReply{TaskResponse(h[2]), h.ITT(), h.Numbers()}
}
