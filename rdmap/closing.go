package rdmap

import (
	"time"

	"github.com/ironwarp/ironwarp/ddp"
)

// closing is the state of a graceful close. It goes on while the peer takes what is queued,
// or answers, of which there is no more to come. New requests of the peer do not count.
type closing struct {
	on     bool
	moved  time.Time // when the peer last took or answered something
	most   time.Time // the end, whatever the peer does
	due    time.Time // when an end after a fault has taken too long
	placed uint64    // Stream.placed at the last check
	outq   int       // bytes in the LLP not acknowledged then
}

// closeLocked begins a graceful close.
func (s *Stream) closeLocked() {
	due := uint64(0)
	for i := s.sq.head; i < s.sq.tail; i++ {
		due += uint64(s.sq.at(i).Len)
	}
	now := time.Now()
	most := closeMost + time.Duration(min(due/slowestPath, 1<<30))*time.Second
	s.state = Closing
	s.closing = closing{on: true, moved: now, most: now.Add(most), placed: s.placed}
	s.killer = time.AfterFunc(closeTick, s.late)
}

// progressLocked records that some of what was queued has been sent.
func (s *Stream) progressLocked() {
	if s.state == Closing && !s.finSent {
		s.closing.moved = time.Now()
	}
}

// late ends a stream whose end takes too long. It checks a closing stream periodically.
func (s *Stream) late() {
	outq := 0
	if l, ok := s.llp.(ddp.Outqueuer); ok {
		outq, _ = l.Outq()
	}
	s.mu.Lock()
	switch {
	case s.state == Closing && s.goesOnLocked(outq):
		s.killer.Reset(closeTick)
		s.mu.Unlock()
		return
	case s.state == Closing:
		s.failLocked(ErrCutOff)
	case s.state == Terminating && (s.closing.on || time.Now().Before(s.closing.due)): // a fault came just now
		s.armKillerLocked()
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	s.llp.Close()
}

// goesOnLocked reports whether to wait longer for a graceful close, with outq bytes in the
// LLP not acknowledged.
func (s *Stream) goesOnLocked(outq int) bool {
	c, now := &s.closing, time.Now()
	// Until we have ended our side, the LLP may be sending answers to the peer's Reads.
	goes := outq != c.outq && (s.finSent || s.flushed < s.sq.tail)
	if goes || s.placed != c.placed {
		c.moved = now
	}
	c.outq, c.placed = outq, s.placed
	return now.Sub(c.moved) < closeTime && now.Before(c.most)
}
