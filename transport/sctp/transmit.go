package sctp

import (
	"encoding/binary"
	"time"

	"github.com/ironwarp/ironwarp/transport/assoc"
)

// flow is what is known about the peer's receive window (RFC 9260 section 6.1).
type flow struct {
	rwnd    int  // minus what is in flight
	probe   bool // the next chunk may probe a closed window
	probing bool // the only DATA in flight is such a probe
	heard   bool // the peer has sent a SACK since the last timeout
}

// transmit builds the packets that may be sent now. more reports whether the batch is
// full and something is left.
func (t *tcb) transmit(now time.Duration, b *batch) (more bool) {
	t.now = now
	burst := maxBurst
	for {
		if b.full(t.size) {
			return true
		}
		if t.want&sendInit != 0 {
			t.transmitInit(b)
			continue
		}
		b.begin(t.localPort, t.peerPort, t.peer.tag)
		t.loss.packets++
		t.transmitControl(now, b)
		if t.state >= stateEstablished && t.transmitData(now, b, &burst) {
			t.touch(now)
			t.life.used = now
		}
		if !b.end() {
			if t.want&sendProbe != 0 && t.state != stateClosed && !t.transmitProbe(now, b) {
				return true
			}
			if !t.lossProbe.due {
				return false
			}
			t.lossProbe.due = false
			b.begin(t.localPort, t.peerPort, t.peer.tag)
			b.buf = appendHeartbeat(b.buf, t.lossProbe.at, t.lossProbe.nonce, heartbeatLen)
			b.end()
		}
		t.stats.PacketsOut++
	}
}

// transmitInit sends an INIT, alone and with Verification Tag 0 (RFC 9260
// sections 5.1 A and 8.5.1 A).
func (t *tcb) transmitInit(b *batch) {
	t.want &^= sendInit
	b.begin(t.localPort, t.peerPort, 0)
	i := t.initChunk()
	if t.Adaptation != 0 {
		i.params = appendAdaptation(i.params, t.Adaptation)
	}
	b.buf = i.append(b.buf, typeInit)
	b.end()
	t.stats.PacketsOut++
}

// initChunk returns what this end says about itself in INIT and INIT ACK.
func (s *settings) initChunk() initChunk {
	return initChunk{tag: s.localTag, rwnd: uint32(s.window), out: s.Streams, in: s.Streams, tsn: s.localTSN}
}

// transmitControl adds the due control chunks to the packet.
func (t *tcb) transmitControl(now time.Duration, b *batch) {
	if t.want == 0 && len(t.control) == 0 {
		return
	}
	take := func(p pending) bool {
		if t.want&p == 0 {
			return false
		}
		t.want &^= p
		return true
	}
	if take(sendAbort) { // no DATA in the same packet (RFC 9260 section 9.1)
		b.buf = appendAbort(b.buf, 0, t.abort)
		return
	}
	if take(sendCookieEcho) { // the first chunk of its packet (RFC 9260 section 5.1 C)
		b.buf = appendChunk(b.buf, typeCookieEcho, 0, t.exchange.cookie)
		if len(t.exchange.report) > 0 && b.len()+2*chunkHeaderLen+len(t.exchange.report) <= t.size {
			b.buf = appendError(b.buf, assoc.CauseUnrecognizedParameters, t.exchange.report)
		}
		return
	}
	if take(sendCookieAck) { // likewise
		b.buf = appendChunk(b.buf, typeCookieAck, 0, nil)
	}
	if take(sendShutdownComplete) {
		b.buf = appendChunk(b.buf, typeShutdownComplete, 0, nil)
		return
	}
	if take(sendSack) {
		t.transmitSack(b)
	}
	if take(sendShutdownAck) {
		b.buf = appendChunk(b.buf, typeShutdownAck, 0, nil)
	}
	if take(sendShutdown) {
		b.buf = appendShutdown(b.buf, t.rx.cum)
	}
	if take(sendHeartbeat) {
		t.transmitHeartbeat(now, b)
	}
	for len(t.control) > 0 {
		c, rest, err := cutChunk(t.control)
		if err != nil { // impossible: they were built here
			t.control = nil
			return
		}
		n := len(t.control) - len(rest)
		if b.len()+n > t.size {
			if b.len() > headerLen {
				return
			}
			b.kind = packetLoose
		}
		b.buf = pad(append(b.buf, c...), len(c))
		t.control = t.control[:copy(t.control, rest)]
	}
}

