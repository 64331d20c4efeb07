package attack

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ddp/sctpadapt"
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/transport/sctp"
	"github.com/ironwarp/ironwarp/verbs"
)

// sctpByAddress is byAddress for SCTP in UDP, from home and from others of this host.
func sctpByAddress(t *testing.T) (to *transport.Config, from func(netip.Addr) *transport.Config) {
	t.Helper()
	port := iwarptest.SCTPInUDP(t, home).UDPPort
	from = func(a netip.Addr) *transport.Config {
		tc := byAddress(transport.SCTPUDP, a)
		tc.UDPPort = port
		return tc
	}
	return from(home), from
}

// assoc is an association of the attacker's, on which any message can be said.
type assoc struct {
	*transport.Assoc
	s     *service
	heard chan sctp.Message
}

// ears are the Receiver of an assoc.
type ears chan sctp.Message

func (e ears) Message(m *sctp.Message) bool {
	c := *m
	c.Payload = slices.Clone(m.Payload)
	e <- c
	return false
}
func (ears) Event(sctp.Event) {}
func (ears) BatchEnd()        {}

// associate sets an association up, which the victim may end at once.
func (s *service) associate(tc *transport.Config) (*assoc, error) {
	heard := make(ears, 1<<14)
	a, err := transport.DialSCTP(s.Context(), s.ln.Addr(), tc, func(sctp.Association) sctp.Receiver { return heard })
	if err != nil {
		return nil, err
	}
	s.Cleanup(func() { a.Close() })
	return &assoc{a, s, heard}, nil
}

// say sends a message. What fails here shows in what the attack does not get.
func (a *assoc) say(stream uint16, ppid uint32, payload []byte) {
	_ = a.SendNow(sctp.Outgoing{Stream: stream, PPID: ppid, Bufs: [][]byte{payload}})
}

// initiate asks for a session (RFC 5043 section 6.2).
func (a *assoc) initiate(stream uint16) {
	c := must((&sctpadapt.Control{Function: sctpadapt.FunctionInitiate}).Append(nil))(a.s.T)
	a.say(stream, sctpadapt.PPIDControl, c)
}

// session starts a session. It returns the victim's stream.
func (a *assoc) session(stream uint16) *foe {
	a.s.Helper()
	a.initiate(stream)
	qp := <-a.s.streams
	return &foe{v: a.s.victim, qp: qp, cq: a.s.cq}
}

