package rping

// Limits of the payload in bytes, those of librdmacm's rping: its text begins
// with a number of up to ten digits, and its buffers are of 64 KiB, of which it
// leaves one byte.
const (
	MinSize     = 23
	MaxSize     = 64<<10 - 1
	DefaultSize = 64
)

// DefaultPort is where an rping server listens.
const DefaultPort = 7174

// Queue depths: a side has at most two messages and an RDMA operation under way.
const (
	queueDepth = 4
	readDepth  = 1
)
