package sctp

import (
	"sync/atomic"
	"time"

	"github.com/ironwarp/ironwarp/internal/rate"
	"github.com/ironwarp/ironwarp/transport/assoc"
)

// state is the state of an association (RFC 9260 section 4). It is CLOSED both before the
// association exists and after.
type state uint8

const (
	stateClosed state = iota
	stateCookieWait
	stateCookieEchoed
	stateEstablished
	stateShutdownPending
	stateShutdownSent
	stateShutdownReceived
	stateShutdownAckSent
)

func (s state) String() string {
	return [...]string{"CLOSED", "COOKIE-WAIT", "COOKIE-ECHOED", "ESTABLISHED", "SHUTDOWN-PENDING",
		"SHUTDOWN-SENT", "SHUTDOWN-RECEIVED", "SHUTDOWN-ACK-SENT"}[s]
}

// settings are the protocol's parameters (RFC 9260 section 16) and the sizes of
// one association.
type settings struct {
	assoc.Params
	window     int // receive window in bytes
	sendBuffer int
	// Lengths of packets in bytes, IP and UDP headers not counted.
	size                int // the longest that is sent; changes
	maxSize             int // the longest that is tried at first
	mostSize            int // the longest that is ever tried
	safeSize            int // what nearly all paths carry
	minSize             int // the shortest size in use
	overhead            int // of IP and UDP headers
	v6                  bool
	localPort, peerPort uint16
	localTag            uint32
	localTSN            uint32 // initial
	localTie, peerTie   uint32 // Tie-Tags, never 0 (RFC 9260 section 5.2.2)
	jitter              func() uint32
	blocks              *blockPool
	control             func() controller // of congestion
}

// pending is the set of chunks that are due. Each is built when it is sent, from the
// state at that time.
type pending uint16

const (
	sendInit pending = 1 << iota
	sendCookieEcho
	sendCookieAck
	sendSack
	sendHeartbeat
	sendShutdown
	sendShutdownAck
	sendShutdownComplete
	sendAbort
	sendProbe
)

// tcb is a Transmission Control Block (RFC 9260 section 14.2): the state machine of one
// association. It has neither a clock nor I/O: input takes a packet, expire the time,
// transmit builds packets. Time is a duration on the caller's clock, above 0. All of it is
// guarded by Assoc.mu.
//
//	                    INIT sent              COOKIE ECHO sent           COOKIE ACK
//	CLOSED --associate--> COOKIE-WAIT --INIT ACK--> COOKIE-ECHOED -----------> ESTABLISHED
//	   \                                                                          |
//	    `--------- COOKIE ECHO with a cookie of ours: established ----------------'
//
//	ESTABLISHED --shutdown--> SHUTDOWN-PENDING --all acknowledged--> SHUTDOWN-SENT --SHUTDOWN ACK--> CLOSED
//	ESTABLISHED --SHUTDOWN--> SHUTDOWN-RECEIVED --all acknowledged--> SHUTDOWN-ACK-SENT --SHUTDOWN COMPLETE--> CLOSED
//
// ABORT and too many retransmissions lead to CLOSED from every state; err then holds the
// reason.
type tcb struct {
	settings
	state state
	err   error         // set once CLOSED; nil after a shutdown that this end began
	now   time.Duration // as of the last call

	peer     peer
	exchange exchange

	want    pending
	control []byte // encoded chunks to be sent: HEARTBEAT ACK, ERROR
	abort   assoc.Cause
	timers  [timers]time.Duration // deadlines, 0 if not set

	// Sending.
	tx        sendQueue
	path      path
	loss      recovery
	lossProbe lossProbe
	flow      flow
	pm        pmtu
	rtoLimit  time.Duration // the longest RTO for the time being, 0: RTOMax

	// Receiving.
	rx      received
	acks    acks
	replies rate.Bucket     // limits answers to what brings nothing new
	held    int             // bytes of received messages not released by the user
	deliver []assoc.Message // received messages not yet taken by the caller
	memory  assoc.Memory    // of the packet that is the input, if it may be kept

	beat heartbeat
	life life

	events       []assoc.Event
	stats        assoc.Stats
	ackedBytes   uint64       // message bytes that the peer has
	longest      atomic.Int32 // maxMessage
	refreshRoute bool         // setRoute must be called
}

