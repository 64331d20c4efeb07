package ddp

import "fmt"

// Layer is the layer of the stack that found a fault (RFC 5040 section 4.8,
// Terminate Control, 4 bits).
type Layer uint8

// The layers of RFC 5040 section 4.8.
const (
	LayerRDMA Layer = 0
	LayerDDP  Layer = 1
	LayerLLP  Layer = 2
)

func (l Layer) String() string {
	switch l {
	case LayerRDMA:
		return "RDMAP"
	case LayerDDP:
		return "DDP"
	case LayerLLP:
		return "LLP"
	}
	return fmt.Sprintf("layer %d", uint8(l))
}

// Error types of the DDP layer (RFC 5041 section 7.2).
const (
	TypeLocalCatastrophic uint8 = 0
	TypeTagged            uint8 = 1
	TypeUntagged          uint8 = 2
)

// Error codes of TypeTagged (RFC 5041 section 7.2).
const (
	CodeTaggedInvalidSTag    uint8 = 0x00
	CodeTaggedBounds         uint8 = 0x01
	CodeTaggedNotAssociated  uint8 = 0x02
	CodeTaggedTOWrap         uint8 = 0x03
	CodeTaggedInvalidVersion uint8 = 0x04
)

// Error codes of TypeUntagged (RFC 5041 section 7.2).
const (
	CodeUntaggedInvalidQN      uint8 = 0x01
	CodeUntaggedNoBuffer       uint8 = 0x02
	CodeUntaggedMSNRange       uint8 = 0x03
	CodeUntaggedInvalidMO      uint8 = 0x04
	CodeUntaggedTooLong        uint8 = 0x05
	CodeUntaggedInvalidVersion uint8 = 0x06
)

// Error is a peer's fault: what it did, and what a Terminate message reports of
// it. Header, when not nil, is the DDP (and RDMAP) header of the segment at
// fault, to be quoted in the Terminate (RFC 5040 section 4.8).
type Error struct {
	Layer  Layer
	Type   uint8 // error type, 4 bits
	Code   uint8 // error code, 8 bits
	Text   string
	Header []byte
	SegLen int    // length in bytes of the DDP segment at fault, 0 if unknown
	Upper  []byte // RDMAP header to be quoted behind Header, nil for none
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s error %d.%#02x: %s", e.Layer, e.Type, e.Code, e.Text)
}

// Faultf makes an Error for the segment seg, whose header it copies.
func Faultf(layer Layer, typ, code uint8, seg []byte, format string, args ...any) *Error {
	e := &Error{Layer: layer, Type: typ, Code: code, Text: fmt.Sprintf(format, args...), SegLen: len(seg)}
	if n := HeaderLen(seg); n > 0 {
		e.Header = append([]byte(nil), seg[:n]...)
	}
	return e
}

// Is matches errors of the same layer, type and code, whatever their text.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Layer == e.Layer && t.Type == e.Type && t.Code == e.Code
}
