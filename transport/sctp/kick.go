package sctp

import "time"

// kick sends at once what waits for T1-init, T1-cookie, T2-shutdown, T3-rtx, the
// probe of a closed window or the answer to a HEARTBEAT. Of DATA one packet
// leaves with a HEARTBEAT behind it, whose answer tells what else was lost, so that
// a kick in vain costs no more than that. Neither windows nor error counters change, and
// the RTO is again what the measured round trips make it. stuck tells that some
// of it was sent in vain before.
func (t *tcb) kick(now time.Duration) (stuck bool) {
	t.path.calm(t.rtoMin, t.mostRTO())
	stuck = t.inits > 0
	q := &t.tx
	switch t.state {
	case stateClosed:
		return false
	case stateCookieWait, stateCookieEchoed:
		t.want |= sendInit
		if t.state == stateCookieEchoed {
			t.want = t.want&^sendInit | sendCookieEcho
		}
		t.initSent = 0 // which one is answered is not known (RFC 9260 section 6.3.1 C5)
		t.t1 = now + t.path.rto
		return stuck
	case stateShutdownSent:
		t.want |= sendShutdown
		t.t2 = now + t.path.rto
		return stuck
	case stateShutdownAckSent:
		t.want |= sendShutdownAck
		t.t2 = now + t.path.rto
		return stuck
	}
	switch {
	case q.outstanding():
		stuck = t.solo || t.kickAt != 0
		if t.solo {
			t.again() // all was lost but perhaps one packet
		} else if c := q.at(q.acked + 1); c.state == chunkFlying {
			t.lose(c)
			q.scan = q.acked + 1
			t.kickAt, t.kickEnd = now, q.unsent
			t.kickNonce, t.kickDue = t.nonce(), true
		}
		t.timing = false
		t.rtxOnce = true
		t.armT3(now)
		return stuck
	case q.unsent != q.next: // the peer's window is closed
		t.probe = true
		return false
	case t.hbSent != 0:
		t.want |= sendHeartbeat
	}
	return false
}

// kickAnswered takes the answer to the HEARTBEAT that left behind what a kick has
// sent again: what was in flight then and is not acknowledged by now is lost.
func (t *tcb) kickAnswered() {
	q := &t.tx
	for tsn := q.acked + 1; before(tsn, t.kickEnd); tsn++ {
		if c := q.at(tsn); c.state == chunkFlying {
			t.lose(c)
		}
	}
	q.scan = q.acked + 1
	t.kickAt = 0
}

// hurry bounds the RTO, 0: no longer.
func (t *tcb) hurry(now, most time.Duration) {
	t.hurried = 0
	if most <= 0 {
		return
	}
	t.hurried = max(most, t.rtoMin)
	t.path.rto = min(t.path.rto, t.hurried)
	for _, d := range [...]*time.Duration{&t.t1, &t.t2, &t.t3} {
		if *d != 0 {
			*d = min(*d, now+t.path.rto)
		}
	}
	t.touch(now)
}

// mostRTO is the longest RTO as of now.
func (t *tcb) mostRTO() time.Duration {
	if t.hurried > 0 {
		return min(t.hurried, t.rtoMax)
	}
	return t.rtoMax
}