// timer is one of the deadlines of an association.
type timer uint8

const (
	t1     timer = iota // T1-init and T1-cookie
	t2                  // T2-shutdown
	t3                  // T3-rtx
	t5                  // T5-shutdown-guard
	tSack               // SACK.Delay
	tHB                 // HB.interval
	tTail               // for probeTail
	tProbe              // when an MTU probe counts as lost; without one, when the search begins anew
	timers
)

// heartbeat is the last HEARTBEAT of an idle path (RFC 9260 section 8.3).
type heartbeat struct {
	sent   time.Duration // 0 if acknowledged
	nonce  uint64
	jitter uint32 // fraction of 1<<32
}

// life records whether the peer answers (RFC 9260 section 8.1).
type life struct {
	errors int           // the association's error counter
	silent time.Duration // when the first of these errors was counted
	heard  time.Duration // when a packet of the peer was received
	used   time.Duration // when a message was received, sent or acknowledged
}

// init sets the initial state.
func (t *tcb) init(s settings) {
	t.settings = s
	t.tx.init(s.localTSN, s.blocks)
	t.path.reset(s.size-headerLen, s.v6, s.RTOInitial, s.control())
	t.acks.window = s.window
	t.longest.Store(int32(t.maxMessage()))
	t.beat.jitter = s.jitter()
}

// associate begins the handshake (RFC 9260 section 5.1 A).
func (t *tcb) associate(now time.Duration) {
	t.state = stateCookieWait
	t.want |= sendInit
	t.exchange.sent = now
	t.timers[t1] = now + t.path.rto
}

// establish makes an association from our State Cookie (RFC 9260 section 5.1 D).
func (t *tcb) establish(now time.Duration, c *cookie) {
	t.adopt(c)
	t.want |= sendCookieAck
	t.up(now)
}

// adopt takes over what the peer said in the INIT that the cookie was made for.
func (t *tcb) adopt(c *cookie) {
	t.peer = c.peer
	t.flow.rwnd = int(min(c.peerRwnd, 1<<30))
	t.rx.cum, t.rx.high = c.peerTSN-1, c.peerTSN-1
}

// up enters ESTABLISHED.
func (t *tcb) up(now time.Duration) {
	t.state = stateEstablished
	t.timers[t1] = 0
	t.life.heard, t.life.used = now, now
	t.exchange.cookie, t.exchange.report = nil, nil
	if !t.path.measured { // retransmissions of the INIT do not count
		t.path.rto = t.RTOInitial
	}
	t.exchange.tries = 0
	t.life.errors, t.path.errors = 0, 0
	t.want &^= sendInit | sendCookieEcho
	t.touch(now)
	t.event(assoc.Event{Kind: assoc.EventUp})
	t.startProbing(now)
}

// touch records that the path is in use, which postpones the next heartbeat (RFC 9260
// section 8.3).
func (t *tcb) touch(now time.Duration) {
	if t.Heartbeat <= 0 || t.state != stateEstablished && t.state != stateShutdownPending && t.state != stateShutdownReceived {
		t.timers[tHB] = 0
		return
	}
	// HB.interval plus the RTO, with a jitter of half the RTO.
	rto := t.path.rto
	t.timers[tHB] = now + t.Heartbeat + rto/2 + time.Duration(uint64(rto)*uint64(t.beat.jitter)>>32)
}

