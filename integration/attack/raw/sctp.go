package raw

import (
	"encoding/binary"
	"errors"
	"net"

	"github.com/ironwarp/ironwarp/internal/crc32c"
)

// Chunk types of RFC 9260 section 3.2.
const (
	ChunkData       = 0
	ChunkInit       = 1
	ChunkInitAck    = 2
	ChunkSack       = 3
	ChunkAbort      = 6
	ChunkCookieEcho = 10
	ChunkCookieAck  = 11
)

// Packet begins an SCTP packet (RFC 9260 section 3.1).
func Packet(src, dst uint16, tag uint32) []byte {
	b := binary.BigEndian.AppendUint16(nil, src)
	b = binary.BigEndian.AppendUint16(b, dst)
	return append(binary.BigEndian.AppendUint32(b, tag), 0, 0, 0, 0)
}

// AppendChunk appends a chunk with its padding.
func AppendChunk(b []byte, typ, flags byte, value []byte) []byte {
	b = append(b, typ, flags)
	b = binary.BigEndian.AppendUint16(b, uint16(4+len(value)))
	b = append(b, value...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// Seal fills in the checksum of a packet (RFC 9260 section 6.8 and appendix A).
// What is shorter than a header stays as it is.
func Seal(p []byte) []byte {
	if len(p) >= 12 {
		clear(p[8:12])
		binary.LittleEndian.PutUint32(p[8:], crc32c.Checksum(p))
	}
	return p
}

// Init is the value of an INIT with DDP's adaptation layer (RFC 9260 section 3.3.2,
// RFC 5043 section 5.1).
func Init(tag, window uint32, streams uint16, tsn uint32) []byte {
	be := binary.BigEndian
	b := be.AppendUint32(nil, tag)
	b = be.AppendUint32(b, window)
	b = be.AppendUint16(b, streams)
	b = be.AppendUint16(b, streams)
	b = be.AppendUint32(b, tsn)
	return append(b, 0xc0, 0x06, 0, 8, 0, 0, 0, 1)
}

// Data is the value of a DATA chunk.
func Data(tsn uint32, stream, ssn uint16, ppid uint32, payload []byte) []byte {
	be := binary.BigEndian
	b := be.AppendUint32(nil, tsn)
	b = be.AppendUint16(b, stream)
	b = be.AppendUint16(b, ssn)
	return append(be.AppendUint32(b, ppid), payload...)
}

// Association is one that an attacker set up by hand and of which it remembers no
// more than it needs for the next packet.
type Association struct {
	c        net.Conn // the UDP socket
	src, dst uint16
	tag      uint32 // the daemon's
	TSN      uint32 // of the next DATA chunk
}

// Associate carries out the handshake on a connected UDP socket, whose deadline bounds
// it. It fails with the connection's error, and at another answer.
func Associate(c net.Conn, src, dst uint16, tag uint32) (*Association, error) {
	const firstTSN = 1000
	a := &Association{c: c, src: src, dst: dst, TSN: firstTSN}
	if err := a.Send(AppendChunk(nil, ChunkInit, 0, Init(tag, 1<<20, 16, firstTSN))); err != nil {
		return nil, err
	}
	b, err := a.hear(ChunkInitAck)
	if err != nil {
		return nil, err
	}
	if len(b) < 20 {
		return nil, errNoAssociation
	}
	a.tag = binary.BigEndian.Uint32(b[4:])
	for p := b[20:]; len(p) >= 4; {
		n := int(binary.BigEndian.Uint16(p[2:]))
		if n < 4 || n > len(p) {
			break
		}
		if binary.BigEndian.Uint16(p) == 7 { // State Cookie
			if err := a.Send(AppendChunk(nil, ChunkCookieEcho, 0, p[4:n])); err != nil {
				return nil, err
			}
			_, err = a.hear(ChunkCookieAck)
			return a, err
		}
		p = p[min((n+3)&^3, len(p)):]
	}
	return nil, errNoAssociation
}

var errNoAssociation = errors.New("the daemon does not set an association up")

// hear waits for a packet that begins with a chunk of a type.
func (a *Association) hear(typ byte) ([]byte, error) {
	b := make([]byte, 2048)
	for {
		n, err := a.c.Read(b)
		if err != nil {
			return nil, err
		}
		if n >= 16 && b[12] == typ {
			return b[12:n], nil
		}
		if n >= 16 && b[12] == ChunkAbort {
			return nil, errNoAssociation
		}
	}
}

// Send sends chunks in a packet. It fails with the connection's error.
func (a *Association) Send(chunks []byte) error {
	_, err := a.c.Write(Seal(append(Packet(a.src, a.dst, a.tag), chunks...)))
	return err
}

// Abort ends the association. It fails with the connection's error.
func (a *Association) Abort() error { return a.Send(AppendChunk(nil, ChunkAbort, 0, nil)) }
