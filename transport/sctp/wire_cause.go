package sctp

import (
	"encoding/binary"
	"fmt"
)

// CauseCode is the code of an error cause in an ABORT or ERROR chunk (RFC 9260
// section 3.3.10).
type CauseCode uint16

// The causes of RFC 9260 section 3.3.10.
const (
	CauseInvalidStream          CauseCode = 1
	CauseMissingParameter       CauseCode = 2
	CauseStaleCookie            CauseCode = 3
	CauseOutOfResource          CauseCode = 4
	CauseUnresolvableAddress    CauseCode = 5
	CauseUnrecognizedChunk      CauseCode = 6
	CauseInvalidParameter       CauseCode = 7
	CauseUnrecognizedParameters CauseCode = 8
	CauseNoUserData             CauseCode = 9
	CauseCookieWhileShutdown    CauseCode = 10
	CauseRestartNewAddresses    CauseCode = 11
	CauseUserAbort              CauseCode = 12
	CauseProtocolViolation      CauseCode = 13
)

func (c CauseCode) String() string {
	switch c {
	case CauseInvalidStream:
		return "Invalid Stream Identifier"
	case CauseMissingParameter:
		return "Missing Mandatory Parameter"
	case CauseStaleCookie:
		return "Stale Cookie"
	case CauseOutOfResource:
		return "Out of Resource"
	case CauseUnresolvableAddress:
		return "Unresolvable Address"
	case CauseUnrecognizedChunk:
		return "Unrecognized Chunk Type"
	case CauseInvalidParameter:
		return "Invalid Mandatory Parameter"
	case CauseUnrecognizedParameters:
		return "Unrecognized Parameters"
	case CauseNoUserData:
		return "No User Data"
	case CauseCookieWhileShutdown:
		return "Cookie Received While Shutting Down"
	case CauseRestartNewAddresses:
		return "Restart of an Association with New Addresses"
	case CauseUserAbort:
		return "User-Initiated Abort"
	case CauseProtocolViolation:
		return "Protocol Violation"
	}
	return fmt.Sprintf("cause %d", uint16(c))
}

// Cause is one error cause: why an association was aborted or what was wrong
// with a packet.
type Cause struct {
	Code CauseCode
	// Info is the cause's information as it stands on the wire, at most 256
	// bytes of it: the Upper Layer Abort Reason of CauseUserAbort, the
	// Additional Information of CauseProtocolViolation.
	Info []byte
}

func (c Cause) String() string {
	switch c.Code {
	case CauseUserAbort, CauseProtocolViolation:
		if len(c.Info) > 0 {
			return fmt.Sprintf("%v: %q", c.Code, c.Info)
		}
	}
	return c.Code.String()
}

// cutCause takes the first error cause off b. Info points into b.
func cutCause(b []byte) (c Cause, rest []byte, err error) {
	p, rest, err := cutParam(b) // the same layout
	if err != nil {
		return c, nil, err
	}
	return Cause{CauseCode(p.typ()), p.value()}, rest, nil
}

// appendCause appends an error cause and its padding.
func appendCause(b []byte, code CauseCode, info []byte) []byte {
	return appendParam(b, paramType(code), info)
}

// firstCause is the first cause of an ABORT or ERROR chunk, copied, or one of
// code 0 if it has none that can be read.
func firstCause(c chunk) Cause {
	k, _, err := cutCause(c.value())
	if err != nil {
		return Cause{}
	}
	k.Info = append([]byte(nil), k.Info[:min(len(k.Info), maxCauseInfo)]...)
	return k
}

// appendAbort appends an ABORT with one cause, or none for code 0 (RFC 9260
// section 3.3.7).
func appendAbort(b []byte, flags uint8, cause Cause) []byte {
	at := len(b)
	b = beginChunk(b, typeAbort, flags)
	if cause.Code != 0 {
		b = appendCause(b, cause.Code, cause.Info[:min(len(cause.Info), maxCauseInfo)])
	}
	return endChunk(b, at)
}

// appendError appends an ERROR chunk with one cause.
func appendError(b []byte, code CauseCode, info []byte) []byte {
	at := len(b)
	return endChunk(appendCause(beginChunk(b, typeError, 0), code, info), at)
}

// uint32Info is the 4 bytes of information of a cause such as
// CauseNoUserData, or of CauseInvalidStream with the stream in the upper half.
func uint32Info(v uint32) []byte { return binary.BigEndian.AppendUint32(nil, v) }
