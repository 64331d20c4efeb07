// Package repeats keeps records that others can cause as often as they like from filling a log.
package repeats

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"
)

const (
	// quietAfter is how long there must be no record of a kind before the next one is
	// logged as if it were the first.
	quietAfter = time.Minute
	// maxRepeats bounds the kinds that are distinguished: some 10 of 100 peers. All others
	// count as one kind.
	maxRepeats = 1000

	// Attr is, in a record, the number of records like it.
	Attr = "like_this"
)

// Handler is a handler for records that others can cause as often as they like: of the
// records of one kind and peer it passes on the 1st, 2nd, 5th, 10th, 20th, 50th, 100th
// and so on, with their number, so that nobody fills a disk. When there has been none
// for a while, Report logs how many there were, and the next one is the first again.
//
// It is about records of level Info and above with an attribute peer, ulp, client,
// flow, remote or label. The kind is the message with the attributes event and reason, and
// who is peer or else ulp; all strangers are one.
type Handler struct {
	to   slog.Handler
	seen *repeatCount
	with repeatKey // by WithAttrs
	ours bool      // likewise: others can cause the record
}

type repeatKey struct{ message, event, reason, who string }

type repeatCount struct {
	now func() time.Time

	mu   sync.Mutex // guards the fields below it
	keys map[repeatKey]*repeated
}

// repeated counts the records of one kind.
type repeated struct {
	n, logged   uint64 // how many, and how many when it was last logged
	first, last time.Time
	level       slog.Level
}

// New returns a Handler that passes records on.
func New(to slog.Handler) *Handler {
	return &Handler{to: to, seen: &repeatCount{now: time.Now, keys: map[repeatKey]*repeated{}}}
}

// Enabled implements slog.Handler.
func (h *Handler) Enabled(ctx context.Context, l slog.Level) bool { return h.to.Enabled(ctx, l) }

// Handle implements slog.Handler.
func (h *Handler) Handle(ctx context.Context, r slog.Record) error {
	k, caused, weight := h.with, h.ours, uint64(1)
	r.Attrs(func(a slog.Attr) bool {
		caused = k.noteAttr(a) || caused
		if a.Key == Attr && a.Value.Kind() == slog.KindInt64 && a.Value.Int64() > 0 {
			weight = uint64(a.Value.Int64())
		}
		return true
	})
	if !caused || r.Level < slog.LevelInfo {
		return h.to.Handle(ctx, r)
	}
	k.message = r.Message
	n, show := h.seen.count(k, r.Level, weight)
	if !show {
		return nil
	}
	if n > 1 {
		r = withRepeats(r, n)
	}
	return h.to.Handle(ctx, r)
}

// withRepeats is a record with the number of records like it.
func withRepeats(r slog.Record, n uint64) slog.Record {
	c := slog.NewRecord(r.Time, r.Level, r.Message, r.PC)
	r.Attrs(func(a slog.Attr) bool {
		if a.Key != Attr {
			c.AddAttrs(a)
		}
		return true
	})
	c.AddAttrs(slog.Uint64(Attr, n))
	return c
}

// noteAttr takes an attribute into the key, and reports whether a record with it is one
// that others can cause.
func (k *repeatKey) noteAttr(a slog.Attr) bool {
	switch a.Key {
	case "event":
		k.event = a.Value.String()
	case "reason":
		k.reason = a.Value.String()
	case "peer":
		k.who = a.Value.String()
		return true
	case "ulp":
		if k.who == "" {
			k.who = a.Value.String()
		}
		return true
	case "client", "flow", "remote", "label":
		return true
	}
	return false
}

// WithAttrs implements slog.Handler.
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	c := *h
	c.to = h.to.WithAttrs(attrs)
	for _, a := range attrs {
		c.ours = c.with.noteAttr(a) || c.ours
	}
	return &c
}

// WithGroup implements slog.Handler.
func (h *Handler) WithGroup(name string) slog.Handler {
	c := *h
	c.to = h.to.WithGroup(name)
	return &c
}

// count counts n more of a kind, and returns how many there are and whether that is
// worth a line.
func (c *repeatCount) count(k repeatKey, level slog.Level, n uint64) (all uint64, show bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	s := c.keys[k]
	if s == nil && len(c.keys) >= maxRepeats {
		k = repeatKey{}
		s = c.keys[k]
	}
	if s == nil {
		s = &repeated{first: now, level: level}
		c.keys[k] = s
	}
	before := s.n
	s.n += n
	s.last = now
	if show = isWorthALine(before, s.n); show {
		s.logged = s.n
	}
	return s.n, show
}

// passesMark reports whether one of 1, 2, 5, 10, 20, 50 and so on is above before and
// not above after.
func passesMark(before, after uint64) bool {
	for decade := uint64(1); ; decade *= 10 {
		for _, m := range [...]uint64{1, 2, 5} {
			if m*decade > before {
				return m*decade <= after
			}
		}
	}
}

// Report logs how many records there were of each kind that has ended, and forgets it.
func (h *Handler) Report(log *slog.Logger) {
	for _, o := range h.seen.takeQuiet() {
		attrs := []any{"what", o.k.message}
		for _, a := range []struct{ key, value string }{{"event", o.k.event}, {"reason", o.k.reason}, {"from", o.k.who}} {
			if a.value != "" {
				attrs = append(attrs, a.key, a.value)
			}
		}
		attrs = append(attrs, "in_all", o.s.n, "since_the_last_line", o.s.n-o.s.logged, "within", o.s.last.Sub(o.s.first).Round(time.Second))
		log.Log(context.Background(), o.s.level, "lines like this were left out", attrs...)
	}
}

// Forget makes the next record of each kind of a peer the first again.
func (h *Handler) Forget(who string) {
	h.seen.mu.Lock()
	defer h.seen.mu.Unlock()
	for k := range h.seen.keys {
		if k.who == who {
			delete(h.seen.keys, k)
		}
	}
}

type quietKind struct {
	k repeatKey
	s repeated
}

// takeQuiet forgets the kinds that have become quiet, and returns those that have records
// which were not logged.
func (c *repeatCount) takeQuiet() []quietKind {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []quietKind
	for k, s := range c.keys {
		if c.now().Sub(s.last) < quietAfter {
			continue
		}
		if s.n > s.logged {
			out = append(out, quietKind{k, *s})
		}
		delete(c.keys, k)
	}
	slices.SortFunc(out, func(a, b quietKind) int { return a.s.first.Compare(b.s.first) })
	return out
}
