package rtrs

import (
	"context"
	"fmt"
	"time"

	"github.com/ironwarp/ironwarp/verbs"
)

// isAlive reports whether the peer of an open session, which wants to open another of the
// same name, still holds it: whether any connection of any path receives something soon.
// If not, the session is ended. The TCP connections of a killed process end with it at
// once, but an SCTP association in UDP just falls silent.
func (s *session) isAlive(ctx context.Context) bool {
	paths := s.openPaths()
	answers := make(chan bool, len(paths))
	for _, p := range paths {
		go func() { answers <- p.isAlive(ctx) }()
	}
	for range paths {
		if <-answers {
			return true
		}
	}
	why := ErrSuperseded
	if len(paths) > 0 {
		why = ErrHeartbeat
	}
	s.end(fmt.Errorf("%w: the peer opens another session %q", why, s.name))
	return false
}

func (s *serverPath) isAlive(ctx context.Context) bool {
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

// challenge asks the peer for a sign of life. It is called by the goroutine that ticks. A path
// whose security association stays away brings none: the peer, which is there by another path,
// would have come back to its session by that one.
func (s *serverPath) challenge() (there bool) {
	for _, c := range s.conns {
		c.hb.reset()
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
			s.fail(fmt.Errorf("%w: the peer opens another session %q, and on this one it was silent for %v when asked", ErrHeartbeat, s.sess.name, s.srv.cfg.challengeWait))
			return false
		}
	}
}
