package sctp

import (
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/transport/assoc"
)

// In steady state nothing is allocated for packets, chunks or SACKs, also where
// some are lost.
func TestSteadyStateAllocatesNothing(t *testing.T) {
	s := newSim(1, netConfig{}, nil)
	b := newBatch()
	payload := make([]byte, 1200)
	m := assoc.Outgoing{Bufs: [][]byte{payload}}
	a, z := &s.ends[0].t, &s.ends[1].t
	now, n := time.Second, 0
	step := func() {
		for range 8 {
			if a.tx.room(len(payload), a.sendBuffer) {
				a.tx.push(&m, len(payload))
			}
		}
		for _, x := range [][2]*tcb{{a, z}, {z, a}} {
			b.reset()
			x[0].transmit(now, b)
			for i := range b.packets {
				if n++; n%50 == 7 && x[0] == a {
					continue // lost
				}
				x[1].input(now, packet(b.packets[i]).chunks(), false)
			}
			for i := range x[1].deliver {
				x[1].release(len(x[1].deliver[i].Payload))
			}
			x[1].deliver = x[1].deliver[:0]
			x[1].events = x[1].events[:0]
			x[1].readDone()
		}
		now += time.Millisecond
		a.expire(now)
		z.expire(now)
	}
	for range 5000 {
		step()
	}
	if k := testing.AllocsPerRun(2000, step); k != 0 {
		t.Errorf("%v allocations for some 8 messages", k)
	}
	if a.stats.Retransmits < 100 || z.stats.MessagesIn < 10000 || a.state != stateEstablished {
		t.Errorf("%v: %+v", a.state, a.stats)
	}
}

// RFC 9260 section 7: one lost packet among many is repaired by a Fast
// Retransmit, once, without a timeout, and halves the window, once.
func TestOneLossIsRepairedByFastRetransmit(t *testing.T) {
	s := newSim(1, netConfig{delay: time.Millisecond}, func(_ int, s *settings) { s.window = 1 << 20 })
	done := func() bool { return len(s.ends[1].got) == int(s.ends[0].sent) && s.ends[0].t.tx.len() == 0 }
	s.send(0, 200, 1200)
	if !s.run(time.Minute, done) {
		t.Fatal("the first messages do not come")
	}
	p := &s.ends[0].t.path
	window := p.cwnd
	lost := s.ends[0].t.tx.next + 3
	n := 0
	s.net.loss = 0
	s.drop = func(from int, q packet) bool {
		if from == 0 && chunkType(q[headerLen]) == typeData && dataChunk(q.chunks()).tsn() == lost {
			n++
			return n == 1
		}
		return false
	}
	s.send(0, 40, 1200)
	if !s.run(time.Minute, done) {
		t.Fatal("they do not come")
	}
	if st := s.ends[0].t.stats; st.Retransmits != 1 || st.FastRetransmits != 1 || st.Timeouts != 0 {
		t.Errorf("%+v", st)
	}
	if want := max(window/2, 4*p.pmdcs); p.ssthresh != want || p.cwnd < want || p.cwnd > want+2*p.pmdcs {
		t.Errorf("a window of %d became %d, threshold %d; want %d", window, p.cwnd, p.ssthresh, want)
	}
	// The message that was lost came after those behind it, which did not wait.
	at := func(k uint32) int {
		for i, x := range s.ends[1].order {
			if x == k {
				return i
			}
		}
		return -1
	}
	if at(203) < at(204) || at(203) < at(210) {
		t.Errorf("order of arrival: %v", s.ends[1].order[200:])
	}
}

// What was sent again and gets lost again, several times, is found without a
// timeout as long as there is other data, and the window is halved once.
func TestLostRetransmissionNeedsNoTimeout(t *testing.T) {
	for times := range 5 {
		s := established(t, netConfig{delay: time.Millisecond}, func(_ int, s *settings) { s.window = 1 << 20 })
		tx := &s.ends[0].t
		s.send(0, 300, 1200)
		s.run(time.Minute, s.all(0))
		lost, window, n := tx.tx.next+3, tx.path.cwnd, 0
		s.drop = func(from int, q packet) bool {
			if from == 0 && chunkType(q[headerLen]) == typeData && dataChunk(q.chunks()).tsn() == lost {
				n++
				return n <= times
			}
			return false
		}
		s.send(0, 400, 1200)
		if !s.run(time.Minute, s.all(0)) {
			t.Fatal("they do not come")
		}
		if tx.stats.Timeouts != 0 || tx.stats.Retransmits != uint64(times) || n != times+1 {
			t.Errorf("lost %d times: it was sent %d times, %+v", times, n, tx.stats)
		}
		if times > 0 && tx.path.ssthresh != max(window/2, 4*tx.path.pmdcs) {
			t.Errorf("lost %d times: the threshold is %d after a window of %d", times, tx.path.ssthresh, window)
		}
	}
}

