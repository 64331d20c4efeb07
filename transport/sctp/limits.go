package sctp

import "time"

const (
	// DefaultPort is the UDP port of encapsulated SCTP, in IANA's registry
	// (RFC 6951 section 5.1).
	DefaultPort = 9899

	// DefaultMTU is the MTU in bytes that is assumed of a route if the kernel reports
	// none: Ethernet's. Packets have the Don't Fragment bit.
	DefaultMTU = 1500
	// longestMTU is the longest IP packet in bytes that is tried if Config.MTU is 0: a
	// jumbo frame.
	longestMTU = 9000
	// safeMTU is BASE_PLPMTU (RFC 8899 section 5.1.2): what IPv6 requires of any path.
	safeMTU = 1280
	// minMTU is the smallest MTU that may be configured: a DDP Stream Session Control
	// message with all its private data still fits (RFC 5043 section 9), even behind a
	// SACK on IPv6.
	minMTU = 640
	// maxMTU: UDP lengths and chunk lengths have 16 bits.
	maxMTU = 65535

	// udpHeaderLen, ipv4HeaderLen and ipv6HeaderLen are subtracted from the MTU (RFC 6951
	// section 5.6).
	udpHeaderLen  = 8
	ipv4HeaderLen = 20
	ipv6HeaderLen = 40

	// maxQueued bounds the messages that an association has queued or in flight: a
	// receiver can order that many with DDP-SSNs of 16 bits (RFC 5043 section 10).
	maxQueued = 1<<15 - 1

	// maxAhead is how far a TSN may be ahead of the Cumulative TSN Ack Point: offsets in
	// Gap Ack Blocks have 16 bits. Chunks further ahead are dropped as if they had been
	// lost.
	maxAhead = 1<<15 - 1

	// maxGapBlocks and maxDups bound the Gap Ack Blocks and duplicates in a SACK. They
	// fit the smallest MTU; later gaps are reported once the earlier ones are filled.
	maxGapBlocks = 96
	maxDups      = 16

	// minWindow and maxWindow bound the receive window in bytes that is chosen if
	// Config.RecvWindow is 0. RFC 9260 section 3.3.2 would allow 1500; the maximum is
	// that of a send buffer. In between it is half the socket's buffer, so that the
	// kernel does not have to drop what the window has invited.
	minWindow = 64 << 10
	maxWindow = 4 << 20

	// maxRecvWindow is the largest Config.RecvWindow in bytes: a_rwnd has 32 bits, and
	// sums of it must fit.
	maxRecvWindow = 1 << 30

	// blockSize is the size in bytes of the blocks of memory for queued messages: the
	// longest chunk fits.
	blockSize = 64 << 10

	// batchBytes and batchPackets bound what is built before the socket is called: one
	// UDP_SEGMENT send takes 64 segments and 64 KiB.
	batchBytes   = 63 << 10
	batchPackets = 64

	// maxControl bounds the bytes of queued HEARTBEAT ACKs and ERRORs; the longest packet
	// is the bound if it is longer. A peer that asks for more gets no answer to the rest.
	maxControl = 2048
	// maxUnrecognized bounds in bytes how much of unknown parameters and chunks is
	// quoted: an INIT ACK must fit a packet.
	maxUnrecognized = 128
	// maxCookie is the longest State Cookie in bytes that is echoed to a peer: it must
	// fit the smallest MTU. Linux's has 228 bytes.
	maxCookie = 512

	// cookieLife is Valid.Cookie.Life (RFC 9260 section 16).
	cookieLife = 60 * time.Second
	// cookieKeyLife is how long a key of the State Cookies is used. The previous key is
	// kept as long again, so that no valid cookie is lost.
	cookieKeyLife = 15 * time.Minute

	// sackPackets is after how many packets without a gap a SACK is sent at once. RFC
	// 9260 section 6.2 suggests 2. From 2 on it goes along with what the user sends in
	// return, or is sent when the user releases what was received, which is mostly a
	// moment later: so short requests and answers cost no separate packets of SACKs.
	sackPackets = 8

	// maxBurst is Max.Burst: how many packets are sent at one opportunity. RFC 9260
	// suggests 4 packets, with every second packet acknowledged; here one SACK
	// acknowledges what one read of the socket returned, and one UDP_SEGMENT send carries
	// as much.
	maxBurst = 45

	// slowStartL is the L of RFC 9260 section 7.2.1: by how many packets a SACK may open
	// the window in slow start. As one SACK acknowledges a whole batch here, 1 would make
	// slow start linear.
	slowStartL = 8

	// sacksPerRead bounds the SACKs for one read of the socket while TSNs are missing.
	// Three make a peer retransmit (RFC 9260 section 7.2.4).
	sacksPerRead = 4

	// tailLeast is the shortest time without a SACK after which the last packets in
	// flight are suspected lost: a busy host may keep a peer from running for as long.
	tailLeast = 10 * time.Millisecond

	// clockGranularity is G of RFC 9260 section 6.3.1, G1: the least RTTVAR.
	clockGranularity = time.Millisecond

	// strayRate and strayBurst limit the packets outside associations (INITs, State
	// Cookies, out of the blue) that are looked at from each address, per second and at
	// once: setting up an association takes two of them, and it serves all streams
	// between two hosts. spareRate and spareBurst are for all addresses together, beyond
	// that. An answer takes some 5 microseconds, so floods get a few per cent of a
	// processor.
	strayRate  = 200
	strayBurst = 400
	spareRate  = 4000
	spareBurst = 8000
	// maxMetered bounds the addresses that have an allowance of their own.
	maxMetered = 4096

	// replyRate and replyBurst limit the immediate answers of an association to packets
	// that bring nothing new (duplicates, data beyond the window, HEARTBEATs, unknown
	// chunks). A well-behaved peer sends them one by one as its timers expire, or a
	// flight of them after a loss of SACKs; the excess is acknowledged within SACK.Delay.
	replyRate  = 1000
	replyBurst = 256

	// maxAssocs bounds the associations of an endpoint: each costs some 3 KiB.
	maxAssocs = 1 << 16

	// readBuffers and readBufferSize are how many datagrams one read of the socket takes
	// and how long each may be in bytes: with UDP_GRO up to 64 KiB.
	readBuffers    = 8
	readBufferSize = 64 << 10
	// mostKept is how many buffers of a socket Receivers may keep, 2 MiB altogether, and
	// leastKept how many bytes must have arrived in one for that: a few short messages
	// would keep 64 KiB otherwise. Where either does not hold, Receivers copy.
	mostKept  = 32
	leastKept = readBufferSize / 4
	// readIdle is after how long without a packet a socket's buffers are freed.
	readIdle = 10 * time.Second

	// maxEvents bounds the events of an association that wait to be delivered.
	maxEvents = 16
)

// socketBuffer is the requested size of the socket's buffers in bytes: a few windows.
// Without CAP_NET_ADMIN the kernel gives no more than its own limit (net.core.rmem_max),
// and the receive window follows that.
const socketBuffer = 8 << 20
