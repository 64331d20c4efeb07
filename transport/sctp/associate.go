package sctp

import (
	"time"

	"github.com/ironwarp/ironwarp/transport/assoc"
)

// peer is what the peer has said about itself and what was negotiated.
type peer struct {
	tag     uint32
	out, in uint16 // outbound and inbound streams
}

// exchange is the handshake or the shutdown, whose chunks T1 and T2 retransmit.
type exchange struct {
	cookie []byte        // the peer's, until COOKIE ACK
	report []byte        // unrecognized parameters of the INIT ACK, to be reported
	sent   time.Duration // when the answered INIT was sent, 0 if unknown
	tries  int           // retransmissions
	err    error         // why the association ends once the shutdown is complete
}

// initAck handles an INIT ACK (RFC 9260 section 5.1 C).
func (t *tcb) initAck(now time.Duration, c chunk) {
	if t.state != stateCookieWait {
		return // section 5.2.3
	}
	i, err := parseInit(c)
	if err != nil {
		return
	}
	if i.tag == 0 { // section 3.3.3
		t.close(&assoc.AbortError{Local: true, Cause: assoc.Cause{Code: assoc.CauseInvalidParameter, Info: []byte("Initiate Tag 0 in INIT ACK")}})
		return
	}
	p, err := parseParams(i.params)
	refuse := func(cause assoc.Cause, err error) {
		t.peer.tag = i.tag
		t.abort = cause
		t.want = sendAbort
		t.close(err)
	}
	cause := assoc.Cause{}
	switch {
	case err != nil:
		return
	case i.out == 0 || i.in == 0:
		cause = assoc.Cause{Code: assoc.CauseInvalidParameter, Info: []byte("0 streams in INIT ACK")}
	case len(p.cookie) == 0:
		cause = assoc.Cause{Code: assoc.CauseMissingParameter, Info: []byte{0, 0, 0, 1, 0, byte(paramCookie)}}
	case len(p.hostName) > 0:
		cause = assoc.Cause{Code: assoc.CauseUnresolvableAddress, Info: append([]byte(nil), p.hostName...)}
	case len(p.cookie) > maxCookie || len(p.cookie)+chunkHeaderLen+headerLen > t.size:
		cause = assoc.Cause{Code: assoc.CauseOutOfResource}
	}
	if cause.Code != 0 {
		refuse(cause, &assoc.AbortError{Local: true, Cause: cause})
		return
	}
	if err := t.checkAdaptation(p); err != nil {
		refuse(adaptationCause(), err)
		return
	}
	t.peer = peer{i.tag, min(t.Streams, i.in), min(t.Streams, i.out)}
	t.flow.rwnd = int(min(i.rwnd, 1<<30))
	t.rx.cum, t.rx.high = i.tsn-1, i.tsn-1
	t.exchange.cookie = append([]byte(nil), p.cookie...)
	t.exchange.report = p.unrecognized
	if t.exchange.tries == 0 && t.exchange.sent != 0 { // not retransmitted: the RTT is known (section 6.3.1 C5)
		t.path.rtt(now-t.exchange.sent, t.RTOMin, t.maxRTO())
	}
	t.state = stateCookieEchoed
	t.want |= sendCookieEcho
	t.timers[t1] = now + t.path.rto
}

// checkAdaptation compares the peer's indication with ours (RFC 5043 section 11.1).
func (s *settings) checkAdaptation(p initParams) error {
	if s.Adaptation != 0 && (!p.hasAdaptation || p.adaptation != s.Adaptation) {
		return &assoc.AdaptationError{Want: s.Adaptation, Peer: p.adaptation, None: !p.hasAdaptation}
	}
	return nil
}

func adaptationCause() assoc.Cause {
	return assoc.Cause{Code: assoc.CauseUserAbort, Info: []byte("another Adaptation Layer Indication is demanded here")}
}
