// Package charontest has what tests need to be a charon that misbehaves: packets of
// VICI, and a connection that says them.
package charontest

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
)

// Packet frames the body of a VICI packet.
func Packet(kind byte, name string, body []byte) []byte {
	b := []byte{kind}
	if name != "" {
		b = append(append(b, byte(len(name))), name...)
	}
	b = append(b, body...)
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
}

// Nested is a message of sections within each other.
func Nested(depth int) []byte {
	return append(bytes.Repeat([]byte{1, 1, 'a'}, depth), bytes.Repeat([]byte{2}, depth)...)
}

// Saying is a charon that answers a registration and a command with these bytes.
// After the latter it closes the connection, or leaves it open.
func Saying(registered, answer []byte, stay bool) net.Conn {
	ours, theirs := net.Pipe()
	go func() {
		defer theirs.Close()
		for {
			var head [4]byte
			if _, err := io.ReadFull(theirs, head[:]); err != nil {
				return
			}
			body := make([]byte, binary.BigEndian.Uint32(head[:]))
			if _, err := io.ReadFull(theirs, body); err != nil {
				return
			}
			reply := answer
			if body[0] == 3 {
				reply = registered
			}
			if _, err := theirs.Write(reply); err != nil || body[0] == 0 && !stay {
				return
			}
		}
	}()
	return ours
}

// Confirmed is the answer to a registration for events.
var Confirmed = Packet(5, "", nil)