// close ends the association for good.
func (t *tcb) close(err error) {
	if t.state == stateClosed {
		return
	}
	t.state, t.err = stateClosed, err
	t.timers = [timers]time.Duration{}
	t.want &= sendAbort | sendShutdownComplete
	t.control = nil
	t.lossProbe.at, t.lossProbe.due = 0, false
	t.tx.discard()
	t.path.flight = 0
	t.rx.ring = nil
}

// fail aborts the association from this end (RFC 9260 section 9.1).
func (t *tcb) fail(cause assoc.Cause) {
	if t.state == stateClosed {
		return
	}
	if t.state != stateCookieWait { // until then the peer knows nothing of it
		t.abort = cause
		t.want |= sendAbort
	}
	t.close(&assoc.AbortError{Local: true, Cause: cause})
}

// violation aborts the association because the peer broke a rule.
func (t *tcb) violation(text string) {
	t.fail(assoc.Cause{Code: assoc.CauseProtocolViolation, Info: []byte(text)})
}

func (t *tcb) event(e assoc.Event) {
	if len(t.events) < maxEvents {
		t.events = append(t.events, e)
	}
}

// deadline returns when expire is due next, 0 for never.
func (t *tcb) deadline() time.Duration {
	var d time.Duration
	for _, x := range &t.timers {
		if x != 0 && (d == 0 || x < d) {
			d = x
		}
	}
	return d
}

// expire handles all deadlines up to now.
func (t *tcb) expire(now time.Duration) {
	t.now = now
	due := func(i timer) bool {
		if d := t.timers[i]; d == 0 || d > now {
			return false
		}
		t.timers[i] = 0
		return true
	}
	if due(t1) {
		t.expireT1(now)
	}
	if due(t5) {
		t.fail(assoc.Cause{Code: assoc.CauseUserAbort, Info: []byte("the shutdown took too long")})
	}
	if due(t2) {
		t.expireT2(now)
	}
	if due(tTail) {
		t.probeTail(now)
	}
	if due(t3) {
		t.expireT3(now)
	}
	if due(tSack) {
		t.want |= sendSack
	}
	if due(tProbe) {
		t.expireProbe(now)
	}
	if due(tHB) {
		t.expireHeartbeat(now)
	}
}

// expireT1 sends INIT or COOKIE ECHO again (RFC 9260 section 5.1 note 2).
func (t *tcb) expireT1(now time.Duration) {
	t.exchange.tries++
	if t.exchange.tries > t.MaxInitRetrans {
		t.close(assoc.ErrPeerUnreachable)
		return
	}
	t.path.backOff(t.maxRTO())
	t.timers[t1] = now + t.path.rto
	if t.state == stateCookieWait {
		t.want |= sendInit
	} else {
		t.want |= sendCookieEcho
	}
}

// countError counts something unanswered, for the path and the association (RFC 9260
// sections 8.1 and 8.2). It returns false if that ended the association.
func (t *tcb) countError() bool {
	t.life.errors++
	if !t.path.down {
		if t.path.errors++; t.path.errors > t.PathMaxRetrans {
			t.path.down = true
			t.event(assoc.Event{Kind: assoc.EventPathDown})
		}
	}
	if t.life.errors == 1 {
		t.life.silent = t.now
	}
	if t.DeadAfter > 0 && t.now-t.life.silent >= t.DeadAfter || t.DeadAfter == 0 && t.life.errors > t.AssocMaxRetrans {
		// The peer may be alive but not get through: it is told in that case.
		t.abort = assoc.Cause{Code: assoc.CauseUserAbort, Info: []byte("too many retransmissions")}
		t.want |= sendAbort
		t.close(assoc.ErrPeerUnreachable)
		return false
	}
	return true
}

// heard clears the error counters: the peer has acknowledged something.
func (t *tcb) heard() {
	t.life.errors, t.path.errors = 0, 0
	if t.path.down {
		t.path.down = false
		t.event(assoc.Event{Kind: assoc.EventPathUp})
	}
}
