package netfuzz

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/ddp/sctpadapt"
	"github.com/ironwarp/ironwarp/integration/attack/raw"
	"github.com/ironwarp/ironwarp/transport/assoc"
	"github.com/ironwarp/ironwarp/transport/sctp"
)

// attackers is an SCTP association of the attacker, whose messages the script makes; it
// can also falsify and invent packets.
type attackers struct {
	v     *target
	s     *script
	relay *relay
	end   *sctp.Endpoint
	assoc *sctp.Assoc

	mu    sync.Mutex
	lines [8]*sctpLine // by stream
}

// sctpLine is a DDP stream session on a pair of SCTP streams.
type sctpLine struct {
	a      *attackers
	stream uint16
	ssn    uint16
	held   []byte // a message to be sent after the next
	heard  chan assoc.Message
}

// openSCTP sets up an association, nil if the target refuses.
func openSCTP(v *target, s *script) *attackers {
	a := &attackers{v: v, s: s}
	var err error
	if a.relay, err = newRelay(v.udp); err != nil {
		return nil
	}
	own, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(trudy, 0)))
	if err != nil {
		a.relay.close()
		return nil
	}
	any := func(netip.AddrPort, netip.AddrPort, bool) error { return nil }
	a.end, err = sctp.Listen(own, sctp.Config{Params: assoc.Params{Adaptation: sctpadapt.Indication, RTOInitial: 50 * time.Millisecond, RTOMin: 20 * time.Millisecond, MaxInitRetrans: 2}, Admit: any, MTU: 1500, NoOffload: true})
	if err != nil {
		a.relay.close()
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if how := s.byte(); how >= 0xc0 { // already during the handshake
		a.relay.falsify(s, int(how&7))
	}
	a.assoc, err = a.end.Dial(ctx, a.relay.addr(), sctp.DialConfig{RemotePort: v.port, Receiver: func(*sctp.Assoc) assoc.Receiver { return a }})
	if err != nil {
		a.close()
		return nil
	}
	return a
}

func (a *attackers) close() {
	a.end.Close()
	a.relay.close()
}

// Message implements assoc.Receiver.
func (a *attackers) Message(m *assoc.Message) bool {
	c := *m
	c.Payload = bytes.Clone(m.Payload)
	a.mu.Lock()
	l := a.lines[int(m.Stream)%len(a.lines)]
	a.mu.Unlock()
	if l != nil {
		select {
		case l.heard <- c:
		default:
		}
	}
	return false
}

// Event implements assoc.Receiver.
func (a *attackers) Event(assoc.Event) {}

// BatchEnd implements assoc.Receiver.
func (a *attackers) BatchEnd() {}

// open asks for a stream session, nil if it is refused.
func (a *attackers) open() *stream {
	s := a.s
	how := s.byte()
	private := serviceRequest(s, how)
	l := &sctpLine{a: a, heard: make(chan assoc.Message, 1<<10)}
	a.mu.Lock()
	for i := range a.lines {
		if a.lines[i] == nil {
			l.stream = uint16(i)
			a.lines[i] = l
			break
		}
	}
	a.mu.Unlock()
	b := be.AppendUint16(nil, uint16(how>>7)*l.ssn)
	if how&4 != 0 {
		b = be.AppendUint16(b, uint16(sctpadapt.FunctionInitiate))
	} else {
		b = be.AppendUint16(b, uint16(sctpadapt.FunctionEnhancedInitiate))
		b = be.AppendUint16(b, uint16(how>>3&1)<<15|uint16(how>>4&1)<<14|4)
		b = be.AppendUint16(b, uint16(how>>5&3)<<14|16)
	}
	l.send(sctpadapt.PPIDControl, s.alter(append(b, private...)))
	l.ssn++
	t := time.NewTimer(answerTime)
	defer t.Stop()
	for {
		select {
		case m := <-l.heard:
			c, err := sctpadapt.ParseControl(m.Payload)
			if m.PPID != sctpadapt.PPIDControl || err != nil || c.Function != sctpadapt.FunctionAccept && c.Function != sctpadapt.FunctionEnhancedAccept {
				return nil
			}
			f := &stream{line: l, s: s, offBits: 24}
			f.readOffer(c.PrivateData)
			return f
		case <-t.C:
			return nil
		case <-a.assoc.Done():
			return nil
		}
	}
}

