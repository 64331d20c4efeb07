package sctp

import (
	"encoding/binary"
	"time"

	"github.com/ironwarp/ironwarp/transport/assoc"
)

// acks is which SACKs are owed to the peer (RFC 9260 section 6.2).
type acks struct {
	packets     int  // packets with DATA since the last SACK
	now         bool // send a SACK at the next opportunity
	data, fresh bool // this packet had a DATA chunk, and a new one
	sent        int  // SACKs for the current read
	window      int  // a_rwnd of the last SACK
	gaps        [maxGapBlocks]gapBlock
}

// input handles the chunks of a packet with a correct checksum that belongs to this
// association: the ports match, and the Verification Tag is ours (RFC 9260 section 8.5)
// or, if reflected, the peer's, which only ABORT and SHUTDOWN COMPLETE may carry (section
// 8.5.1). Received messages are in deliver afterwards and point into chunks. The endpoint
// handles INIT and COOKIE ECHO.
func (t *tcb) input(now time.Duration, chunks []byte, reflected bool) {
	t.now, t.life.heard = now, now
	t.stats.PacketsIn++
	t.acks.data, t.acks.fresh = false, false
	due := t.acks.now
	for rest := chunks; len(rest) > 0 && t.state != stateClosed; {
		c, next, err := cutChunk(rest)
		if err != nil {
			// The chunks before it were well formed and are done. The peer is told about
			// the rest if it can be expected to listen.
			if t.state >= stateEstablished {
				t.violation("a chunk is longer than its packet or shorter than its header")
			}
			break
		}
		rest = next
		switch typ := c.typ(); {
		case typ == typeAbort || typ == typeShutdownComplete:
			if c.flags()&flagT != 0 != reflected {
				return
			}
		case reflected:
			return
		}
		if !t.chunk(now, c) {
			break
		}
	}
	if t.acks.data && t.state != stateClosed {
		t.packetDone(now)
		if !t.acks.fresh && t.acks.now && !due && !t.replies.Take(replyLimit, clock(now)) {
			t.acks.now = false // tSack runs
		}
	}
}

// chunk handles one chunk. It returns false if the rest of the packet must be dropped.
func (t *tcb) chunk(now time.Duration, c chunk) bool {
	switch c.typ() {
	case typeData:
		return t.data(now, c)
	case typeSack:
		s, err := parseSack(c)
		if err != nil {
			t.violation("a SACK is shorter than it says")
			return false
		}
		t.sack(now, s)
	case typeInitAck:
		t.initAck(now, c)
		return false // it is alone in its packet
	case typeCookieAck:
		if t.state == stateCookieEchoed {
			t.up(now)
			t.heard()
		}
	case typeHeartbeat:
		// From COOKIE-ECHOED or ESTABLISHED on until the shutdown is under way
		// (RFC 9260 section 8.3).
		if t.state >= stateCookieEchoed && t.state <= stateShutdownReceived {
			t.reply(typeHeartbeatAck, c.value())
		}
	case typeHeartbeatAck:
		t.heartbeatAck(now, c)
	case typeAbort:
		t.aborted(firstCause(c), c.flags()&flagT != 0)
		return false
	case typeError:
		t.errorChunk(now, c)
	case typeShutdown:
		t.shutdownChunk(now, c)
	case typeShutdownAck:
		if t.state == stateShutdownSent || t.state == stateShutdownAckSent {
			t.want |= sendShutdownComplete
			t.close(t.exchange.err)
		}
	case typeShutdownComplete:
		if t.state == stateShutdownAckSent {
			t.close(t.exchange.err)
		}
	case typeInit, typeCookieEcho:
		// INIT must be alone and untagged, COOKIE ECHO first in its packet: here they are
		// out of place.
		return false
	case typeECNE, typeCWR, typePad:
	default:
		return t.unknown(c)
	}
	return true
}

