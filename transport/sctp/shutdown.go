package sctp

import (
	"time"

	"github.com/ironwarp/ironwarp/transport/assoc"
)

// shutdown is the primitive of RFC 9260 section 11.1.3: no more messages are accepted,
// the queued ones are delivered, then the association ends.
func (t *tcb) shutdown(now time.Duration) {
	switch t.state {
	case stateCookieWait, stateCookieEchoed:
		t.fail(assoc.Cause{Code: assoc.CauseUserAbort})
	case stateEstablished:
		t.state = stateShutdownPending
		t.drained(now)
	}
}

// startT2 starts T2-shutdown and stops heartbeats (RFC 9260 section 8.3).
func (t *tcb) startT2(now time.Duration) {
	t.exchange.tries = 0
	t.timers[t2] = now + t.path.rto
	t.timers[tHB], t.beat.sent = 0, 0
	t.timers[tProbe] = 0
	t.want &^= sendProbe
	t.timers[tSack], t.acks.now = 0, false
}

func (t *tcb) expireT2(now time.Duration) {
	t.exchange.tries++
	most := t.AssocMaxRetrans
	if t.state == stateShutdownAckSent { // both ends have everything, and the peer may be gone
		most = min(most, assoc.DefaultAssocMaxRetrans)
	}
	if t.exchange.tries > most {
		t.close(assoc.ErrPeerUnreachable)
		return
	}
	t.path.backOff(t.maxRTO())
	t.timers[t2] = now + t.path.rto
	if t.state == stateShutdownSent {
		t.want |= sendShutdown
	} else {
		t.want |= sendShutdownAck
	}
}

// shutdownChunk handles a SHUTDOWN (RFC 9260 section 9.2).
func (t *tcb) shutdownChunk(now time.Duration, c chunk) {
	cum, err := shutdownCum(c)
	if err != nil {
		t.violation("a SHUTDOWN has a wrong length")
		return
	}
	switch t.state {
	case stateEstablished, stateShutdownPending, stateShutdownReceived:
	case stateShutdownSent:
		// Both ends shut down at the same time.
		t.state = stateShutdownAckSent
		t.want = t.want&^sendShutdown | sendShutdownAck
		t.startT2(now)
		return
	case stateShutdownAckSent:
		t.want |= sendShutdownAck
		return
	default:
		return
	}
	if t.state == stateEstablished {
		t.exchange.err = assoc.ErrShutdown
		t.event(assoc.Event{Kind: assoc.EventShutdown})
	}
	t.state = stateShutdownReceived
	// The Cumulative TSN Ack counts as that of a SACK without gaps; the window stays.
	t.ackedTo(now, cum)
	t.drained(now)
}

// ackedTo handles an acknowledgement without Gap Ack Blocks.
func (t *tcb) ackedTo(now time.Duration, cum uint32) {
	q := &t.tx
	if before(cum, q.acked) {
		return
	}
	if !before(cum, q.unsent) {
		t.violation("a SHUTDOWN acknowledges a TSN that was never sent")
		return
	}
	advanced := cum != q.acked
	for q.acked != cum {
		if c := q.at(q.acked + 1); c.state != chunkAcked {
			t.arrived(now, q.acked+1, c)
		}
		q.pop()
	}
	if advanced {
		t.heard()
		t.loss.solo = false
		t.loss.front = 0
		q.scan = q.acked + 1
	}
	switch {
	case !q.outstanding():
		t.timers[t3], t.timers[tTail] = 0, 0
	case advanced:
		t.armT3(now)
	}
	q.release()
}
