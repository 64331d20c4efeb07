package verbs

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"net"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/ddp/sctpadapt"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/transport/assoc"
	"github.com/ironwarp/ironwarp/transport/sctp"
	"github.com/ironwarp/ironwarp/transport/sctp/sctptest"
)

// own is the first SCTP stream that an attacker uses by hand. On those below it
// its sessions are proper.
const own = 100

// attacker is a peer of b over SCTP in UDP which can send any message on its
// association, beside a bystander's stream.
type attacker struct {
	t         testing.TB
	a, b      *end
	tc        *transport.Config // past a relay
	assoc     *transport.Assoc
	heard     chan assoc.Message // on the streams from own on
	accepted  <-chan *QP
	bystander *end
	stackEnd  *QP // the stack's end of the bystander's stream
	target    *MR
	alter     atomic.Pointer[func(p []byte)] // done to the attacker's packets on their way
}

// overhear is the attacker's Receiver.
type overhear struct {
	*sctpadapt.Mux
	heard chan assoc.Message
}

func (p *overhear) Message(m *assoc.Message) bool {
	if m.Stream < own {
		return p.Mux.Message(m)
	}
	c := *m
	c.Payload = slices.Clone(m.Payload)
	p.heard <- c
	return false
}

// newAttacker sets up an attacker of a device whose listener has room for backlog
// requests.
func newAttacker(t testing.TB, backlog int) *attacker {
	t.Helper()
	return newAttackerWith(t, backlog, 0)
}

// newAttackerWith is newAttacker with packets up to mtu, 0: as the path has them.
func newAttackerWith(t testing.TB, backlog, mtu int) *attacker {
	t.Helper()
	x := &attacker{t: t, heard: make(chan assoc.Message, 1<<14)}
	server := iwarptest.SCTPInUDP(t)
	x.tc, _ = relayTo(t, server, sctptest.Faults{Drop: func(fromClient bool, p []byte) bool {
		if f := x.alter.Load(); f != nil && fromClient {
			(*f)(p)
		}
		return false
	}})
	x.tc.MTU = mtu
	x.a, x.b = newEnd(t, Config{}), newEnd(t, Config{})
	x.b.tc = server
	x.accepted = acceptAll(t, x.b, listen(t, x.b, ListenConfig{Backlog: backlog}))
	var err error
	x.assoc, err = transport.DialSCTP(testContext(t), sctpLocal, x.tc, func(a assoc.Association) assoc.Receiver {
		return &overhear{sctpadapt.New(a, sctpadapt.Config{}, true), x.heard}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.assoc.Close() })
	s, err := x.assoc.Receiver().(*overhear).Initiate(testContext(t), sctpadapt.Session{IRD: 16, ORD: 16})
	if err != nil {
		t.Fatal(err)
	}
	x.a.startOn(s)
	x.bystander = x.a
	x.stackEnd = <-x.accepted
	x.target = x.b.mr(64, LocalWrite|RemoteWrite|RemoteRead)
	x.bystander.wantAlive(x.target)
	return x
}

// say sends one message.
func (x *attacker) say(stream uint16, ppid uint32, payload ...byte) {
	x.t.Helper()
	if err := x.assoc.SendNow(assoc.Outgoing{Stream: stream, PPID: ppid, Bufs: [][]byte{payload}}); err != nil {
		x.t.Fatal(err)
	}
}

func (x *attacker) control(stream, ssn uint16, f sctpadapt.Function, private ...byte) {
	x.t.Helper()
	b := binary.BigEndian.AppendUint16(nil, ssn)
	x.say(stream, sctpadapt.PPIDControl, append(binary.BigEndian.AppendUint16(b, uint16(f)), private...)...)
}

// segment sends an untagged segment, the message msn of a Send.
func (x *attacker) segment(stream, ssn uint16, msn uint32, payload ...byte) {
	x.t.Helper()
	b := ddp.AppendUntagged(binary.BigEndian.AppendUint16(nil, ssn), true, rdmap.Control(rdmap.OpSend), 0, 0, msn, 0)
	x.say(stream, sctpadapt.PPIDSegment, append(b, payload...)...)
}

// want waits for a control message with function f.
func (x *attacker) want(stream uint16, f sctpadapt.Function) {
	x.t.Helper()
	for {
		select {
		case m := <-x.heard:
			if m.PPID != sctpadapt.PPIDControl {
				continue
			}
			if c, err := sctpadapt.ParseControl(m.Payload); err != nil || m.Stream != stream || c.Function != f {
				x.t.Errorf("stream %d answers %v, %v; want %v on stream %d", m.Stream, c.Function, err, f, stream)
			}
			return
		case <-testContext(x.t).Done():
			x.t.Fatalf("stream %d gets no %v", stream, f)
		}
	}
}

