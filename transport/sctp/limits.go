package sctp

import "time"

const (
	// DefaultPort is the UDP port of encapsulated SCTP, in IANA's registry
	// (RFC 6951 section 5.1).
	DefaultPort = 9899

	// DefaultMTU is the IP packet size in bytes that is assumed of a route that does
	// not tell: that of Ethernet. Packets have the Don't Fragment bit.
	DefaultMTU = 1500
	// longestMTU is the longest IP packet in bytes that is tried where Config.MTU is
	// 0: a jumbo frame.
	longestMTU = 9000
	// safeMTU is BASE_PLPMTU (RFC 8899 section 5.1.2): what IPv6 demands of any
	// path.
	safeMTU = 1280
	// minMTU is the least MTU that may be configured: with it a DDP Stream Session
	// Control message with all its private data still fits (RFC 5043 section 9),
	// behind a SACK, too, on IPv6.
	minMTU = 640
	// maxMTU: UDP lengths and chunk lengths have 16 bits.
	maxMTU = 65535

	// udpHeaderLen, ipv4HeaderLen and ipv6HeaderLen are taken off the MTU (RFC 6951
	// section 5.6).
	udpHeaderLen  = 8
	ipv4HeaderLen = 20
	ipv6HeaderLen = 40

	// maxQueued is the number of messages that an association has queued or in
	// flight at most. With DDP-SSNs of 16 bits a receiver can order that many
	// (RFC 5043 section 10).
	maxQueued = 1<<15 - 1

	// maxAhead is how far a TSN may be ahead of the Cumulative TSN Ack Point, in
	// numbers: offsets in Gap Ack Blocks have 16 bits. What is further is dropped
	// as if it had been lost.
	maxAhead = 1<<15 - 1

	// maxGapBlocks is the number of Gap Ack Blocks that are sent in a SACK, and
	// maxDups that of duplicates. They fit the least MTU; what is beyond is
	// reported when it is nearer.
	maxGapBlocks = 96
	maxDups      = 16

	// minWindow and maxWindow bound the receive window in bytes that is chosen when
	// Config.RecvWindow is 0: the least that RFC 9260 section 3.3.2 allows would be
	// 1500; the most is that of a send buffer. Between them it is as large as
	// half the socket's buffer, so that the kernel does not have to drop what the
	// window has invited.
	minWindow = 64 << 10
	maxWindow = 4 << 20

	// maxRecvWindow is the largest Config.RecvWindow in bytes: a_rwnd has 32 bits, and
	// sums of it have to fit.
	maxRecvWindow = 1 << 30

	// blockSize is the size in bytes of the pieces in which memory for queued
	// messages is taken: the longest chunk fits.
	blockSize = 64 << 10

	// batchBytes and batchPackets bound what is built before the socket is called:
	// one UDP_SEGMENT send takes 64 segments and 64 KiB.
	batchBytes   = 63 << 10
	batchPackets = 64

	// maxControl is how many bytes of HEARTBEAT ACKs and ERRORs wait to be sent at
	// most, or the longest packet if that is more. A peer that asks for more gets no answer to the rest.
	maxControl = 2048
	// maxUnrecognized bounds in bytes what is quoted of unknown parameters and
	// chunks: an INIT ACK has to fit a packet.
	maxUnrecognized = 128
	// maxCookie is the longest State Cookie of a peer that is echoed, in bytes: it
	// has to fit the least MTU. Linux' has 228 bytes.
	maxCookie = 512

	// cookieLife is Valid.Cookie.Life (RFC 9260 section 16).
	cookieLife = 60 * time.Second
	// cookieKeyLife is how long the key of the State Cookies is used. The one before
	// is kept as long again, so that no valid cookie gets lost.
	cookieKeyLife = 15 * time.Minute

	// sackPackets is after how many packets without a gap a SACK leaves at once. RFC
	// 9260 section 6.2 suggests 2. From 2 on it goes along with what the user sends
	// in return, or leaves as soon as the user releases what has come, which is
	// mostly a moment later: requests and answers of a few packets cost no packets
	// of SACKs.
	sackPackets = 8

	// maxBurst is Max.Burst: how many packets leave at one opportunity. RFC 9260
	// suggests 4 packets where each second packet is acknowledged; here one SACK
	// acknowledges what one read of the socket brought, and one UDP_SEGMENT send
	// carries as much.
	maxBurst = 45

	// slowStartL is the L of RFC 9260 section 7.2.1: by how many packets a SACK may
	// open the window in slow start. One SACK acknowledges a whole batch here, so 1
	// would make slow start linear.
	slowStartL = 8

	// sacksPerRead is how many SACKs are sent at most for what one read of the
	// socket brought while TSNs are missing. Three make a peer retransmit
	// (RFC 9260 section 7.2.4).
	sacksPerRead = 4

	// tailLeast is the least time without a SACK after which the last packets in
	// flight may be lost: a busy host may keep a peer from running for as long.
	tailLeast = 10 * time.Millisecond

	// clockGranularity is G of RFC 9260 section 6.3.1, G1: the least RTTVAR.
	clockGranularity = time.Millisecond

	// strayRate and strayBurst are how many packets of no association (INITs, State
	// Cookies, what is out of the blue) are looked at of each address, a second and at
	// once: an association takes two of them, and serves all streams between two hosts.
	// spareRate and spareBurst are for all addresses together, beyond that. An answer
	// takes some 5 microseconds, so floods get a few per cent of a processor.
	strayRate  = 200
	strayBurst = 400
	spareRate  = 4000
	spareBurst = 8000
	// maxMetered bounds the addresses that have an allowance of their own.
	maxMetered = 4096

	// vainRate and vainBurst are how many packets that bring nothing new (duplicates,
	// what is beyond the window, HEARTBEATs, unknown chunks) are answered at once in an
	// association. A peer that behaves sends them one by one as its timers expire, or a
	// flight of them after a loss of SACKs; what is beyond is acknowledged within
	// SACK.Delay.
	vainRate  = 1000
	vainBurst = 256

	// maxAssocs bounds the associations of an endpoint: each costs some 3 KiB.
	maxAssocs = 1 << 16

	// readBuffers and readBufferSize are how many datagrams one read of the socket
	// takes and how long each may be in bytes: with UDP_GRO one has up to 64 KiB.
	readBuffers    = 8
	readBufferSize = 64 << 10
	// readIdle is after what time without a packet a socket's buffers are given back.
	readIdle = 10 * time.Second

	// maxEvents is how many events of an association wait to be handed over.
	maxEvents = 16
)

// socketBuffer is how large the socket's buffers are asked to be, in bytes: a few
// windows. Without CAP_NET_ADMIN the kernel gives no more than its own limit
// (net.core.rmem_max), and the receive window follows that.
const socketBuffer = 8 << 20