// unknown handles a chunk of unknown type by its high bits (RFC 9260 section 3.2).
func (t *tcb) unknown(c chunk) bool {
	if c.typ().report() && t.state >= stateEstablished {
		t.reply(typeError, appendCause(nil, assoc.CauseUnrecognizedChunk, c[:min(len(c), maxUnrecognized)]))
	}
	return c.typ().skip()
}

// reply queues a control chunk to be sent, unless too much is queued. A HEARTBEAT ACK is
// as long as its HEARTBEAT, even if that does not fit this end's packets (RFC 9260
// section 8.3): it is then alone in a packet, which IP may fragment.
func (t *tcb) reply(typ chunkType, value []byte) {
	n := padded(chunkHeaderLen + len(value))
	if !t.replies.Take(replyLimit, clock(t.now)) {
		return
	}
	if most := max(t.mostSize, maxControl); n > most-headerLen || len(t.control)+n > most {
		return
	}
	t.control = appendChunk(t.control, typ, 0, value)
}

// data handles a DATA chunk (RFC 9260 sections 6.2 and 6.5).
func (t *tcb) data(now time.Duration, c chunk) bool {
	if len(c) < dataHeaderLen {
		t.violation("a DATA chunk is shorter than its header")
		return false
	}
	d := dataChunk(c)
	if len(c) == dataHeaderLen {
		t.fail(assoc.Cause{Code: assoc.CauseNoUserData, Info: uint32Info(d.tsn())})
		return false
	}
	switch t.state {
	case stateEstablished, stateShutdownPending, stateShutdownSent:
	default:
		return false // before, the peer will resend it; afterwards it has said that it has no more
	}
	t.acks.data = true
	if c.flags()&flagI != 0 {
		t.acks.now = true
	}
	switch t.rx.judge(d.tsn()) {
	case duplicate:
		t.rx.again(d.tsn())
		t.stats.Duplicates++
		return true
	case tooFar:
		t.acks.now = true
		t.stats.Dropped++
		return true
	}
	n := len(d.payload())
	// Beyond the window only what fills a gap is accepted, and only up to a limit (RFC
	// 9260 section 6.2). One message always fits.
	if limit := t.window; t.held > 0 && t.held+n > limit {
		if before(t.rx.high, d.tsn()) || t.held+n > 2*limit {
			t.acks.now = true
			t.stats.Dropped++
			return true
		}
	}
	t.rx.add(d.tsn())
	t.acks.fresh = true
	t.life.used = now
	t.stats.MessagesIn++
	t.stats.BytesIn += uint64(n)
	if d.stream() >= t.peer.in {
		// Acknowledged, reported, not delivered (RFC 9260 section 6.5).
		t.reply(typeError, appendCause(nil, assoc.CauseInvalidStream, uint32Info(uint32(d.stream())<<16)))
		return true
	}
	t.held += n
	t.deliver = append(t.deliver, assoc.Message{
		Stream:  d.stream(),
		PPID:    d.ppid(),
		Flags:   assoc.Flags(c.flags()),
		SSN:     d.ssn(),
		TSN:     d.tsn(),
		Payload: d.payload(),
		Memory:  t.memory,
	})
	return true
}

// packetDone decides when to send a SACK for a packet with DATA (RFC 9260 section 6.2).
func (t *tcb) packetDone(now time.Duration) {
	if t.state == stateShutdownAckSent {
		return // everything of the peer is acknowledged, and it may be gone
	}
	if t.state == stateShutdownSent {
		// Each such packet is answered by a SHUTDOWN, plus a SACK if that cannot say
		// everything (RFC 9260 section 9.2).
		t.want |= sendShutdown
		t.timers[t2] = now + t.path.rto
		t.exchange.tries = 0
		if t.rx.missing() || len(t.rx.dups) > 0 {
			t.want |= sendSack
		}
		t.timers[tSack] = 0
		return
	}
	t.acks.packets++
	if t.rx.missing() || len(t.rx.dups) > 0 || !t.acks.fresh {
		// At once, so that the peer learns about the gap.
		t.acks.now = true
	}
	if t.acks.packets >= sackPackets {
		t.acks.now = true
	}
	if t.timers[tSack] == 0 {
		t.timers[tSack] = now + assoc.SACKDelay
	}
}

