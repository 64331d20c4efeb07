package ksctp

import "time"

const (
	// minBuffer is two of the longest messages, in bytes.
	minBuffer = 128 << 10
	// maxBuffer bounds Config.SendBuffer. The kernel doubles the number and charges more
	// than minCharge for a message, so it never holds more than 32,767 of them (RFC 5043
	// section 10).
	maxBuffer = 8 << 20
	// minCharge is a lower bound of what the kernel charges the send buffer for a message
	// in addition to its bytes: struct sk_buff, struct skb_shared_info, struct
	// sctp_chunk.
	minCharge = 576

	// batchLen and batchBufs are how many messages, and buffers, one sendmmsg takes.
	batchLen  = 32
	batchBufs = 4 * batchLen

	// readBatch is how many messages one recvmmsg takes, and readSize how long each may
	// be in bytes: a chunk's length has 16 bits. Memory that is never written to only
	// takes address space.
	readBatch = 16
	readSize  = 64 << 10

	// maxAddrs is how many addresses either end of an association may have: the kernel
	// cuts its lists to what is asked for.
	maxAddrs = 128

	// An association is checked every checkEvery, and is stuck after stuckChecks during
	// which nothing was acknowledged: 15 to 20 s. The timeouts of a very lossy path, at
	// most 3 s each, do not add up to that.
	checkEvery  = 5 * time.Second
	stuckChecks = 3

	// narrowFor is PMTU_RAISE_TIMER (RFC 8899 section 5.1.1): how long a path is
	// remembered as narrow. maxNarrow is how many are remembered.
	narrowFor = 10 * time.Minute
	maxNarrow = 1024

	// refreshEvery is how old the known message size of a path may be. A size that has
	// become too long is found at once, by EMSGSIZE.
	refreshEvery = time.Second

	// minRTOLimit is the least bound that LimitRTO sets: the kernel resends by timers
	// only, so the last of them determines how late it notices that the path is back.
	minRTOLimit = 250 * time.Millisecond

	// memoryPause is how long sending pauses after the kernel ran out of memory.
	memoryPause = 10 * time.Millisecond

	// acceptBackoff is the pause after an accept that failed for lack of file descriptors
	// or memory.
	acceptBackoff = 50 * time.Millisecond
)

// narrowSteps are the path MTUs in bytes that are tried after one has lost packets:
// BASE_PLPMTU (RFC 8899 section 5.1.2), which IPv6 links carry inside a tunnel (RFC 8200
// section 5), one in between, and what every IPv4 host accepts (RFC 1122 section 3.3.3).
var narrowSteps = [...]int{1200, 1000, 576}
