package rdmap

import (
	"fmt"

	"github.com/ironwarp/ironwarp/ddp"
)

// SlowPath is a way in which a peer makes a stream cost more than what it moves,
// without breaking a rule (RFC 5042 section 6.4.4).
type SlowPath uint8

// The slow paths.
const (
	SlowTiny    SlowPath = iota // a segment with little payload that does not end its message
	SlowEmpty                   // an RDMA Write of nothing
	SlowRead                    // an RDMA Read of nothing
	SlowEarly                   // segments ahead of their turn: the first of a run
	SlowDribble                 // the LLP has got a few bytes and no whole segment

	SlowPaths // how many there are
)

func (k SlowPath) String() string {
	if k >= SlowPaths {
		return fmt.Sprintf("SlowPath(%d)", uint8(k))
	}
	return [...]string{"tiny segments", "RDMA Writes of nothing", "RDMA Reads of nothing", "segments ahead of their turn", "segments in tiny pieces"}[k]
}

// Stalls is how often the peer did not take what was to be sent, so that it had to
// wait.
func (s *Stream) Stalls() uint64 { return s.stalls.Load() }

var _ ddp.PiecewiseSink = (*sink)(nil)

// Piece implements ddp.PiecewiseSink.
func (k *sink) Piece() error { return k.up.Slow(SlowDribble) }

// tiny takes note of a segment that does not end its message, of n bytes of payload.
func (s *Stream) tiny(n int) error {
	if n >= tinySegment {
		return nil
	}
	return s.up.Slow(SlowTiny)
}
