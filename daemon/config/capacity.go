package config

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/verbs"
)

// MayAttach reports whether some export is offered to the peer, or may be at any time, as a volume.
func (c *Config) MayAttach(p Peer) bool {
	return len(c.Pools) > 0 || slices.ContainsFunc(c.Exports, func(e Export) bool { return e.Allows(p) })
}

// SessionMemory is the memory in bytes that one block session of a peer takes.
func (c *Config) SessionMemory() int64 { return rtrs.SessionMemory(c.Limits.QueueSize, 0) }

// countAttaching returns how many peers may attach something, and by how many paths.
func (c *Config) countAttaching() (n, paths int64) {
	for _, p := range c.Peers {
		if c.MayAttach(p) {
			n, paths = n+1, paths+int64(1+len(p.Paths))
		}
	}
	return n, paths
}

// ConfiguredLimits are the limits of the device that the configuration sets itself. The others, whose
// defaults grow with the peers, are 0.
func (c *Config) ConfiguredLimits() Quota {
	q := c.Limits.Device
	for _, w := range quotaWords {
		if _, configured := c.positions[w.word]; !configured {
			*w.of(&q) = 0
		}
	}
	return q
}

// SetQueueSize changes the queue size, and the default limits that depend on it and on the
// peers. For each peer that may attach something memory grows by twice what a path takes,
// since half of all memory is divided among services. Of what is divided among peers each
// has a share that does for its session, and what streams take there is for all of them:
// who has many is not to use up what is not counted for each peer.
func (c *Config) SetQueueSize(n int) {
	c.Limits.QueueSize = n
	configured, limits := c.ConfiguredLimits(), deviceLimits()
	_, paths := c.countAttaching()
	limits.Bytes += 2 * paths * c.SessionMemory()
	conns, entries := 0, int64(rtrs.ConnEntries(n))
	for _, p := range c.Peers {
		conns = max(conns, p.SessionStreams())
	}
	limits.Streams = max(limits.Streams, verbs.LimitFor(int64(conns), len(c.Peers)))
	limits.HalfOpen = max(limits.HalfOpen, verbs.LimitFor(int64(conns), len(c.Peers)))
	limits.QueueEntries = max(limits.QueueEntries, verbs.LimitFor(int64(conns)*entries, len(c.Peers)))
	streams := cmp.Or(configured.Streams, limits.Streams)
	limits.PDs = max(limits.PDs, 2*streams)
	limits.CQEntries = min(max(limits.CQEntries, 2*streams*entries), MaxResource)
	for _, w := range quotaWords {
		*w.of(&c.Limits.Device) = cmp.Or(*w.of(&configured), *w.of(&limits))
	}
}

// AvailableForExports returns how much of one of QuotaWords the sessions of peers can count on, whatever
// other services and ULPs use: their shares, and the share of one more, are not for exports.
func (c *Config) AvailableForExports(word string) int64 {
	if own := Amount(c.Services[ServiceExports].Limits, word); own > 0 {
		return own
	}
	return Amount(c.Limits.Device, word) - c.reservedForOthers(word)
}

func (c *Config) reservedForOthers(word string) int64 {
	others := int64(len(ServiceNames()) + len(c.ULPs))
	return Amount(c.Limits.Device, word) / 2 / (others + 1) * others
}

// checkCapacity finds peers that may not have the streams of one session, and memory that has no
// room for a session of each that may attach something, whatever the other services take.
func checkCapacity(c *Config) (errs Errors) {
	for _, p := range c.Peers {
		if most := cmp.Or(c.PeerLimits(p).Streams, c.Limits.Device.Streams); most < int64(p.SessionStreams()) {
			errs = append(errs, &Error{Pos: p.Origin, Msg: fmt.Sprintf("peer %s may have %d streams, and a block session with it has %d connections: none comes up", p.Name, most, p.SessionStreams()),
				Fix: "raise streams: in the peer's limits, in limits: {per_peer: ...} or in limits:, or lower the peer's connections:"})
		}
	}
	return append(errs, checkMemory(c)...)
}

func checkMemory(c *Config) Errors {
	one, all := c.SessionMemory(), c.Limits.Device.Bytes
	n, _ := c.countAttaching()
	who := fmt.Sprintf("a block session takes %s at queue_size: %d, and %d peers may attach exports", roundUpMiB(one), c.Limits.QueueSize, n)
	if own := c.Services[ServiceExports].Limits.Bytes; own > 0 && own < n*one {
		return Errors{{Pos: c.positionOf(ServiceExports), Msg: fmt.Sprintf("service exports may have %s of memory: %s", FormatSize(own), who),
			Fix: fmt.Sprintf("each is to find room for one: set services: {exports: {limits: {memory: %s}}} or more, or limits: {queue_size: ...} to less", roundUpMiB(n*one))}}
	}
	others := int64(len(ServiceNames()) + len(c.ULPs))
	if theirs := c.reservedForOthers("memory"); all-theirs < n*one {
		return Errors{{Pos: c.positionOf("memory"), Msg: fmt.Sprintf("memory is %s, of which %s are kept for other services: %s", FormatSize(all), roundUpMiB(theirs), who),
			Fix: fmt.Sprintf("each is to find room for one: set limits: {memory: %s} or more, or queue_size: to less", roundUpMiB(n*one*2*(others+1)/(others+2)))}}
	}
	return nil
}

// roundUpMiB is n bytes, rounded up.
func roundUpMiB(n int64) string { return FormatSize((n + 1<<20 - 1) >> 20 << 20) }
