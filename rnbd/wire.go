package rnbd

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/internal/printable"
	"github.com/ironwarp/ironwarp/rtrs"
)

var le = binary.LittleEndian

// Version is the newest version that this package speaks: major 3, minor 1. Linux's RNBD ends
// at major 2.
const Version rtrs.Protocol = 0x0301

// versionGrown is the first version with GROWN and the access mode for a migration.
const versionGrown rtrs.Protocol = 0x0301

// agree returns the version that two ends speak. It fails with ErrVersion where there is none.
func agree(ours, theirs rtrs.Protocol) (rtrs.Protocol, error) {
	if !ours.Agrees(theirs) {
		return 0, fmt.Errorf("%w: %s", ErrVersion, ours.Differs("RNBD", theirs))
	}
	return min(ours, theirs), nil
}

// Message types.
const (
	msgSessInfo    = 0
	msgSessInfoRsp = 1
	msgOpen        = 2
	msgOpenRsp     = 3
	msgIO          = 4
	msgClose       = 5
	msgList        = 6
	msgListRsp     = 7
	msgGrown       = 8
	msgGrownRsp    = 9
)

// Lengths in bytes of the messages.
const (
	sessInfoLen = 36
	openLen     = 312
	openRspLen  = 208
	ioLen       = 32
	closeLen    = 8
	listRspHdr  = 12
	grownLen    = 16 // of an entry
	nameField   = 255
	detailField = openRspLen - 90
)

// ErrWire is wrapped by every error about a malformed message.
var ErrWire = errors.New("rnbd: malformed message")

func wireErr(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrWire, fmt.Sprintf(format, args...))
}

// msgType returns the type of a message, -1 if it has none.
func msgType(b []byte) int {
	if len(b) < 4 {
		return -1
	}
	return int(le.Uint16(b))
}

func checkMsg(b []byte, typ, n int) error {
	if len(b) < n || msgType(b) != typ {
		return wireErr("%d bytes of type %d, want %d of type %d", len(b), msgType(b), n, typ)
	}
	return nil
}

func appendHdr(b []byte, typ uint16) []byte {
	b = le.AppendUint16(b, typ)
	return append(b, 0, 0)
}

// sessInfo carries the newest version that an end speaks; the answer has the same layout.
type sessInfo struct{ Version rtrs.Protocol }

func (m *sessInfo) Append(b []byte, typ uint16) []byte {
	b = append(appendHdr(b, typ), byte(m.Version>>8), byte(m.Version))
	return append(b, make([]byte, sessInfoLen-6)...)
}

func (m *sessInfo) Parse(b []byte, typ int) error {
	if err := checkMsg(b, typ, sessInfoLen); err != nil {
		return err
	}
	m.Version = rtrs.Protocol(b[4])<<8 | rtrs.Protocol(b[5])
	return nil
}

// Access modes of OPEN.
const (
	accessRO        = 0
	accessRW        = 1
	accessMigration = 2 // as one of two writers
)

// openWriter is the flag of OPEN that the attachment was the disk's writer when it last
// opened the disk.
const openWriter = 1 << 0

// openMsg asks for a device.
type openMsg struct {
	Access uint8
	Name   string
	Device uint32 // the id that the client wants, at most maxDeviceID; 0 for any
	Claim  Claim
}

func (m *openMsg) Append(b []byte) []byte {
	start := len(b)
	var flags byte
	if m.Claim.Writer {
		flags = openWriter
	}
	b = append(appendHdr(b, msgOpen), m.Access, flags)
	b = append(b, m.Name...)
	b = append(b, make([]byte, start+6+nameField-len(b))...)
	b = append(b, byte(m.Device), byte(m.Device>>8), byte(m.Device>>16))
	b = append(b, m.Claim.Disk[:]...)
	b = append(b, m.Claim.Attachment[:]...)
	return append(b, m.Claim.Life[:]...)
}

func (m *openMsg) Parse(b []byte) error {
	if err := checkMsg(b, msgOpen, openLen); err != nil {
		return err
	}
	m.Access = b[4]
	if m.Access > accessMigration {
		return wireErr("OPEN with access mode %d", m.Access)
	}
	name := b[6 : 6+nameField]
	end := bytes.IndexByte(name, 0)
	if end < 0 {
		return wireErr("OPEN whose name is not terminated")
	}
	m.Name, m.Device = string(name[:end]), le.Uint32(b[5+nameField:])>>8
	m.Claim = Claim{Disk: block.ID(b[264:280]), Attachment: block.ID(b[280:296]), Life: block.ID(b[296:312]), Writer: b[5]&openWriter != 0}
	return CheckName(m.Name)
}