// sackBetween reports whether between must be called.
func (t *tcb) sackBetween() bool {
	return t.acks.now && t.rx.missing() && t.acks.sent < sacksPerRead-1 && t.state >= stateEstablished
}

// between sends a SACK between the packets of one read: while TSNs are missing, each of
// the first few packets gets its own SACK, so that the peer can count them (RFC 9260
// section 7.2.4).
func (t *tcb) between(b *batch) {
	t.acks.sent++
	b.begin(t.localPort, t.peerPort, t.peer.tag)
	t.transmitSack(b)
	b.end()
	t.stats.PacketsOut++
}

// readDone is called after the last packet of one read.
func (t *tcb) readDone() {
	t.acks.sent = 0
	if t.acks.now && t.state != stateClosed {
		t.want |= sendSack
	}
}

// release returns n bytes to the receive window. The peer is told when the window has
// grown by a quarter (RFC 9260 section 6.2), or when two packets are still unacknowledged
// by an answer of the user.
func (t *tcb) release(n int) {
	t.held = max(0, t.held-n)
	if t.state >= stateEstablished && t.state < stateShutdownReceived && (t.acks.packets >= 2 || t.rwnd()-t.acks.window >= t.window/4) {
		t.want |= sendSack
	}
}

// heartbeatAck handles a HEARTBEAT ACK if it answers a HEARTBEAT that waits for one (RFC
// 9260 section 8.3).
func (t *tcb) heartbeatAck(now time.Duration, c chunk) {
	p, _, err := cutParam(c.value())
	if err != nil || len(p) < heartbeatLen || p.typ() != paramHeartbeatInfo {
		return
	}
	sent, nonce := time.Duration(binary.BigEndian.Uint64(p.value())), binary.BigEndian.Uint64(p.value()[8:])
	switch {
	case sent == 0:
		return
	case sent == t.beat.sent && nonce == t.beat.nonce:
		t.beat.sent = 0
	case sent == t.lossProbe.at && nonce == t.lossProbe.nonce && !t.lossProbe.due:
		t.lossProbeAnswered(now)
	case t.probeAck(now, sent, nonce, len(p)):
		t.heard() // the round trip of a long packet is not typical
		return
	default:
		return
	}
	t.path.rtt(now-sent, t.RTOMin, t.maxRTO())
	t.heard()
}

// errorChunk handles an ERROR. Only a Stale Cookie changes anything (RFC 9260 section
// 5.2.6): the handshake begins again.
func (t *tcb) errorChunk(now time.Duration, c chunk) {
	cause := firstCause(c)
	if cause.Code == assoc.CauseStaleCookie && t.state == stateCookieEchoed {
		t.exchange.tries++
		if t.exchange.tries > t.MaxInitRetrans {
			t.close(assoc.ErrPeerUnreachable)
			return
		}
		t.state = stateCookieWait
		t.exchange.cookie, t.exchange.report = nil, nil
		t.peer.tag = 0
		t.want = sendInit
		t.timers[t1] = now + t.path.rto
		return
	}
	if t.state >= stateEstablished {
		t.event(assoc.Event{Kind: assoc.EventPeerError, Cause: cause})
	}
}

// aborted ends the association after the peer's ABORT (RFC 9260 section 9.1). A reflected
// tag means that the peer has no such association: at the end of a shutdown, when
// everything is acknowledged, that is as good as its SHUTDOWN COMPLETE, which was lost or
// overtaken.
func (t *tcb) aborted(cause assoc.Cause, reflected bool) {
	t.want = 0
	if reflected && t.state == stateShutdownAckSent {
		t.close(t.exchange.err)
		return
	}
	t.close(&assoc.AbortError{Cause: cause})
}
