package sctp

import (
	"sync/atomic"
	"time"

	"github.com/ironwarp/ironwarp/transport/assoc"
)

// state is the state of an association (RFC 9260 section 4). CLOSED is both
// before it exists and after.
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
	size                int // the longest that are sent; changes
	maxSize             int // the longest that are tried at first
	mostSize            int // the longest that are ever tried
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
}

// pending says which chunks are due. Each of them is made when it is sent, with
// what is known then.
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

// tcb is a Transmission Control Block (RFC 9260 section 14.2): the state machine
// of one association. It has neither a clock nor I/O: input takes a packet,
// expire the time, transmit makes packets. Time is a duration on whatever
// clock the caller has, above 0.
//
//	                    INIT sent              COOKIE ECHO sent           COOKIE ACK
//	CLOSED --associate--> COOKIE-WAIT --INIT ACK--> COOKIE-ECHOED -----------> ESTABLISHED
//	   \                                                                          |
//	    `--------- COOKIE ECHO with a cookie of ours: established ----------------'
//
//	ESTABLISHED --shutdown--> SHUTDOWN-PENDING --all acknowledged--> SHUTDOWN-SENT --SHUTDOWN ACK--> CLOSED
//	ESTABLISHED --SHUTDOWN--> SHUTDOWN-RECEIVED --all acknowledged--> SHUTDOWN-ACK-SENT --SHUTDOWN COMPLETE--> CLOSED
//
// ABORT and too many retransmissions lead to CLOSED from everywhere; err then
// says why.
type tcb struct {
	settings
	state state
	err   error // once CLOSED, nil after a shutdown that this end began

	peerTag        uint32
	out            uint16 // streams that we may send on
	in             uint16 // streams that the peer may send on
	peerAdaptation uint32
	hasAdaptation  bool
	cookie         []byte // of the peer, until COOKIE ACK
	reportParams   []byte // parameters of the INIT ACK that the peer is told it need not send

	want    pending
	control []byte // encoded chunks to be sent: HEARTBEAT ACK, ERROR
	abort   assoc.Cause

	path   path
	pm     pmtu
	errors int           // association's error counter (RFC 9260 section 8.1)
	silent time.Duration // when the first of these errors was counted
	inits  int           // INITs or COOKIE ECHOs sent again

	tx sendQueue
	rx received

	held        int           // bytes of received messages that the user has not released
	peerRwnd    int           // of the peer, less what is in flight
	packets     uint32        // number of the last packet that was begun
	arrivedTop  uint32        // the highest number of a packet that has arrived, as far as known
	packetsIn   int           // packets with DATA since the last SACK
	sackNow     bool          // the next opportunity sends a SACK
	vain        allowance     // of answers to what brings nothing new
	dataIn      bool          // this packet had a DATA chunk
	newIn       bool          // ... and one that was new
	sacksOut    int           // SACKs sent for the current read
	lastWindow  int           // a_rwnd of the last SACK
	probe       bool          // the next chunk may probe a closed window
	probing     bool          // the only DATA in flight is such a probe
	probeHeard  bool          // the peer has sent a SACK since the last timeout
	solo        bool          // after a timeout: one packet in flight until something is acknowledged
	now         time.Duration // as of the last call
	rtxOnce     bool          // one packet of a Fast Retransmit may exceed the window
	timing      bool          // the RTT of TSN timed is being measured
	timed       uint32
	timedAt     time.Duration
	initSent    time.Duration
	shutdownErr error         // the reason of the end once the shutdown is complete
	hbSent      time.Duration // of the HEARTBEAT that is not acknowledged
	hbNonce     uint64
	hbJitter    uint32        // as a fraction of 1<<32
	hurried     time.Duration // the longest RTO for the time being, 0: rtoMax
	kickAt      time.Duration // of a kick without an answer, 0: none
	kickNonce   uint64        // of its HEARTBEAT
	kickDue     bool          // that was not sent yet
	kicked      uint32        // the first TSN that was sent again
	tail        bool          // it is one of probeTail
	tailed      bool          // probeTail was called since something was acknowledged
	inVain      bool          // the peer had that TSN
	kickEnd     uint32        // the first TSN that was not sent then
	heardAt     time.Duration // when a packet of the peer came
	usedAt      time.Duration // when a message came, was sent or was acknowledged
	ackedBytes  uint64        // of messages that the peer has

	// Deadlines, 0 when they are not set: T1-init and T1-cookie, T2-shutdown,
	// T3-rtx, SACK.Delay, heartbeat, T5-shutdown-guard.
	t1, t2, t3, tSack, tHB, t5, tTail time.Duration

	deliver []assoc.Message // received and not yet taken by the caller
	events  []assoc.Event
	gapBuf  [maxGapBlocks]gapBlock
	stats   assoc.Stats

	longest  atomic.Int32 // maxMessage
	askRoute bool         // setRoute is to be called
	losses   int          // of the first outstanding chunk, sent again and not answered
}

