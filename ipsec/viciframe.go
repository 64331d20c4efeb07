package ipsec

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Packet types of the VICI protocol.
const (
	viciRequest    = 0
	viciRegister   = 3
	viciUnregister = 4
	viciEvent      = 7
)

// Element types of a VICI message.
const (
	viciSection    = 1
	viciSectionEnd = 2
	viciKeyValue   = 3
	viciList       = 4
	viciListItem   = 5
	viciListEnd    = 6
)

// maxDepth bounds nested sections: charon's have four levels. The library that
// decodes them recurses, and Go ends a process whose stack outgrows its limit.
const maxDepth = 16

var errFrameShort = errors.New("a packet that ends too early")

// checkFrame looks through a packet, its length first, before it is decoded.
func checkFrame(frame []byte) error {
	b := frame[4:]
	take := func(n int) ([]byte, bool) {
		if n > len(b) {
			return nil, false
		}
		v := b[:n]
		b = b[n:]
		return v, true
	}
	short := func() bool { // a name or a key
		n, ok := take(1)
		if ok {
			_, ok = take(int(n[0]))
		}
		return ok
	}
	long := func() bool { // a value
		n, ok := take(2)
		if ok {
			_, ok = take(int(binary.BigEndian.Uint16(n)))
		}
		return ok
	}
	kind, ok := take(1)
	if !ok || kind[0] > viciEvent {
		return fmt.Errorf("a packet of an unknown type (% x)", kind)
	}
	switch kind[0] {
	case viciRequest, viciRegister, viciUnregister, viciEvent:
		if !short() {
			return errFrameShort
		}
	}
	depth, inList := 0, false
	for len(b) > 0 {
		e, _ := take(1)
		ok := true
		switch {
		case inList && e[0] == viciListItem:
			ok = long()
		case inList && e[0] == viciListEnd:
			inList = false
		case inList:
			return fmt.Errorf("an element of type %d within a list", e[0])
		case e[0] == viciSection:
			depth++
			ok = short()
		case e[0] == viciSectionEnd && depth > 0:
			depth--
		case e[0] == viciKeyValue:
			ok = short() && long()
		case e[0] == viciList:
			inList = true
			ok = short()
		default:
			return fmt.Errorf("an element of unknown type %d", e[0])
		}
		if !ok {
			return errFrameShort
		}
		if depth > maxDepth {
			return fmt.Errorf("more than %d nested sections", maxDepth)
		}
	}
	if depth > 0 || inList {
		return errFrameShort
	}
	return nil
}
