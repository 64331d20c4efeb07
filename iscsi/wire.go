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

// AHSLen is the length in bytes of the Additional Header Segments, a multiple of 4, up to 1020.
func (h *BHS) AHSLen() int { return int(h[4]) * 4 }

// DataLen is the length in bytes of the data segment without its padding, below 1<<24.
func (h *BHS) DataLen() int { return int(h.u32(4) & 0xffffff) }

// SetLengths sets TotalAHSLength and DataSegmentLength. ahs is a multiple of 4.
func (h *BHS) SetLengths(ahs, data int) { h.put32(4, uint32(ahs/4)<<24|uint32(data)) }

// ITT is the Initiator Task Tag.
func (h *BHS) ITT() uint32 { return h.u32(16) }

// CmdSN is the command sequence number of a request that has one.
func (h *BHS) CmdSN() uint32 { return h.u32(24) }

// ExpStatSN acknowledges the status with lower numbers, in all PDUs of initiators.
func (h *BHS) ExpStatSN() uint32 { return h.u32(28) }

// StatSN numbers the status in a target's PDU that has one (RFC 7143 section 11.4.9).
func (h *BHS) StatSN() uint32 { return h.u32(24) }

// coder is one direction of the codec of Basic Header Segments: each PDU lists its fields once, in a method
// fields, which reads them from the header or writes them to it. So what is parsed and what is put cannot
// differ. Offsets are in bytes from the start of the header, as in the figures of RFC 7143 section 11.
type coder struct {
	h   *BHS
	put bool
}

// begin clears the header and sets its opcode, for fields to be put. one are bits of byte 1 that are
// always 1.
func (h *BHS) begin(o Opcode, one byte) coder {
	*h = BHS{byte(o), one}
	return coder{h, true}
}

// read returns the coder that reads the header.
func (h *BHS) read() coder { return coder{h: h} }

func (x coder) bit(at int, mask byte, v *bool) {
	switch {
	case !x.put:
		*v = x.h.bit(at, mask)
	case *v:
		x.h[at] |= mask
	}
}

// u16 codes fields of 2 bytes, one behind the other.
func (x coder) u16(at int, fields ...*uint16) {
	for i, v := range fields {
		if x.put {
			x.h.put16(at+2*i, *v)
		} else {
			*v = x.h.u16(at + 2*i)
		}
	}
}

// u32 codes fields of 4 bytes, one behind the other.
func (x coder) u32(at int, fields ...*uint32) {
	for i, v := range fields {
		if x.put {
			x.h.put32(at+4*i, *v)
		} else {
			*v = x.h.u32(at + 4*i)
		}
	}
}

func (x coder) bytes(at int, v []byte) {
	if x.put {
		copy(x.h[at:], v)
	} else {
		copy(v, x.h[at:])
	}
}

// bits codes a number of some bits of a byte, of which the lowest is bit shift.
func bits[T ~uint8](x coder, at int, mask byte, shift int, v *T) {
	if x.put {
		x.h[at] |= byte(*v) << shift & mask
	} else {
		*v = T(x.h[at] & mask >> shift)
	}
}

func octet[T ~uint8](x coder, at int, v *T) { bits(x, at, 0xff, 0, v) }

// immediate codes the I bit of a request.
func (x coder) immediate(v *bool) { x.bit(0, 0x40, v) }

// final codes the F bit, in Login PDUs the T bit.
func (x coder) final(v *bool) { x.bit(1, 0x80, v) }

// address codes the LUN, the Initiator Task Tag, and the tag of 4 bytes behind it, in most PDUs the Target
// Transfer Tag.
func (x coder) address(lun *[8]byte, itt, tag *uint32) {
	x.bytes(8, lun[:])
	x.u32(16, itt, tag)
}

// request codes the numbers of what an initiator sends.
func (x coder) request(cmdSN, expStatSN *uint32) { x.u32(24, cmdSN, expStatSN) }