// An original that arrives after its retransmission has left is not taken for the
// answer to that: nothing else is sent again for it.
func TestLateOriginalIsNoSignOfLoss(t *testing.T) {
	s := established(t, netConfig{delay: 5 * time.Millisecond}, func(_ int, s *settings) { s.window = 1 << 20 })
	tx := &s.ends[0].t
	s.send(0, 300, 1200)
	s.run(time.Minute, s.all(0))
	late, again, gone := tx.tx.next+100, 0, 0
	s.drop = func(from int, q packet) bool {
		if from != 0 || chunkType(q[headerLen]) != typeData {
			return false
		}
		switch dataChunk(q.chunks()).tsn() {
		case late + 1: // so that there is a gap all the time
			gone++
			return gone <= 2
		case late:
			again++
		default:
			return false
		}
		if again == 1 {
			late := append(packet(nil), q...)
			s.at(13*time.Millisecond, func() { s.arrive(1, late) }) // a little after the retransmission has left
			return true
		}
		return false
	}
	for range 200 {
		s.send(0, 4, 1200)
		s.run(500*time.Microsecond, never)
	}
	if !s.run(time.Minute, s.all(0)) || again != 2 {
		t.Fatal("they do not come, or none was late")
	}
	if tx.stats.Retransmits != 3 || tx.stats.Timeouts != 0 {
		t.Errorf("one packet was late, another lost twice: %+v", tx.stats)
	}
}

// RFC 9260 section 7.2.4 rule 6: Fast Recovery ends, and a later loss is repaired
// and halves the window again.
func TestLaterLossIsRepairedAgain(t *testing.T) {
	s := newSim(1, netConfig{delay: time.Millisecond}, func(_ int, s *settings) { s.window = 1 << 20 })
	all := func() bool { return s.ends[0].t.tx.len() == 0 }
	for round := range uint64(4) {
		s.drop = nil
		s.send(0, 200, 1200)
		s.run(time.Minute, all)
		p := &s.ends[0].t.path
		window, lost, dropped := p.cwnd, s.ends[0].t.tx.next, false
		s.drop = func(from int, q packet) bool {
			if from == 1 || dropped || chunkType(q[headerLen]) != typeData || dataChunk(q.chunks()).tsn() != lost {
				return false
			}
			dropped = true
			return true
		}
		s.send(0, 20, 1200)
		s.run(time.Minute, all)
		if st := s.ends[0].t.stats; st.FastRetransmits != round+1 || st.Timeouts != 0 || s.ends[0].t.loss.fast || p.ssthresh != max(window/2, 4*p.pmdcs) {
			t.Errorf("loss %d: %+v, recovering %v, threshold %d of %d", round, st, s.ends[0].t.loss.fast, p.ssthresh, window)
		}
	}
}

// RFC 9260 section 7.2.4: the third miss indication makes a Fast Retransmit, the
// second does not.
func TestThirdMissIndicationCounts(t *testing.T) {
	for behind, want := range map[int]assoc.Stats{
		2: {TailProbes: 1},
		3: {FastRetransmits: 1},
	} {
		s := newSim(1, netConfig{delay: time.Millisecond}, nil)
		all := func() bool { return s.ends[0].t.tx.len() == 0 }
		s.send(0, 40, 1200)
		s.run(time.Minute, all)
		lost, n := s.ends[0].t.tx.next, 0
		s.drop = func(from int, q packet) bool {
			if from == 0 && chunkType(q[headerLen]) == typeData && dataChunk(q.chunks()).tsn() == lost {
				n++
			}
			return from == 0 && n == 1 && dataChunk(q.chunks()).tsn() == lost
		}
		s.send(0, 1+behind, 1200)
		if !s.run(time.Minute, all) {
			t.Fatal("they do not come")
		}
		if st := s.ends[0].t.stats; st.FastRetransmits != want.FastRetransmits || st.TailProbes != want.TailProbes || st.Timeouts > 0 {
			t.Errorf("%d packets behind the lost one: %+v", behind, st)
		}
	}
}