// CheckName checks the name of an export: 1 to MaxName printable bytes. It fails with
// ErrWire.
func CheckName(name string) error {
	if name == "" || len(name) > MaxName {
		return wireErr("an export's name of %d bytes, 1 to %d are possible", len(name), MaxName)
	}
	if err := printable.Check(name); err != nil {
		return wireErr("an export's name: %v", err)
	}
	return nil
}

// errReplaced is the result of I/O that was not carried out because the export's storage
// is being opened again: the client reopens the disk and resends it.
const errReplaced = syscall.EAGAIN

// errFenced is the result of I/O under a token that is void: it was not carried out, nor
// is any other until the client opens the disk anew. No other I/O of a disk that may be
// written to has it.
const errFenced = syscall.EPERM

// Bits of openRsp.CachePolicy and openRsp.Flags.
const (
	cacheFUA       = 1 << 0
	cacheWriteback = 1 << 1
	flagReadOnly   = 1 << 0
	flagKept       = 1 << 1 // all writes that the claimed life acknowledged are there
	flagWriter     = 1 << 2 // the attachment is the disk's writer
	flagShared     = 1 << 3 // other clients may have it open for writing
)

// Results of OPEN.
const (
	openDone      = iota
	openNotReady  // the export is configured but its storage is not open; detail: why
	openInUse     // another has it open for writing; detail: who
	openOtherDisk // its UUID is not the requested one
	openDamaged   // its storage has lost acknowledged writes; detail: how
	openPreempted // another was let in since the claimed attachment was its writer; detail: who
	openFenced    // the claimed attachment was fenced; detail: when. The rest is as if it were open
	openResults
)

// openRsp describes an opened device, or why there is none.
type openRsp struct {
	Device       uint32
	Sectors      uint64
	MaxIO        uint32 // sectors
	MaxZeroes    uint32 // sectors; 0: cannot
	MaxDiscard   uint32 // sectors; 0: cannot
	DiscardGran  uint32 // bytes
	DiscardAlign uint32 // bytes
	Physical     uint16 // bytes
	Logical      uint16 // bytes
	Rotational   bool
	CachePolicy  uint8
	Flags        uint8
	Identity     block.Identity
	Result       uint8
	Detail       string // printable, at most detailField bytes
}

func (m *openRsp) Append(b []byte) []byte {
	b = appendHdr(b, msgOpenRsp)
	b = le.AppendUint32(b, m.Device)
	b = le.AppendUint64(b, m.Sectors)
	b = le.AppendUint32(b, m.MaxIO)
	b = le.AppendUint32(b, m.MaxZeroes)
	b = le.AppendUint32(b, m.MaxDiscard)
	b = le.AppendUint32(b, m.DiscardGran)
	b = le.AppendUint32(b, m.DiscardAlign)
	b = le.AppendUint16(b, m.Physical)
	b = le.AppendUint16(b, m.Logical)
	b = append(b, 1, 0, 0, 0) // one segment; no secure discard
	var rot byte
	if m.Rotational {
		rot = 1
	}
	b = append(b, rot, m.CachePolicy, m.Flags)
	b = append(b, make([]byte, 9)...)
	b = append(b, m.Identity.Disk[:]...)
	b = append(b, m.Identity.Life[:]...)
	detail := printable.Cut(m.Detail, detailField)
	b = append(b, m.Result, byte(len(detail)))
	b = append(b, detail...)
	return append(b, make([]byte, detailField-len(detail))...)
}