// numbers codes those of what a target sends.
func (x coder) numbers(n *Numbers) { x.u32(24, &n.StatSN, &n.ExpCmdSN, &n.MaxCmdSN) }

// Pad is how many bytes of padding follow n bytes (RFC 7143 section 11.1).
func Pad(n int) int { return -n & 3 }

// Numbers are the sequence numbers in what a target sends (RFC 7143 sections 11.4.9 to 11.4.11).
type Numbers struct{ StatSN, ExpCmdSN, MaxCmdSN uint32 }

// Renumber sets the numbers of commands in what a target sends again. StatSN stays.
func (h *BHS) Renumber(n Numbers) {
	h.put32(28, n.ExpCmdSN)
	h.put32(32, n.MaxCmdSN)
}

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

func (c *Command) fields(x coder) {
	x.immediate(&c.Immediate)
	x.final(&c.Final)
	x.bit(1, 0x40, &c.Read)
	x.bit(1, 0x20, &c.Write)
	bits(x, 1, 7, 0, &c.Attr)
	x.address(&c.LUN, &c.ITT, &c.EDTL)
	x.request(&c.CmdSN, &c.ExpStatSN)
	x.bytes(32, c.CDB[:])
}

// ParseCommand reads a SCSI Command. It fails with ErrFormat.
func ParseCommand(h *BHS) (c Command, err error) {
	c.fields(h.read())
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
func (c *Command) Put(h *BHS) { c.fields(h.begin(OpCommand, 0)) }

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

// fields codes a residual by the bits of its overflow and underflow and the place of its count.
func (r *Residual) fields(x coder, overflow, underflow byte, count int) {
	x.bit(1, overflow, &r.Overflow)
	x.bit(1, underflow, &r.Underflow)
	x.u32(count, &r.Count)
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

func (r *Response) fields(x coder) {
	r.Residual.fields(x, 4, 2, 44)
	r.BidiResidual.fields(x, 0x10, 8, 40)
	octet(x, 2, &r.Response)
	octet(x, 3, &r.Status)
	x.u32(16, &r.ITT, &r.SNACKTag)
	x.numbers(&r.Numbers)
	x.u32(36, &r.ExpDataSN)
}

// Put writes the header.
func (r *Response) Put(h *BHS) { r.fields(h.begin(OpResponse, 0x80)) }

// ParseResponse reads a SCSI Response. It fails with ErrFormat.
func ParseResponse(h *BHS) (r Response, err error) {
	r.fields(h.read())
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

func (t *TaskMgmt) fields(x coder) {
	x.immediate(&t.Immediate)
	bits(x, 1, 0x7f, 0, &t.Function)
	x.address(&t.LUN, &t.ITT, &t.RefTag)
	x.request(&t.CmdSN, &t.ExpStatSN)
	x.u32(32, &t.RefCmdSN, &t.ExpDataSN)
}

// ParseTaskMgmt reads a Task Management Function Request. It fails with ErrFormat.
func ParseTaskMgmt(h *BHS) (t TaskMgmt, err error) {
	t.fields(h.read())
	if h.AHSLen() != 0 || h.DataLen() != 0 {
		return t, formatError(OpTaskMgmt, "it has data")
	}
	if t.ITT == NoTag {
		return t, formatError(OpTaskMgmt, "the reserved task tag")
	}
	return t, nil
}

// Put writes the header.
func (t *TaskMgmt) Put(h *BHS) { t.fields(h.begin(OpTaskMgmt, 0x80)) }

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

func (t *TaskReply) fields(x coder) {
	octet(x, 2, &t.Response)
	x.u32(16, &t.ITT)
	x.numbers(&t.Numbers)
}

// Put writes the header.
func (t *TaskReply) Put(h *BHS) { t.fields(h.begin(OpTaskResp, 0x80)) }

// ParseTaskReply reads a Task Management Function Response.
func ParseTaskReply(h *BHS) (t TaskReply) { t.fields(h.read()); return t }
