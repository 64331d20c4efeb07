package daemon

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// eventWindow and eventsLogged bound the log in a storm of SA events: of each
	// kind and peer so many within a window. A host that rekeys every minute and
	// loses an SA now and then stays far below; a peer that deletes SAs as fast as
	// it can fills no disk. The counters have them all.
	eventWindow  = 10 * time.Second
	eventsLogged = 20

	// eventMessage is what the IPsec manager's records of events say.
	eventMessage = "IPsec"
)

// eventLog is a handler that lets the events of SAs through as far as they are
// not too many.
type eventLog struct {
	slog.Handler
	seen *eventCount
}

type eventKey struct{ event, peer string }

type eventCount struct {
	mu   sync.Mutex
	now  func() time.Time
	keys map[eventKey]*eventSpan
}

// eventSpan is a window of one kind of events of one peer.
type eventSpan struct {
	began   time.Time
	n       int
	leftOut int
}

func newEventLog(to slog.Handler) *eventLog {
	return &eventLog{to, &eventCount{now: time.Now, keys: map[eventKey]*eventSpan{}}}
}

// Handle implements slog.Handler.
func (l *eventLog) Handle(ctx context.Context, r slog.Record) error {
	if r.Message != eventMessage {
		return l.Handler.Handle(ctx, r)
	}
	var k eventKey
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "event":
			k.event = a.Value.String()
		case "peer":
			k.peer = a.Value.String()
		}
		return true
	})
	if !l.seen.allow(k) {
		return nil
	}
	return l.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (l *eventLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &eventLog{l.Handler.WithAttrs(attrs), l.seen}
}

// WithGroup implements slog.Handler.
func (l *eventLog) WithGroup(name string) slog.Handler {
	return &eventLog{l.Handler.WithGroup(name), l.seen}
}

func (c *eventCount) allow(k eventKey) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.keys[k]
	if s == nil {
		s = &eventSpan{began: c.now()}
		c.keys[k] = s
	}
	if s.n < eventsLogged {
		s.n++
		return true
	}
	s.leftOut++
	return false
}

// endWindows forgets the windows that are over, and returns how many events were
// left out in each.
func (c *eventCount) endWindows() map[eventKey]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[eventKey]int{}
	for k, s := range c.keys {
		if c.now().Sub(s.began) < eventWindow {
			continue
		}
		if s.leftOut > 0 {
			out[k] = s.leftOut
		}
		delete(c.keys, k)
	}
	return out
}

// report logs what was left out.
func (l *eventLog) report(log *slog.Logger) {
	for k, n := range l.seen.endWindows() {
		log.Warn("more events of IPsec than the log takes", "event", k.event, "peer", k.peer, "left_out", n, "within", eventWindow)
	}
}
