package chaos

import (
	"context"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/integration/node"
)

// TestIdleStreamsGetTheirSABackWithTheFirstIO deletes the children of streams
// that have nothing to say, on both hosts at once.
func TestIdleStreamsGetTheirSABackWithTheFirstIO(t *testing.T) {
	s := newScene(t)
	before, began := s.streams(t), time.Now()
	var carried int64
	for range 5 {
		if n := s.deleteAtOnce(t, s.nodes()); n["alpha"]+n["beta"] == 0 {
			t.Error("there was nothing to delete")
		}
		s.eventually(t, "alpha's streams are paused", nil, func(ctx context.Context) bool {
			list, err := s.alpha.Streams(ctx, "beta")
			if err != nil {
				return false
			}
			for _, x := range list {
				if !x.Paused {
					return false
				}
			}
			return len(s.children(t)) == 0
		})
		l := s.begin(t, node.Load{Size: 1 << 20})
		done := l.end(t)
		carried += done.Written + done.Read
	}
	same, text := node.SameStreams(before, s.streams(t), time.Since(began))
	if !same {
		t.Errorf("the streams are not the same: %s", text)
	}
	s.judge(t, carried)
}
