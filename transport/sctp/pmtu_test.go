package sctp

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/transport/assoc"
)

// jumbo lets an end try packets of up to 8,972 bytes.
func jumbo(_ int, s *settings) {
	s.maxSize = s.packetSize(9000)
	s.mostSize = s.maxSize
	s.AssocMaxRetrans = 1000
	s.window = 1 << 20
}

// first gives an end the size with which an association begins.
func first(side int, s *settings) {
	jumbo(side, s)
	s.size = s.minSize
}

func (e *simEnd) saw(k assoc.EventKind) bool {
	for _, x := range e.ups {
		if x.Kind == k {
			return true
		}
	}
	return false
}

// all tells that all messages of an end have come.
func (s *sim) all(side int) func() bool {
	return func() bool { return s.ends[side].t.tx.len() == 0 }
}

// RFC 8899: what the route has is in use after one round trip, and told.
func TestMTUGrowsAtOnce(t *testing.T) {
	s := newSim(1, netConfig{delay: time.Millisecond}, first)
	tx := &s.ends[0].t
	if tx.size != 612 || tx.longest.Load() != 612-headerLen-dataHeaderLen {
		t.Fatalf("it begins with %d bytes, messages of %d", tx.size, tx.longest.Load())
	}
	s.flush(0)
	s.run(3*time.Millisecond, never)
	if tx.size != 8972 || int(tx.longest.Load()) != 8972-headerLen-dataHeaderLen || !s.ends[0].saw(assoc.EventMTU) || tx.stats.Probes != 3 {
		t.Errorf("after a round trip: %d bytes, messages of %d, %d probes, events %v", tx.size, tx.longest.Load(), tx.stats.Probes, s.ends[0].ups)
	}
	s.send(0, 100, 8900)
	if !s.run(time.Second, s.all(0)) || tx.stats.Retransmits > 0 {
		t.Errorf("long messages do not come: %+v", tx.stats)
	}
	s.run(9*time.Minute, never)
	if tx.stats.Probes != 3 {
		t.Errorf("%d probes though there is nothing more to find", tx.stats.Probes)
	}
}

// RFC 8899 section 5.3: where the path has less than the route, the search finds
// the longest of the likely sizes that it carries, or nearly what it carries. Data that is under way
// meanwhile does not suffer.
func TestMTUSearch(t *testing.T) {
	for mtu, want := range map[int]int{1500: 1500, 1700: 1600, 4000: 3800, 8192: 8192, 8899: 8400, 8999: 8900, 1450: 1440, 1280: 1280,
		1250: 1200, 1200: 1200, 1100: 1040, 1006: 1006, 1000: 940, 900: 850, 700: 670, minMTU: minMTU} {
		t.Run(fmt.Sprint(mtu), func(t *testing.T) {
			s := newSim(1, netConfig{delay: time.Millisecond}, jumbo)
			tx := &s.ends[0].t
			s.mtu[0] = tx.packetSize(mtu)
			for range 200 {
				s.send(0, 5, 1400)
				s.run(500*time.Millisecond, never)
			}
			if got := tx.size + tx.overhead; got > mtu || got < want-3 {
				t.Errorf("a path of %d bytes: found %d, want %d or more", mtu, got, want)
			}
			if !s.run(time.Minute, s.all(0)) {
				t.Error("not all messages came")
			}
			if mtu >= 1500 && (tx.stats.Retransmits > 0 || tx.path.cwnd < 2*tx.path.pmdcs) {
				t.Errorf("the search has disturbed the data: %+v, a window of %d", tx.stats, tx.path.cwnd)
			}
			if err := s.ends[1].once(s.ends[0].sent); err != nil {
				t.Error(err)
			}
			if tx.stats.Probes > 80 {
				t.Errorf("%d probes", tx.stats.Probes)
			}
		})
	}
}

// Nor does the search need anything else that tells whether the peer is there, or what
// the peer's own probes tell.
func TestMTUSearchWhileIdle(t *testing.T) {
	for _, mtu := range []int{1300, 1000, 700} {
		s := newSim(1, netConfig{delay: time.Millisecond}, func(side int, set *settings) {
			first(side, set)
			set.Heartbeat = -1
		})
		tx := &s.ends[0].t
		s.mtu = [2]int{tx.packetSize(mtu), tx.packetSize(mtu)}
		s.flush(0)
		s.flush(1)
		s.run(time.Minute, never)
		if got := tx.size + tx.overhead; got > mtu || got < mtu*15/16 {
			t.Errorf("a path of %d bytes: found %d", mtu, got)
		}
	}
}

