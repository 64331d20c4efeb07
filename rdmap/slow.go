package rdmap

import (
	"fmt"

	"github.com/ironwarp/ironwarp/ddp"
)

// SlowPath is a way in which a peer makes a stream cost more than the data it moves
// justifies, without breaking a rule (RFC 5042 section 6.4.4).
type SlowPath uint8

// The slow paths.
const (
	SlowTiny    SlowPath = iota // a segment with little payload that does not end its message
	SlowEmpty                   // an RDMA Write of nothing
	SlowRead                    // an RDMA Read of nothing
	SlowEarly                   // segments out of order: the first of a run
	SlowDribble                 // the LLP has received a few bytes but no whole segment

	SlowPaths // how many there are
)

func (k SlowPath) String() string {
	if k >= SlowPaths {
		return fmt.Sprintf("SlowPath(%d)", uint8(k))
	}
	return [...]string{"tiny segments", "RDMA Writes of nothing", "RDMA Reads of nothing", "segments ahead of their turn", "segments in tiny pieces"}[k]
}

// Stalls is how often sending had to wait because the peer took nothing.
func (s *Stream) Stalls() uint64 { return s.stalls.Load() }

var _ ddp.PiecewiseSink = (*sink)(nil)

// Piece implements ddp.PiecewiseSink.
func (k *sink) Piece() error { return k.up.Slow(SlowDribble) }

// tiny reports a segment of n bytes of payload, if n is tiny, that does not end its message.
func (s *Stream) tiny(n int) error {
	if n >= tinySegment {
		return nil
	}
	return s.up.Slow(SlowTiny)
}
