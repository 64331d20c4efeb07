//go:build weakened

package rdmap

import (
	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/internal/checks"
)

func (r *outstanding) awaits(stag uint32) bool {
	return r.op.Kind == OpReadRequest && (r.op.answer == stag || !checks.On(checks.ReadAnswer))
}

func (s *Stream) answerFault(fault *ddp.Error) {
	if checks.On(checks.Terminate) {
		s.Terminate(fault)
	}
}

func (s *Stream) isFullLocked() bool     { return s.irrq.Len() >= s.ird && checks.On(checks.IRRQDepth) }
func (s *Stream) peerIsFullLocked() bool { return s.reads.Len() >= s.ord && checks.On(checks.ORDDepth) }