// RFC 8899 section 4.3: a path that swallows long packets from some moment on is
// noticed, and what was queued before gets through, in fragments of IP (RFC 9260
// section 6.9). Where IP may not fragment either, it cannot, and the association ends:
// the next one begins with what gets through.
func TestBlackHole(t *testing.T) {
	for _, noFrag := range []bool{false, true} {
		s := established(t, netConfig{delay: time.Millisecond}, jumbo)
		tx := &s.ends[0].t
		if tx.size != 8972 {
			t.Fatalf("%d bytes", tx.size)
		}
		s.mtu[0], s.noFrag = tx.packetSize(1420), noFrag
		s.send(0, 50, 8000)
		if noFrag {
			if !s.run(time.Minute, func() bool { return s.ends[1].t.state == stateClosed }) {
				t.Errorf("after a minute in vain the association goes on: %d messages are left, %+v", tx.tx.len(), tx.stats)
			}
			for _, e := range s.ends {
				if err := e.t.err; err == nil || !strings.Contains(err.Error(), "the path has become narrower") {
					t.Errorf("the end does not say why: %v", err)
				}
			}
			continue
		}
		if !s.run(10*time.Second, s.all(0)) {
			t.Errorf("after 10 s %d messages are left", tx.tx.len())
		}
		s.run(20*time.Second, never) // the search
		if tx.size > s.mtu[0] || tx.size < s.mtu[0]-3 || !s.ends[0].saw(assoc.EventMTU) {
			t.Errorf("the path carries %d bytes, %d are used", s.mtu[0], tx.size)
		}
		n := tx.stats.Timeouts
		s.send(0, 50, tx.maxMessage())
		if !s.run(time.Second, s.all(0)) || tx.stats.Timeouts != n {
			t.Errorf("messages that fit do not get through: %+v", tx.stats)
		}
		// It is tried again after PMTU_RAISE_TIMER.
		s.mtu[0] = 0
		s.run(raiseInterval+time.Second, never)
		if tx.size != 8972 {
			t.Errorf("the path is as before, and %d bytes are used", tx.size)
		}
		if err := s.ends[1].once(s.ends[0].sent); err != nil {
			t.Error(err)
		}
	}
}

// A path that swallows long packets from the beginning never gets one with data,
// though messages as long as they may be are sent from the beginning, too.
func TestBlackHoleFromTheBeginning(t *testing.T) {
	for _, mtu := range []int{1700, 1450, 1300, 1100, 640} {
		s := newSim(1, netConfig{delay: time.Millisecond}, first)
		tx := &s.ends[0].t
		s.mtu[0], s.noFrag = tx.packetSize(mtu), true
		for range 500 {
			s.send(0, 5, tx.maxMessage())
			s.run(100*time.Millisecond, never)
		}
		if !s.run(time.Second, s.all(0)) || tx.stats.Retransmits > 0 {
			t.Errorf("a path of %d bytes: %d messages are left, packets of %d bytes are used: %+v", mtu, tx.tx.len(), tx.size, tx.stats)
		}
		if n := tx.lostMTU(); n <= mtu || n > 9000 {
			t.Errorf("a path of %d bytes: packets of %d are said to get lost", mtu, n)
		}
		s.mtu[0] = 0
		s.run(raiseInterval+time.Second, never)
		if n := tx.lostMTU(); n != 0 {
			t.Errorf("the path is wide again: packets of %d bytes are said to get lost", n)
		}
		if err := s.ends[1].once(s.ends[0].sent); err != nil {
			t.Error(err)
		}
	}
}

// Messages that would fit the path one by one leave together, in packets that do
// not: after an outage, say, in which the path has changed.
func TestBlackHoleForBundles(t *testing.T) {
	for _, size := range []int{100, 300, 580} {
		s := established(t, netConfig{delay: time.Millisecond}, nil)
		tx := &s.ends[0].t
		s.mtu[0] = tx.minSize
		s.drop = func(int, packet) bool { return true }
		s.send(0, 50, size)
		s.run(time.Second, never)
		s.drop = nil
		if !s.run(10*time.Second, s.all(0)) {
			t.Errorf("%d messages of %d bytes are left, packets of %d bytes are used, the path carries %d", tx.tx.len(), size, tx.size, s.mtu[0])
		}
		if err := s.ends[1].once(s.ends[0].sent); err != nil {
			t.Error(err)
		}
	}
}