// open starts a session by hand. The queue pair is b's.
func (x *attacker) open(stream uint16) *QP {
	x.t.Helper()
	x.control(stream, 0, sctpadapt.FunctionInitiate)
	x.want(stream, sctpadapt.FunctionAccept)
	return <-x.accepted
}

// altered has the next DATA chunk with payload changed on its way.
func (x *attacker) altered(payload []byte, change func(chunk []byte)) {
	f := func(p []byte) {
		for at := 12; at+4 <= len(p); {
			n := int(binary.BigEndian.Uint16(p[at+2:]))
			if n < 4 || at+n > len(p) {
				return
			}
			if c := p[at : at+n]; c[0] == 0 && n == 16+len(payload) && slices.Equal(c[16:], payload) {
				change(p[at:])
				clear(p[8:12])
				binary.LittleEndian.PutUint32(p[8:], crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli)))
				return
			}
			at += (n + 3) &^ 3
		}
	}
	x.alter.Store(&f)
}

// What a chunk breaks ends the session that it belongs to, by a Terminate
// (RFC 5043 section 6.1), and nothing more: a stream on the same association goes
// on.
func TestIllegalChunksEndTheirSession(t *testing.T) {
	x := newAttacker(t, 16)
	first := []byte{0, 1}
	for i, c := range []struct {
		name string
		do   func(stream uint16)
	}{
		{"another PPID", func(s uint16) { x.say(s, 99, first...) }},
		{"no PPID", func(s uint16) { x.say(s, 0, first...) }},
		{"a chunk too short for its number", func(s uint16) { x.say(s, sctpadapt.PPIDSegment, 0) }},
		{"a control message too short", func(s uint16) { x.say(s, sctpadapt.PPIDControl, 0, 1, 0) }},
		{"a number twice", func(s uint16) { x.segment(s, 2, 2); x.segment(s, 2, 2) }},
		{"the Initiate's number again", func(s uint16) { x.segment(s, 0, 1) }},
		{"a number beyond the window", func(s uint16) { x.segment(s, 1+1<<15, 1) }},
		{"a segment behind the Terminate", func(s uint16) { x.control(s, 2, sctpadapt.FunctionTerminate); x.segment(s, 3, 3) }},
		{"a Terminate before what has come", func(s uint16) { x.segment(s, 3, 3); x.control(s, 2, sctpadapt.FunctionTerminate) }},
		{"two Terminates", func(s uint16) {
			x.control(s, 2, sctpadapt.FunctionTerminate)
			x.control(s, 3, sctpadapt.FunctionTerminate)
		}},
		{"an Initiate in a session", func(s uint16) { x.control(s, 0, sctpadapt.FunctionInitiate) }},
		{"an Enhanced Initiate in a session", func(s uint16) { x.control(s, 1, sctpadapt.FunctionEnhancedInitiate, 0, 1, 0, 1) }},
		{"an Accept in a session", func(s uint16) { x.control(s, 1, sctpadapt.FunctionAccept) }},
		{"a Reject in a session", func(s uint16) { x.control(s, 1, sctpadapt.FunctionReject) }},
		{"function 0", func(s uint16) { x.control(s, 1, 0) }},
		{"function 9", func(s uint16) { x.control(s, 1, 9) }},
		{"513 bytes of private data", func(s uint16) { x.control(s, 1, sctpadapt.FunctionAccept, make([]byte, 513)...) }},
		{"a Terminate with private data", func(s uint16) { x.control(s, 1, sctpadapt.FunctionTerminate, 1) }},
		{"an ordered chunk", func(s uint16) {
			x.altered([]byte{0, 1, 'o'}, func(c []byte) { c[1] &^= byte(assoc.Unordered) })
			x.say(s, sctpadapt.PPIDSegment, 0, 1, 'o')
		}},
		{"a fragment", func(s uint16) {
			x.altered([]byte{0, 1, 'f'}, func(c []byte) { c[1] &^= byte(assoc.End) })
			x.say(s, sctpadapt.PPIDSegment, 0, 1, 'f')
		}},
	} {
		stream := own + uint16(i)
		qp := x.open(stream)
		c.do(stream)
		var illegal *sctpadapt.SessionError
		<-qp.Done()
		if err := qp.Err(); !errors.As(err, &illegal) || illegal.Stream != stream {
			t.Errorf("%s: the stream ended with %v", c.name, err)
		}
		x.want(stream, sctpadapt.FunctionTerminate)
		x.alter.Store(nil)
		wantEvent(t, x.b.dev, EventPeerFault, qp.ID())
		x.bystander.wantAlive(x.target)
		if len(x.heard) > 0 {
			t.Errorf("%s: %d more answers", c.name, len(x.heard))
		}
	}
	// Control: without a fault the session stays, and ends gracefully.
	qp := x.open(own + 50)
	for range 2 {
		if err := qp.PostRecv(RecvWR{}); err != nil {
			t.Fatal(err)
		}
	}
	x.segment(own+50, 2, 2)
	x.control(own+50, 3, sctpadapt.FunctionTerminate)
	x.bystander.wantAlive(x.target)
	x.segment(own+50, 1, 1)
	<-qp.Done()
	if err := qp.Err(); !errors.Is(err, rdmap.ErrPeerClosed) {
		t.Errorf("the control's stream ended with %v", err)
	}
}

