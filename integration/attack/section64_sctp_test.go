package attack

import (
	"encoding/binary"
	"hash/crc32"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ddp/sctpadapt"
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/transport/assoc"
	"github.com/ironwarp/ironwarp/verbs"
)

// sctpByAddress is byAddress for SCTP in UDP, from home and from others of this host.
func sctpByAddress(t *testing.T) (to *transport.Config, from func(netip.Addr) *transport.Config) {
	t.Helper()
	port := iwarptest.FreeUDPPort(t)
	from = func(a netip.Addr) *transport.Config {
		tc := byAddress(transport.SCTPUDP, a)
		tc.UDPPort = port
		return tc
	}
	return from(home), from
}

// rawAssoc is an association of the attacker's, on which any message can be sent.
type rawAssoc struct {
	*transport.Assoc
	s     *service
	heard chan assoc.Message
}

// inbox is the Receiver of a rawAssoc.
type inbox chan assoc.Message

func (e inbox) Message(m *assoc.Message) bool {
	c := *m
	c.Payload = slices.Clone(m.Payload)
	e <- c
	return false
}
func (inbox) Event(assoc.Event) {}
func (inbox) BatchEnd()         {}

// associate sets an association up, which the target may end at once.
func (s *service) associate(tc *transport.Config) (*rawAssoc, error) {
	heard := make(inbox, 1<<14)
	a, err := transport.DialSCTP(s.Context(), s.ln.Addr(), tc, func(assoc.Association) assoc.Receiver { return heard })
	if err != nil {
		return nil, err
	}
	s.Cleanup(func() { a.Close() })
	return &rawAssoc{a, s, heard}, nil
}

// say sends a message. If that fails, the attack fails.
func (a *rawAssoc) say(stream uint16, ppid uint32, payload []byte) {
	_ = a.SendNow(assoc.Outgoing{Stream: stream, PPID: ppid, Bufs: [][]byte{payload}})
}

// initiate asks for a session (RFC 5043 section 6.2).
func (a *rawAssoc) initiate(stream uint16) {
	c := must((&sctpadapt.Control{Function: sctpadapt.FunctionInitiate}).Append(nil))(a.s.T)
	a.say(stream, sctpadapt.PPIDControl, c)
}

// session starts a session. It returns the target's stream.
func (a *rawAssoc) session(id uint16) *stream {
	a.s.Helper()
	a.initiate(id)
	qp := <-a.s.streams
	return &stream{v: a.s.target, qp: qp, cq: a.s.cq}
}

// received is stream.received. Where the target ends the session by a Terminate, it does
// not wait for more.
func (a *rawAssoc) received(f *stream, n uint64) (all bool) {
	a.s.Helper()
	a.s.await(func() bool {
		for len(a.heard) > 0 {
			m := <-a.heard
			if m.PPID != sctpadapt.PPIDSegment || len(m.Payload) < 2 {
				continue
			}
			if s, _ := iwarptest.ParseSegment(m.Payload[2:]); !s.Tagged && s.QN == rdmap.QNTerminate {
				a.Abort("")
			}
		}
		select {
		case <-f.qp.Done():
			return true
		default:
			all = f.qp.Stats().RecvOps >= n
			return all
		}
	})
	return all
}

// segment sends a segment as number ssn of a session.
func (a *rawAssoc) segment(stream, ssn uint16, s iwarptest.Segment) {
	a.say(stream, sctpadapt.PPIDSegment, s.Append(binary.BigEndian.AppendUint16(nil, ssn)))
}

// refusals waits for n answers to Initiates and returns how many of them were refusals.
func (a *rawAssoc) refusals(n int) (refused int) {
	for range n {
		m := <-a.heard
		c, err := sctpadapt.ParseControl(m.Payload)
		if m.PPID != sctpadapt.PPIDControl || err != nil {
			a.s.Errorf("the target answers an Initiate with %+v: %v", m, err)
		}
		if c.Function == sctpadapt.FunctionTerminate || c.Function == sctpadapt.FunctionReject {
			refused++
		}
	}
	return refused
}

// One peer sets up associations without end and starts nothing on them, or starts
// sessions without end; another peer's stream comes up (R19).
func TestAssociationsAndSessionsWithoutEnd(t *testing.T) {
	const places = 48
	run(t,
		attack{"associations without sessions", checks.HalfOpen, func(v *target) bool {
			v = newTargetAs(v.T, verbs.Config{Limits: verbs.Limits{HalfOpen: places}}, verbs.ST)
			to, from := sctpByAddress(v.T)
			s := v.listen(to)
			s.serve()
			for range 3 * places {
				// The target aborts those that it does not want, now or a moment later.
				_, _ = s.associate(from(evilHost))
			}
			shutOut := s.newcomer(from(goodHost))
			v.wantEvent(verbs.EventQuotaExceeded, "plaintext:127.0.0.2")
			return shutOut
		}},
		attack{"sessions that the service has not looked at", checks.HalfOpen, func(v *target) bool {
			v = newTargetAs(v.T, verbs.Config{Limits: verbs.Limits{HalfOpen: places}}, verbs.ST)
			to, from := sctpByAddress(v.T)
			most := int64(places)
			if !checks.Weakened {
				most -= places / 4 // which is kept for another peer
			}
			return v.asleep(v.listen(to), from, most)
		}},
		attack{"sessions that fill the backlog", checks.BacklogShare, func(v *target) bool {
			to, from := sctpByAddress(v.T)
			return v.asleep(v.listenWith(to, verbs.ListenConfig{Backlog: places}), from, 1+places)
		}},
		attack{"streams", checks.FairShare, func(v *target) bool {
			v = newTargetAs(v.T, verbs.Config{Limits: verbs.Limits{Streams: places}}, verbs.ST)
			to, from := sctpByAddress(v.T)
			s := v.listen(to)
			s.serve()
			a := must(s.associate(from(evilHost)))(v.T)
			for i := range uint16(10 * places) {
				a.initiate(i)
			}
			if a.refusals(10*places) == 0 {
				v.Error("no session is refused")
			}
			return s.newcomer(from(goodHost))
		}},
	)
}

