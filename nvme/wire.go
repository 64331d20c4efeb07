package nvme

import (
	"encoding/binary"
	"errors"
	"fmt"
)

const (
	// CommandLen is the length in bytes of a submission queue entry, with which every command capsule begins.
	CommandLen = 64
	// CompletionLen is that of a completion queue entry, which is a response capsule.
	CompletionLen = 16
)

// ErrFormat matches errors of structures that are too short, or not what they must be.
var ErrFormat = errors.New("nvme: malformed")

var le = binary.LittleEndian

func short(what string, n, want int) error {
	return fmt.Errorf("%s of %d bytes, which has %d: %w", what, n, want, ErrFormat)
}

// Command is a submission queue entry (NVMe-oF 2.1).
type Command []byte

// ParseCommand returns the entry at the beginning of a command capsule, and the data behind it. It fails with
// ErrFormat if the capsule is shorter.
func ParseCommand(capsule []byte) (c Command, inCapsule []byte, err error) {
	if len(capsule) < CommandLen {
		return nil, nil, short("a command capsule", len(capsule), CommandLen)
	}
	return Command(capsule[:CommandLen:CommandLen]), capsule[CommandLen:], nil
}

// NewCommand returns an entry with an operation and an identifier, whose SGL names no data.
func NewCommand(op Opcode, id uint16) Command {
	c := make(Command, CommandLen)
	c[0], c[1] = byte(op), psdtSGL
	le.PutUint16(c[2:], id)
	c.SetSGL(SGL{Type: KeyedBlock})
	return c
}

// The bits of the second byte: PSDT says that there is an SGL, and FUSE that the command is half of two.
const (
	psdtMask = 0xc0
	psdtSGL  = 0x40
	fuseMask = 0x03
)

// Opcode is the operation.
func (c Command) Opcode() Opcode { return Opcode(c[0]) }

// ID is the command identifier.
func (c Command) ID() uint16 { return le.Uint16(c[2:]) }

// HasSGL reports whether the data are described by an SGL, as over fabrics they have to be. 10b, an SGL with one
// for metadata, counts: there are no metadata.
func (c Command) HasSGL() bool { return c[1]&psdtMask == psdtSGL || c[1]&psdtMask == 2*psdtSGL }

// Fused reports whether the command is half of a fused operation.
func (c Command) Fused() bool { return c[1]&fuseMask != 0 }

// NSID is the namespace.
func (c Command) NSID() uint32 { return le.Uint32(c[4:]) }

// SetNSID sets the namespace.
func (c Command) SetNSID(n uint32) { le.PutUint32(c[4:], n) }

// FabricsType is the type of a fabrics command.
func (c Command) FabricsType() FabricsType { return FabricsType(c[4]) }

// DWord is command dword n, from 10 to 15.
func (c Command) DWord(n int) uint32 { return le.Uint32(c[4*n:]) }

// SetDWord sets a command dword.
func (c Command) SetDWord(n int, v uint32) { le.PutUint32(c[4*n:], v) }

// SLBA is the first logical block of a command on blocks.
func (c Command) SLBA() uint64 { return le.Uint64(c[40:]) }

// Blocks is the number of logical blocks of such a command, from 1 to 65536.
func (c Command) Blocks() uint32 { return uint32(le.Uint16(c[48:])) + 1 }

// SetRange sets first and number of logical blocks.
func (c Command) SetRange(slba uint64, blocks uint32) {
	le.PutUint64(c[40:], slba)
	le.PutUint16(c[48:], uint16(blocks-1))
}

// The bits of dword 12 of commands on blocks.
const (
	RWForceUnitAccess = 1 << 30
	RWProtection      = 0xf << 26 // PRINFO
	WZDeallocate      = 1 << 25   // of Write Zeroes
	DSMDeallocate     = 1 << 2    // of dword 11 of Dataset Management
)

// The types of SGL descriptors, with their subtypes (NVMe 4.4, NVMe-oF 2.3.1).
const (
	DataBlockOffset      = 0x01 // in the capsule
	KeyedBlock           = 0x40
	KeyedBlockInvalidate = 0x4f // the response invalidates the key
)

// SGL is the descriptor of a command's data.
type SGL struct {
	Type    uint8  // type and subtype, as above
	Address uint64 // of KeyedBlock in the host's memory, of DataBlockOffset in the capsule
	Length  uint32 // of KeyedBlock 24 bits
	Key     uint32 // of KeyedBlock: the host's STag
}

// SGL parses the descriptor, whatever its type.
func (c Command) SGL() SGL {
	s := SGL{Type: c[39], Address: le.Uint64(c[24:])}
	if s.Type>>4 == KeyedBlock>>4 {
		s.Length, s.Key = le.Uint32(c[32:])&0xffffff, le.Uint32(c[35:])
	} else {
		s.Length = le.Uint32(c[32:])
	}
	return s
}

// SetSGL sets the descriptor.
func (c Command) SetSGL(s SGL) {
	le.PutUint64(c[24:], s.Address)
	le.PutUint32(c[32:], s.Length)
	if s.Type>>4 == KeyedBlock>>4 {
		le.PutUint32(c[35:], s.Key)
	} else {
		le.PutUint32(c[36:], 0)
	}
	c[39] = s.Type
}

// Completion is a completion queue entry.
type Completion struct {
	Result uint64 // of fabrics commands 64 bits, of others 32
	SQHead uint16 // 0xffff where there is no flow control
	ID     uint16 // of the command
	Status Status
}

// NoFlowControl is the SQHead of a queue whose host has disabled flow control of submissions.
const NoFlowControl = 0xffff

// Append appends the entry.
func (e Completion) Append(b []byte) []byte {
	b = le.AppendUint64(b, e.Result)
	b = le.AppendUint16(b, e.SQHead)
	b = append(b, 0, 0)
	b = le.AppendUint16(b, e.ID)
	return le.AppendUint16(b, uint16(e.Status)<<1)
}

// ParseCompletion parses a response capsule. It fails with ErrFormat if it is shorter.
func ParseCompletion(b []byte) (Completion, error) {
	if len(b) < CompletionLen {
		return Completion{}, short("a response capsule", len(b), CompletionLen)
	}
	return Completion{le.Uint64(b), le.Uint16(b[8:]), le.Uint16(b[12:]), Status(le.Uint16(b[14:]) >> 1)}, nil
}