// transmitSack appends a SACK (RFC 9260 section 3.3.4).
func (t *tcb) transmitSack(b *batch) {
	gaps := t.acks.gaps[:0]
	if t.rx.missing() {
		gaps = t.rx.gaps(gaps)
	}
	w := t.rwnd()
	t.acks.window = w
	b.buf = appendSack(b.buf, t.rx.cum, uint32(w), gaps, t.rx.dups)
	t.rx.dups = t.rx.dups[:0]
	t.want &^= sendSack
	t.acks.now, t.acks.packets, t.timers[tSack] = false, 0, 0
	t.stats.SacksOut++
}

// rwnd returns the window to advertise (RFC 9260 section 6.2). Less than a packet would
// be a silly window.
func (t *tcb) rwnd() int {
	if w := t.window - t.held; w >= min(t.path.pmdcs, t.window/4) {
		return w
	}
	return 0
}

// heartbeatLen is the least length in bytes of a Heartbeat Info parameter: the time and a
// random number in place of the rest of the destination's identity (RFC 9260 section
// 8.3).
const heartbeatLen = paramHeaderLen + 16

func (t *tcb) transmitHeartbeat(now time.Duration, b *batch) {
	t.beat.nonce, t.beat.sent, t.beat.jitter = t.nonce(), now, t.jitter()
	b.buf = appendHeartbeat(b.buf, t.beat.sent, t.beat.nonce, heartbeatLen)
	t.touch(now)
}

func (t *tcb) nonce() uint64 { return uint64(t.jitter())<<32 | uint64(t.jitter()) }

// appendHeartbeat appends a HEARTBEAT with a Heartbeat Info parameter of n bytes.
func appendHeartbeat(b []byte, sent time.Duration, nonce uint64, n int) []byte {
	info := make([]byte, n-paramHeaderLen)
	binary.BigEndian.PutUint64(info, uint64(sent))
	binary.BigEndian.PutUint64(info[8:], nonce)
	at := len(b)
	return endChunk(appendParam(beginChunk(b, typeHeartbeat, 0), paramHeartbeatInfo, info), at)
}

// expireHeartbeat sends a HEARTBEAT to an idle peer (RFC 9260 section 8.3). A previous
// one still unanswered counts as an error.
func (t *tcb) expireHeartbeat(now time.Duration) {
	if t.beat.sent != 0 {
		t.path.backOff(t.maxRTO())
		if !t.countError() {
			return
		}
	}
	if !t.tx.outstanding() {
		t.path.control.idle(&t.path.window)
	}
	t.tx.idle()
	t.rx.idle()
	if len(t.deliver) == 0 {
		t.deliver = nil
	}
	t.want |= sendHeartbeat
	t.touch(now)
}

