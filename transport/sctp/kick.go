package sctp

import "time"

// question is a chunk that was sent again with a HEARTBEAT behind it, whose answer tells
// what else was lost: see ask.
type question struct {
	at         time.Duration // 0: none waits for an answer
	nonce      uint64
	due        bool   // the HEARTBEAT was not sent yet
	first, end uint32 // the TSN that was sent again, and the first that was not sent then
	inVain     bool   // the peer had that TSN
	tail       bool   // probeTail has asked
	tailed     bool   // it has since something was acknowledged
}

// kick sends at once what waits for T1-init, T1-cookie, T2-shutdown, T3-rtx, the
// probe of a closed window or the answer to a HEARTBEAT. Of DATA one packet
// leaves with a HEARTBEAT behind it, whose answer tells what else was lost, so that
// a kick in vain costs no more than that. Neither windows nor error counters change, and
// the RTO is again what the measured round trips make it. stuck tells that some
// of it was sent in vain before.
func (t *tcb) kick(now time.Duration) (stuck bool) {
	t.path.calm(t.RTOMin, t.mostRTO())
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
		t.exchange.sent = 0 // which one is answered is not known (RFC 9260 section 6.3.1 C5)
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
		stuck = t.loss.solo || t.asking(now)
		if t.loss.solo {
			t.again() // all was lost but perhaps one packet
			t.loss.once = true
		} else {
			t.ask(now)
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

// ask sends the first outstanding chunk again, and a HEARTBEAT behind it.
func (t *tcb) ask(now time.Duration) {
	q := &t.tx
	if c := q.at(q.acked + 1); c.state == chunkFlying {
		t.lose(c)
		q.scan = q.acked + 1
	}
	t.question.at, t.question.first, t.question.end = now, q.acked+1, q.unsent
	t.question.nonce, t.question.due, t.question.tail = t.nonce(), true, false
	t.path.timing = false
	t.loss.once = true
}

// asking tells that the answer to ask is still to be expected.
func (t *tcb) asking(now time.Duration) bool {
	if t.question.at != 0 && now-t.question.at > t.path.rto {
		t.question.at = 0
	}
	return t.question.at != 0
}

// tailTimeout is when a SACK is missed: well before T3-rtx, which has room for
// peers that delay their SACKs. That is not to be expected where two packets or
// more are on their way (RFC 9260 section 6.2). 0: it is not known.
func (t *tcb) tailTimeout(now time.Duration) time.Duration {
	q, p := &t.tx, &t.path
	if !p.measured || t.loss.solo || t.question.tailed || t.asking(now) || !q.outstanding() || q.at(q.acked+1).packet == q.at(q.unsent-1).packet {
		return 0
	}
	return now + max(2*p.srtt, p.srtt+4*p.rttvar, tailLeast)
}

// probeTail asks when no SACK comes although one should: what was lost may be the
// last, with nothing behind it to show that. TCP calls it a tail loss probe (RFC
// 8985 section 7). It does so once, until something is acknowledged: then T3-rtx is
// due, which looks for black holes, too.
func (t *tcb) probeTail(now time.Duration) {
	if t.loss.solo || t.question.tailed || t.asking(now) || !t.tx.outstanding() || t.flow.probing || t.state < stateEstablished {
		return
	}
	t.ask(now)
	t.question.tail, t.question.tailed, t.question.inVain = true, true, false
	t.stats.TailProbes++
}

// kickAnswered takes the answer to the HEARTBEAT that left behind what a kick has
// sent again: what was in flight then and is not acknowledged by now is lost. After
// probeTail that is a sign of congestion, as it is if the peer did not have what
// was sent again.
func (t *tcb) kickAnswered(now time.Duration) {
	q := &t.tx
	lost := !t.question.inVain
	again := t.question.first == q.acked+1 && q.outstanding() && q.at(t.question.first).state == chunkFlying
	for tsn := q.acked + 1; before(tsn, t.question.end); tsn++ {
		if c := q.at(tsn); c.state == chunkFlying {
			t.lose(c)
			lost = true
		}
	}
	if t.question.tail && lost {
		t.reduce()
		t.stats.FastRetransmits++
	}
	q.scan = q.acked + 1
	t.question.at = 0
	if again {
		t.lostAgain(now)
	}
}

// hurry bounds the RTO, 0: no longer.
func (t *tcb) hurry(now, most time.Duration) {
	t.hurried = 0
	if most <= 0 {
		return
	}
	t.hurried = max(most, t.RTOMin)
	t.path.rto = min(t.path.rto, t.hurried)
	for _, i := range [...]timer{t1, t2, t3} {
		if d := t.timers[i]; d != 0 {
			t.timers[i] = min(d, now+t.path.rto)
		}
	}
	t.touch(now)
}

// mostRTO is the longest RTO as of now.
func (t *tcb) mostRTO() time.Duration {
	if t.hurried > 0 {
		return min(t.hurried, t.RTOMax)
	}
	return t.RTOMax
}