// The last packets of a burst get lost: they are asked for long before T3-rtx, and
// that is taken for congestion. If only the answers are late, one packet leaves in
// vain and the window stays.
func TestTailProbe(t *testing.T) {
	for _, lose := range []bool{true, false} {
		s := established(t, netConfig{delay: time.Millisecond}, func(_ int, s *settings) { s.window = 1 << 20 })
		tx := &s.ends[0].t
		s.send(0, 300, 1200)
		s.run(time.Minute, s.all(0))
		window, next := tx.path.cwnd, tx.tx.next
		s.drop = func(from int, q packet) bool {
			if lose {
				return from == 0 && chunkType(q[headerLen]) == typeData && !before(dataChunk(q.chunks()).tsn(), next+5) && tx.stats.TailProbes == 0
			}
			return from == 1 && tx.stats.TailProbes == 0
		}
		s.send(0, 10, 1200)
		s.run(50*time.Millisecond, never)
		if st := tx.stats; tx.tx.len() != 0 || st.TailProbes != 1 || st.Timeouts != 0 {
			t.Errorf("lost: %v: %d are not acknowledged, %+v", lose, tx.tx.len(), st)
		}
		if lose != (tx.path.ssthresh == max(window/2, 4*tx.path.pmdcs)) {
			t.Errorf("lost: %v: the threshold is %d after a window of %d", lose, tx.path.ssthresh, window)
		}
		if !lose && (tx.stats.Retransmits != 1 || tx.path.cwnd < window) {
			t.Errorf("only the answers were late: a window of %d became %d, %+v", window, tx.path.cwnd, tx.stats)
		}
	}
	// A single packet may be acknowledged late: it is left to T3-rtx.
	s := established(t, netConfig{delay: time.Millisecond}, nil)
	s.drop = func(from int, _ packet) bool { return from == 0 }
	s.send(0, 1, 100)
	s.run(100*time.Millisecond, never)
	if n := s.ends[0].t.stats.TailProbes; n != 0 {
		t.Errorf("%d probes for a single packet", n)
	}
}

// RFC 9260 sections 6.3.3 and 7.2.3: a timeout leaves one packet in flight, and the
// RTO doubles.
func TestTimeout(t *testing.T) {
	s := newSim(1, netConfig{delay: time.Millisecond}, nil)
	s.send(0, 3, 1200)
	s.run(time.Second, func() bool { return s.ends[0].t.tx.len() == 0 })
	s.net.loss = 100
	s.send(0, 1, 1200)
	tx := &s.ends[0].t
	rto := tx.path.rto
	if rto != tx.RTOMin {
		t.Errorf("RTO %v after a round trip of 2 ms, want the least: %v", rto, tx.RTOMin)
	}
	sent := 0
	s.drop = func(from int, q packet) bool {
		if chunkType(q[headerLen]) == typeData {
			sent++
		}
		return true
	}
	s.run(rto+time.Millisecond, func() bool { return false })
	if tx.path.cwnd != tx.path.pmdcs || sent != 1 || tx.path.rto != 2*rto || tx.stats.Timeouts != 1 {
		t.Errorf("window %d, %d packets, RTO %v, %d timeouts", tx.path.cwnd, sent, tx.path.rto, tx.stats.Timeouts)
	}
	s.run(2*rto, func() bool { return false })
	if sent != 2 || tx.path.rto != 4*rto {
		t.Errorf("%d packets, RTO %v", sent, tx.path.rto)
	}
}

