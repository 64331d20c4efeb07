package rping

import (
	"encoding/binary"
	"fmt"
)

// infoLen is the length of every message in bytes.
const infoLen = 16

// info is a message: a buffer of its sender's.
type info struct {
	TO   uint64
	STag uint32
	Size uint32 // bytes
}

// append appends the message to b, in network byte order.
func (i info) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, i.TO)
	b = binary.BigEndian.AppendUint32(b, i.STag)
	return binary.BigEndian.AppendUint32(b, i.Size)
}

// parseInfo reads a whole message.
func parseInfo(b []byte) (info, error) {
	if len(b) != infoLen {
		return info{}, fmt.Errorf("rping: a message of %d bytes, want %d: is the peer an rping?", len(b), infoLen)
	}
	return info{TO: binary.BigEndian.Uint64(b), STag: binary.BigEndian.Uint32(b[8:]), Size: binary.BigEndian.Uint32(b[12:])}, nil
}

// fillText makes the text of the seq-th ping, from 0: a number, then printable
// characters that begin one later in each ping, then a 0.
func fillText(b []byte, seq int) {
	const first, last = 'A', 'z'
	n := copy(b, fmt.Sprintf("rdma-ping-%d: ", seq))
	for i := range b[n:] {
		b[n+i] = byte(first + (seq+i)%(last-first+1))
	}
	b[len(b)-1] = 0
}
