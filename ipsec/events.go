package ipsec

import (
	"sync"
	"time"
)

// eventQueue is how many events a subscriber may be behind.
const eventQueue = 256

// board hands events to subscribers without ever waiting for one.
type board struct {
	mu     sync.Mutex // guards the fields below it
	closed bool
	subs   map[chan Event]struct{}
}

func (b *board) post(e Event) {
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.subs {
		for sent := false; !sent; {
			select {
			case c <- e:
				sent = true
			default:
				select {
				case <-c: // the oldest one goes
				default:
				}
			}
		}
	}
}

func (b *board) subscribe() (<-chan Event, func()) {
	c := make(chan Event, eventQueue)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		close(c)
		return c, func() {}
	}
	if b.subs == nil {
		b.subs = map[chan Event]struct{}{}
	}
	b.subs[c] = struct{}{}
	return c, func() { b.cancel(c) }
}

func (b *board) cancel(c chan Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, there := b.subs[c]; there {
		delete(b.subs, c)
		close(c)
	}
}

func (b *board) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for c := range b.subs {
		close(c)
	}
	b.subs = nil
}
