//go:build !weakened

package rdmap

import "github.com/ironwarp/ironwarp/ddp"

// The checks of docs/security.md, one function each. weakened.go has them with switches.

// R8, RFC 5042 section 6.1.1: a Read Response is to a Read of ours, by the STag that it named.
func (r *outstanding) awaits(stag uint32) bool {
	return r.op.Kind == OpReadRequest && r.op.answer == stag
}

// R10, section 6.1.1: a fault is answered by the Terminate that names it.
func (s *Stream) answerFault(fault *ddp.Error) { s.Terminate(fault) }

// R23, section 6.4.3.3: the peer's Reads and Atomics are bounded by our IRD, ours by the peer's.
func (s *Stream) isFullLocked() bool     { return s.irrq.Len() >= s.ird }
func (s *Stream) peerIsFullLocked() bool { return s.reads.Len() >= s.ord }
