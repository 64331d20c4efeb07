package flow

import (
	"testing"
	"time"
)

// counting is a flow that counts its bytes, and never was idle.
type counting struct{ bytes uint64 }

func (c *counting) Outq() (int, error)          { return 0, nil }
func (c *counting) Bytes() uint64               { return c.bytes }
func (c *counting) Idle() (time.Duration, bool) { return 0, true }
func (c *counting) Fading() bool                { return false }

// TestHeartbeatsAreNoUseOfAStream: data goes every 10 s, and nobody uses it.
func TestHeartbeatsAreNoUseOfAStream(t *testing.T) {
	for _, tc := range []struct {
		name  string
		bytes uint64 // every 10 s
		limit time.Duration
		idle  bool
	}{
		{"heartbeats", 72, 10 * time.Second, true},
		{"heartbeats, long limit", 72, 5 * time.Minute, true},
		{"a small request", 512, 10 * time.Second, false},
		{"small requests, long limit", 512, 5 * time.Minute, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := &counting{}
			w := &Watch{Monitored: c}
			now := time.Now()
			w.Unused(now, tc.limit)
			for range 60 {
				now = now.Add(10 * time.Second)
				c.bytes += tc.bytes
				if quiet := w.Unused(now, tc.limit); quiet >= tc.limit {
					if !tc.idle {
						t.Fatalf("idle for %v although it is used", quiet)
					}
					return
				}
			}
			if tc.idle {
				t.Error("heartbeats keep it from being idle")
			}
		})
	}
}
