package ipsec

import (
	"log/slog"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/lanestate"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/ipsec/pad/padtest"
)

// TestFlowWaitsForASlowCharon: a flow that came in by an SA is not refused because charon
// takes longer than lanestate.AdmitWait to list its SAs, or to make another.
func TestFlowWaitsForASlowCharon(t *testing.T) {
	slow := func() { <-time.After(lanestate.AdmitWait + time.Second/2) }
	for _, tc := range []struct {
		name string
		slow func(t *testing.T, b *bench, p pad.Peer)
	}{
		{"its list, of a moment when the child was not there, comes late", func(_ *testing.T, b *bench, p pad.Peer) {
			first := true
			b.f.Set(func() {
				b.f.Answer = func(cmd string, req tree) ([]string, tree) {
					if cmd == "list-sas" && req.Str("ike") == "" && first {
						first = false
						b.f.Set(func() { b.f.SAs = []tree{saOf(p, "beta-in")} })
						slow()
					}
					return nil, nil
				}
			})
		}},
		{"the child is being made", func(t *testing.T, b *bench, p pad.Peer) {
			b.f.up(p, "beta-in")
			q, _ := b.peer("beta")
			eventually(t, "up", func() bool { return q.laneNamed("beta-in").up.Load() })
			b.f.down(p, "beta-in")
			eventually(t, "down", func() bool { return !q.laneNamed("beta-in").up.Load() })
			b.f.Set(func() {
				b.f.Answer = func(cmd string, req tree) ([]string, tree) {
					if cmd == "initiate" {
						slow()
						b.f.up(p, req.Str("child"))
					}
					return nil, nil
				}
			})
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := newBenchOf(t, Config{CallTimeout: time.Minute, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
			p := padtest.Peer("beta", 2)
			b.add(t, p)
			tc.slow(t, b, p)
			pr, err := b.Admit(t.Context(), incoming(p), false, &traffic{})
			if err != nil {
				t.Fatal(err)
			}
			pr.Release()
		})
	}
}
