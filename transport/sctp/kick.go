package sctp

import "time"

// lossProbe is a retransmitted chunk followed by a HEARTBEAT, whose answer shows what
// else was lost: see probeLoss.
type lossProbe struct {
	at         time.Duration // 0 if no answer is expected
	nonce      uint64
	due        bool   // the HEARTBEAT is still to be sent
	first, end uint32 // the retransmitted TSN, and the first not yet sent then
	hadIt      bool   // the peer had that TSN already
	tail       bool   // sent by probeTail
	tailed     bool   // probeTail sent one since something was acknowledged
}

// kick sends at once what waits for T1-init, T1-cookie, T2-shutdown, T3-rtx, a zero
// window probe or the answer to a HEARTBEAT. Of DATA only a loss probe is sent, so that a
// needless kick costs no more than that. Neither windows nor error counters change, and
// the RTO is reset to what the measured round trips give. stuck reports whether some of
// it had already been sent without an answer.
func (t *tcb) kick(now time.Duration) (stuck bool) {
	t.path.setRTO(t.RTOMin, t.maxRTO())
	stuck = t.exchange.tries > 0
	q := &t.tx
	switch t.state {
	case stateClosed:
		return false
	case stateCookieWait, stateCookieEchoed:
		t.want |= sendInit
		if t.state == stateCookieEchoed {
			t.want = t.want&^sendInit | sendCookieEcho
		}
		t.exchange.sent = 0 // it is unknown which one will be answered (RFC 9260 section 6.3.1 C5)
		t.timers[t1] = now + t.path.rto
		return stuck
	case stateShutdownSent:
		t.want |= sendShutdown
		t.timers[t2] = now + t.path.rto
		return stuck
	case stateShutdownAckSent:
		t.want |= sendShutdownAck
		t.timers[t2] = now + t.path.rto
		return stuck
	}
	switch {
	case q.outstanding():
		stuck = t.loss.solo || t.lossProbeOut(now)
		if t.loss.solo {
			t.again() // all was lost, except perhaps one packet
			t.loss.once = true
		} else {
			t.probeLoss(now)
		}
		t.armT3(now)
		return stuck
	case q.unsent != q.next: // the peer's window is closed
		t.flow.probe = true
		return false
	case t.beat.sent != 0:
		t.want |= sendHeartbeat
	}
	return false
}

// probeLoss sends the first outstanding chunk again, followed by a HEARTBEAT.
func (t *tcb) probeLoss(now time.Duration) {
	q := &t.tx
	if c := q.at(q.acked + 1); c.state == chunkFlying {
		t.lose(c)
		q.scan = q.acked + 1
	}
	t.lossProbe.at, t.lossProbe.first, t.lossProbe.end = now, q.acked+1, q.unsent
	t.lossProbe.nonce, t.lossProbe.due, t.lossProbe.tail = t.nonce(), true, false
	t.path.timing = false
	t.loss.once = true
}

// lossProbeOut reports whether an answer to the loss probe is still expected.
func (t *tcb) lossProbeOut(now time.Duration) bool {
	return t.lossProbe.at != 0 && now-t.lossProbe.at <= t.path.rto
}

// armTail sets the timer for an overdue SACK: well before T3-rtx, which allows for peers
// that delay their SACKs. They do not delay them while two or more packets are in flight
// (RFC 9260 section 6.2). The timer is not set before the round trip is known.
func (t *tcb) armTail(now time.Duration) {
	q, p := &t.tx, &t.path
	t.timers[tTail] = 0
	if !t.lossProbeOut(now) {
		t.lossProbe.at = 0 // a later answer does not count
	}
	if !p.measured || t.loss.solo || t.lossProbe.tailed || t.lossProbe.at != 0 || !q.outstanding() || q.at(q.acked+1).packet == q.at(q.unsent-1).packet {
		return
	}
	t.timers[tTail] = now + max(2*p.srtt, p.srtt+4*p.rttvar, tailLeast)
}

// probeTail sends a loss probe when an expected SACK is missing: the last packets may be
// lost, with nothing behind them to show that. TCP calls it a tail loss probe (RFC 8985
// section 7). It does so once until something is acknowledged: then T3-rtx is due, which
// also looks for black holes.
func (t *tcb) probeTail(now time.Duration) {
	if t.loss.solo || t.lossProbe.tailed || t.lossProbeOut(now) || !t.tx.outstanding() || t.flow.probing || t.state < stateEstablished {
		return
	}
	t.probeLoss(now)
	t.lossProbe.tail, t.lossProbe.tailed, t.lossProbe.hadIt = true, true, false
	t.stats.TailProbes++
}

// lossProbeAnswered handles the answer to the HEARTBEAT of a loss probe: what was in
// flight when it was sent and is still not acknowledged is lost. After probeTail this is
// a sign of congestion, and so is that the peer lacked the retransmitted chunk.
func (t *tcb) lossProbeAnswered(now time.Duration) {
	q := &t.tx
	lost := !t.lossProbe.hadIt
	again := t.lossProbe.first == q.acked+1 && q.outstanding() && q.at(t.lossProbe.first).state == chunkFlying
	for tsn := q.acked + 1; before(tsn, t.lossProbe.end); tsn++ {
		if c := q.at(tsn); c.state == chunkFlying {
			t.lose(c)
			lost = true
		}
	}
	if t.lossProbe.tail && lost {
		t.reduce()
		t.stats.FastRetransmits++
	}
	q.scan = q.acked + 1
	t.lossProbe.at = 0
	if again {
		t.lostAgain(now)
	}
}

// limitRTO bounds the RTO; 0 lifts the bound.
func (t *tcb) limitRTO(now, most time.Duration) {
	t.rtoLimit = 0
	if most <= 0 {
		return
	}
	t.rtoLimit = max(most, t.RTOMin)
	t.path.rto = min(t.path.rto, t.rtoLimit)
	for _, i := range [...]timer{t1, t2, t3} {
		if d := t.timers[i]; d != 0 {
			t.timers[i] = min(d, now+t.path.rto)
		}
	}
	t.touch(now)
}

// maxRTO returns the current upper bound of the RTO.
func (t *tcb) maxRTO() time.Duration {
	if t.rtoLimit > 0 {
		return min(t.rtoLimit, t.RTOMax)
	}
	return t.RTOMax
}