// RFC 9260 section 6.1 A: a closed window is probed, for as long as it takes, and
// its opening is noticed.
func TestClosedWindowIsProbed(t *testing.T) {
	s := newSim(1, netConfig{delay: time.Millisecond}, nil)
	s.ends[1].hold = true
	for range 20 {
		s.send(0, 10, 1200)
		s.run(100*time.Millisecond, func() bool { return false })
	}
	before := s.ends[0].t.stats.PacketsOut
	s.run(time.Hour, func() bool { return false })
	if tx := &s.ends[0].t; tx.state != stateEstablished || tx.stats.PacketsOut-before < 30 || tx.life.errors > 1 {
		t.Errorf("after an hour: %v, %v, %d packets, %d errors", tx.state, tx.err, tx.stats.PacketsOut-before, tx.life.errors)
	}
	if n := len(s.ends[1].got); n >= 200 || n < 40 {
		t.Errorf("%d messages are held", n)
	}
	// The window update gets lost: only a probe finds the window open.
	s.drop = func(from int, _ packet) bool { return from == 1 }
	s.ends[1].hold = false
	s.release(1)
	s.drop = nil
	if !s.run(2*time.Minute, func() bool { return len(s.ends[1].got) >= 100 }) {
		t.Fatalf("the window is open, and %d messages came", len(s.ends[1].got))
	}
	if !s.run(time.Second, func() bool { return len(s.ends[1].got) == 200 }) {
		t.Errorf("%d messages came within a second of the first", len(s.ends[1].got))
	}
}

// RFC 9260 section 6.2: every second packet is acknowledged at once, a single one
// within SACK.Delay.
func TestDelayedSack(t *testing.T) {
	s := newSim(1, netConfig{delay: time.Millisecond}, nil)
	sacks := 0
	s.drop = func(from int, q packet) bool {
		if from == 1 && chunkType(q[headerLen]) == typeSack {
			sacks++
		}
		return false
	}
	s.send(0, 1, 100)
	s.run(assoc.SACKDelay-time.Millisecond, func() bool { return false })
	if sacks != 0 {
		t.Errorf("%d SACKs before the delay is over", sacks)
	}
	s.run(5*time.Millisecond, func() bool { return false })
	if sacks != 1 {
		t.Errorf("%d SACKs after it", sacks)
	}
	s.send(0, 2, 1200) // two packets
	s.run(5*time.Millisecond, func() bool { return false })
	if sacks != 2 {
		t.Errorf("%d SACKs after two packets", sacks)
	}
	// With DATA of its own the SACK goes along (section 6.1).
	s.send(0, 1, 100)
	s.run(2*time.Millisecond, func() bool { return false })
	s.send(1, 1, 100)
	s.run(time.Second, func() bool { return false })
	if sacks != 3 || s.ends[0].t.tx.len() != 0 {
		t.Errorf("%d packets that begin with a SACK", sacks)
	}
}

// While the user has not released what has come, a few packets without a gap
// wait for an answer that takes the SACK along; then it leaves with the release,
// and in any case after SACK.Delay or some more packets.
func TestSackOfAFewPacketsWaitsForTheUser(t *testing.T) {
	s := newSim(1, netConfig{delay: time.Millisecond}, nil)
	alone := 0
	s.drop = func(from int, q packet) bool {
		if k, _, _ := chunkTypes(q); from == 1 && k.has(typeSack) && !k.has(typeData) {
			alone++
		}
		return false
	}
	want := func(what string, sacks, outstanding int) {
		t.Helper()
		if got := s.ends[0].t.tx.len(); alone != sacks || got != outstanding {
			t.Errorf("%s: %d packets with nothing but a SACK, %d messages outstanding", what, alone, got)
		}
		alone = 0
	}
	pass := func(d time.Duration) { s.run(d, func() bool { return false }) }
	s.ends[1].hold = true
	s.send(0, 2, 1200)
	pass(10 * time.Millisecond)
	want("two packets are held", 0, 2)
	s.send(1, 1, 1424)
	pass(10 * time.Millisecond)
	want("an answer", 0, 0)
	s.send(0, 2, 1200)
	pass(10 * time.Millisecond)
	s.release(1)
	pass(10 * time.Millisecond)
	want("a release", 1, 0)
	s.send(0, 2, 1200)
	pass(assoc.SACKDelay + 10*time.Millisecond)
	want("nothing for long", 1, 0)
	for range 10 { // the congestion window opens
		s.ends[1].hold = false
		s.send(0, 8, 1200)
		pass(10 * time.Millisecond)
	}
	alone = 0
	s.ends[1].hold = true
	s.send(0, sackPackets, 1200)
	pass(10 * time.Millisecond)
	want("many packets", 1, 0)
}
