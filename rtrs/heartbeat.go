package rtrs

import (
	"sync/atomic"
	"time"
)

// heartbeat watches one connection. rx is set by the receiving goroutine;
// everything else belongs to the goroutine that ticks.
type heartbeat struct {
	rx          atomic.Bool // something has arrived since the last tick
	outstanding bool
	missed      int
}

// seen records that the peer is alive.
func (h *heartbeat) seen() {
	if !h.rx.Load() {
		h.rx.Store(true)
	}
}

// reset accounts early for what has arrived in the current interval.
func (h *heartbeat) reset() {
	if h.rx.Swap(false) {
		h.outstanding, h.missed = false, 0
	}
}

// tick ends an interval. send reports that a heartbeat is due, dead that max intervals in
// a row brought no answer to the last one. An interval at whose end the connection is
// paused does not count, because nothing can arrive.
func (h *heartbeat) tick(paused bool, max int) (send, dead bool) {
	switch {
	case h.rx.Swap(false):
		h.outstanding, h.missed = false, 0
	case paused:
	case h.outstanding:
		h.missed++
		return false, h.missed >= max
	default:
		h.outstanding = true
		return true, false
	}
	return false, false
}

// ticker is the source of heartbeat intervals; tests replace it.
type ticker func(time.Duration) (c <-chan time.Time, stop func())

func realTicker(d time.Duration) (<-chan time.Time, func()) {
	t := time.NewTicker(d)
	return t.C, t.Stop
}

// HeartbeatConfig configures how a silent peer is noticed. Zero fields mean
// HeartbeatInterval and HeartbeatMissed.
type HeartbeatConfig struct {
	Interval time.Duration
	Missed   int // unanswered intervals after which the peer is gone

	ticker ticker
}

// SetHeartbeat changes ClientConfig.Heartbeat, of all paths from now on.
func (cl *Client) SetHeartbeat(c HeartbeatConfig) {
	c = c.withDefaults()
	cl.heartbeat.Store(&c)
	for _, t := range cl.Paths() {
		t.wake()
	}
}

// HeartbeatsChanged has paths that are open follow what ServerConfig.HeartbeatOf says now.
func (s *Server) HeartbeatsChanged() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.all {
		select {
		case p.poke <- struct{}{}:
		default:
		}
	}
}

func (c HeartbeatConfig) withDefaults() HeartbeatConfig {
	if c.Interval <= 0 {
		c.Interval = HeartbeatInterval
	}
	if c.Missed <= 0 {
		c.Missed = HeartbeatMissed
	}
	if c.ticker == nil {
		c.ticker = realTicker
	}
	return c
}
