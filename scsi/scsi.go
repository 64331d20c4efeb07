// Package scsi is the codec of SCSI's commands, sense data and parameter data, as far as disks have
// them: SPC-4 and SBC-3 as Seagate's SCSI Commands Reference Manual (100293068) describes them. It
// has no state and no I/O.
package scsi

import (
	"encoding/binary"
	"errors"
)

// Status is the status of a command.
type Status uint8

// The statuses of commands (SAM-5 5.3.1).
const (
	Good                Status = 0x00
	CheckCondition      Status = 0x02
	Busy                Status = 0x08
	ReservationConflict Status = 0x18
	TaskSetFull         Status = 0x28
	TaskAborted         Status = 0x40
)

// The operation codes of commands.
const (
	TestUnitReady        = 0x00
	RequestSense         = 0x03
	Read6                = 0x08
	Write6               = 0x0a
	Inquiry              = 0x12
	ModeSelect6          = 0x15
	Reserve6             = 0x16
	Release6             = 0x17
	ModeSense6           = 0x1a
	StartStopUnit        = 0x1b
	PreventAllow         = 0x1e
	ReadCapacity10       = 0x25
	Read10               = 0x28
	Write10              = 0x2a
	WriteVerify10        = 0x2e
	Verify10             = 0x2f
	PreFetch10           = 0x34
	SynchronizeCache10   = 0x35
	ReadDefectData10     = 0x37
	WriteSame10          = 0x41
	Unmap                = 0x42
	Sanitize             = 0x48 // with Overwrite, BlockErase, ExitFailureMode
	ModeSelect10         = 0x55
	ModeSense10          = 0x5a
	PersistentReserveIn  = 0x5e
	PersistentReserveOut = 0x5f
	ExtendedCopy         = 0x83
	ReceiveCopyResults   = 0x84 // with CopyStatus, CopyParameters, CopyFailure
	Read16               = 0x88
	CompareAndWrite      = 0x89
	Write16              = 0x8a
	OrWrite16            = 0x8b
	WriteVerify16        = 0x8e
	Verify16             = 0x8f
	PreFetch16           = 0x90
	SynchronizeCache16   = 0x91
	WriteSame16          = 0x93
	WriteAtomic16        = 0x9c
	ServiceActionIn16    = 0x9e // with ReadCapacity16 and GetLBAStatus
	ReportLUNs           = 0xa0
	MaintenanceIn        = 0xa3 // with ReportTargetPortGroups and ReportSupported...
	Read12               = 0xa8
	Write12              = 0xaa
	WriteVerify12        = 0xae
	Verify12             = 0xaf
	ReadDefectData12     = 0xb7
)

// The service actions of the operation codes that have some.
const (
	ReadCapacity16            = 0x10 // of ServiceActionIn16
	GetLBAStatus              = 0x12
	ReportTargetPortGroups    = 0x0a // of MaintenanceIn
	ReportSupportedOperations = 0x0c
	ReportSupportedTMFs       = 0x0d
	Overwrite                 = 0x01 // of Sanitize
	BlockErase                = 0x02
	ExitFailureMode           = 0x1f
	CopyStatus                = 0x00 // of ReceiveCopyResults
	CopyParameters            = 0x03
	CopyFailure               = 0x04
)

// Key is a sense key (SPC-4 4.5.6).
type Key uint8

// The sense keys.
const (
	NoSense        Key = 0x0
	NotReady       Key = 0x2
	MediumError    Key = 0x3
	HardwareError  Key = 0x4
	IllegalRequest Key = 0x5
	UnitAttention  Key = 0x6
	DataProtect    Key = 0x7
	CopyAborted    Key = 0xa
	AbortedCommand Key = 0xb
	Miscompare     Key = 0xe
)

// Code is an additional sense code and its qualifier, the former in the upper byte.
type Code uint16

