package sctp

import (
	"container/heap"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ironwarp/ironwarp/transport/assoc"
)

// sim is two TCBs and a network between them, on a clock of its own.
type sim struct {
	now     time.Duration
	steps   int
	flushes int
	queue   events
	rnd     *rand.Rand
	net     netConfig
	ends    [2]*simEnd
	drop    func(from int, p packet) bool

	// mtu is the longest packet that each end's path carries unless IP may fragment
	// it, 0 for any. What is longer is lost, or refused by the end's own host.
	mtu    [2]int
	refuse bool
	noFrag bool // longer ones are always lost
}

// netConfig is what the network does to packets. Probabilities are in percent.
type netConfig struct {
	loss, dup, corrupt int
	delay, jitter      time.Duration
	lossless           time.Duration // from then on nothing is lost or altered
}

// simEnd is one end: its TCB and its user.
type simEnd struct {
	t       tcb
	got     map[uint32]int // messages by their number
	order   []uint32
	hold    bool // does not release what it gets
	held    int
	maxHeld int
	sent    uint32
	ups     []assoc.Event
}

type simEvent struct {
	at  time.Duration
	seq int
	do  func()
}

type events []simEvent

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].seq < e[j].seq
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(simEvent)) }
func (e *events) Pop() any {
	x := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return x
}

func (s *sim) at(d time.Duration, do func()) {
	s.steps++
	heap.Push(&s.queue, simEvent{s.now + d, s.steps, do})
}

// packetLen is the longest packet of a simulation that changes nothing of that.
const packetLen = 1472

// simSettings are those of an end: side 0 or 1.
func simSettings(side int, rnd *rand.Rand) settings {
	c := Config{RecvWindow: 64 << 10, SendBuffer: 1 << 20}
	s := c.settings(netip.MustParseAddr("192.0.2.1"), c.RecvWindow, 0)
	s.localPort, s.peerPort = uint16(1000+side), uint16(1001-side)
	s.localTag, s.localTSN = rnd.Uint32()|1, rnd.Uint32()
	s.localTie, s.peerTie = 1, 2
	s.jitter = rnd.Uint32
	s.size = packetLen // as if it had been probed
	s.blocks = new(blockPool)
	return s
}

// newSim returns two established ends.
func newSim(seed uint64, n netConfig, change func(side int, s *settings)) *sim {
	s := &sim{now: time.Second, rnd: rand.New(rand.NewPCG(seed, 1)), net: n}
	var set [2]settings
	for i := range set {
		set[i] = simSettings(i, s.rnd)
		if change != nil {
			change(i, &set[i])
		}
		s.ends[i] = &simEnd{got: make(map[uint32]int)}
		s.ends[i].t.init(set[i])
	}
	for i, e := range s.ends {
		o := set[1-i]
		e.t.adopt(&cookie{peer: peer{tag: o.localTag, out: 100, in: 100}, peerTSN: o.localTSN, peerRwnd: uint32(o.window)})
		e.t.up(s.now)
	}
	return s
}

// flush sends what an end has to send.
func (s *sim) flush(side int) {
	t := &s.ends[side].t
	for more := true; more; {
		b := newBatch()
		before, cwnd := t.path.flight, t.path.cwnd
		more = t.transmit(s.now, b)
		if t.path.flight > max(before, cwnd)+2*max(packetLen, t.pm.max) { // a packet, and one for a Fast Retransmit
			panic(fmt.Sprintf("flight %d with a window of %d and %d before", t.path.flight, cwnd, before))
		}
		for i := range b.packets {
			p := b.packets[i]
			if m := s.mtu[side]; m > 0 && len(p) > m && (b.kinds[i] != packetLoose || s.noFrag) {
				if s.refuse {
					t.refused(s.now, len(p))
					more = true
				}
				continue
			}
			s.carry(side, append([]byte(nil), p...))
		}
	}
	if s.flushes++; s.flushes%16 == 0 {
		s.check(t)
	}
	s.collect(side)
}

