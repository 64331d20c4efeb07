package iscsitest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/ironwarp/ironwarp/internal/crc32c"
	"github.com/ironwarp/ironwarp/iscsi"
)

// link moves PDUs.
type link interface {
	// write sends a PDU. It fails when the connection has ended, and when the target takes nothing for too long.
	write(p *PDU) error
	// read waits for the next PDU. It fails with errTimeout, after which it may be called again, and when the
	// connection has ended.
	read(until time.Time) (*PDU, error)
	// negotiated says what was agreed before full feature phase begins.
	negotiated(v *iscsi.Values) error
	close()
}

// errBroken means that what has come is no PDU, or more than what was said to be taken.
var errBroken = errors.New("what the target sends can't be read")

// tcp is a link over TCP. It reads without a goroutine: what has come of a PDU in time stays until the rest has.
type tcp struct {
	nc           net.Conn
	got          []byte
	wait         time.Duration // for the target to take what is sent
	limit        int           // the longest data segment in bytes, above which nothing is read
	header, data bool          // digests
}

func (l *tcp) close() { l.nc.Close() }

func (l *tcp) negotiated(v *iscsi.Values) error {
	l.header = v[iscsi.KeyHeaderDigest] == iscsi.DigestCRC32C
	l.data = v[iscsi.KeyDataDigest] == iscsi.DigestCRC32C
	return nil
}

// appendDigest appends the digest of b from at on (RFC 7143 section 13.1), or a wrong one.
func appendDigest(b []byte, at int, wrong bool) []byte {
	sum := crc32c.Checksum(b[at:])
	if wrong {
		sum ^= 1
	}
	return binary.LittleEndian.AppendUint32(b, sum)
}

func (l *tcp) write(p *PDU) error {
	b := p.Bytes()
	if l.header || l.data {
		rest := b[iscsi.BHSLen+len(p.AHS):]
		b = append(make([]byte, 0, len(b)+8), b[:iscsi.BHSLen+len(p.AHS)]...)
		if l.header {
			b = appendDigest(b, 0, p.spoil&spoilHeader != 0)
		}
		if at := len(b); len(rest) > 0 {
			b = append(b, rest...)
			if l.data {
				b = appendDigest(b, at, p.spoil&spoilData != 0)
			}
		}
	}
	return l.writeRaw(b)
}

// writeRaw sends bytes.
func (l *tcp) writeRaw(b []byte) error {
	l.nc.SetWriteDeadline(time.Now().Add(l.wait))
	_, err := l.nc.Write(b)
	return err
}

// fill reads until n bytes are there.
func (l *tcp) fill(n int, until time.Time) error {
	l.nc.SetReadDeadline(until)
	for len(l.got) < n {
		piece := make([]byte, max(n-len(l.got), 4096))
		m, err := l.nc.Read(piece)
		l.got = append(l.got, piece[:m]...)
		var late net.Error
		if errors.As(err, &late) && late.Timeout() {
			return errTimeout
		} else if err != nil && len(l.got) < n {
			return err
		}
	}
	return nil
}

func (l *tcp) read(until time.Time) (*PDU, error) {
	n := iscsi.BHSLen
	if err := l.fill(n, until); err != nil {
		return nil, err
	}
	p := &PDU{BHS: iscsi.BHS(l.got)}
	ahs, data := p.BHS.AHSLen(), p.BHS.DataLen()
	if data > l.limit {
		return nil, fmt.Errorf("%v says that it has %d bytes of data, and %d are taken: %w", p.BHS.Opcode(), data, l.limit, errBroken)
	}
	head := n + ahs
	n = head
	if l.header {
		n += 4
	}
	at := n
	if data > 0 {
		n += data + iscsi.Pad(data)
		if l.data {
			n += 4
		}
	}
	if err := l.fill(n, until); err != nil {
		return nil, err
	}
	b := l.got[:n]
	l.got = l.got[n:]
	if l.header && binary.LittleEndian.Uint32(b[head:]) != crc32c.Checksum(b[:head]) {
		return nil, fmt.Errorf("the header digest of %v is wrong: %w", p.BHS.Opcode(), errBroken)
	}
	if l.data && data > 0 && binary.LittleEndian.Uint32(b[n-4:]) != crc32c.Checksum(b[at:n-4]) {
		return nil, fmt.Errorf("the data digest of %v is wrong: %w", p.BHS.Opcode(), errBroken)
	}
	p.AHS, p.Data = b[iscsi.BHSLen:head:head], b[at:at+data:at+data]
	return p, nil
}