// received is foe.received. Where the victim ends the session by a Terminate, it does
// not wait for more.
func (a *assoc) received(f *foe, n uint64) (all bool) {
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
func (a *assoc) segment(stream, ssn uint16, s iwarptest.Segment) {
	a.say(stream, sctpadapt.PPIDSegment, s.Append(binary.BigEndian.AppendUint16(nil, ssn)))
}

// refusals waits for n answers to Initiates and tells how many of them were refusals.
func (a *assoc) refusals(n int) (refused int) {
	for range n {
		m := <-a.heard
		c, err := sctpadapt.ParseControl(m.Payload)
		if m.PPID != sctpadapt.PPIDControl || err != nil {
			a.s.Errorf("the victim answers an Initiate with %+v: %v", m, err)
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
		attack{"associations without sessions", checks.HalfOpen, func(v *victim) bool {
			v = newVictimAs(v.T, verbs.Config{Limits: verbs.Limits{HalfOpen: places}}, verbs.ST)
			to, from := sctpByAddress(v.T)
			s := v.listen(to)
			s.serve()
			for range 3 * places {
				// The victim aborts those that it does not want, now or a moment later.
				_, _ = s.associate(from(evilHost))
			}
			shutOut := s.newcomer(from(goodHost))
			v.toldOf(verbs.EventQuotaExceeded, "plaintext:127.0.0.2")
			return shutOut
		}},
		attack{"sessions that the service has not looked at", checks.HalfOpen, func(v *victim) bool {
			v = newVictimAs(v.T, verbs.Config{Limits: verbs.Limits{HalfOpen: places}}, verbs.ST)
			to, from := sctpByAddress(v.T)
			most := int64(places)
			if !checks.Weakened {
				most -= places / 4 // which is kept for another peer
			}
			return v.asleep(v.listen(to), from, most)
		}},
		attack{"sessions that fill the backlog", checks.BacklogShare, func(v *victim) bool {
			to, from := sctpByAddress(v.T)
			return v.asleep(v.listenWith(to, verbs.ListenConfig{Backlog: places}), from, 1+places)
		}},
		attack{"streams", checks.FairShare, func(v *victim) bool {
			v = newVictimAs(v.T, verbs.Config{Limits: verbs.Limits{Streams: places}}, verbs.ST)
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
// service accepts nothing. It tells whether that one is refused when the service goes
// on. most is how many places the first peer gets, that of its association included.
func (v *victim) asleep(s *service, from func(netip.Addr) *transport.Config, most int64) (shutOut bool) {
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

// await waits for what is bound to happen.
func (v *victim) await(happened func() bool) {
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

// toldOf checks that an event of this kind is about that peer.
func (v *victim) toldOf(k verbs.EventKind, peer transport.Identity) {
	v.Helper()
	for {
		ev, ok := v.dev.TryEvent()
		if !ok {
			v.Errorf("no event %v tells of %s", k, peer)
			return
		}
		if ev.Kind == k && ev.Peer == peer {
			return
		}
	}
}

// Chunks of a session that come ahead of their turn, which SCTP has no reason to
// hold back: what waits for its turn is bounded like what does not.
func TestChunksAheadOfTheirTurn(t *testing.T) {
	serve := func(v *victim, kind func() (*verbs.PD, verbs.QPConfig), prepare func(*verbs.QP) error) *assoc {
		to, from := sctpByAddress(v.T)
		s := v.listen(to)
		s.serveWith(kind, prepare)
		return must(s.associate(from(evilHost)))(v.T)
	}
	plain := func(v *victim) func() (*verbs.PD, verbs.QPConfig) {
		return func() (*verbs.PD, verbs.QPConfig) {
			return v.pd, verbs.QPConfig{SendCQ: v.cq, RecvCQ: v.cq, MaxSend: 4, MaxRecv: 4, IRD: 4}
		}
	}
	run(t,
		// R23: they wait until the first one is there, and are more than the IRD then.
		attack{"Read Requests", checks.IRRQDepth, func(v *victim) bool {
			a := serve(v, plain(v), nil)
			f := a.session(0)
			const reads = 100
			ask := func(i uint16) {
				s := iwarptest.Segment{Last: true, Op: rdmap.OpReadRequest, QN: rdmap.QNReadRequest, MSN: uint32(i)}
				s.Payload = rdmap.ReadRequest{SinkSTag: 1}.Append(nil)
				a.segment(0, i, s)
			}
			for i := uint16(2); i <= reads; i++ {
				ask(i)
			}
			ask(1)
			if err := f.qp.PostRecv(verbs.RecvWR{}); err == nil {
				a.segment(0, reads+1, iwarptest.Segment{Last: true, Op: rdmap.OpSend, MSN: 1})
			}
			return a.received(f, 1)
		}},
		// R24: each run of them is a detour.
		attack{"Writes in reverse", checks.SlowPath, func(v *victim) bool {
			const times, burst = 1000, 50
			if err := v.dev.SetSlowPolicy(verbs.SlowPolicy{PerSecond: 1, Burst: burst}); err != nil {
				v.Fatal(err)
			}
			a := serve(v, plain(v), func(qp *verbs.QP) error { return qp.PostRecv(verbs.RecvWR{}) })
			f := a.session(0)
			mr := v.region(v.pd, 256, verbs.LocalWrite|verbs.RemoteWrite)
			w := iwarptest.Segment{Tagged: true, Last: true, Op: rdmap.OpWrite, STag: mr.STag(), Payload: make([]byte, 256)}
			for i := uint16(0); i < 2*times; i += 2 {
				a.segment(0, i+2, w)
				a.segment(0, i+1, w)
			}
			a.segment(0, 2*times+1, iwarptest.Segment{Last: true, Op: rdmap.OpSend, MSN: 1})
			goesOn := a.received(f, 1)
			v.slowPath(f, burst, goesOn)
			return goesOn
		}},
		// R21: messages that can't be delivered for want of the first one.
		attack{"Sends to a shared receive queue", checks.SRQShare, func(v *victim) bool {
			const share, streams = 4, 4
			pd := must(v.ulp.AllocPDAs(verbs.SNT))(v.T)
			srq := must(pd.CreateSRQ(verbs.SRQConfig{MaxRecv: share * streams, MaxPerQP: share}))(v.T)
			for range share * streams {
				if err := srq.PostRecv(verbs.RecvWR{}); err != nil {
					v.Fatal(err)
				}
			}
			a := serve(v, func() (*verbs.PD, verbs.QPConfig) {
				return pd, verbs.QPConfig{SendCQ: v.cq, RecvCQ: v.cq, MaxSend: 4, SRQ: srq}
			}, nil)
			a.session(0)
			for i := uint16(2); i <= share*streams; i++ {
				a.segment(0, i, iwarptest.Segment{Last: true, Op: rdmap.OpSend, MSN: uint32(i)})
			}
			v.await(func() bool { return srq.Len() <= streams*share-takes(share, streams) })
			// Another session of the association, which keeps to its share.
			f := a.session(2)
			for i := uint16(1); i <= share; i++ {
				a.segment(2, i, iwarptest.Segment{Last: true, Op: rdmap.OpSend, MSN: uint32(i)})
			}
			return !a.received(f, share)
		}},
	)
}

// Two sessions of one association, which one goroutine receives for: the completion
// queue of one overflows, the other one goes on (R26).
func TestOverflowOfAnotherSessionsCompletionQueue(t *testing.T) {
	run(t, attack{"overflow", checks.CQIsolation, func(v *victim) bool {
		to, from := sctpByAddress(v.T)
		s := v.listen(to)
		const depth = 8
		first := true
		s.serveWith(func() (*verbs.PD, verbs.QPConfig) {
			cq := v.cq
			if first {
				cq = must(v.ulp.CreateCQ(depth, nil))(v.T)
			}
			first = false
			return v.pd, verbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: 4, MaxRecv: 4 * depth}
		}, func(qp *verbs.QP) error {
			for range 4 * depth {
				if err := qp.PostRecv(verbs.RecvWR{}); err != nil {
					return err
				}
			}
			return nil
		})
		a := must(s.associate(from(evilHost)))(v.T)
		f, innocent := a.session(0), a.session(2)
		for i := uint16(1); i < 4*depth; i++ {
			a.segment(0, i, iwarptest.Segment{Last: true, Op: rdmap.OpSend, MSN: uint32(i)})
			a.segment(2, i, iwarptest.Segment{Last: true, Op: rdmap.OpSend, MSN: uint32(i)})
		}
		<-f.qp.Done()
		if err := f.qp.Err(); !errors.Is(err, verbs.ErrCQOverflow) {
			v.Errorf("the stream of the queue that overflows ended with: %v", err)
		}
		a.segment(2, 4*depth, iwarptest.Segment{Last: true, Op: rdmap.OpSend, MSN: 4 * depth})
		return !a.received(innocent, 4*depth)
	}})
}