// Nor does it help that other messages are short and are answered, such as the
// heartbeats of a consumer, nor that SACKs of what the peer sends go along.
func TestBlackHoleBesideShortMessages(t *testing.T) {
	for _, size := range []int{580, 900, 1400} {
		for _, every := range []time.Duration{20 * time.Millisecond, 300 * time.Millisecond, time.Second} {
			s := established(t, netConfig{delay: time.Millisecond}, nil)
			tx := &s.ends[0].t
			s.mtu[0] = tx.minSize
			stuck := tx.tx.next + 9
			s.send(0, 10, size)
			for s.now < time.Minute && before(tx.tx.acked, stuck) {
				s.send(0, 1, 20)
				s.send(1, 1, 20)
				s.run(every, never)
			}
			if s.now > 20*time.Second {
				t.Errorf("messages of %d bytes beside short ones every %v: after %v, packets of %d bytes are used, the path carries %d",
					size, every, s.now, tx.size, s.mtu[0])
			}
		}
	}
}

// A path that loses much may lose a long message again and again, and answer short
// probes meanwhile. Where probes as long as the message are answered, too, the path has
// not become narrower, and the association goes on.
func TestUnluckyMessageIsNoBlackHole(t *testing.T) {
	for _, losses := range []int{3, 8, 9, 20} {
		s := established(t, netConfig{delay: time.Millisecond}, jumbo)
		tx := &s.ends[0].t
		s.drop = func(_ int, p packet) bool {
			if losses > 0 && len(p) > 2000 && chunkType(p[headerLen]) == typeData {
				losses--
				return true
			}
			return false
		}
		s.send(0, 1, 8000)
		if !s.run(time.Hour, s.all(0)) || tx.state != stateEstablished {
			t.Fatalf("the association ends or the message does not come: %v, %v, %d losses to come", tx.state, tx.err, losses)
		}
		if s.run(10*time.Second, never); tx.size < 8000 {
			t.Errorf("packets of %d bytes are used", tx.size)
		}
	}
}

// While nothing gets through, nothing is concluded about lengths.
func TestOutageIsNoBlackHole(t *testing.T) {
	for _, d := range []time.Duration{3 * time.Second, 15 * time.Minute} {
		s := established(t, netConfig{delay: time.Millisecond}, jumbo)
		tx := &s.ends[0].t
		s.drop = func(int, packet) bool { return true }
		s.send(0, 50, 8000)
		s.run(d, never)
		s.drop = nil
		if !s.run(2*time.Minute, s.all(0)) || tx.size != 8972 {
			t.Errorf("after %v without the path: %d bytes are used, %d messages are left", d, tx.size, tx.tx.len())
		}
	}
	// What got through before says nothing of it either.
	s := established(t, netConfig{delay: time.Millisecond}, jumbo)
	tx := &s.ends[0].t
	for range 2 {
		s.drop = func(int, packet) bool { return true }
		s.send(0, 1, 8000)
		s.run(tx.path.rto-time.Millisecond, never)
		s.drop = func(_ int, p packet) bool { return len(p) > 8000 }
		s.run(2*time.Millisecond, never) // one timeout, and the short probe gets through
		s.drop = nil
		if !s.run(time.Minute, s.all(0)) || tx.stats.Timeouts == 0 {
			t.Fatalf("%d timeouts, %d messages are left", tx.stats.Timeouts, tx.tx.len())
		}
		s.drop = func(int, packet) bool { return true }
		s.send(0, 50, 8000)
		s.run(20*time.Second, never)
		s.drop = nil
		if !s.run(time.Minute, s.all(0)) || tx.size != 8972 {
			t.Errorf("an outage some time after a loss: %d bytes are used", tx.size)
		}
	}
	// Nor during the search.
	s = newSim(1, netConfig{delay: time.Millisecond}, jumbo)
	s.drop = func(int, packet) bool { return true }
	s.flush(0)
	s.run(time.Minute, never)
	s.drop = nil
	s.run(2*time.Second, never)
	if n := s.ends[0].t.size; n != 8972 {
		t.Errorf("a minute without the path at the beginning: %d bytes are used", n)
	}
}

