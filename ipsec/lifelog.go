package ipsec

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// lifeLog writes a line for each event in the life of SAs. In a storm a peer
// gets linesPerSecond of each kind, and then how many there were beside them.
type lifeLog struct {
	mu      sync.Mutex // guards the fields below it
	windows map[lineKey]*lineWindow
}

type lineKey struct {
	peer string
	kind EventKind
}

type lineWindow struct {
	since   time.Time
	written int
	missed  int
	level   slog.Level
}

// take reports whether a line may be written now, and how many were left out
// before it.
func (l *lifeLog) take(k lineKey, level slog.Level, now time.Time) (write bool, missed int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.windows[k]
	if w == nil {
		w = &lineWindow{since: now}
		put(&l.windows, k, w)
	}
	if now.Sub(w.since) >= time.Second {
		missed = w.missed
		*w = lineWindow{since: now}
	}
	w.level = level
	if w.written >= linesPerSecond {
		w.missed++
		return false, missed
	}
	w.written++
	return true, missed
}

// flush returns what was left out in storms that are over, and forgets them.
func (l *lifeLog) flush(now time.Time) map[lineKey]lineWindow {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[lineKey]lineWindow{}
	for k, w := range l.windows {
		if now.Sub(w.since) < time.Second {
			continue
		}
		if w.missed > 0 {
			out[k] = *w
		}
		delete(l.windows, k)
	}
	return out
}

// note reports an event to subscribers and in the log.
func (m *Manager) note(e Event) {
	m.board.post(e)
	level := slog.LevelInfo
	switch e.Kind {
	case EventFailed, EventImpostor, EventFlowRefused, EventCharonDown, EventGuardRepair, EventReloaded, EventBlocked, EventBlockRepair:
		level = slog.LevelWarn
	case EventFlowAdmitted:
		level = slog.LevelDebug
	}
	if !m.cfg.Logger.Enabled(m.ctx, level) {
		return
	}
	k := lineKey{e.Peer, e.Kind}
	write, missed := m.lines.take(k, level, m.now())
	m.logMissed(k, level, missed)
	if write {
		m.cfg.Logger.Log(context.Background(), level, "IPsec", e.attrs()...)
	}
}

func (m *Manager) logMissed(k lineKey, level slog.Level, n int) {
	if n > 0 {
		m.cfg.Logger.Log(context.Background(), level, "IPsec", "event", k.kind, "peer", k.peer, "more_like_this", n)
	}
}

// flushLog writes what was left out in storms that are over.
func (m *Manager) flushLog() {
	for k, w := range m.lines.flush(m.now()) {
		m.logMissed(k, w.level, w.missed)
	}
}

func (e *Event) attrs() []any {
	attrs := []any{"event", e.Kind}
	for _, a := range []struct{ key, value string }{{"peer", e.Peer}, {"child", e.Child}, {"reason", string(e.Reason)}, {"spi_in", e.SPIIn}, {"spi_out", e.SPIOut}, {"detail", e.Detail}} {
		if a.value != "" {
			attrs = append(attrs, a.key, a.value)
		}
	}
	if e.UniqueID != 0 {
		attrs = append(attrs, "id", e.UniqueID)
	}
	if e.Kind == EventChildDown {
		attrs = append(attrs, "bytes_in", e.BytesIn, "bytes_out", e.BytesOut)
	}
	return attrs
}