func (m *openRsp) Parse(b []byte) error {
	if err := checkMsg(b, msgOpenRsp, openRspLen); err != nil {
		return err
	}
	m.Device = le.Uint32(b[4:])
	m.Sectors = le.Uint64(b[8:])
	m.MaxIO = le.Uint32(b[16:])
	m.MaxZeroes = le.Uint32(b[20:])
	m.MaxDiscard = le.Uint32(b[24:])
	m.DiscardGran = le.Uint32(b[28:])
	m.DiscardAlign = le.Uint32(b[32:])
	m.Physical = le.Uint16(b[36:])
	m.Logical = le.Uint16(b[38:])
	m.Rotational = b[44] != 0
	m.CachePolicy = b[45]
	m.Flags = b[46]
	m.Identity = block.Identity{Disk: block.ID(b[56:72]), Life: block.ID(b[72:88])}
	m.Result = b[88]
	if b[89] > detailField {
		return wireErr("an answer to OPEN with a text of %d bytes", b[89])
	}
	m.Detail = string(b[90 : 90+int(b[89])])
	if err := printable.Check(m.Detail); err != nil {
		return wireErr("the text of an answer to OPEN: %v", err)
	}
	switch {
	case m.Result >= openResults:
		return wireErr("an answer to OPEN with result %d", m.Result)
	case m.Result != openDone && m.Result != openFenced:
		return nil
	case m.Identity.Disk.IsZero() || m.Identity.Life.IsZero():
		return wireErr("a device without a UUID or without an identity of its life")
	case m.Sectors > maxSectors:
		return wireErr("a device of %d sectors", m.Sectors)
	case m.Logical != SectorSize:
		return wireErr("a device with logical blocks of %d bytes, %d are possible", m.Logical, SectorSize)
	case m.Physical < m.Logical || m.Physical&(m.Physical-1) != 0:
		return wireErr("a device with physical blocks of %d bytes", m.Physical)
	case m.MaxIO == 0:
		return wireErr("a device without I/O")
	}
	return nil
}

// Operations and flags of ioMsg.RW.
const (
	opRead        = 0
	opWrite       = 1
	opFlush       = 2
	opDiscard     = 3
	opSecureErase = 4
	opWriteZeroes = 5
	opCache       = 16
	opStatus      = 17
	opMask        = 0xff

	fSync     = 1 << 8
	fFUA      = 1 << 9
	fPreflush = 1 << 10
	fNoUnmap  = 1 << 11
	fFastZero = 1 << 16
)

// wireOps are the operations in ioMsg.RW.
var wireOps = [block.NumOps]uint32{block.OpRead: opRead, block.OpWrite: opWrite, block.OpFlush: opFlush,
	block.OpTrim: opDiscard, block.OpWriteZeroes: opWriteZeroes, block.OpCache: opCache, block.OpStatus: opStatus}

// wireFlags are the flags in ioMsg.RW.
var wireFlags = [...]struct {
	flag block.Flags
	bit  uint32
}{{block.FUA, fFUA}, {block.NoUnmap, fNoUnmap}, {block.FastZero, fFastZero}}

// rwOf returns ioMsg.RW of an operation.
func rwOf(op block.Op, fl block.Flags) uint32 {
	rw := wireOps[op]
	for _, f := range wireFlags {
		if fl&f.flag != 0 {
			rw |= f.bit
		}
	}
	return rw
}

// operation decodes ioMsg.RW. ok is false if it is unknown.
func operation(rw uint32) (op block.Op, fl block.Flags, ok bool) {
	i := slices.Index(wireOps[:], rw&opMask)
	rest := rw &^ uint32(opMask|fSync)
	for _, f := range wireFlags {
		if rw&f.bit != 0 {
			fl |= f.flag
			rest &^= f.bit
		}
	}
	if i < 0 || rest != 0 {
		return 0, 0, false
	}
	return block.Op(i), fl, true
}

// refusal is why operation knows no such ioMsg.RW, for people.
func refusal(rw uint32) string {
	switch {
	case rw&opMask == opSecureErase:
		return "secure erase: nobody can say here what copies of the data the storage has; discard, or write zeroes"
	case rw&fPreflush != 0:
		return "a flush before a write in the same request: flush first"
	case !slices.Contains(wireOps[:], rw&opMask):
		return fmt.Sprintf("operation %d, which is unknown", rw&opMask)
	}
	return fmt.Sprintf("flags %#x, which are unknown", rw&^uint32(opMask|fSync|fFUA|fNoUnmap|fFastZero))
}

// direction returns how an operation's data goes.
func direction(op block.Op) rtrs.Dir {
	if op.Answers() {
		return rtrs.Read
	}
	return rtrs.Write
}

// ioMsg is one I/O.
type ioMsg struct {
	Device uint32
	Sector uint64
	RW     uint32
	Size   uint32 // bytes
}

// Put writes the message to b, which has ioLen bytes.
func (m *ioMsg) Put(b *[ioLen]byte) {
	*b = [ioLen]byte{msgIO}
	le.PutUint32(b[4:], m.Device)
	le.PutUint64(b[8:], m.Sector)
	le.PutUint32(b[16:], m.RW)
	le.PutUint32(b[20:], m.Size)
}