// init brings the fields into their first state.
func (t *tcb) init(s settings) {
	t.settings = s
	t.tx.init(s.localTSN, s.blocks)
	t.path.reset(s.size-headerLen, s.v6, s.RTOInitial)
	t.lastWindow = s.window
	t.vain = newAllowance(0, vainBurst)
	t.longest.Store(int32(t.maxMessage()))
	t.hbJitter = s.jitter()
}

// associate begins the handshake (RFC 9260 section 5.1 A).
func (t *tcb) associate(now time.Duration) {
	t.state = stateCookieWait
	t.want |= sendInit
	t.initSent = now
	t.t1 = now + t.path.rto
}

// establish makes an association from a State Cookie of ours (RFC 9260 section
// 5.1 D).
func (t *tcb) establish(now time.Duration, c *cookie) {
	t.adopt(c)
	t.want |= sendCookieAck
	t.up(now)
}

// adopt takes over what the peer has said in the INIT that a cookie was made
// for.
func (t *tcb) adopt(c *cookie) {
	t.peerTag = c.peerTag
	t.out, t.in = c.out, c.in
	t.peerAdaptation, t.hasAdaptation = c.adaptation, c.hasAdaptation
	t.peerRwnd = int(min(c.peerRwnd, 1<<30))
	t.rx.cum, t.rx.high = c.peerTSN-1, c.peerTSN-1
}

// up enters ESTABLISHED.
func (t *tcb) up(now time.Duration) {
	t.state = stateEstablished
	t.t1 = 0
	t.heardAt, t.usedAt = now, now
	t.cookie, t.reportParams = nil, nil
	if !t.path.measured { // retransmissions of the INIT do not count
		t.path.rto = t.RTOInitial
	}
	t.inits = 0
	t.errors, t.path.errors = 0, 0
	t.want &^= sendInit | sendCookieEcho
	t.touch(now)
	t.event(assoc.Event{Kind: assoc.EventUp})
	t.startProbing(now)
}

// touch notes that the path is in use, which puts the next heartbeat off
// (RFC 9260 section 8.3).
func (t *tcb) touch(now time.Duration) {
	if t.Heartbeat <= 0 || t.state != stateEstablished && t.state != stateShutdownPending && t.state != stateShutdownReceived {
		t.tHB = 0
		return
	}
	// HB.interval plus the RTO with a jitter of half of it.
	rto := t.path.rto
	t.tHB = now + t.Heartbeat + rto/2 + time.Duration(uint64(rto)*uint64(t.hbJitter)>>32)
}

// close ends the association for good.
func (t *tcb) close(err error) {
	if t.state == stateClosed {
		return
	}
	t.state, t.err = stateClosed, err
	t.t1, t.t2, t.t3, t.tSack, t.tHB, t.t5, t.tTail, t.pm.timer = 0, 0, 0, 0, 0, 0, 0, 0
	t.want &= sendAbort | sendShutdownComplete
	t.control = nil
	t.kickAt, t.kickDue = 0, false
	t.tx.discard()
	t.path.flight = 0
	t.rx.ring = nil
}