// The additional sense codes that are used.
const (
	NoAdditionalSense         Code = 0x0000
	OperationInProgress       Code = 0x0016
	NotReadyManualIntervene   Code = 0x0403
	SanitizeInProgress        Code = 0x041b
	UnreachableCopyTarget     Code = 0x0804
	WriteErrorUnexpectedData  Code = 0x0c0c // RFC 7143 section 11.4.7.2
	WriteErrorWrongAmount     Code = 0x0c0d
	WriteErrorSpace           Code = 0x2707 // space allocation failed write protect
	ThirdPartyDeviceFailure   Code = 0x0d01
	CopyTargetNotReachable    Code = 0x0d02
	IncorrectCopyTargetType   Code = 0x0d03
	InvalidFieldInInformation Code = 0x0e03
	UnrecoveredReadError      Code = 0x1100
	WriteError                Code = 0x0c00
	ParameterListLength       Code = 0x1a00
	MiscompareDuringVerify    Code = 0x1d00
	InvalidOperationCode      Code = 0x2000
	LBAOutOfRange             Code = 0x2100
	InvalidFieldInCDB         Code = 0x2400
	LogicalUnitNotSupported   Code = 0x2500
	InvalidFieldInParameters  Code = 0x2600
	InvalidRelease            Code = 0x2604 // of a persistent reservation
	TooManyTargets            Code = 0x2606 // of EXTENDED COPY, like the next ones
	UnsupportedTarget         Code = 0x2607
	TooManySegments           Code = 0x2608
	UnsupportedSegment        Code = 0x2609
	InexactSegment            Code = 0x260a
	InlineDataTooLong         Code = 0x260b
	WriteProtected            Code = 0x2700
	MediumMayHaveChanged      Code = 0x2800
	PowerOnOrReset            Code = 0x2900
	BusDeviceReset            Code = 0x2903
	ModeParametersChanged     Code = 0x2a01
	ReservationsPreempted     Code = 0x2a03
	ReservationsReleased      Code = 0x2a04
	RegistrationsPreempted    Code = 0x2a05
	CapacityHasChanged        Code = 0x2a09
	CommandsCleared           Code = 0x2f00
	SanitizeFailed            Code = 0x3103
	SavingNotSupported        Code = 0x3900
	MediumNotPresent          Code = 0x3a00
	MediumNotPresentOpen      Code = 0x3a02
	InternalTargetFailure     Code = 0x4400
	ProtocolServiceCRC        Code = 0x4705
	InquiryDataChanged        Code = 0x3f03
	ReportedLUNsChanged       Code = 0x3f0e
	ClearedByISCSI            Code = 0x477f
	MediumRemovalPrevented    Code = 0x5302
	InsufficientResources     Code = 0x5503
	InsufficientRegistrations Code = 0x5504
)

// Sense is why a command failed.
type Sense struct {
	Key  Key
	Code Code
	// Info is the INFORMATION field, if HasInfo.
	Info    uint64
	HasInfo bool
	// Field is the byte of the CDB, or with InData of the parameter list, that is wrong, if
	// HasField; Bit the bit in it, if HasBit (SPC-4 4.5.2.4.2).
	Field                    uint16
	Bit                      uint8
	HasField, HasBit, InData bool
	// InSegment says that Field counts from the beginning of a segment descriptor, if Key is
	// CopyAborted, and Segment is the number of that in COMMAND-SPECIFIC INFORMATION (SPC-4 6.4.4).
	InSegment bool
	Segment   uint16
	// Progress is how much of an operation is done, in 65536ths, if HasProgress (4.5.2.4.4).
	Progress    uint16
	HasProgress bool
}

// Lengths in bytes of sense data.
const (
	fixedLen = 18
	// MaxSense is the longest sense data that AppendSense makes.
	MaxSense = 8 + 12 + 12 + 8
)

// specific returns the sense key specific field.
func (s *Sense) specific() (b [3]byte) {
	if s.HasProgress {
		b[0] = 0x80
		binary.BigEndian.PutUint16(b[1:], s.Progress)
		return b
	}
	b[0] = 0x80 | s.Bit&7
	switch {
	case s.InSegment:
		b[0] |= 0x20
	case !s.InData:
		b[0] |= 0x40
	}
	if s.HasBit {
		b[0] |= 8
	}
	binary.BigEndian.PutUint16(b[1:], s.Field)
	return b
}

// AppendSense appends sense data of a current error, in descriptor format (SPC-4 4.5.2) or in fixed
// format (4.5.3).
func AppendSense(b []byte, s *Sense, descriptors bool) []byte {
	p := s.specific()
	if !descriptors {
		var f [fixedLen]byte
		f[0], f[2], f[7] = 0x70, byte(s.Key), fixedLen-8
		if s.HasInfo && s.Info <= 1<<32-1 {
			f[0] |= 0x80
			binary.BigEndian.PutUint32(f[3:], uint32(s.Info))
		}
		if s.InSegment {
			binary.BigEndian.PutUint16(f[10:], s.Segment)
		}
		binary.BigEndian.PutUint16(f[12:], uint16(s.Code))
		if s.HasField || s.HasProgress {
			copy(f[15:], p[:])
		}
		return append(b, f[:]...)
	}
	at := len(b) + 7
	b = append(b, 0x72, byte(s.Key), byte(s.Code>>8), byte(s.Code), 0, 0, 0, 0)
	if s.HasInfo {
		b = append(b, 0, 10, 0x80, 0)
		b = binary.BigEndian.AppendUint64(b, s.Info)
		b[at] += 12
	}
	if s.InSegment {
		b = append(b, 1, 10, 0, 0, 0, 0, 0, 0, 0, 0)
		b = binary.BigEndian.AppendUint16(b, s.Segment)
		b[at] += 12
	}
	if s.HasField || s.HasProgress {
		b = append(b, 2, 6, 0, 0, p[0], p[1], p[2], 0)
		b[at] += 8
	}
	return b
}

