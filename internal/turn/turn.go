// Package turn keeps in order what goes on in goroutines beside each other, as far as nobody has to wait for long: of
// goroutines that the runtime wakes together the last comes first, and there are programs that rely on their
// connections being taken as they have come.
package turn

import (
	"sync"
	"time"
)

// Line is an order. The zero value is empty.
type Line struct {
	mu   sync.Mutex // guards the fields below it
	last *Turn
}

// Turn is a place in a Line.
type Turn struct {
	before *Turn
	over   chan struct{}
}

// Join takes the place behind all others.
func (l *Line) Join() *Turn {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := &Turn{before: l.last, over: make(chan struct{})}
	l.last = t
	return t
}

// patience is longer than it takes until a goroutine that can run does.
const patience = 2 * time.Millisecond

// Let lets the one before come first, for a moment: one that can go on has gone on by then, and others are not waited for.
func (t *Turn) Let() {
	if t.before == nil {
		return
	}
	select {
	case <-t.before.over:
		return
	default:
	}
	moment := time.NewTimer(patience)
	defer moment.Stop()
	select {
	case <-t.before.over:
	case <-moment.C:
	}
}

// End says that it was this one's turn. It is called once, by who calls Let.
func (t *Turn) End() {
	t.before = nil
	close(t.over)
}
