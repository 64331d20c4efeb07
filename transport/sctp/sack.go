package sctp

import "time"

// sack takes a SACK (RFC 9260 section 6.2.1).
func (t *tcb) sack(now time.Duration, s sackChunk) {
	if t.state < stateEstablished {
		return
	}
	q, p := &t.tx, &t.path
	t.stats.SacksIn++
	if before(s.cum(), q.acked) {
		return // D i: older than one that was here
	}
	if !before(s.cum(), q.unsent) {
		t.violation("a SACK acknowledges a TSN that was never sent")
		return
	}
	t.probeHeard = true
	for i := 0; t.kickAt != 0 && i < s.dups(); i++ {
		t.inVain = t.inVain || s.dup(i) == t.kicked
	}
	flight := p.flight
	advanced := s.cum() != q.acked
	newly := 0
	for q.acked != s.cum() {
		c := q.at(q.acked + 1)
		if c.state != chunkAcked {
			newly += len(c.data)
			t.arrived(now, q.acked+1, c)
		}
		q.pop()
	}
	gaps := s.gaps() > 0 || q.gapped > 0
	if gaps {
		n, ok := t.gaps(now, s)
		if !ok {
			t.violation("a Gap Ack Block is out of order or beyond what was sent")
			return
		}
		newly += n
	}
	if newly > 0 {
		t.heard()
		t.solo = false
		t.tailed = false
	}
	if advanced {
		t.losses = 0
	}
	if p.recovering && !before(s.cum(), p.exit) {
		p.recovering = false
	}
	p.acked(newly, flight)
	if gaps && newly > 0 {
		t.missed(now)
	}
	t.peerRwnd = int(min(s.rwnd(), 1<<30)) - p.flight
	if t.probing && advanced {
		t.probing = false
	}
	if t.probing && q.outstanding() && int(s.rwnd()) >= int(q.at(q.acked+1).size) {
		// The window has opened, and the probe had been dropped.
		if c := q.at(q.acked + 1); c.state == chunkFlying {
			t.lose(c)
			t.probing = false
		}
	}
	q.scan = q.acked + 1
	switch {
	case !q.outstanding():
		t.t3, t.tTail = 0, 0 // R2
	case advanced, t.t3 == 0:
		t.armT3(now) // R3, R4
	case t.tTail == 0:
		t.tTail = t.tailTimeout(now)
	}
	q.release()
	t.drained(now)
}

// arrived notes that the peer has a chunk that it did not have before.
func (t *tcb) arrived(now time.Duration, tsn uint32, c *txChunk) {
	// Of a chunk that was sent again, what is acknowledged sooner than a round trip
	// takes was sent before.
	if int32(c.packet-t.arrivedTop) > 0 && (c.sent == 1 || micros(now)-c.sentAt >= micros(t.path.least)) {
		t.arrivedTop = c.packet
	}
	if c.state == chunkFlying {
		t.path.flight -= len(c.data)
	}
	t.ackedBytes += uint64(c.size)
	t.usedAt = now
	if t.timing && t.timed == tsn {
		t.timing = false
		t.path.rtt(now-t.timedAt, t.RTOMin, t.mostRTO())
	}
}

// gaps takes the Gap Ack Blocks: bytes that are newly acknowledged. Blocks have to
// be in order and within what was sent. ok false: they are not.
func (t *tcb) gaps(now time.Duration, s sackChunk) (newly int, ok bool) {
	q := &t.tx
	tsn := q.acked + 1
	last := uint32(0)
	for i := range s.gaps() {
		g := s.gap(i)
		if uint32(g.first) <= last || g.last < g.first || !before(q.acked+uint32(g.last), q.unsent) {
			return 0, false
		}
		last = uint32(g.last)
		for ; tsn != q.acked+uint32(g.first); tsn++ {
			t.renege(q.at(tsn))
		}
		for end := q.acked + uint32(g.last) + 1; tsn != end; tsn++ {
			c := q.at(tsn)
			if c.state == chunkAcked {
				continue
			}
			newly += len(c.data)
			t.arrived(now, tsn, c)
			if c.state == chunkLost {
				q.lost--
				t.peerRwnd -= int(c.size)
			}
			c.state = chunkAcked
			q.gapped++
		}
	}
	for ; q.gapped > 0 && tsn != q.unsent; tsn++ {
		t.renege(q.at(tsn))
	}
	return newly, true
}

// renege takes back the acknowledgement of a chunk that the peer has dropped
// (RFC 9260 section 6.2.1 D iii).
func (t *tcb) renege(c *txChunk) {
	if c.state != chunkAcked {
		return
	}
	t.tx.gapped--
	t.ackedBytes -= uint64(c.size)
	c.state = chunkFlying
	t.path.flight += len(c.data)
}

// missed looks for what is lost: chunks of a packet such that one that left three
// packets later, or more, has arrived. RFC 9260 section 7.2.4 counts SACKs that
// report a TSN as missing, and does so once for each TSN. Here one SACK may stand
// for many packets, so the packets are counted (as RFC 9002 section 6.1.1 does),
// and what was sent again and gets lost again is found in the same way, without a
// timeout.
func (t *tcb) missed(now time.Duration) {
	q := &t.tx
	again := false
	for tsn := q.acked + 1; tsn != q.unsent; tsn++ {
		c := q.at(tsn)
		if c.state != chunkFlying {
			continue
		}
		if int32(t.arrivedTop-c.packet) < 3 {
			if c.sent == 1 {
				break // what follows left later
			}
			continue
		}
		again = again || tsn == q.acked+1 && c.sent > 1
		if !t.path.recovering {
			t.rtxOnce = true
			t.stats.FastRetransmits++
		}
		t.path.fastRetransmit(q.unsent - 1)
		t.lose(c)
	}
	if again {
		t.lostAgain(now)
	}
}

// micros is a time in microseconds. Differences below an hour are right.
func micros(d time.Duration) uint32 { return uint32(d / time.Microsecond) }

// drained goes on with a shutdown once everything is acknowledged (RFC 9260
// section 9.2).
func (t *tcb) drained(now time.Duration) {
	if t.tx.len() > 0 {
		return
	}
	switch t.state {
	case stateShutdownPending:
		t.state = stateShutdownSent
		t.want |= sendShutdown
		t.startT2(now)
		t.t5 = now + 5*t.RTOMax
	case stateShutdownReceived:
		t.state = stateShutdownAckSent
		t.want = t.want&^sendShutdown | sendShutdownAck
		t.startT2(now)
	}
}
