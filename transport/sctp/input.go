package sctp

import (
	"encoding/binary"
	"time"

	"github.com/ironwarp/ironwarp/transport/assoc"
)

// acks is what SACKs are owed to the peer (RFC 9260 section 6.2).
type acks struct {
	packets     int  // with DATA since the last SACK
	now         bool // the next opportunity sends a SACK
	data, fresh bool // this packet had a DATA chunk, and one that was new
	sent        int  // SACKs for the current read
	window      int  // a_rwnd of the last SACK
	gaps        [maxGapBlocks]gapBlock
}

// input takes the chunks of a packet with a right checksum that belongs to this
// association: its ports are right, and its Verification Tag is ours (RFC 9260
// section 8.5), or the peer's if reflected, which only ABORT and SHUTDOWN
// COMPLETE may be (section 8.5.1). What is received is in deliver afterwards and
// points into chunks. INIT and COOKIE ECHO are not for it: the endpoint treats
// them.
func (t *tcb) input(now time.Duration, chunks []byte, reflected bool) {
	t.now, t.life.heard = now, now
	t.stats.PacketsIn++
	t.acks.data, t.acks.fresh = false, false
	due := t.acks.now
	for rest := chunks; len(rest) > 0 && t.state != stateClosed; {
		c, next, err := cutChunk(rest)
		if err != nil {
			// What came before it was well formed and is done; the peer is told of the
			// rest where it can be expected to listen.
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
		if !t.acks.fresh && t.acks.now && !due && !t.vain.Take(vainLimit, clock(now)) {
			t.acks.now = false // tSack runs
		}
	}
}

// chunk takes one chunk. It is false when the rest of the packet is to be
// dropped.
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
		// INIT is alone and without a tag, COOKIE ECHO the first in its packet: here
		// they are out of place.
		return false
	case typeECNE, typeCWR, typePad:
	default:
		return t.unknown(c)
	}
	return true
}

// unknown treats a chunk of unknown type by the high bits of it (RFC 9260
// section 3.2).
func (t *tcb) unknown(c chunk) bool {
	if c.typ().report() && t.state >= stateEstablished {
		t.reply(typeError, appendCause(nil, assoc.CauseUnrecognizedChunk, c[:min(len(c), maxUnrecognized)]))
	}
	return c.typ().skip()
}

// reply puts a chunk into the line of those to be sent, unless it is long
// already. The answer to a HEARTBEAT is as long as that, whatever fits this end's
// packets (RFC 9260 section 8.3): alone in a packet, which IP may fragment.
func (t *tcb) reply(typ chunkType, value []byte) {
	n := padded(chunkHeaderLen + len(value))
	if !t.vain.Take(vainLimit, clock(t.now)) {
		return
	}
	if most := max(t.mostSize, maxControl); n > most-headerLen || len(t.control)+n > most {
		return
	}
	t.control = appendChunk(t.control, typ, 0, value)
}

// data takes a DATA chunk (RFC 9260 sections 6.2 and 6.5).
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
		return false // before, the peer sends it again; afterwards it has said that it has no more
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
	// Beyond the window only what fills a gap is taken, and not without end
	// (RFC 9260 section 6.2). One message always fits.
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
	})
	return true
}

// packetDone decides about the SACK for a packet with DATA (RFC 9260 section
// 6.2).
func (t *tcb) packetDone(now time.Duration) {
	if t.state == stateShutdownAckSent {
		return // the peer has had everything acknowledged, and may be gone
	}
	if t.state == stateShutdownSent {
		// Each such packet is answered by a SHUTDOWN, with a SACK where that cannot
		// say it all (RFC 9260 section 9.2).
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
		// At once, so that the peer learns of the gap.
		t.acks.now = true
	}
	if t.acks.packets >= sackPackets {
		t.acks.now = true
	}
	if t.timers[tSack] == 0 {
		t.timers[tSack] = now + assoc.SACKDelay
	}
}

// sackBetween tells whether between has something to do.
func (t *tcb) sackBetween() bool {
	return t.acks.now && t.rx.missing() && t.acks.sent < sacksPerRead-1 && t.state >= stateEstablished
}

// between is called between the packets of one read: where TSNs are missing,
// each packet has its own SACK, up to a few, so that the peer can count them
// (RFC 9260 section 7.2.4).
func (t *tcb) between(b *batch) {
	t.acks.sent++
	b.begin(t.localPort, t.peerPort, t.peer.tag)
	t.transmitSack(b)
	b.end()
	t.stats.PacketsOut++
}

// readDone ends what one read has brought.
func (t *tcb) readDone() {
	t.acks.sent = 0
	if t.acks.now && t.state != stateClosed {
		t.want |= sendSack
	}
}

// release gives n bytes of the receive window back. When it has grown by a
// quarter, the peer is told (RFC 9260 section 6.2), as well as of two packets that
// no answer of the user's has acknowledged.
func (t *tcb) release(n int) {
	t.held = max(0, t.held-n)
	if t.state >= stateEstablished && t.state < stateShutdownReceived && (t.acks.packets >= 2 || t.rwnd()-t.acks.window >= t.window/4) {
		t.want |= sendSack
	}
}

// heartbeatAck takes a HEARTBEAT ACK, if it is the answer to a HEARTBEAT that
// waits for one (RFC 9260 section 8.3).
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
	case sent == t.question.at && nonce == t.question.nonce && !t.question.due:
		t.kickAnswered(now)
	case t.probeAck(now, sent, nonce, len(p)):
		t.heard() // a long packet's round trip is not that of others
		return
	default:
		return
	}
	t.path.rtt(now-sent, t.RTOMin, t.mostRTO())
	t.heard()
}

// errorChunk takes an ERROR. Only a Stale Cookie changes anything (RFC 9260
// section 5.2.6): the handshake begins again.
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

// aborted ends the association on the peer's ABORT (RFC 9260 section 9.1). With a
// reflected tag it says that the peer has no such association: after all has been
// acknowledged, at the end of a shutdown, that is as good as its SHUTDOWN
// COMPLETE, which was lost or overtaken.
func (t *tcb) aborted(cause assoc.Cause, reflected bool) {
	t.want = 0
	if reflected && t.state == stateShutdownAckSent {
		t.close(t.exchange.err)
		return
	}
	t.close(&assoc.AbortError{Cause: cause})
}
