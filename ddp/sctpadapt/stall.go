package sctpadapt

import (
	"fmt"
	"maps"
	"slices"
)

// A stream whose user is slower than the peer is slowed down by the receive
// window, which all streams share. One whose user takes nothing at all must not
// keep the window from the others: what waits for it beyond its share is held
// without being charged, within limits.

// stall is the record that a stream keeps of that.
type stall struct {
	held    int  // bytes charged to the receive window
	excess  int  // bytes that are not
	watched bool // the Mux looks at it every stallTick
	moved   bool // the user has taken something since the last look
	stalled int  // looks in a row at which it had not
}

// chargeLocked counts a chunk of n bytes that is queued and reports whether the receive
// window is charged.
func (s *Stream) chargeLocked(n int) (charged bool) {
	charged = s.stalled == 0 || s.held+n <= share || !s.mux.mayExceed()
	if !charged {
		s.excess += n
		s.mux.addExcess(n)
		return false
	}
	s.held += n
	if s.held > share && !s.watched {
		s.watched, s.moved = true, false
		s.mux.watch()
	}
	return true
}

// uncharge releases what chunks were charged.
func (s *Stream) uncharge(n int) {
	if n == 0 {
		return
	}
	s.mu.Lock()
	excess := min(n, s.excess)
	s.excess -= excess
	s.held -= n - excess
	s.moved, s.stalled = true, 0
	s.mu.Unlock()
	s.mux.addExcess(-excess)
	if n > excess {
		s.mux.assoc.Release(n - excess)
	}
}

// look is called every stallTick while much waits to be received. again reports
// whether much still does.
func (s *Stream) look() (again bool) {
	s.mu.Lock()
	if s.held <= share && s.excess == 0 {
		s.watched, s.stalled = false, 0
		s.mu.Unlock()
		return false
	}
	if s.stalled++; s.moved {
		s.moved, s.stalled = false, 0
	}
	n := 0
	if s.stalled > 0 && s.held > share && s.mux.mayExceed() {
		n = s.held - share
		s.held -= n
		s.excess += n
	}
	overdue := s.excess > 0 && s.stalled >= stallTicks
	s.mu.Unlock()
	if n > 0 {
		s.mux.addExcess(n)
		s.mux.assoc.Release(n)
	}
	if overdue && s.mux.tooMuch() {
		s.fail(&SessionError{Stream: s.id, Text: fmt.Sprintf("nothing was received for %v, more than %d bytes wait for that, and others have to go on", stallTicks*stallTick, maxExcess)})
	}
	return true
}

// watch starts the timer that looks at the streams.
func (m *Mux) watch() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.watching && m.ended == nil {
		m.watching = true
		m.watcher.Reset(stallTick)
	}
}

// look looks at all streams.
func (m *Mux) look() {
	m.mu.Lock()
	m.watching = false
	all := slices.Collect(maps.Values(m.streams))
	m.mu.Unlock()
	again := false
	for _, s := range all {
		again = s.look() || again
	}
	if again {
		m.watch()
	}
}

// mayExceed reports whether a stream that has stalled may have more than its share:
// there are others, and there is room.
func (m *Mux) mayExceed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.streams) > 1 && m.excess <= maxExcess
}

func (m *Mux) addExcess(n int) {
	if n != 0 {
		m.mu.Lock()
		m.excess += n
		m.mu.Unlock()
	}
}

func (m *Mux) tooMuch() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.excess > maxExcess
}
