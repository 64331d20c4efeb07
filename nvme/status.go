package nvme

import "fmt"

// Status is the status field of a completion without the phase tag: status code, its type in bits 8 to 10, and DNR.
type Status uint16

// DNR, Do Not Retry: the same command would fail again.
const DNR Status = 0x4000

// The status codes (NVMe 4.6.1, NVMe-oF figure 20).
const (
	Success              Status = 0x000
	InvalidOpcode        Status = 0x001
	InvalidField         Status = 0x002
	CommandIDConflict    Status = 0x003
	DataTransferError    Status = 0x004
	InternalError        Status = 0x006
	AbortedByRequest     Status = 0x007
	InvalidNamespace     Status = 0x00b
	SequenceError        Status = 0x00c
	DataLengthInvalid    Status = 0x00f
	SGLTypeInvalid       Status = 0x011
	SGLOffsetInvalid     Status = 0x016
	HostIDInconsistent   Status = 0x018
	KeepAliveInvalid     Status = 0x01a
	AbortedByPreempt     Status = 0x01b
	WriteProtected       Status = 0x020
	LBAOutOfRange        Status = 0x080
	CapacityExceeded     Status = 0x081
	NamespaceNotReady    Status = 0x082
	ReservationConflict  Status = 0x083
	AsyncEventLimit      Status = 0x105
	InvalidLogPage       Status = 0x109
	FeatureNotSaveable   Status = 0x10d
	FeatureNotChangeable Status = 0x10e
	ConnectFormat        Status = 0x180
	ConnectBusy          Status = 0x181
	ConnectInvalid       Status = 0x182
	ConnectInvalidHost   Status = 0x184
	WriteFault           Status = 0x280
	UnrecoveredRead      Status = 0x281
	CompareFailure       Status = 0x285
	codeOf               Status = 0x7ff
	invalidInData               = 1 << 16 // IATTR of Connect's result: the field is one of the data
)

var statusNames = map[Status]string{
	Success: "success", InvalidOpcode: "invalid opcode", InvalidField: "invalid field", CommandIDConflict: "command ID conflict",
	DataTransferError: "data transfer error", InternalError: "internal error", AbortedByRequest: "aborted by request",
	InvalidNamespace: "invalid namespace or format", SequenceError: "command sequence error", DataLengthInvalid: "data SGL length invalid",
	SGLTypeInvalid: "SGL descriptor type invalid", SGLOffsetInvalid: "SGL offset invalid", HostIDInconsistent: "host identifier inconsistent format",
	KeepAliveInvalid: "keep alive timeout invalid", AbortedByPreempt: "aborted by preempt and abort", WriteProtected: "namespace is write protected",
	LBAOutOfRange: "LBA out of range", CapacityExceeded: "capacity exceeded", NamespaceNotReady: "namespace not ready", ReservationConflict: "reservation conflict",
	AsyncEventLimit: "asynchronous event request limit exceeded", InvalidLogPage: "invalid log page", FeatureNotSaveable: "feature not saveable",
	FeatureNotChangeable: "feature not changeable", ConnectFormat: "connect incompatible format", ConnectBusy: "connect controller busy",
	ConnectInvalid: "connect invalid parameters", ConnectInvalidHost: "connect invalid host", WriteFault: "write fault", UnrecoveredRead: "unrecovered read error",
	CompareFailure: "compare failure",
}

// String is the name of the status code.
func (s Status) String() string {
	if n, ok := statusNames[s&codeOf]; ok {
		return n
	}
	return fmt.Sprintf("status 0x%03x", uint16(s&codeOf))
}

// Code is the status without DNR and other bits.
func (s Status) Code() Status { return s & codeOf }

// InvalidParameter is the result of a Connect that fails with ConnectInvalid: where the fault is, in the command or
// in its data (NVMe-oF 3.3).
func InvalidParameter(offset int, inData bool) uint64 {
	r := uint64(offset)
	if inData {
		r |= invalidInData
	}
	return r
}