// What belongs to no session is answered by a Terminate and leaves nothing behind.
func TestChunksOutsideOfSessionsAreTerminated(t *testing.T) {
	x := newAttacker(t, 16)
	streams := x.b.dev.Usage().Streams
	for i, c := range []struct {
		name string
		do   func(stream uint16)
	}{
		{"a segment", func(s uint16) { x.segment(s, 1, 1) }},
		{"another PPID", func(s uint16) { x.say(s, 46, 0, 0) }},
		{"an Accept", func(s uint16) { x.control(s, 0, sctpadapt.FunctionAccept) }},
		{"an Enhanced Reject", func(s uint16) { x.control(s, 0, sctpadapt.FunctionEnhancedReject, 0, 1, 0, 1) }},
		{"an Initiate with a number other than 0", func(s uint16) { x.control(s, 1, sctpadapt.FunctionInitiate) }},
		{"an Initiate with 513 bytes of private data", func(s uint16) { x.control(s, 0, sctpadapt.FunctionInitiate, make([]byte, 513)...) }},
		{"an Enhanced Initiate without IRD and ORD", func(s uint16) { x.control(s, 0, sctpadapt.FunctionEnhancedInitiate, 0, 1) }},
	} {
		stream := own + uint16(i)
		c.do(stream)
		x.want(stream, sctpadapt.FunctionTerminate)
		x.bystander.wantAlive(x.target)
		if len(x.heard) > 0 {
			t.Errorf("%s: %d more answers", c.name, len(x.heard))
		}
	}
	if n := x.b.dev.Usage().Streams; n != streams {
		t.Errorf("%d streams are in use, %d were", n, streams)
	}
	// A Terminate is never answered by one.
	x.control(own+40, 0, sctpadapt.FunctionTerminate)
	x.bystander.wantAlive(x.target)
	if len(x.heard) > 0 {
		t.Error("a Terminate is answered")
	}
}

// A peer that keeps sending what belongs to no session is seen, and loses its
// association when it does so more often than the policy permits (R24). What another
// association carries goes on.
func TestStraysBeyondThePolicyEndTheAssociation(t *testing.T) {
	x := newAttacker(t, 16)
	y := x.a.another(sctpLocal, x.tc)
	other := <-x.accepted
	const n = 20
	for i := range uint16(n) {
		x.segment(own+i, 1, 1)
		x.want(own+i, sctpadapt.FunctionTerminate)
	}
	x.bystander.wantAlive(x.target)
	if got := x.stackEnd.SlowPath(); got.Strays != n || got.Charged() != 0 {
		t.Errorf("counted %+v, want %d strays", got, n)
	}
	if err := x.b.dev.SetSlowPolicy(SlowPolicy{PerSecond: 1, Burst: 2}); err != nil {
		t.Fatal(err)
	}
	for i := range uint16(1000) { // however slow the machine is
		if x.assoc.SendNow(assoc.Outgoing{Stream: own + i%64, PPID: 46, Bufs: [][]byte{{0}}}) != nil {
			break
		}
	}
	select {
	case <-x.assoc.Done():
	case <-testContext(t).Done():
		t.Fatal("the association lives on")
	}
	<-x.stackEnd.Done()
	if err := x.stackEnd.Err(); !errors.Is(err, ErrSlowPath) {
		t.Errorf("the stream on it ends with %v", err)
	}
	wantEvent(t, x.b.dev, EventSlowPath, x.stackEnd.ID())
	y.wantAlive(x.target)
	if other.Err() != nil {
		t.Errorf("the stream on another association ends with %v", other.Err())
	}
}