// asleep has a peer ask for sessions without end, and another one for one, while the
// service accepts nothing. It reports whether that one is refused when the service goes
// on. most is how many places the first peer gets, that of its association included.
func (v *target) asleep(s *service, from func(netip.Addr) *transport.Config, most int64) (shutOut bool) {
	v.Helper()
	a := must(s.associate(from(evilHost)))(v.T)
	for i := range uint16(2 * most) {
		a.initiate(i)
	}
	v.await(func() bool { return v.dev.Usage().HalfOpen >= most })
	shut := make(chan bool, 1)
	go func() { shut <- s.newcomer(from(goodHost)) }()
	if !checks.Weakened {
		v.await(func() bool { return len(shut) > 0 || v.usageOf(goodHost).HalfOpen > 1 })
		s.serve()
	}
	return <-shut
}

// await waits until happened reports true.
func (v *target) await(happened func() bool) {
	v.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	late := time.After(patience)
	for !happened() {
		select {
		case <-tick.C:
		case <-late:
			v.Fatal("what should happen does not")
		}
	}
}

// wantEvent checks that an event of this kind is about that peer.
func (v *target) wantEvent(k verbs.EventKind, peer transport.Identity) {
	v.Helper()
	for {
		ev, ok := v.dev.TryEvent()
		if !ok {
			v.Errorf("no event %v reports %s", k, peer)
			return
		}
		if ev.Kind == k && ev.Peer == peer {
			return
		}
	}
}

// eventually waits for an event of this kind about that peer.
func (v *target) eventually(k verbs.EventKind, peer transport.Identity) {
	v.Helper()
	v.await(func() bool {
		ev, ok := v.dev.TryEvent()
		return ok && ev.Kind == k && ev.Peer == peer
	})
}

// A host that sends INITs without end, and COOKIE ECHOs that it has made up: neither
// costs the target anything that it keeps, and another peer gets in (R19, RFC 9260
// section 5.1).
func TestINITsWithoutEnd(t *testing.T) {
	const flood = 10_000
	v := newTargetAs(t, verbs.Config{Limits: verbs.Limits{HalfOpen: 16}}, verbs.ST)
	to, from := sctpByAddress(t)
	s := v.listen(to)
	s.serve()
	c := must(net.DialUDP("udp", &net.UDPAddr{IP: evilHost.AsSlice()}, net.UDPAddrFromAddrPort(netip.AddrPortFrom(home, to.UDPPort))))(t)
	defer c.Close()
	at := s.ln.Addr().Port()
	init := func(i uint32) []byte { // with DDP's Adaptation Layer Indication
		b := binary.BigEndian.AppendUint32([]byte{1, 0, 0, 28}, i+1)
		b = append(b, 0, 16, 0, 0, 4, 0, 4, 0, 0, 0, 0, 1, 0xc0, 0x06, 0, 8, 0, 0, 0, 1)
		return sctpPacket(uint16(i), at, 0, b)
	}
	must(c.Write(init(0)))(t)
	answer := make([]byte, 1500)
	if n := must(c.Read(answer))(t); n < 13 || answer[12] != 2 {
		t.Fatalf("control: an INIT is answered by %x, which is no INIT ACK", answer[:n])
	}
	for i := range uint32(flood) {
		cookie := make([]byte, 132)
		cookie[0], cookie[3] = 10, 132
		binary.BigEndian.PutUint32(cookie[4:], i)
		_, _ = c.Write(init(i)) // one that gets lost is no loss
		_, _ = c.Write(sctpPacket(uint16(i), at, i+1, cookie))
	}
	if s.newcomer(from(goodHost)) {
		t.Error("another peer does not get in")
	}
	if u := v.usageOf(evilHost); u != (verbs.Limits{}) {
		t.Errorf("the host that floods has %+v", u)
	}
}

// sctpPacket is a chunk in a packet (RFC 9260 section 3).
func sctpPacket(src, dst uint16, tag uint32, chunk []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, src)
	b = binary.BigEndian.AppendUint16(b, dst)
	b = binary.BigEndian.AppendUint32(b, tag)
	b = append(append(b, 0, 0, 0, 0), chunk...)
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}
