// Package assoctest has helpers for tests of associations, of either carrier and of the
// layers above.
package assoctest

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/transport/assoc"
)

// Inbox is a Receiver that records what it receives. Set, Wait and On call functions with
// its lock held.
type Inbox struct {
	// Patience is how long Wait waits before it fails the test.
	Patience time.Duration

	sync.Mutex // guards the fields below it
	more       sync.Cond
	Got        []assoc.Message
	Events     []assoc.Event
	Total      int                  // messages received
	Held       int                  // bytes of messages held because of Hold
	Hold       bool                 // hold messages
	Quiet      bool                 // count messages without recording them
	On         func(*assoc.Message) // called with each message, if not nil
}

var _ assoc.Receiver = (*Inbox)(nil)

// NewInbox returns an empty Inbox that waits for a minute.
func NewInbox() *Inbox {
	b := &Inbox{Patience: time.Minute}
	b.more.L = b
	return b
}

// Message implements assoc.Receiver.
func (b *Inbox) Message(m *assoc.Message) bool {
	b.Lock()
	defer b.Unlock()
	b.Total++
	if b.On != nil {
		b.On(m)
	}
	if !b.Quiet {
		k := *m
		k.Payload, k.Memory = slices.Clone(m.Payload), nil
		b.Got = append(b.Got, k)
	}
	if b.Hold {
		b.Held += len(m.Payload)
	}
	return b.Hold
}

// Event implements assoc.Receiver.
func (b *Inbox) Event(e assoc.Event) {
	b.Set(func() { b.Events = append(b.Events, e) })
}

// BatchEnd implements assoc.Receiver.
func (b *Inbox) BatchEnd() { b.Set(func() {}) }

// Set calls f, which may read or change the fields, with the lock held.
func (b *Inbox) Set(f func()) {
	b.Lock()
	defer b.Unlock()
	f()
	b.more.Broadcast()
}

// Messages returns the messages received so far.
func (b *Inbox) Messages() (ms []assoc.Message) {
	b.Set(func() { ms = b.Got })
	return ms
}

// Wait waits until ok returns true.
func (b *Inbox) Wait(t testing.TB, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), b.Patience)
	defer cancel()
	defer context.AfterFunc(ctx, b.BatchEnd)()
	b.Lock()
	defer b.Unlock()
	for !ok() {
		if ctx.Err() != nil {
			t.Fatalf("waited in vain for %s: %d messages, events %v", what, b.Total, b.Events)
		}
		b.more.Wait()
	}
}

// WaitReleasing is Wait, and releases all that is held, until ok returns true.
func (b *Inbox) WaitReleasing(t testing.TB, what string, a assoc.Association, ok func() bool) {
	t.Helper()
	b.Wait(t, what, func() bool {
		// What comes while the lock is not held is released here too, as nothing may come after it that would wake Wait.
		for b.Held > 0 {
			n := b.Held
			b.Held = 0
			b.Unlock()
			a.Release(n)
			b.Lock()
		}
		return ok()
	})
}

// WaitFor waits until n messages have arrived, and returns the recorded ones.
func (b *Inbox) WaitFor(t testing.TB, n int) []assoc.Message {
	t.Helper()
	b.Wait(t, "messages", func() bool { return b.Total >= n })
	return b.Messages()
}

// WaitEvent waits for an event of a kind, and returns the first.
func (b *Inbox) WaitEvent(t testing.TB, kind assoc.EventKind) (e assoc.Event) {
	t.Helper()
	b.Wait(t, "the event "+kind.String(), func() bool {
		i := slices.IndexFunc(b.Events, func(e assoc.Event) bool { return e.Kind == kind })
		if i >= 0 {
			e = b.Events[i]
		}
		return i >= 0
	})
	return e
}
