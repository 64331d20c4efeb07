package transport

import "time"

const (
	// defaultAdmitTimeout bounds how long a Protector may take over one flow.
	// Bringing up kernel ESP for the first time loads crypto modules, which was
	// seen to take 7 s.
	defaultAdmitTimeout = 30 * time.Second

	// defaultMaxPending bounds the connections of one listener that are not
	// accepted yet. Each costs a socket and a goroutine.
	defaultMaxPending = 128

	// pendingShare is the part of MaxPending that one remote address may hold,
	// so that one host cannot keep the others out.
	pendingShare = 2
	// pendingOver is how many times MaxPending there may be, with those of addresses
	// that hold no other: what many hosts hold together does not keep one out.
	pendingOver = 8

	// defaultDeadAfter is how long a peer may be silent, with or without data on
	// the way, before TCP gives the connection up. While an SA is away nothing is
	// acknowledged and the stream has to outlive that; the kernel's own patience
	// (tcp_retries2) is about 15 minutes.
	defaultDeadAfter = 20 * time.Minute

	// keepAliveProbes is how many probes go out in that time.
	keepAliveProbes = 20

	// maxRTO caps TCP's retransmission timeout, which otherwise doubles up to two
	// minutes while an SA is away, and which a stream then sits out after the SA
	// has come back. It is far above the round trip of any path that carries
	// RDMA.
	maxRTO = 3 * time.Second

	// A connect that the guard refuses, since the SA went after Prepare, is tried
	// again after prepareAgainMin, doubling up to prepareAgainMax: 0.6 s in all.
	prepareAgainMin = 5 * time.Millisecond
	prepareAgainMax = 320 * time.Millisecond

	// acceptBackoff is the pause after an accept that failed for want of file
	// descriptors or memory.
	acceptBackoff = 50 * time.Millisecond

	// assocRTOInitial is the retransmission timeout before the round trip is known.
	// RFC 9260 section 16 suggests a second; the first packet after an SA has come
	// up is the likeliest to be lost, and the paths are short.
	assocRTOInitial = 500 * time.Millisecond

	// assocHeartbeat is HB.interval: a peer that went away without data on the way
	// is noticed after pathTries of them.
	assocHeartbeat = 10 * time.Second

	// pathTries is how many packets in a row go unanswered before a path counts as
	// down and the next one is used: about 2 s with data on the way.
	pathTries = 3

	// dialAttempts is how often an association is tried whose packets the guard
	// refuses, since the SA went after Prepare. Each takes as long as the
	// retransmissions of the INIT do, unless the context ends before.
	dialAttempts = 3

	// pathGrace is how long the admission of an association waits for its other
	// paths once one is admitted.
	pathGrace = time.Second

	// A path whose SA is not up is asked about again after pathRetryMin, doubling
	// up to pathRetryMax, and at once when the peer answers on it. Until it has an
	// SA the guard stops its packets.
	pathRetryMin = time.Second
	pathRetryMax = 2 * time.Minute

	// maxEarly is how many bytes, and maxEarlyMessages how many messages, of an
	// association are kept for the time after its admission. A peer may send as
	// soon as its end is established, which before the answer to its first session
	// is no more than the session's set-up.
	maxEarly         = 256 << 10
	maxEarlyMessages = 1024

	// minRecvWindow is the least receive window of an association in bytes: one
	// batch of packets.
	minRecvWindow = 64 << 10

	// adaptationDDP is DDP's Adaptation Layer Indication (RFC 5043 section 11.1).
	adaptationDDP = 1

	// strangerPause is the time between two reports of packets that a Screener has
	// kept out.
	strangerPause = time.Second
)
