package transport

import "time"

const (
	// defaultAdmitTimeout bounds how long a Protector may take for one flow. The first
	// use of kernel ESP loads crypto modules, which has taken 7 s.
	defaultAdmitTimeout = 30 * time.Second

	// defaultMaxPending bounds the connections of one listener that are not
	// accepted yet. Each costs a socket and a goroutine.
	defaultMaxPending = 128

	// pendingShare is the part of MaxPending that one remote address may hold, so that
	// one host cannot lock out the others.
	pendingShare = 2
	// pendingOver is how many times MaxPending may be waiting if addresses that hold no
	// other connection are counted: what many hosts hold together does not lock out
	// another.
	pendingOver = 8

	// defaultDeadAfter is how long a peer may be silent, with or without data on the way,
	// before TCP gives up the connection. While the SA is down nothing is acknowledged,
	// and the stream must survive that; the kernel's own limit (tcp_retries2) is about 15
	// minutes.
	defaultDeadAfter = 20 * time.Minute

	// keepAliveProbes is how many probes are sent in that time.
	keepAliveProbes = 20

	// maxRTO caps TCP's retransmission timeout, which otherwise doubles up to two minutes
	// while an SA is down, so that the stream would stay idle for as long after the SA is
	// back. It is far above the round trip of any path that carries RDMA.
	maxRTO = 3 * time.Second

	// A connect that the guard refuses, because the SA was deleted after Prepare, is
	// tried again after prepareAgainMin, doubling up to prepareAgainMax: 0.6 s in all.
	prepareAgainMin = 5 * time.Millisecond
	prepareAgainMax = 320 * time.Millisecond

	// synAckRepeated is when Linux repeats a SYN-ACK at the earliest, a second after the first
	// one, by a clock that is not exact: a connection that is reset sooner was there.
	synAckRepeated = 900 * time.Millisecond

	// acceptBackoff is the pause after an accept that failed for lack of file descriptors
	// or memory.
	acceptBackoff = 50 * time.Millisecond

	// assocRTOInitial is the retransmission timeout before the round trip is known. RFC
	// 9260 section 16 suggests a second; but the first packet after an SA comes up is the
	// one most likely to be lost, and the paths are short.
	assocRTOInitial = 500 * time.Millisecond

	// assocHeartbeat is HB.interval: a peer that disappears while no data is in flight is
	// noticed after pathTries of them.
	assocHeartbeat = 10 * time.Second

	// pathTries is how many packets in a row go unanswered before a path counts as down
	// and the next one is used: about 2 s with data in flight.
	pathTries = 3

	// dialAttempts is how often an association is attempted whose packets the guard
	// refuses because the SA was deleted after Prepare. Each attempt lasts as long as the
	// retransmissions of the INIT, or until the context ends.
	dialAttempts = 3

	// pathGrace is how long the admission of an association waits for its other paths
	// once one is admitted.
	pathGrace = time.Second

	// A path whose SA is not up is tried again after pathRetryMin, doubling up to
	// pathRetryMax, and at once when the peer answers on it. Until it has an SA, the
	// guard drops its packets.
	pathRetryMin = time.Second
	pathRetryMax = 2 * time.Minute

	// maxEarly and maxEarlyMessages bound the bytes and messages of an association that
	// are kept until its admission. A peer may send as soon as its end is established;
	// before the answer to its first session that is no more than the session's set-up.
	maxEarly         = 256 << 10
	maxEarlyMessages = 1024

	// minRecvWindow is the smallest receive window of an association in bytes: one batch
	// of packets.
	minRecvWindow = 64 << 10

	// adaptationDDP is DDP's Adaptation Layer Indication (RFC 5043 section 11.1).
	adaptationDDP = 1

	// unknownPause is the time between two reports of packets that a Screener has
	// refused.
	unknownPause = time.Second
)
