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

var causeNames = [...]string{
	CauseInvalidStream:          "Invalid Stream Identifier",
	CauseMissingParameter:       "Missing Mandatory Parameter",
	CauseStaleCookie:            "Stale Cookie",
	CauseOutOfResource:          "Out of Resource",
	CauseUnresolvableAddress:    "Unresolvable Address",
	CauseUnrecognizedChunk:      "Unrecognized Chunk Type",
	CauseInvalidParameter:       "Invalid Mandatory Parameter",
	CauseUnrecognizedParameters: "Unrecognized Parameters",
	CauseNoUserData:             "No User Data",
	CauseCookieWhileShutdown:    "Cookie Received While Shutting Down",
	CauseRestartNewAddresses:    "Restart of an Association with New Addresses",
	CauseUserAbort:              "User-Initiated Abort",
	CauseProtocolViolation:      "Protocol Violation",
}

func (c CauseCode) String() string {
	if c == 0 || int(c) >= len(causeNames) {
		return fmt.Sprintf("cause %d", uint16(c))
	}
	return causeNames[c]
}

// Cause is one error cause: why an association was aborted, or what was wrong with a
// packet.
type Cause struct {
	Code CauseCode
	// Info is the cause's information as on the wire, at most 256 bytes: the Upper Layer
	// Abort Reason of CauseUserAbort, the Additional Information of
	// CauseProtocolViolation.
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
