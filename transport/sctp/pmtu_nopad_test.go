package sctp

import (
	"bytes"
	"testing"
	"time"
)

// withPad tells that a packet has a PAD chunk, and prolonged that it has a HEARTBEAT of
// more than this package needs.
func withPad(p packet) bool { return holds(p, func(c chunk) bool { return c.typ() == typePad }) }

func prolonged(p packet) bool {
	return holds(p, func(c chunk) bool { return c.typ() == typeHeartbeat && len(c) > chunkHeaderLen+heartbeatLen })
}

func holds(p packet, is func(chunk) bool) bool {
	for rest := p.chunks(); len(rest) > 0; {
		c, next, err := cutChunk(rest)
		if err != nil {
			return false
		}
		if is(c) {
			return true
		}
		rest = next
	}
	return false
}

// A peer, or something before it, that drops packets with a PAD chunk (RFC 4820) whole
// is probed by the length of HEARTBEATs alone.
func TestMTUGrowsWithoutPad(t *testing.T) {
	for mtu, want := range map[int]int{9000: 9000, 1500: 1500, 1420: 1420, 1200: 1200, 1000: 940, minMTU: minMTU} {
		s := newSim(1, netConfig{delay: time.Millisecond}, first)
		s.drop = func(_ int, p packet) bool { return withPad(p) }
		tx := &s.ends[0].t
		s.mtu = [2]int{tx.packetSize(mtu), tx.packetSize(mtu)}
		s.flush(0)
		s.flush(1)
		if s.run(2*time.Second, never); mtu >= DefaultMTU && tx.size < tx.safeSize || mtu == DefaultMTU && tx.size != s.mtu[0] {
			t.Errorf("a path of %d bytes: after 2 s %d are used", mtu, tx.size+tx.overhead)
		}
		for range 200 {
			s.send(0, 5, tx.maxMessage())
			s.run(500*time.Millisecond, never)
		}
		if got := tx.size + tx.overhead; got > mtu || got < want-3 {
			t.Errorf("a path of %d bytes: found %d, want %d or more", mtu, got, want)
		}
		if tx.tx.len() > 0 || tx.stats.Retransmits > 0 {
			t.Errorf("a path of %d bytes: %d messages are left, the search has disturbed them: %+v", mtu, tx.tx.len(), tx.stats)
		}
		if err := s.ends[1].once(s.ends[0].sent); err != nil {
			t.Error(err)
		}
		n := tx.stats.Probes
		if s.run(8*time.Minute, never); tx.stats.Probes != n {
			t.Errorf("a path of %d bytes: %d probes though there is nothing more to find", mtu, tx.stats.Probes-n)
		}
	}
}

// One that answers long HEARTBEATs no more than PAD gets the packets that every path
// carries, and is left in peace.
func TestPeerAnswersNoProbes(t *testing.T) {
	s := newSim(1, netConfig{delay: time.Millisecond}, first)
	s.drop = func(_ int, p packet) bool { return withPad(p) || prolonged(p) }
	tx := &s.ends[0].t
	for range 200 {
		s.send(0, 5, tx.maxMessage())
		s.run(500*time.Millisecond, never)
	}
	n := tx.stats.Probes
	if tx.size != tx.minSize || tx.tx.len() > 0 || tx.stats.Retransmits > 0 {
		t.Errorf("packets of %d bytes are used, %d messages are left: %+v", tx.size, tx.tx.len(), tx.stats)
	}
	if s.run(8*time.Minute, never); tx.stats.Probes != n {
		t.Errorf("%d probes in vain after the search", tx.stats.Probes-n)
	}
}

// RFC 9260 section 8.3: a HEARTBEAT is answered with all that it has, though that is
// longer than the packets in use: a peer may try the path with it.
func TestLongHeartbeatIsAnswered(t *testing.T) {
	_, r, a, _ := victim(t, Config{})
	for _, n := range []int{600, 1400, 8000} {
		hb := appendChunk(nil, typeHeartbeat, 0, appendParam(nil, paramHeartbeatInfo, bytes.Repeat([]byte{byte(n)}, n)))
		r.send(r.peerTag, hb)
		if c, _ := r.want(typeHeartbeatAck); !bytes.Equal(c.value(), chunk(hb).value()) {
			t.Errorf("a HEARTBEAT of %d bytes is answered with %d", len(hb), len(c))
		}
	}
	if n := a.Stats().PathMTU; n != minMTU {
		t.Errorf("packets of %d bytes are used", n)
	}
}

// Where a path becomes narrower, short probes without PAD tell of it, too.
func TestBlackHoleWithoutPad(t *testing.T) {
	for _, noFrag := range []bool{false, true} {
		s := newSim(1, netConfig{delay: time.Millisecond}, first)
		s.drop = func(_ int, p packet) bool { return withPad(p) }
		tx := &s.ends[0].t
		s.flush(0)
		s.send(0, 1, 100) // the round trip is measured
		if !s.run(5*time.Second, func() bool { return tx.size == 8972 }) {
			t.Fatalf("%d bytes", tx.size)
		}
		s.mtu[0], s.mtu[1], s.noFrag = tx.packetSize(1420), tx.packetSize(1420), noFrag
		s.send(0, 50, 8000)
		if noFrag {
			if !s.run(time.Minute, func() bool { return s.ends[1].t.state == stateClosed }) {
				t.Errorf("after a minute in vain the association goes on: %d messages are left, %+v", tx.tx.len(), tx.stats)
			}
			continue
		}
		if !s.run(10*time.Second, s.all(0)) {
			t.Errorf("after 10 s %d messages are left", tx.tx.len())
		}
		if s.run(20*time.Second, never); tx.size != s.mtu[0] {
			t.Errorf("the path carries %d bytes, %d are used", s.mtu[0], tx.size)
		}
		if err := s.ends[1].once(s.ends[0].sent); err != nil {
			t.Error(err)
		}
	}
}