// ErrSense means that sense data are of no known format.
var ErrSense = errors.New("scsi: sense data of no known format")

// ParseSense reads sense data in either format. It fails with ErrSense.
func ParseSense(b []byte) (s Sense, err error) {
	if len(b) < 8 {
		return s, ErrSense
	}
	setSpecific := func(p []byte) {
		if p[0]&0x80 == 0 {
			return
		}
		switch s.Key {
		case NotReady, NoSense:
			s.HasProgress, s.Progress = true, binary.BigEndian.Uint16(p[1:])
		case IllegalRequest, CopyAborted:
			s.HasField, s.HasBit, s.Bit = true, p[0]&8 != 0, 0
			if s.Key == CopyAborted {
				s.InSegment = p[0]&0x20 != 0
			} else {
				s.InData = p[0]&0x40 == 0
			}
			if s.HasBit {
				s.Bit = p[0] & 7
			}
			s.Field = binary.BigEndian.Uint16(p[1:])
		}
	}
	switch b[0] & 0x7f {
	case 0x70, 0x71:
		s.Key = Key(b[2] & 0xf)
		if s.HasInfo = b[0]&0x80 != 0; s.HasInfo {
			s.Info = uint64(binary.BigEndian.Uint32(b[3:]))
		}
		if len(b) >= 14 {
			s.Code = Code(binary.BigEndian.Uint16(b[12:]))
		}
		if len(b) >= fixedLen {
			setSpecific(b[15:])
			if s.InSegment {
				s.Segment = binary.BigEndian.Uint16(b[10:])
			}
		}
		return s, nil
	case 0x72, 0x73:
		s.Key, s.Code = Key(b[1]&0xf), Code(binary.BigEndian.Uint16(b[2:]))
		segment := uint16(0)
		for d := b[8:min(len(b), 8+int(b[7]))]; len(d) >= 2 && len(d) >= 2+int(d[1]); d = d[2+int(d[1]):] {
			switch {
			case d[0] == 0 && d[1] >= 10:
				s.HasInfo, s.Info = true, binary.BigEndian.Uint64(d[4:])
			case d[0] == 1 && d[1] >= 10:
				segment = binary.BigEndian.Uint16(d[10:])
			case d[0] == 2 && d[1] >= 6:
				setSpecific(d[4:])
			}
		}
		if s.InSegment {
			s.Segment = segment
		}
		return s, nil
	}
	return s, ErrSense
}

// LUN returns the number of a LUN field in the single level formats, peripheral or flat addressing
// (SAM-5 4.7). ok is false for others.
func LUN(f [8]byte) (n uint16, ok bool) {
	if [6]byte(f[2:]) != [6]byte{} {
		return 0, false
	}
	switch f[0] >> 6 {
	case 0:
		return uint16(f[1]), f[0] == 0
	case 1:
		return binary.BigEndian.Uint16(f[:]) & 0x3fff, true
	}
	return 0, false
}

// PutLUN returns the LUN field of a number below 16384.
func PutLUN(n uint16) (f [8]byte) {
	if n > 255 {
		n |= 0x4000
	}
	binary.BigEndian.PutUint16(f[:], n)
	return f
}

// CDBLen is the length in bytes of a CDB by its operation code, 0 if it has no fixed one.
func CDBLen(opcode byte) int { return [8]int{6, 10, 10, 0, 16, 12, 0, 0}[opcode>>5] }

// ServiceAction returns the service action of a CDB whose operation code has some.
func ServiceAction(cdb []byte) byte { return cdb[1] & 0x1f }

// Extent returns the LBA and the number of blocks, or the parameter list length or allocation
// length, where CDBs of 6, 10, 12 and 16 bytes have them.
func Extent(cdb *[16]byte) (lba uint64, n uint32) {
	be := binary.BigEndian
	switch CDBLen(cdb[0]) {
	case 6:
		return uint64(be.Uint32(cdb[:]) & 0x1fffff), uint32(cdb[4])
	case 10:
		return uint64(be.Uint32(cdb[2:])), uint32(be.Uint16(cdb[7:]))
	case 12:
		return uint64(be.Uint32(cdb[2:])), be.Uint32(cdb[6:])
	}
	return be.Uint64(cdb[2:]), be.Uint32(cdb[10:])
}