// carry brings a packet to the other end, or not.
func (s *sim) carry(from int, p packet) {
	if s.drop != nil && s.drop(from, p) {
		return
	}
	good := s.net.lossless != 0 && s.now >= s.net.lossless
	chance := func(percent int) bool { return s.rnd.IntN(100) < percent && !good }
	if chance(s.net.loss) {
		return
	}
	n := 1
	if chance(s.net.dup) {
		n = 2
	}
	for range n {
		q := append(packet(nil), p...)
		if chance(s.net.corrupt) {
			q[s.rnd.IntN(len(q))] ^= byte(1 + s.rnd.IntN(255))
		}
		d := s.net.delay
		if s.net.jitter > 0 {
			d += time.Duration(s.rnd.Int64N(int64(s.net.jitter)))
		}
		s.at(d, func() { s.arrive(1-from, q) })
	}
}

// arrive is what the endpoint does with a packet.
func (s *sim) arrive(side int, p packet) {
	t := &s.ends[side].t
	if !p.intact() {
		return
	}
	if t.state == stateClosed { // RFC 9260 section 8.4 rule 5
		if k, _, ok := chunkTypes(p); ok && k.has(typeShutdownAck) {
			b := newBatch()
			b.begin(p.dstPort(), p.srcPort(), p.tag())
			b.buf = appendChunk(b.buf, typeShutdownComplete, flagT, nil)
			b.end()
			s.carry(side, b.packets[0])
		}
		return
	}
	reflected := p.tag() == t.peer.tag && p[headerLen] == byte(typeShutdownComplete)
	if p.tag() != t.localTag && !reflected {
		return
	}
	t.input(s.now, p.chunks(), reflected)
	t.readDone()
	s.flush(side)
}

// collect is the user.
func (s *sim) collect(side int) {
	e := s.ends[side]
	for i := range e.t.deliver {
		m := &e.t.deliver[i]
		n := binary.BigEndian.Uint32(m.Payload)
		e.got[n]++
		e.order = append(e.order, n)
		e.held += len(m.Payload)
		e.maxHeld = max(e.maxHeld, e.t.held)
	}
	e.t.deliver = e.t.deliver[:0]
	e.ups = append(e.ups, e.t.events...)
	e.t.events = e.t.events[:0]
	if !e.hold && e.held > 0 {
		s.release(side)
	}
}

func (s *sim) release(side int) {
	e := s.ends[side]
	n := e.held
	e.held = 0
	e.t.release(n)
	if e.t.want != 0 {
		s.flush(side)
	}
}

// send queues messages of a size, and returns how many there was room for.
func (s *sim) send(side, n, size int) int {
	e := s.ends[side]
	for i := range n {
		b := make([]byte, max(size, 4))
		binary.BigEndian.PutUint32(b, e.sent)
		m := assoc.Outgoing{Stream: uint16(e.sent % 100), PPID: 16, Bufs: [][]byte{b}}
		k, err := e.t.sendable(&m)
		if err != nil || !e.t.tx.room(k, e.t.sendBuffer) {
			s.flush(side)
			return i
		}
		e.t.tx.push(&m, k)
		e.sent++
	}
	s.flush(side)
	return n
}

// run goes on until nothing happens any more or ok is true or so much time has
// passed.
func (s *sim) run(d time.Duration, ok func() bool) bool {
	end := s.now + d
	for !ok() {
		next := end
		if len(s.queue) > 0 {
			next = min(next, s.queue[0].at)
		}
		timer := -1
		for i, e := range s.ends {
			if x := e.t.deadline(); x != 0 && x < next {
				next, timer = x, i
			}
		}
		if next >= end {
			s.now = end
			return ok()
		}
		s.now = max(s.now, next)
		if timer >= 0 {
			s.ends[timer].t.expire(s.now)
			s.flush(timer)
			continue
		}
		heap.Pop(&s.queue).(simEvent).do()
	}
	return true
}

// check holds the TCB's sums against what they sum up.
func (s *sim) check(t *tcb) {
	flight, lost, gapped, bytes := 0, 0, 0, 0
	q := &t.tx
	for tsn := q.acked + 1; tsn != q.next; tsn++ {
		c := q.at(tsn)
		bytes += int(c.size) + assoc.MessageOverhead
		switch c.state {
		case chunkFlying:
			flight += len(c.data())
		case chunkLost:
			lost++
		case chunkAcked:
			gapped++
		}
		if (c.state == chunkQueued) == before(tsn, q.unsent) {
			panic(fmt.Sprintf("TSN %d is in state %d, unsent %d", tsn, c.state, q.unsent))
		}
	}
	if flight != t.path.flight || lost != q.lost || gapped != q.gapped || bytes != q.bytes {
		panic(fmt.Sprintf("flight %d/%d, lost %d/%d, gapped %d/%d, bytes %d/%d", flight, t.path.flight, lost, q.lost, gapped, q.gapped, bytes, q.bytes))
	}
	if t.state != stateClosed && q.outstanding() && t.timers[t3] == 0 {
		panic("something is outstanding and T3-rtx does not run")
	}
	if t.path.cwnd < t.path.pmdcs {
		panic(fmt.Sprintf("a window of %d", t.path.cwnd))
	}
}

