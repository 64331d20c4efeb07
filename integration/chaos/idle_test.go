package chaos

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/integration/node"
)

// TestIdleStreamsGetTheirSABackWithTheFirstIO deletes the child SAs of idle streams, on
// both hosts at once.
func TestIdleStreamsGetTheirSABackWithTheFirstIO(t *testing.T) {
	s := newScene(t)
	before, began := s.streams(t, s.alpha), time.Now()
	var carried int64
	for range 5 {
		if n := s.deleteAtOnce(t, s.nodes()); n["alpha"]+n["beta"] == 0 {
			t.Error("there was nothing to delete")
		}
		s.eventually(t, "alpha's streams are paused", nil, func(ctx context.Context) bool {
			if len(s.children(t)) > 0 {
				s.deleteAtOnce(t, s.nodes()) // what was still on its way had brought it back
				return false
			}
			list, err := s.alpha.Streams(ctx, "beta")
			return err == nil && len(list) > 0 && !slices.ContainsFunc(list, func(x api.Stream) bool { return !x.Paused })
		})
		l := s.begin(t, node.Load{Size: 1 << 20})
		done := l.end(t)
		carried += done.Written + done.Read
	}
	same, text := node.SameStreams(before, s.streams(t, s.alpha), time.Since(began))
	if !same {
		t.Errorf("the streams are not the same: %s", text)
	}
	s.judge(t, carried)
}

// TestIdleReaperTakesSAsAndTheFirstIOBringsThemBack has SAs deleted by the
// reaper on both hosts whenever the I/O pauses.
func TestIdleReaperTakesSAsAndTheFirstIOBringsThemBack(t *testing.T) {
	s := newScene(t, "--idle-reap", "10s")
	before, began := s.streams(t, s.alpha), time.Now()
	var carried int64
	for range 2 {
		// Heartbeats of the sessions may bring one back for a moment.
		s.eventually(t, "no child SA is left while nothing moves", nil, func(ctx context.Context) bool {
			list, err := s.alpha.Client().SAs(ctx)
			return err == nil && len(installed(list)) == 0
		})
		l := s.begin(t, node.Load{Size: 4 << 20})
		done := l.end(t)
		carried += done.Written + done.Read
	}
	a, b := s.ipsec(t, s.alpha).IdleReaps, s.ipsec(t, s.beta).IdleReaps
	t.Logf("%d children reaped on alpha, %d on beta", a, b)
	if a+b < 2 {
		t.Error("the SAs have gone, but not by the reaper")
	}
	same, text := node.SameStreams(before, s.streams(t, s.alpha), time.Since(began))
	if !same {
		t.Errorf("the streams are not the same: %s", text)
	}
	s.judge(t, carried)
}
