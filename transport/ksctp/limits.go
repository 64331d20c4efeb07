package ksctp

import "time"

const (
	// minBuffer is two of the longest messages, in bytes.
	minBuffer = 128 << 10
	// maxBuffer bounds Config.SendBuffer. The kernel doubles the number and charges
	// more than minCharge for a message, so that it never holds more than 32,767
	// of them (RFC 5043 section 10).
	maxBuffer = 8 << 20
	// minCharge is less than what the kernel charges the send buffer for a message
	// besides its bytes: struct sk_buff, struct skb_shared_info, struct sctp_chunk.
	minCharge = 576

	// batchLen and batchBufs are how many messages, and buffers, one sendmmsg takes.
	batchLen  = 32
	batchBufs = 4 * batchLen

	// readBatch is how many messages one recvmmsg takes, and readSize how long each
	// may be in bytes: a chunk's length has 16 bits. Of memory that is not written
	// to, only addresses are used.
	readBatch = 16
	readSize  = 64 << 10

	// maxAddrs is how many addresses either end of an association may have. The
	// kernel gives no list that is longer than asked for.
	maxAddrs = 128

	// An association is looked at after lookEvery, and found stuck after stuckLooks at
	// which nothing was acknowledged: 15 to 20 s. The timeouts of a path that loses
	// much, at most 3 s each, do not come to that.
	lookEvery  = 5 * time.Second
	stuckLooks = 3

	// narrowFor is PMTU_RAISE_TIMER (RFC 8899 section 5.1.1): how long a path is kept
	// for narrow. maxNarrow is how many are remembered.
	narrowFor = 10 * time.Minute
	maxNarrow = 1024

	// refreshEvery is how old the message size may be that is known of the path.
	// A size that has become too long is found at once, by EMSGSIZE.
	refreshEvery = time.Second

	// hurryMin is the shortest bound that Hurry sets: the kernel resends by
	// timers only, so the last of them decides how late it notices that the path
	// is back.
	hurryMin = 250 * time.Millisecond

	// memoryPause is how long nothing is sent after the kernel had no memory.
	memoryPause = 10 * time.Millisecond

	// acceptBackoff is the pause after an accept that failed for want of file
	// descriptors or memory.
	acceptBackoff = 50 * time.Millisecond
)

// narrowSteps are the path MTUs in bytes that are tried after one has lost packets: one
// that IPv6 links carry (RFC 8200 section 5) inside of a tunnel, BASE_PLPMTU (RFC 8899
// section 5.1.2), one between, and what every host takes of IPv4 (RFC 1122 section
// 3.3.3).
var narrowSteps = [...]int{1200, 1000, 576}
