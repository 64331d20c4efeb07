package charon

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// Packet types of the VICI protocol.
const (
	packetRequest    = 0
	packetRegister   = 3
	packetUnregister = 4
	packetEvent      = 7
)

// Element types of a VICI message.
const (
	elementSection    = 1
	elementSectionEnd = 2
	elementKeyValue   = 3
	elementList       = 4
	elementListItem   = 5
	elementListEnd    = 6
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
	if !ok || kind[0] > packetEvent {
		return fmt.Errorf("a packet of an unknown type (% x)", kind)
	}
	switch kind[0] {
	case packetRequest, packetRegister, packetUnregister, packetEvent:
		if !short() {
			return errFrameShort
		}
	}
	depth, inList := 0, false
	for len(b) > 0 {
		e, _ := take(1)
		ok := true
		switch {
		case inList && e[0] == elementListItem:
			ok = long()
		case inList && e[0] == elementListEnd:
			inList = false
		case inList:
			return fmt.Errorf("an element of type %d within a list", e[0])
		case e[0] == elementSection:
			depth++
			ok = short()
		case e[0] == elementSectionEnd && depth > 0:
			depth--
		case e[0] == elementKeyValue:
			ok = short() && long()
		case e[0] == elementList:
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

// worthHearing picks the log lines that have one of these words, before they cost
// anything. Without words it is all of them.
func worthHearing(frame []byte, words []string) bool {
	const name = "log"
	if len(words) == 0 || len(frame) < 6+len(name) || frame[4] != packetEvent || string(frame[6:6+len(name)]) != name || int(frame[5]) != len(name) {
		return true
	}
	return slices.ContainsFunc(words, func(w string) bool { return bytes.Contains(frame, []byte(w)) })
}
