package ddp

import "fmt"

// Layer says which layer of the stack found a fault (RFC 5040 section 4.8,
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

// Error is a peer's fault: what it did and how it is said in a Terminate
// message. Header, when not nil, is the DDP (and RDMAP) header of the segment
// at fault, to be quoted in the Terminate (RFC 5040 section 4.8).
type Error struct {
	Layer  Layer
	Type   uint8 // error type, 4 bits
	Code   uint8 // error code, 8 bits
	Text   string
	Header []byte
	SegLen int // length in bytes of the DDP segment at fault, 0 if unknown
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s error %d.%#02x: %s", e.Layer, e.Type, e.Code, e.Text)
}

// Is matches errors of the same layer, type and code, whatever their text.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Layer == e.Layer && t.Type == e.Type && t.Code == e.Code
}