// fail aborts the association from here (RFC 9260 section 9.1).
func (t *tcb) fail(cause assoc.Cause) {
	if t.state == stateClosed {
		return
	}
	if t.state != stateCookieWait { // before, the peer knows nothing of it
		t.abort = cause
		t.want |= sendAbort
	}
	t.close(&assoc.AbortError{Local: true, Cause: cause})
}

// violation is fail for a peer that broke a rule.
func (t *tcb) violation(text string) {
	t.fail(assoc.Cause{Code: assoc.CauseProtocolViolation, Info: []byte(text)})
}

func (t *tcb) event(e assoc.Event) {
	if len(t.events) < maxEvents {
		t.events = append(t.events, e)
	}
}

// deadline is when expire is due next, 0 for never.
func (t *tcb) deadline() time.Duration {
	var d time.Duration
	for _, x := range [...]time.Duration{t.t1, t.t2, t.t3, t.tSack, t.tHB, t.t5, t.tTail, t.pm.timer} {
		if x != 0 && (d == 0 || x < d) {
			d = x
		}
	}
	return d
}

// expire does what the deadlines up to now ask for.
func (t *tcb) expire(now time.Duration) {
	t.now = now
	due := func(d *time.Duration) bool {
		if *d == 0 || *d > now {
			return false
		}
		*d = 0
		return true
	}
	if due(&t.t1) {
		t.expireT1(now)
	}
	if due(&t.t5) {
		t.fail(assoc.Cause{Code: assoc.CauseUserAbort, Info: []byte("the shutdown took too long")})
	}
	if due(&t.t2) {
		t.expireT2(now)
	}
	if due(&t.tTail) {
		t.probeTail(now)
	}
	if due(&t.t3) {
		t.expireT3(now)
	}
	if due(&t.tSack) {
		t.want |= sendSack
	}
	if due(&t.pm.timer) {
		t.expireProbe(now)
	}
	if due(&t.tHB) {
		t.expireHeartbeat(now)
	}
}

// expireT1 sends INIT or COOKIE ECHO again (RFC 9260 section 5.1 note 2).
func (t *tcb) expireT1(now time.Duration) {
	t.inits++
	if t.inits > t.MaxInitRetrans {
		t.close(assoc.ErrPeerUnreachable)
		return
	}
	t.path.backOff(t.mostRTO())
	t.t1 = now + t.path.rto
	if t.state == stateCookieWait {
		t.want |= sendInit
	} else {
		t.want |= sendCookieEcho
	}
}

// stroke counts something that was not answered, on the path and for the
// association (RFC 9260 sections 8.1 and 8.2). It is false when that ended it.
func (t *tcb) stroke() bool {
	t.errors++
	if !t.path.down {
		if t.path.errors++; t.path.errors > t.PathMaxRetrans {
			t.path.down = true
			t.event(assoc.Event{Kind: assoc.EventPathDown})
		}
	}
	if t.errors == 1 {
		t.silent = t.now
	}
	if t.DeadAfter > 0 && t.now-t.silent >= t.DeadAfter || t.DeadAfter == 0 && t.errors > t.AssocMaxRetrans {
		// The peer may be there and not get through; it is told for that case.
		t.abort = assoc.Cause{Code: assoc.CauseUserAbort, Info: []byte("too many retransmissions")}
		t.want |= sendAbort
		t.close(assoc.ErrPeerUnreachable)
		return false
	}
	return true
}

// heard clears the error counters: the peer has acknowledged something.
func (t *tcb) heard() {
	t.errors, t.path.errors = 0, 0
	if t.path.down {
		t.path.down = false
		t.event(assoc.Event{Kind: assoc.EventPathUp})
	}
}