// once tells whether an end has got the numbers below n exactly once.
func (e *simEnd) once(n uint32) error {
	for i := range n {
		if e.got[i] != 1 {
			return fmt.Errorf("message %d came %d times", i, e.got[i])
		}
	}
	if len(e.got) != int(n) {
		return fmt.Errorf("%d messages came, %d were sent", len(e.got), n)
	}
	return nil
}

// RFC 9260 sections 6 and 7: whatever a network does, each message arrives
// exactly once, in finite time, and neither window is exceeded.
func TestModelLossyNetwork(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := netConfig{
			loss:     rapid.IntRange(0, 30).Draw(t, "loss"),
			dup:      rapid.IntRange(0, 20).Draw(t, "dup"),
			corrupt:  rapid.IntRange(0, 10).Draw(t, "corrupt"),
			delay:    time.Duration(rapid.IntRange(0, 100).Draw(t, "delay")) * time.Millisecond,
			jitter:   time.Duration(rapid.IntRange(0, 50).Draw(t, "jitter")) * time.Millisecond,
			lossless: 30 * time.Minute,
		}
		s := newSim(rapid.Uint64().Draw(t, "seed"), n, func(_ int, s *settings) {
			s.AssocMaxRetrans = 1000
			s.PathMaxRetrans = 5
		})
		steps := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) [4]int {
			return [4]int{rapid.IntRange(0, 1).Draw(t, "side"), rapid.IntRange(1, 200).Draw(t, "n"), rapid.IntRange(4, 1444).Draw(t, "size"), rapid.IntRange(0, 300).Draw(t, "ms")}
		}), 1, 12).Draw(t, "steps")
		for _, k := range steps {
			e := s.ends[k[0]]
			switch k[3] % 4 {
			case 0:
				e.hold = !e.hold
			case 1:
				s.release(k[0])
			}
			s.send(k[0], k[1], k[2])
			s.run(time.Duration(k[3])*time.Millisecond, func() bool { return false })
		}
		for i, e := range s.ends {
			if e.maxHeld > e.t.window+e.t.path.pmdcs {
				t.Fatalf("end %d held %d bytes with a window of %d", i, e.maxHeld, e.t.window)
			}
			e.hold = false
			s.release(i)
		}
		done := func() bool {
			return len(s.ends[0].got) == int(s.ends[1].sent) && len(s.ends[1].got) == int(s.ends[0].sent) &&
				s.ends[0].t.tx.len() == 0 && s.ends[1].t.tx.len() == 0
		}
		if !s.run(10*time.Hour, done) {
			t.Fatalf("after %v: %d of %d and %d of %d messages came; states %v %v, errors %v, %v", s.now, len(s.ends[1].got), s.ends[0].sent, len(s.ends[0].got), s.ends[1].sent,
				s.ends[0].t.state, s.ends[1].t.state, s.ends[0].t.err, s.ends[1].t.err)
		}
		for i, e := range s.ends {
			if err := e.once(s.ends[1-i].sent); err != nil {
				t.Fatal(err)
			}
		}
		// And a shutdown gets through, too.
		s.ends[0].t.shutdown(s.now)
		s.flush(0)
		if !s.run(10*time.Hour, func() bool { return s.ends[0].t.state == stateClosed && s.ends[1].t.state == stateClosed }) {
			t.Fatalf("after the shutdown: %v and %v", s.ends[0].t.state, s.ends[1].t.state)
		}
		if err := s.ends[0].t.err; err != nil {
			t.Fatalf("the shutdown ended with: %v", err)
		}
		if err := s.ends[1].t.err; !errors.Is(err, assoc.ErrShutdown) && !errors.Is(err, assoc.ErrPeerUnreachable) {
			t.Fatalf("the shutdown ended at the peer with: %v", err)
		}
	})
}