// Parse reads the message, each field once. It reports whether b holds one.
func (m *ioMsg) Parse(b []byte) bool {
	if len(b) != ioLen || le.Uint16(b) != msgIO {
		return false
	}
	m.Device = le.Uint32(b[4:])
	m.Sector = le.Uint64(b[8:])
	m.RW = le.Uint32(b[16:])
	m.Size = le.Uint32(b[20:])
	return true
}

// numMsg is CLOSE (a device), LIST or GROWN (an index).
type numMsg struct{ N uint32 }

func (m *numMsg) Append(b []byte, typ uint16) []byte { return le.AppendUint32(appendHdr(b, typ), m.N) }

func (m *numMsg) Parse(b []byte, typ int) error {
	if err := checkMsg(b, typ, closeLen); err != nil {
		return err
	}
	m.N = le.Uint32(b[4:])
	return nil
}

// Listed is an export as its server shows it to a peer.
type Listed struct {
	Name     string
	Size     uint64 // bytes
	ReadOnly bool
}

// listRsp is a part of the list of exports.
type listRsp struct {
	Entries []Listed
	Next    uint32 // index of the first entry of the next part; 0: none
}

// Append appends the message with as many entries as fit size bytes, and returns how many
// fit. The caller sets Next afterwards.
func (m *listRsp) Append(b []byte, size int) ([]byte, int) {
	start := len(b)
	b = appendHdr(b, msgListRsp)
	b = append(b, make([]byte, listRspHdr-4)...)
	n := 0
	for _, e := range m.Entries {
		if len(b)-start+10+len(e.Name) > size {
			break
		}
		b = le.AppendUint64(b, e.Size/SectorSize)
		var flags byte
		if e.ReadOnly {
			flags = flagReadOnly
		}
		b = append(b, flags, byte(len(e.Name)))
		b = append(b, e.Name...)
		n++
	}
	le.PutUint32(b[start+4:], uint32(n))
	return b, n
}

func (m *listRsp) Parse(b []byte) error {
	if err := checkMsg(b, msgListRsp, listRspHdr); err != nil {
		return err
	}
	n := le.Uint32(b[4:])
	m.Next = le.Uint32(b[8:])
	m.Entries = m.Entries[:0]
	b = b[listRspHdr:]
	for range n {
		if len(b) < 10 || len(b) < 10+int(b[9]) {
			return wireErr("a list of %d exports that is cut off", n)
		}
		e := Listed{Size: le.Uint64(b) * SectorSize, ReadOnly: b[8]&flagReadOnly != 0, Name: string(b[10 : 10+int(b[9])])}
		if err := CheckName(e.Name); err != nil {
			return err
		}
		m.Entries = append(m.Entries, e)
		b = b[10+len(e.Name):]
	}
	return nil
}

// grownDevice is a device that has grown since it was opened.
type grownDevice struct {
	Device  uint32
	Sectors uint64
}

// grownRsp is a part of the list of grown devices.
type grownRsp struct {
	Devices []grownDevice
	Next    uint32 // index of the first entry of the next part; 0: none
}

// Append appends the message with as many entries as fit size bytes, and returns how many
// fit. The caller sets Next afterwards.
func (m *grownRsp) Append(b []byte, size int) ([]byte, int) {
	n := min(len(m.Devices), max(0, size-listRspHdr)/grownLen)
	b = le.AppendUint32(appendHdr(b, msgGrownRsp), uint32(n))
	b = le.AppendUint32(b, 0)
	for _, g := range m.Devices[:n] {
		b = le.AppendUint32(b, g.Device)
		b = le.AppendUint32(b, 0)
		b = le.AppendUint64(b, g.Sectors)
	}
	return b, n
}

func (m *grownRsp) Parse(b []byte) error {
	if err := checkMsg(b, msgGrownRsp, listRspHdr); err != nil {
		return err
	}
	n := le.Uint32(b[4:])
	m.Next = le.Uint32(b[8:])
	m.Devices = m.Devices[:0]
	if b = b[listRspHdr:]; int64(n) > int64(len(b)/grownLen) {
		return wireErr("a list of %d grown devices that is cut off", n)
	}
	for ; n > 0; n, b = n-1, b[grownLen:] {
		g := grownDevice{Device: le.Uint32(b), Sectors: le.Uint64(b[8:])}
		if g.Sectors > maxSectors {
			return wireErr("a device that has grown to %d sectors", g.Sectors)
		}
		m.Devices = append(m.Devices, g)
	}
	return nil
}