// RFC 5043 section 6.4: a flood of Initiates meets a finite limit; beyond it each
// is answered by a Terminate.
func TestInitiateFloodOverOneAssociation(t *testing.T) {
	x := newAttacker(t, 8)
	const flood = 900
	for i := range uint16(flood) {
		x.control(own+i, 0, sctpadapt.FunctionInitiate)
	}
	accepted, terminated := 0, 0
	for range flood {
		select {
		case m := <-x.heard:
			switch c, err := sctpadapt.ParseControl(m.Payload); {
			case err == nil && c.Function == sctpadapt.FunctionAccept:
				accepted++
			case err == nil && c.Function == sctpadapt.FunctionTerminate:
				terminated++
			default:
				t.Errorf("answer %+v, %v", c, err)
			}
		case <-testContext(t).Done():
			t.Fatalf("%d accepted, %d terminated of %d", accepted, terminated, flood)
		}
	}
	if terminated == 0 {
		t.Error("nothing was refused")
	}
	x.bystander.wantAlive(x.target)
}

// A chunk on a stream that was not negotiated reaches no session (RFC 9260 section
// 6.5), and ends none.
func TestStreamsBeyondTheNegotiatedOnes(t *testing.T) {
	x := newAttacker(t, 16)
	qp := x.open(own)
	marker := []byte{0, 1, 0, 0, 'b', 'e', 'y', 'o', 'n', 'd'}
	x.altered(marker, func(c []byte) { binary.BigEndian.PutUint16(c[8:], 60000) })
	x.say(own, sctpadapt.PPIDControl, marker...)
	x.bystander.wantAlive(x.target)
	x.alter.Store(nil)
	if qp.State() != QPRTS {
		t.Errorf("the session of stream %d is %v", own, qp.State())
	}
	x.segment(own, 0, 0) // ends it: it was there
	<-qp.Done()
	x.bystander.wantAlive(x.target)
}

// A peer without DDP's Adaptation Layer Indication, or with another, gets no
// association (RFC 5043 section 11.1); one with it does.
func TestIndicationIsDemanded(t *testing.T) {
	x := newAttacker(t, 16)
	for _, c := range []struct {
		indication uint32
		ok         bool
	}{{0, false}, {2, false}, {0xffffffff, false}, {sctpadapt.Indication, true}} {
		conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		ep, err := sctp.Listen(conn, sctp.Config{Params: assoc.Params{Adaptation: c.indication}, Admit: anyone})
		if err != nil {
			t.Fatal(err)
		}
		// A peer that demands none itself.
		a, err := ep.Dial(testContext(t), addrOf(x.tc), sctp.DialConfig{RemotePort: sctpLocal.Port(), Receiver: func(*sctp.Assoc) assoc.Receiver { return deaf{} }})
		if (err == nil) != c.ok {
			t.Errorf("indication %#x: %v", c.indication, err)
		}
		var abort *assoc.AbortError
		if err != nil && !errors.As(err, &abort) {
			t.Errorf("indication %#x: refused by %v, not by an ABORT", c.indication, err)
		}
		if a != nil {
			a.Close()
		}
		ep.Close()
		x.bystander.wantAlive(x.target)
	}
}

// An ABORT with junk ends the association that it is for, all its streams, and no
// other.
func TestAbortWithJunk(t *testing.T) {
	x := newAttacker(t, 16)
	qp := x.open(own)
	other := newEnd(t, Config{})
	bystander := other.another(sctpLocal, x.b.tc)
	<-x.accepted
	marker := []byte("0123456789abcdef0123456789abcdef")
	x.altered(marker, func(c []byte) {
		c[0], c[1] = 6, 0 // ABORT
		for i := range c[4:] {
			c[4+i] = byte(i * 31)
		}
	})
	x.say(own, sctpadapt.PPIDSegment, marker...)
	<-qp.Done()
	if err := qp.Err(); !errors.Is(err, sctpadapt.ErrConnectionLost) {
		t.Errorf("the stream ended with %v", err)
	}
	bystander.wantAlive(x.target)
}