// transmitData adds DATA chunks to the packet: first those to be sent again, then new
// ones (RFC 9260 section 6.1). It reports whether it added a new TSN.
func (t *tcb) transmitData(now time.Duration, b *batch, burst *int) (added bool) {
	q := &t.tx
	p := &t.path
	if q.lost == 0 && q.unsent == q.next || t.loss.solo && p.flight > 0 && b.len() == headerLen {
		return false
	}
	if q.lost > 0 {
		// The packet of a Fast Retransmit is sent regardless of the window (RFC 9260
		// section 7.2.4 rule 3), and so is the first one after a timeout.
		once := t.loss.once
		for ; q.lost > 0 && q.scan != q.unsent; q.scan++ {
			tsn := q.scan
			c := q.at(tsn)
			if c.state != chunkLost {
				continue
			}
			if !once && p.flight >= p.cwnd {
				return false
			}
			if !t.fits(b, c) {
				return false
			}
			t.loss.once = false
			q.lost--
			if t.path.timing && t.path.timed == tsn { // Karn's rule (section 6.3.1 C5)
				t.path.timing = false
			}
			t.send(now, b, c, tsn, tsn == q.acked+1, false)
			t.stats.Retransmits++
		}
	}
	// Lost chunks that wait for the window hold back new ones (rule C).
	if q.lost > 0 || *burst == 0 || p.flight >= p.cwnd {
		return added
	}
	if q.unsent == q.next || !t.windowOpen() {
		return added
	}
	// A due SACK goes along if there is room (RFC 9260 section 6.1).
	if b.len() == headerLen && t.timers[tSack] != 0 && headerLen+sackLen+4*len(t.rx.dups)+len(q.at(q.unsent).data()) <= t.size && !t.rx.missing() {
		t.transmitSack(b)
	}
	for q.unsent != q.next && p.flight < p.cwnd && t.windowOpen() {
		tsn := q.unsent
		c := q.at(tsn)
		if !t.fits(b, c) || c.last && q.outstanding() {
			break
		}
		if !added {
			added = true
			*burst--
		}
		alone := t.alone(b, c)
		q.unsent++
		if !t.path.timing {
			t.path.timing, t.path.timed, t.path.timedAt = true, tsn, now
		}
		t.send(now, b, c, tsn, false, alone)
		t.stats.MessagesOut++
		t.stats.BytesOut += uint64(c.size)
	}
	if added && t.timers[tTail] == 0 {
		t.armTail(now)
	}
	return added
}

// fits reports whether a chunk fits the packet.
func (t *tcb) fits(b *batch, c *txChunk) bool {
	return b.len() == headerLen || b.len()+len(c.data()) <= t.size
}

// windowOpen reports whether the next new chunk fits the peer's window (RFC 9260 section
// 6.1 A). If nothing is in flight, one chunk may probe it.
func (t *tcb) windowOpen() bool {
	if int(t.tx.at(t.tx.unsent).size) <= t.flow.rwnd {
		t.flow.probing = false
		return true
	}
	if t.tx.outstanding() {
		return false
	}
	if t.flow.probing { // allowed, but not sent yet
		return true
	}
	if !t.flow.probe { // the first probe comes after an RTO
		if t.timers[t3] == 0 {
			t.armT3(t.now)
		}
		return false
	}
	t.flow.probe, t.flow.probing, t.flow.heard = false, true, true
	return true
}

// alone reports whether the next new chunk is the only one of its packet.
func (t *tcb) alone(b *batch, c *txChunk) bool {
	next := t.tx.unsent + 1
	return b.len() == headerLen && (next == t.tx.next || headerLen+len(c.data())+len(t.tx.at(next).data()) > t.size)
}

// send adds a chunk to the packet, or, if it is alone in it, sends it from the queue.
func (t *tcb) send(now time.Duration, b *batch, c *txChunk, tsn uint32, first, alone bool) {
	data, offset := c.data(), b.len()
	if offset+len(data) > t.size {
		b.kind = packetLoose
	}
	if alone {
		b.use(c.room)
	} else {
		b.buf = append(b.buf, data...)
		data = b.buf[len(b.buf)-len(data):]
	}
	c.state, c.packet, c.offset, c.sentAt = chunkFlying, t.loss.packets, uint16(offset), micros(now)
	if c.sent < 255 {
		c.sent++
	}
	t.path.flight += len(data)
	t.flow.rwnd -= int(c.size)
	// Ask for an immediate SACK (the I bit, RFC 9260 section 6.1) with the last chunk
	// that may be sent, or one that was lost.
	if c.sent > 1 || t.path.flight >= t.path.cwnd || t.state != stateEstablished || t.flow.rwnd <= 0 {
		data[1] |= flagI
	}
	if t.timers[t3] == 0 || first {
		t.armT3(now)
	}
}
