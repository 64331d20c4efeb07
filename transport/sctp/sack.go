package sctp

import "time"

// sack handles a SACK (RFC 9260 section 6.2.1).
func (t *tcb) sack(now time.Duration, s sackChunk) {
	if t.state < stateEstablished {
		return
	}
	q, p := &t.tx, &t.path
	t.stats.SacksIn++
	if before(s.cum(), q.acked) {
		return // D i: older than a previous one
	}
	if !before(s.cum(), q.unsent) {
		t.violation("a SACK acknowledges a TSN that was never sent")
		return
	}
	t.flow.heard = true
	for i := 0; t.lossProbe.at != 0 && i < s.dups(); i++ {
		t.lossProbe.hadIt = t.lossProbe.hadIt || s.dup(i) == t.lossProbe.first
	}
	flight := p.flight
	advanced := s.cum() != q.acked
	newly := 0
	for q.acked != s.cum() {
		c := q.at(q.acked + 1)
		if c.state != chunkAcked {
			newly += len(c.data())
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
		t.loss.solo = false
		t.lossProbe.tailed = false
	}
	if advanced {
		t.loss.front = 0
	}
	t.loss.leave(s.cum())
	if newly > 0 && !t.loss.fast {
		p.control.acked(&p.window, progress{now: now, rtt: p.srtt, n: newly, flight: flight, left: p.flight})
	}
	if gaps && newly > 0 {
		t.missed(now)
	}
	t.flow.rwnd = int(min(s.rwnd(), 1<<30)) - p.flight
	if t.flow.probing && advanced {
		t.flow.probing = false
	}
	if t.flow.probing && q.outstanding() && int(s.rwnd()) >= int(q.at(q.acked+1).size) {
		// The window has opened, and the probe was dropped.
		if c := q.at(q.acked + 1); c.state == chunkFlying {
			t.lose(c)
			t.flow.probing = false
		}
	}
	q.scan = q.acked + 1
	switch {
	case !q.outstanding():
		t.timers[t3], t.timers[tTail] = 0, 0 // R2
	case advanced, t.timers[t3] == 0:
		t.armT3(now) // R3, R4
	case t.timers[tTail] == 0:
		t.armTail(now)
	}
	q.release()
	t.drained(now)
}

// arrived records that the peer has a chunk that it did not have before.
func (t *tcb) arrived(now time.Duration, tsn uint32, c *txChunk) {
	// If a retransmitted chunk is acknowledged in less than a round trip, the
	// acknowledgement is for an earlier transmission.
	if c.sent == 1 || micros(now)-c.sentAt >= micros(t.path.least) {
		t.loss.arrived(c.packet)
	}
	if c.state == chunkFlying {
		t.path.flight -= len(c.data())
	}
	t.ackedBytes += uint64(c.size)
	t.life.used = now
	if t.path.timing && t.path.timed == tsn {
		t.path.timing = false
		t.path.rtt(now-t.path.timedAt, t.RTOMin, t.maxRTO())
	}
}

// gaps handles the Gap Ack Blocks and returns the newly acknowledged bytes. ok is false
// unless the blocks are in order and within what was sent.
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
			newly += len(c.data())
			t.arrived(now, tsn, c)
			if c.state == chunkLost {
				q.lost--
				t.flow.rwnd -= int(c.size)
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
	t.path.flight += len(c.data())
}

// reduce shrinks the congestion window for a loss, once for all that is outstanding.
func (t *tcb) reduce() bool {
	first := t.loss.enter(t.tx.unsent - 1)
	if first {
		t.path.control.lost(&t.path.window)
	}
	return first
}

// missed finds chunks of lost packets.
func (t *tcb) missed(now time.Duration) {
	q := &t.tx
	again := false
	for tsn := q.acked + 1; tsn != q.unsent; tsn++ {
		c := q.at(tsn)
		if c.state != chunkFlying {
			continue
		}
		if !t.loss.overtaken(c.packet) {
			if c.sent == 1 {
				break // what follows was sent later
			}
			continue
		}
		again = again || tsn == q.acked+1 && c.sent > 1
		if t.reduce() {
			t.loss.once = true
			t.stats.FastRetransmits++
		}
		t.lose(c)
	}
	if again {
		t.lostAgain(now)
	}
}

// micros returns a time in microseconds. Differences below an hour are correct.
func micros(d time.Duration) uint32 { return uint32(d / time.Microsecond) }

// drained continues a shutdown once everything is acknowledged (RFC 9260 section 9.2).
func (t *tcb) drained(now time.Duration) {
	if t.tx.len() > 0 {
		return
	}
	switch t.state {
	case stateShutdownPending:
		t.state = stateShutdownSent
		t.want |= sendShutdown
		t.startT2(now)
		t.timers[t5] = now + 5*t.RTOMax
	case stateShutdownReceived:
		t.state = stateShutdownAckSent
		t.want = t.want&^sendShutdown | sendShutdownAck
		t.startT2(now)
	}
}
