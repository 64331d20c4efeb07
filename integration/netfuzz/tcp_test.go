package netfuzz

import (
	"bytes"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironwarp/ironwarp/ddp/enhanced"
	"github.com/ironwarp/ironwarp/integration/attack/raw"
	"github.com/ironwarp/ironwarp/mpa"
)

// tcpLine is an attacker's TCP connection, all bytes of which the script makes.
type tcpLine struct {
	conn    *net.TCPConn
	segs    chan []byte
	stalled atomic.Bool
	resume  chan struct{}
	once    sync.Once
	gone    chan struct{}
}

// answerTime is how long an attacker waits for an answer.
const answerTime = 200 * time.Millisecond

// openTCP connects to v and carries out MPA's start-up by the script. It returns nil if
// the target refuses.
func openTCP(v *target, s *script) *stream {
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(mallory, 0)), Timeout: patience}
	c, err := d.Dial("tcp", netip.AddrPortFrom(home, v.port).String())
	if err != nil {
		return nil
	}
	conn := c.(*net.TCPConn)
	conn.SetDeadline(time.Now().Add(patience))
	l := &tcpLine{conn: conn, segs: make(chan []byte, 1<<10), resume: make(chan struct{}), gone: make(chan struct{})}
	conn.Write(startup(s))
	frame, ok := l.reply()
	if !ok {
		conn.Close()
		return nil
	}
	go l.read()
	f := &stream{line: l, s: s, offBits: 24}
	f.readOffer(frame.PrivateData)
	return f
}

// startup is the attacker's request: bits 0 and 1 of the script's first byte are
// the service, the rest is how it starts up.
func startup(s *script) []byte {
	how := s.byte()
	private := s.alter(serviceRequest(s, how))
	fr := mpa.Frame{CRC: how&4 == 0, Markers: how&8 != 0, Revision: 2, PrivateData: private}
	if how&16 != 0 {
		fr.Revision = 1
	} else {
		fr.Enhanced = &enhanced.Data{IRD: uint16(how >> 5), ORD: 16, PeerToPeer: how&32 != 0}
		if how&32 != 0 {
			fr.Enhanced.RTR = enhanced.RTR(how >> 6)
		}
	}
	b, err := fr.Append(nil)
	if err != nil {
		b = private
	}
	return s.alter(b)
}

// reply reads the target's frame.
func (l *tcpLine) reply() (mpa.Frame, bool) {
	l.conn.SetReadDeadline(time.Now().Add(answerTime))
	defer l.conn.SetReadDeadline(time.Now().Add(patience))
	fr, err := raw.ReadReply(l.conn)
	return fr, err == nil
}

// read parses the target's FPDUs.
func (l *tcpLine) read() {
	defer close(l.gone)
	var in []byte
	buf := make([]byte, 16<<10)
	for {
		if l.stalled.Load() {
			<-l.resume
		}
		n, err := l.conn.Read(buf)
		in = append(in, buf[:n]...)
		for {
			seg, rest, ok := raw.CutFPDU(in)
			if !ok {
				break
			}
			select {
			case l.segs <- bytes.Clone(seg):
			default: // more is not looked at
			}
			in = rest
		}
		if err != nil {
			return
		}
	}
}

func (l *tcpLine) sendSegment(seg []byte, s *script) {
	how := s.byte()
	length := len(seg)
	if how >= 0xf8 {
		length += int(int32(s.small()))
	}
	b := raw.AppendFPDU(nil, seg, length)
	switch {
	case how >= 0xe0 && how < 0xe8:
		b[int(s.byte())%len(b)] ^= 1 << (how & 7)
	case how >= 0xe8 && how < 0xf0:
		b = b[:int(s.byte())%len(b)]
	case how >= 0xf0 && how < 0xf8:
		at := int(s.byte()) % len(b)
		l.conn.Write(b[:at])
		b = b[at:]
	}
	l.conn.Write(b)
}

func (l *tcpLine) raw(s *script) { l.conn.Write(s.bytes(int(s.byte()))) }

func (l *tcpLine) receive(wait bool) ([]byte, bool) {
	if !wait {
		select {
		case seg := <-l.segs:
			return seg, true
		default:
			return nil, false
		}
	}
	t := time.NewTimer(answerTime)
	defer t.Stop()
	select {
	case seg := <-l.segs:
		return seg, true
	case <-l.gone:
	case <-t.C:
	}
	return nil, false
}

func (l *tcpLine) stall(on bool) {
	if on {
		l.stalled.Store(true)
	} else {
		l.wake()
	}
}

func (l *tcpLine) wake() {
	l.stalled.Store(false)
	select {
	case l.resume <- struct{}{}:
	default:
	}
}

func (l *tcpLine) end(how byte) {
	switch how & 3 {
	case 0, 1:
		l.conn.CloseWrite()
	case 2:
		l.conn.SetLinger(0)
		l.conn.Close()
	case 3:
		l.conn.Close()
	}
}

func (l *tcpLine) close() {
	l.conn.Close()
	l.once.Do(func() { close(l.resume) })
	<-l.gone
}