// A peer that has no room drops what probes its window, and says so: nothing is
// concluded about lengths.
func TestClosedWindowIsNoBlackHole(t *testing.T) {
	s := established(t, netConfig{delay: time.Millisecond}, func(side int, s *settings) {
		jumbo(side, s)
		s.window = 128 << 10
	})
	tx := &s.ends[0].t
	s.ends[1].hold = true
	s.send(0, 100, 8000)
	s.run(time.Hour, never)
	if tx.tx.len() == 0 {
		t.Fatal("the window does not close")
	}
	if tx.size != 8972 {
		t.Errorf("after an hour with a closed window: %d bytes are used", tx.size)
	}
	s.ends[1].hold = false
	s.release(1)
	if !s.run(2*time.Minute, s.all(0)) {
		t.Errorf("%d messages are left", tx.tx.len())
	}
}

// What the host itself refuses (EMSGSIZE) is known at once.
func TestRefusedByTheHost(t *testing.T) {
	for _, route := range []int{0, 1400} {
		s := established(t, netConfig{delay: time.Millisecond}, jumbo)
		tx := &s.ends[0].t
		s.mtu[0], s.refuse = tx.packetSize(1400), true
		s.send(0, 50, 8000)
		if !tx.refreshRoute {
			t.Error("the route's MTU is not asked for")
		}
		tx.setRoute(s.now, route)
		if !s.run(time.Second, s.all(0)) {
			t.Fatalf("not all came within a second: %+v", tx.stats)
		}
		s.run(10*time.Millisecond, never)
		if tx.size != s.mtu[0] || tx.stats.Timeouts > 0 || tx.lostMTU() != 0 {
			t.Errorf("%d bytes are used, the device has %d; %d timeouts", tx.size, s.mtu[0], tx.stats.Timeouts)
		}
		if err := s.ends[1].once(s.ends[0].sent); err != nil {
			t.Error(err)
		}
	}
}

// The route tells of less, as after a router's report: the first loss is enough.
func TestRouteTellsOfLess(t *testing.T) {
	s := established(t, netConfig{delay: time.Millisecond}, jumbo)
	tx := &s.ends[0].t
	s.mtu[0] = tx.packetSize(1400)
	tx.setRoute(s.now, 1400)
	if tx.size != 8972 {
		t.Fatal("a report alone, which anybody may send, has changed the size")
	}
	s.send(0, 10, 8000)
	if !s.run(tx.RTOMin+50*time.Millisecond, s.all(0)) || tx.stats.Timeouts > 1 || tx.size != s.mtu[0] {
		t.Errorf("%d timeouts, %d bytes are used, %d messages are left", tx.stats.Timeouts, tx.size, tx.tx.len())
	}
	// And of more again: it is tried at the next opportunity.
	s.mtu[0] = 0
	s.run(raiseInterval+time.Second, never)
	tx.setRoute(s.now, 9000)
	s.run(2*time.Second, never)
	if tx.size != 8972 {
		t.Errorf("%d bytes are used", tx.size)
	}
}

// Only the answer to a probe counts, once.
func TestForgedProbeAnswers(t *testing.T) {
	s := newSim(1, netConfig{}, jumbo)
	tx := &s.ends[0].t
	tx.transmit(s.now, newBatch())
	p := tx.pm.probes[searching]
	answer := func(sent time.Duration, nonce uint64) chunk {
		b := appendHeartbeat(nil, sent, nonce, heartbeatLen)
		b[0] = byte(typeHeartbeatAck)
		return b
	}
	for _, c := range []chunk{answer(p.sent, p.nonce+1), answer(p.sent+1, p.nonce), answer(0, 0), answer(p.sent, 0), {byte(typeHeartbeatAck), 0, 0, 4}} {
		if tx.heartbeatAck(s.now, c); tx.size != 1472 {
			t.Fatalf("%x has changed the size to %d", c, tx.size)
		}
	}
	if tx.heartbeatAck(s.now, answer(p.sent, p.nonce)); tx.size != 8972 {
		t.Errorf("the answer leaves the size at %d", tx.size)
	}
	tx.resize(1472)
	if tx.heartbeatAck(s.now, answer(p.sent, p.nonce)); tx.size != 1472 {
		t.Error("the answer counts twice")
	}
}
