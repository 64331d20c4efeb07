package verbs

import (
	"encoding/binary"
	"hash/crc32"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/iwarptest"
)

// memLine attacks by segments, over the in-memory LLP.
type memLine struct {
	raw   *iwarptest.LLP
	order bool // numbers are sent as the script wants
	next  uint16
	ahead bool // what follows next has been sent

	mu   sync.Mutex
	got  [][]byte
	gone chan struct{}
}

func newMemLine(raw *iwarptest.LLP, numbered bool) *memLine {
	l := &memLine{raw: raw, order: numbered, gone: make(chan struct{})}
	go func() {
		defer close(l.gone)
		for {
			segs, err := raw.Recv()
			l.mu.Lock()
			l.got = append(l.got, segs...)
			l.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return l
}

func (l *memLine) send(seg []byte, s *script) {
	if !l.order {
		l.raw.Send(seg)
		return
	}
	b := s.byte()
	switch {
	case b >= 0xc0: // anywhere near, which leaves gaps and repeats
		l.raw.SendNumbered(l.next+uint16(b%7)-3, seg)
	case l.ahead:
		l.raw.SendNumbered(l.next, seg)
		l.next += 2
		l.ahead = false
	case b >= 0x80: // before the one that follows
		l.raw.SendNumbered(l.next+1, seg)
		l.ahead = true
	default:
		l.raw.SendNumbered(l.next, seg)
		l.next++
	}
}

func (l *memLine) heard() [][]byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.got
}

func (l *memLine) stall(on bool) { l.raw.Stall(on) }

func (l *memLine) end(hard bool) {
	if hard {
		l.raw.Close()
	} else {
		l.raw.CloseWrite()
	}
}

func (l *memLine) close() {
	l.raw.CloseWrite()
	<-l.gone
	l.raw.Close()
}

// fpduLine attacks by bytes, behind MPA's start-up.
type fpduLine struct {
	conn    *net.UnixConn
	markers bool // in what the target receives
	theirs  bool // in what it sends: then it is not understood
	pos     int  // on the grid of markers

	mu   sync.Mutex
	in   []byte
	gone chan struct{}
}

// socketPair returns two ends of a connection with descriptors, as TCP has.
func socketPair() (a, b *net.UnixConn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	var conns [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socketpair")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			return nil, nil, err
		}
		conns[i] = c.(*net.UnixConn)
	}
	return conns[0], conns[1], nil
}

func newFPDULine(conn *net.UnixConn) *fpduLine {
	l := &fpduLine{conn: conn, gone: make(chan struct{})}
	go func() {
		defer close(l.gone)
		buf := make([]byte, 4096)
		for {
			n, err := conn.Read(buf)
			l.mu.Lock()
			l.in = append(l.in, buf[:n]...)
			l.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return l
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// fpdu frames a segment (RFC 5044 sections 4.1 and 4.3), byte by byte.
func (l *fpduLine) fpdu(seg []byte, length int) []byte {
	body := binary.BigEndian.AppendUint16(nil, uint16(length))
	body = append(body, seg...)
	for len(body)%4 != 0 {
		body = append(body, 0)
	}
	var out []byte
	begun := 0 // bytes since the length field
	mark := func() {
		if l.markers && l.pos%512 == 0 {
			out = append(out, 0, 0, byte(begun>>8), byte(begun))
			l.pos += 4
			if begun > 0 {
				begun += 4
			}
		}
	}
	for _, b := range body {
		mark()
		out = append(out, b)
		l.pos++
		begun++
	}
	mark()
	l.pos += 4
	return binary.LittleEndian.AppendUint32(out, crc32.Checksum(out, castagnoli))
}

func (l *fpduLine) write(b []byte) {
	l.conn.SetWriteDeadline(time.Now().Add(10 * time.Second))
	l.conn.Write(b)
}

// send frames a segment and sends it whole, in two pieces, or damaged.
func (l *fpduLine) send(seg []byte, s *script) {
	how := s.byte()
	length := len(seg)
	if how >= 0xf8 {
		length += int(int32(s.small()))
	}
	b := l.fpdu(seg, length)
	switch at := int(s.byte()); {
	case how < 0x90:
		l.write(b)
	case how < 0xe0:
		l.write(b[:at%len(b)])
		l.write(b[at%len(b):])
	case how < 0xe8:
		b[at%len(b)] ^= 1 << (how & 7)
		l.write(b)
	case how < 0xf0:
		l.write(b[:at%len(b)])
	case how < 0xf8:
		l.write(s.bytes(at))
	default:
		l.write(b)
	}
}

// heard takes the target's FPDUs apart.
func (l *fpduLine) heard() (segs [][]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.theirs {
		return nil
	}
	if len(l.in) < 20 {
		return nil
	}
	frame := 20 + int(binary.BigEndian.Uint16(l.in[18:])) // of the start-up
	for b := l.in[min(frame, len(l.in)):]; len(b) >= 2; {
		n := int(binary.BigEndian.Uint16(b))
		size := (2+n+3)&^3 + 4
		if len(b) < size {
			break
		}
		segs = append(segs, b[2:2+n])
		b = b[size:]
	}
	return segs
}

func (l *fpduLine) stall(bool) {}

func (l *fpduLine) end(hard bool) {
	if hard {
		l.conn.Close()
	} else {
		l.conn.CloseWrite()
	}
}

func (l *fpduLine) close() {
	l.conn.CloseWrite()
	l.conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	<-l.gone
	l.conn.Close()
}
