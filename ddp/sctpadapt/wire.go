package sctpadapt

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/ironwarp/ironwarp/ddp/enhanced"
)

// Indication is DDP's Adaptation Layer Indication (RFC 5043 section 5.1).
const Indication = 0x00000001

// The payload protocol identifiers of RFC 5043 section 5.2.
const (
	PPIDSegment = 16 // DDP Segment Chunk
	PPIDControl = 17 // DDP Stream Session Control
)

// Function is what a DDP Stream Session Control message does (RFC 5043 section
// 5.2.3, RFC 6581 section 7).
type Function uint16

// The functions.
const (
	FunctionInitiate         Function = 1
	FunctionAccept           Function = 2
	FunctionReject           Function = 3
	FunctionTerminate        Function = 4
	FunctionEnhancedInitiate Function = 5
	FunctionEnhancedAccept   Function = 6
	FunctionEnhancedReject   Function = 7
)

func (f Function) String() string {
	switch f {
	case FunctionInitiate:
		return "Initiate"
	case FunctionAccept:
		return "Accept"
	case FunctionReject:
		return "Reject"
	case FunctionTerminate:
		return "Terminate"
	case FunctionEnhancedInitiate:
		return "Enhanced Initiate"
	case FunctionEnhancedAccept:
		return "Enhanced Accept"
	case FunctionEnhancedReject:
		return "Enhanced Reject"
	}
	return fmt.Sprintf("function %d", uint16(f))
}

func (f Function) enhanced() bool {
	return f >= FunctionEnhancedInitiate && f <= FunctionEnhancedReject
}

// Sizes in bytes: the DDP-SSN that begins each chunk, the header of a control
// message.
const (
	ssnLen     = 2
	controlLen = 4
)

// Control is a DDP Stream Session Control message.
//
//	0: DDP-SSN(2) | 2: function(2) | 4: enhanced data(4), if the function has it | private data
type Control struct {
	SSN         uint16
	Function    Function
	Enhanced    *enhanced.Data // of the enhanced functions
	PrivateData []byte
}

var (
	// ErrMalformed is returned for a control message that cannot be read.
	ErrMalformed = errors.New("sctpadapt: malformed session control message")
	// ErrPrivateData is returned for private data that does not fit a control
	// message.
	ErrPrivateData = errors.New("sctpadapt: the private data does not fit the 512 bytes of a session control message")
)

// ParseControl reads a control message. The private data points into b. It fails where
// b is no control message.
func ParseControl(b []byte) (c Control, err error) {
	if len(b) < controlLen {
		return c, fmt.Errorf("%w: %d bytes", ErrMalformed, len(b))
	}
	c.SSN = binary.BigEndian.Uint16(b)
	c.Function = Function(binary.BigEndian.Uint16(b[2:]))
	c.PrivateData = b[controlLen:]
	switch {
	case c.Function < FunctionInitiate || c.Function > FunctionEnhancedReject:
		return c, fmt.Errorf("%w: there is no %v", ErrMalformed, c.Function)
	case len(c.PrivateData) > MaxPrivateData:
		return c, fmt.Errorf("%w: %d bytes of private data, 512 are allowed", ErrMalformed, len(c.PrivateData))
	case c.Function == FunctionTerminate && len(c.PrivateData) > 0:
		return c, fmt.Errorf("%w: a Terminate with private data", ErrMalformed)
	case c.Function.enhanced() && len(c.PrivateData) < enhanced.Len:
		return c, fmt.Errorf("%w: an %v without IRD and ORD", ErrMalformed, c.Function)
	case c.Function.enhanced():
		c.Enhanced, c.PrivateData = enhanced.Parse(c.PrivateData), c.PrivateData[enhanced.Len:]
	}
	return c, nil
}

// Append appends the message in wire format. It fails with ErrPrivateData
// if the private data is too long.
func (c *Control) Append(b []byte) ([]byte, error) {
	n := len(c.PrivateData)
	if c.Function.enhanced() {
		n += enhanced.Len
	}
	if n > MaxPrivateData {
		return b, fmt.Errorf("%w: it has %d", ErrPrivateData, len(c.PrivateData))
	}
	b = binary.BigEndian.AppendUint16(b, c.SSN)
	b = binary.BigEndian.AppendUint16(b, uint16(c.Function))
	if c.Function.enhanced() {
		b = c.Enhanced.Append(b)
	}
	return append(b, c.PrivateData...), nil
}