func (l *sctpLine) send(ppid uint32, b []byte) {
	if len(b) == 0 || len(b) > l.a.assoc.MaxMessage() {
		return
	}
	// If it fails the association has ended, which the target has to survive as well.
	_ = l.a.assoc.SendNow(assoc.Outgoing{Stream: l.stream, PPID: ppid, Bufs: [][]byte{b}})
}

func (l *sctpLine) sendSegment(seg []byte, s *script) {
	how := s.byte()
	ssn := l.ssn
	l.ssn++
	ppid := uint32(sctpadapt.PPIDSegment)
	switch {
	case how < 0xc0:
	case how < 0xd0: // to be sent after the next one
		if l.held == nil {
			l.held = append(be.AppendUint16(nil, ssn), seg...)
			return
		}
	case how < 0xe0:
		ssn += uint16(s.small())
	case how < 0xe8:
		ppid = uint32(how & 7 * 17)
	case how < 0xf0:
		l.ssn--
	case how < 0xf8:
		l.a.relay.falsify(s, 0)
	default:
		seg = s.alter(seg)
	}
	l.send(ppid, append(be.AppendUint16(nil, ssn), seg...))
	if l.held != nil {
		l.send(sctpadapt.PPIDSegment, l.held)
		l.held = nil
	}
}

// raw sends a control message, invents a packet or falsifies the next one.
func (l *sctpLine) raw(s *script) {
	switch how := s.byte(); how & 3 {
	case 0:
		b := be.AppendUint16(nil, l.ssn+uint16(s.small()))
		b = be.AppendUint16(b, uint16(how>>2&7))
		l.send(sctpadapt.PPIDControl, append(b, s.bytes(int(s.byte()))...))
		l.ssn++
	case 1:
		l.a.relay.invent(s)
	case 2:
		l.a.relay.falsify(s, int(how>>5))
	case 3:
		l.send(uint32(how>>2), s.bytes(int(s.byte())))
	}
}

func (l *sctpLine) receive(wait bool) ([]byte, bool) {
	var late <-chan time.Time
	if wait {
		t := time.NewTimer(answerTime)
		defer t.Stop()
		late = t.C
	}
	for {
		var m assoc.Message
		select {
		case m = <-l.heard:
		default:
			if !wait {
				return nil, false
			}
			select {
			case m = <-l.heard:
			case <-late:
				return nil, false
			case <-l.a.assoc.Done():
				return nil, false
			}
		}
		if m.PPID == sctpadapt.PPIDSegment && len(m.Payload) > 2 {
			return m.Payload[2:], true
		}
	}
}

func (l *sctpLine) stall(bool) {}

func (l *sctpLine) end(how byte) {
	switch how & 3 {
	case 0, 1, 2: // the session, properly
		l.send(sctpadapt.PPIDControl, be.AppendUint16(be.AppendUint16(nil, l.ssn), uint16(sctpadapt.FunctionTerminate)))
		l.ssn++
	case 3:
		l.a.assoc.Abort("enough")
	}
}

func (l *sctpLine) close() {}

// relay stands between the attacker's endpoint and the target, and knows enough to make
// packets of the association.
type relay struct {
	near, far *net.UDPConn // towards the attacker, the target
	wg        sync.WaitGroup
	drained   chan struct{} // closed behind the attacker's last packet

	mu    sync.Mutex
	last  [12]byte // the common header of the attacker's last packet
	tsn   uint32   // of its last DATA chunk
	wait  int      // packets until the one that is falsified
	patch []byte   // how
}

