// Package raw makes the bytes that attackers of a whole daemon send, without the
// product's own senders: FPDUs, the start-up of streams to a
// daemon's services, packets of SCTP.
package raw

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/ironwarp/ironwarp/internal/crc32c"
	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/rtrs"
)

// AppendFPDU appends a segment as MPA frames it without markers (RFC 5044 section
// 4.1). length is what the frame says, len(seg) where it does not lie.
func AppendFPDU(b, seg []byte, length int) []byte {
	at := len(b)
	b = append(binary.BigEndian.AppendUint16(b, uint16(length)), seg...)
	for (len(b)-at)%4 != 0 {
		b = append(b, 0)
	}
	return binary.LittleEndian.AppendUint32(b, crc32c.Checksum(b[at:]))
}

// CutFPDU takes the first segment off a stream of FPDUs without markers. ok is
// false if it is incomplete.
func CutFPDU(b []byte) (seg, rest []byte, ok bool) {
	if len(b) < 2 {
		return nil, b, false
	}
	n := int(binary.BigEndian.Uint16(b))
	size := (2+n+3)&^3 + 4
	if len(b) < size {
		return nil, b, false
	}
	return b[2 : 2+n], b[size:], true
}

// ErrRefused is returned for a stream that the daemon refuses.
var ErrRefused = errors.New("the daemon refuses the stream")

// ReadReply reads the reply of MPA's start-up, and not a byte more. It fails with the
// connection's error, and if what it reads is no reply.
func ReadReply(c net.Conn) (mpa.Frame, error) {
	b := make([]byte, 20, 1024)
	if _, err := io.ReadFull(c, b); err != nil {
		return mpa.Frame{}, err
	}
	b = b[:20+min(int(binary.BigEndian.Uint16(b[18:])), cap(b)-20)]
	if _, err := io.ReadFull(c, b[20:]); err != nil {
		return mpa.Frame{}, err
	}
	fr, err := mpa.ParseFrame(b, true)
	if err == nil && fr.Reject {
		err = ErrRefused
	}
	return fr, err
}

// PingRequest is the private data of a stream to the ping service, or of a hello.
func PingRequest(hello bool) []byte {
	b := []byte{'I', 'W', 'p', 'g', 1, 0, 0, 0}
	if hello {
		b[5] = 1
	}
	return b
}

// SessionRequest is the private data of the only connection of a block session.
func SessionRequest(path, session uint32) []byte {
	r := rtrs.ConReq{Version: rtrs.Version, CIDNum: 1, Incarnation: 1, First: true}
	binary.BigEndian.PutUint32(r.Path[:], path)
	binary.BigEndian.PutUint32(r.Session[:], session)
	return r.Append(nil)
}

// InfoRequest is the message by which a block session asks where its chunks are.
func InfoRequest(name string) []byte {
	return append(append([]byte{0, 0}, name...), make([]byte, 272-2-len(name))...)
}

// Region is memory that a daemon has advertised to its peer.
type Region struct {
	STag uint32
	TO   uint64
	Len  uint32
}

// PingRegion is what the ping service offers in its private data.
func PingRegion(private []byte) (Region, bool) {
	if len(private) < 20 || string(private[:4]) != "IWpg" {
		return Region{}, false
	}
	return Region{STag: binary.BigEndian.Uint32(private[12:]), Len: binary.BigEndian.Uint32(private[16:])}, true
}

// Chunks are those of a block session, of the answer to InfoRequest. It fails where msg
// is no such answer.
func Chunks(msg []byte) (rs []Region, err error) {
	le := binary.LittleEndian
	if len(msg) < 8 || le.Uint16(msg) != 1 {
		return nil, fmt.Errorf("%d bytes are no answer to a question for chunks", len(msg))
	}
	for d := msg[8:]; len(d) >= 16; d = d[16:] {
		rs = append(rs, Region{le.Uint32(d[8:]), le.Uint64(d), le.Uint32(d[12:])})
	}
	return rs, nil
}