// Segments may be longer than ours: a peer's path may have a larger MTU. Their
// payload goes where it fits; where it does not, the stream ends, by a Terminate of
// RDMAP.
func TestOversizedSegments(t *testing.T) {
	x := newAttackerWith(t, 16, 65535)
	const size = 60000
	payload := make([]byte, size)
	fill(payload, 9)
	write := func(stream, ssn uint16, to *MR) {
		b := ddp.AppendTagged(binary.BigEndian.AppendUint16(nil, ssn), true, rdmap.Control(rdmap.OpWrite), to.STag(), 0)
		x.say(stream, sctpadapt.PPIDSegment, append(b, payload...)...)
	}
	large := x.b.mr(size, LocalWrite|RemoteWrite|RemoteRead)
	qp := x.open(own)
	write(own, 1, large)
	x.control(own, 2, sctpadapt.FunctionTerminate)
	<-qp.Done()
	if err := qp.Err(); !errors.Is(err, rdmap.ErrPeerClosed) || string(large.Bytes()) != string(payload) {
		t.Errorf("a long segment that fits: %v", err)
	}
	x.want(own, sctpadapt.FunctionTerminate)
	qp = x.open(own + 1)
	write(own+1, 1, x.target)
	<-qp.Done()
	if err := qp.Err(); !isFault(ddp.LayerDDP, ddp.TypeTagged, ddp.CodeTaggedBounds)(err) {
		t.Errorf("a long segment that does not fit: %v", err)
	}
	x.bystander.wantAlive(x.target)
}

// A peer may have so many associations without a stream and no more; one too many ends
// alone, and a stream pays for its association (RFC 5042 section 6.4.1).
func TestAssociationsOfAPeerAreBounded(t *testing.T) {
	x := newAttacker(t, 16)
	if err := x.b.dev.SetPeerQuota(Quota{HalfOpen: 2}); err != nil {
		t.Fatal(err)
	}
	// associate sets up an association, and a session that is over if the
	// association is ended.
	associate := func(session bool) (*transport.Assoc, error) {
		a, err := transport.DialSCTP(testContext(t), sctpLocal, x.tc, muxOf)
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { a.Close() })
		if session {
			_, err = a.Receiver().(*sctpadapt.Mux).Initiate(testContext(t), sctpadapt.Session{})
		}
		return a, err
	}
	for range 3 { // more than the quota: they have streams
		if _, err := associate(true); err != nil {
			t.Fatal(err)
		}
		wantHalfOpen(t, x.b.dev, 0) // it is answered before it is taken in
	}
	first, err := associate(false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := associate(false); err != nil {
		t.Fatal(err)
	}
	wantHalfOpen(t, x.b.dev, 2) // until both have been taken in
	var abort *assoc.AbortError
	if _, err := associate(true); !errors.As(err, &abort) {
		t.Errorf("one association too many: %v", err)
	}
	wantEvent(t, x.b.dev, EventQuotaExceeded, 0)
	x.bystander.wantAlive(x.target)
	first.Close()
	ctx := testContext(t)
	for _, err = associate(false); err != nil; _, err = associate(false) { // as soon as the other has gone
		if ctx.Err() != nil {
			t.Fatalf("there is no room for another: %v", err)
		}
	}
}

// A flood of INITs leaves no association behind and holds up nobody.
func TestInitFlood(t *testing.T) {
	x := newAttacker(t, 16)
	conn, err := net.Dial("udp", addrOf(x.b.tc).String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	init := make([]byte, 12+20)
	binary.BigEndian.PutUint16(init, 40000)
	binary.BigEndian.PutUint16(init[2:], sctpLocal.Port())
	init[12] = 1
	binary.BigEndian.PutUint16(init[14:], 20)
	binary.BigEndian.PutUint32(init[20:], 1<<16)
	binary.BigEndian.PutUint16(init[24:], 10)
	binary.BigEndian.PutUint16(init[26:], 10)
	init = append(init, 0xc0, 6, 0, 8, 0, 0, 0, 1) // the indication
	binary.BigEndian.PutUint16(init[14:], 28)
	for i := range uint32(5000) {
		binary.BigEndian.PutUint32(init[16:], i+1) // the tag
		clear(init[8:12])
		binary.LittleEndian.PutUint32(init[8:], crc32.Checksum(init, crc32.MakeTable(crc32.Castagnoli)))
		if _, err := conn.Write(init); err != nil {
			t.Fatal(err)
		}
	}
	conn.SetReadDeadline(deadline(t))
	reply := make([]byte, 2000)
	if n, err := conn.Read(reply); err != nil || n < 16 || reply[12] != 2 {
		t.Errorf("an INIT is not answered by an INIT ACK: %x, %v", reply[:n], err)
	}
	x.bystander.wantAlive(x.target)
	as := &x.b.dev.assocs
	as.mu.Lock()
	defer as.mu.Unlock()
	if len(as.all) != 1 {
		t.Errorf("%d associations", len(as.all))
	}
}

// deaf is a Receiver that throws all away.
type deaf struct{}

func (deaf) Message(*assoc.Message) bool { return false }
func (deaf) Event(assoc.Event)           {}
func (deaf) BatchEnd()                   {}