func newRelay(udp uint16) (*relay, error) {
	near, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(trudy, 0)))
	if err != nil {
		return nil, err
	}
	far, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(trudy, 0)), net.UDPAddrFromAddrPort(netip.AddrPortFrom(home, udp)))
	if err != nil {
		near.Close()
		return nil, err
	}
	r := &relay{near: near, far: far, drained: make(chan struct{})}
	client := make(chan netip.AddrPort, 1)
	r.wg.Go(func() {
		defer close(client)
		defer close(r.drained)
		buf := make([]byte, 64<<10)
		for first := true; ; first = false {
			n, from, err := near.ReadFromUDPAddrPort(buf)
			if err != nil || bytes.Equal(buf[:n], last) {
				return
			}
			if first {
				client <- from
			}
			r.pass(buf[:n])
		}
	})
	r.wg.Go(func() {
		to, ok := <-client
		if !ok {
			return
		}
		buf := make([]byte, 64<<10)
		for {
			n, err := far.Read(buf)
			if isClosed(err) {
				return
			}
			near.WriteToUDPAddrPort(buf[:n], to)
		}
	})
	return r, nil
}

func (r *relay) addr() netip.AddrPort { return r.near.LocalAddr().(*net.UDPAddr).AddrPort() }

// close relays what has come, makes sure that the association has ended, and ends.
func (r *relay) close() {
	r.falsify(&script{}, 0)
	c, err := net.DialUDP("udp", nil, r.near.LocalAddr().(*net.UDPAddr))
	if err == nil {
		c.Write(last)
		c.Close()
		<-r.drained
	}
	r.near.Close()
	abort := append(bytes.Clone(r.last[:]), 6, 0, 0, 4)
	raw.Seal(abort)
	r.far.Write(abort)
	r.far.Close()
	r.wg.Wait()
}

// last marks the end of a relay's packets. It is not a packet of SCTP.
var last = []byte("end")

// falsify changes a packet of the attacker: the one after n others.
func (r *relay) falsify(s *script, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wait, r.patch = n, s.bytes(3*int(s.byte()&3))
}

// pass relays a packet.
func (r *relay) pass(p []byte) {
	r.mu.Lock()
	if len(p) >= 12 {
		r.last = [12]byte(p)
	}
	if len(p) >= 20 && p[12] == 0 {
		r.tsn = be.Uint32(p[16:])
	}
	var patch []byte
	if r.wait--; r.wait < 0 {
		patch, r.patch = r.patch, nil
	}
	r.mu.Unlock()
	twice := false
	for ; len(patch) >= 3 && len(p) > 12; patch = patch[3:] {
		switch at := int(patch[0]) % len(p); {
		case patch[2] == 0xff:
			p = p[:max(at, 12)&^3]
		case patch[2] == 0xfe:
			return // lost
		case patch[2] == 0xfd:
			twice = true
		default:
			p[at] = patch[1]
		}
		raw.Seal(p)
	}
	r.far.Write(p)
	if twice {
		r.far.Write(p)
	}
}

// invent sends a packet in the association's name without its endpoint.
func (r *relay) invent(s *script) {
	r.mu.Lock()
	p := bytes.Clone(r.last[:])
	tsn := r.tsn
	r.mu.Unlock()
	for n := s.byte() & 3; ; n-- {
		at := len(p)
		typ := s.byte()
		if typ < 0x80 {
			typ &= 15
		}
		p = append(p, typ, s.byte(), 0, 0)
		if how := s.byte(); how < 0x80 { // begins with a TSN
			p = be.AppendUint32(p, tsn+uint32(int8(how<<1)))
		}
		p = append(p, s.bytes(int(s.byte()))...)
		be.PutUint16(p[at+2:], uint16(len(p)-at+int(int32(s.small()))))
		for len(p)%4 != 0 {
			p = append(p, 0)
		}
		if n == 0 {
			break
		}
	}
	if s.byte() >= 0xf0 {
		p[int(s.byte()&7)] ^= s.byte()
	}
	raw.Seal(p)
	r.far.Write(p)
}
