// Package assoctest has what tests of associations share, of either carrier and of what
// stands on them.
package assoctest

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/transport/assoc"
)

// Inbox is a Receiver that keeps what comes. Its lock guards its fields; Set, Wait and
// On call functions with the lock held.
type Inbox struct {
	sync.Mutex
	more sync.Cond

	Got    []assoc.Message
	Events []assoc.Event
	Total  int                  // messages that have come
	Held   int                  // bytes of those that Hold has held
	Hold   bool                 // messages are held
	Quiet  bool                 // they are only counted
	On     func(*assoc.Message) // is called with each, if it is not nil

	// Patience is how long Wait waits for what should come at once.
	Patience time.Duration
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
		k.Payload = slices.Clone(m.Payload)
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

// Set changes the fields, or looks at them, while messages may come.
func (b *Inbox) Set(f func()) {
	b.Lock()
	defer b.Unlock()
	f()
	b.more.Broadcast()
}

// Messages are those that have come.
func (b *Inbox) Messages() (ms []assoc.Message) {
	b.Set(func() { ms = b.Got })
	return ms
}

// Wait waits until ok.
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

// WaitFor waits until n messages have come, and returns those that it keeps.
func (b *Inbox) WaitFor(t testing.TB, n int) []assoc.Message {
	t.Helper()
	b.Wait(t, "messages", func() bool { return b.Total >= n })
	return b.Messages()
}

// WaitEvent waits for an event of a kind, and returns the first of them.
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
