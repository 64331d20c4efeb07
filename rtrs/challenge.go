package rtrs

import (
	"context"
	"fmt"
	"time"

	"github.com/ironwarp/ironwarp/verbs"
)

// answers reports whether the peer is still there that a session is open with, of
// whose name it wants to open another: it is if any of the session's connections
// brings something soon. If not, the session is being ended. A process that was
// killed takes its TCP connections with it at once, but an SCTP association in
// UDP is only missed.
func (s *session) answers(ctx context.Context) bool {
	q := make(chan bool, 1)
	select {
	case s.challenged <- q:
	case <-s.failed:
		return false
	case <-ctx.Done():
		return true
	}
	select {
	case there := <-q:
		return there
	case <-s.failed:
		return false
	case <-ctx.Done():
		return true
	}
}

// challenge asks the peer for a sign of life. The goroutine that ticks calls it.
func (s *session) challenge() (there bool) {
	for _, c := range s.conns {
		if c.qp.Paused() {
			return true // nothing could arrive
		}
		c.hb.forget()
		c.post(&verbs.SendWR{Op: verbs.OpImmediate, Imm: makeImm(immHB, 0)})
	}
	look := time.NewTicker(challengeTick)
	defer look.Stop()
	over := time.NewTimer(s.srv.cfg.challengeWait)
	defer over.Stop()
	for {
		for _, c := range s.conns {
			if c.hb.rx.Load() {
				return true
			}
		}
		select {
		case <-look.C:
		case <-s.failed:
			return false
		case <-over.C:
			s.fail(fmt.Errorf("%w: the peer opens another session %q, and on this one it was silent for %v when asked", ErrHeartbeat, s.name, s.srv.cfg.challengeWait))
			return false
		}
	}
}
