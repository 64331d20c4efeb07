package assoc

import "fmt"

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
