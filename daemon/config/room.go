package config

import (
	"fmt"
	"slices"

	"github.com/ironwarp/ironwarp/rtrs"
)

// MayAttach reports whether some export is offered to the peer.
func (c *Config) MayAttach(p Peer) bool {
	return slices.ContainsFunc(c.Exports, func(e Export) bool { return e.Allows(p) })
}

// SessionMemory is the memory in bytes that one block session of a peer takes.
func (c *Config) SessionMemory() int64 { return rtrs.SessionMemory(c.Limits.QueueSize, 0) }

// attaching is how many peers may attach something.
func (c *Config) attaching() (n int64) {
	for _, p := range c.Peers {
		if c.MayAttach(p) {
			n++
		}
	}
	return n
}

// HasOwnMemory reports whether the configuration says how much memory there is. The
// default grows with the peers that may attach something: by twice what a session takes,
// since half of all memory is divided among services.
func (c *Config) HasOwnMemory() bool {
	_, said := c.said["memory"]
	return said
}

// SetQueueSize changes the queue size, and the memory that depends on it.
func (c *Config) SetQueueSize(n int) {
	c.Limits.QueueSize = n
	if !c.HasOwnMemory() {
		c.Limits.Device.Bytes = DefaultMemory + 2*c.attaching()*c.SessionMemory()
	}
}

// checkRoom finds memory that has no room for a session of each peer that may attach
// something, whatever the other services take.
func checkRoom(c *Config) Errors {
	n, one, all := c.attaching(), c.SessionMemory(), c.Limits.Device.Bytes
	who := fmt.Sprintf("a block session takes %s at queue_size: %d, and %d peers may attach exports", mebibytes(one), c.Limits.QueueSize, n)
	if own := c.Services[ServiceExports].Limits.Bytes; own > 0 && own < n*one {
		return Errors{{Pos: c.placeOf(ServiceExports), Msg: fmt.Sprintf("service exports may have %s of memory: %s", FormatSize(own), who),
			Fix: fmt.Sprintf("each is to find room for one: set services: {exports: {limits: {memory: %s}}} or more, or limits: {queue_size: ...} to less", mebibytes(n*one))}}
	}
	// The shares of the other services and ULPs, and that of one more, are not for exports.
	others := int64(len(ServiceNames()) + len(c.ULPs))
	if theirs := all / 2 / (others + 1) * others; all-theirs < n*one {
		return Errors{{Pos: c.placeOf("memory"), Msg: fmt.Sprintf("memory is %s, of which %s are kept for other services: %s", FormatSize(all), mebibytes(theirs), who),
			Fix: fmt.Sprintf("each is to find room for one: set limits: {memory: %s} or more, or queue_size: to less", mebibytes(n*one*2*(others+1)/(others+2)))}}
	}
	return nil
}

// mebibytes is n bytes, rounded up.
func mebibytes(n int64) string { return FormatSize((n + 1<<20 - 1) >> 20 << 20) }
