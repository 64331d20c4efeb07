package backing

import (
	"sync/atomic"
	"time"
)

// streak tells whether operations have been quick lately:
//
//	       run >= need
//	slow ---------------> fast
//	  ^                    |
//	  +---- one slow ------+   need doubles, run = 0
//
// A concurrent update may be lost; this is a hint.
type streak struct {
	run  atomic.Int32 // quick operations in a row
	need atomic.Int32 // how many make it fast
}

func (s *streak) init() {
	s.run.Store(minStreak)
	s.need.Store(minStreak)
}

func (s *streak) fast() bool { return s.run.Load() >= s.need.Load() }

// observe records that an operation on n bytes took d.
func (s *streak) observe(d time.Duration, n int) {
	if d > slowWrite+time.Duration(n>>10)*slowWritePerKiB {
		if s.run.Swap(0) >= s.need.Load() {
			s.need.Store(min(2*s.need.Load(), maxStreak))
		}
		return
	}
	run := s.run.Load()
	if run < forgiveStreak {
		s.run.Store(run + 1)
		return
	}
	if s.need.Load() != minStreak {
		s.need.Store(minStreak)
	}
}
