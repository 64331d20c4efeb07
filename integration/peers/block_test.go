package peers

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/integration/node"
	"github.com/ironwarp/ironwarp/ipsec/guard"
)

// TestBlockedPeerWithESP: a peer is blocked in the kernel, by hand and then
// automatically because it creates too many streams (RFC 5042 section 6.4.1). Nothing
// from it comes in, even when the daemon dies and starts again, until the block is
// lifted or ends.
func TestBlockedPeerWithESP(t *testing.T) {
	if err := guard.CanBlock(); errors.Is(err, guard.ErrNoBlock) {
		t.Skip(err)
	}
	s := newScene(t)
	if err := node.Join(t.Context(), s.alpha, s.beta); err != nil {
		t.Fatal(err)
	}
	s.attach()
	s.ping()
	if out := s.must(s.beta, "block", "add", "--for", "1h", "--why", "under repair", "alpha"); !strings.Contains(out, "is blocked by the kernel for another") {
		t.Fatalf("block add: %s", out)
	}
	s.until("the streams of the blocked peer have ended", func() bool {
		list, err := s.beta.Client().Streams(t.Context())
		return err == nil && len(list) == 0
	})
	s.keptOut("under repair")

	s.beta.Kill()
	if err := s.beta.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.keptOut("under repair")

	s.must(s.beta, "block", "rm", "alpha")
	if list := s.blocks(); len(list) != 0 {
		t.Errorf("blocks %+v after the last was taken back", list)
	}
	s.ping()

	if err := s.beta.Stop(); err != nil {
		t.Fatal(err)
	}
	s.beta.More += "block: {per_second: 1, burst: 16, for: 20s}\n"
	if err := s.beta.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	var list []api.Block
	s.until("a peer that pings without end is blocked", func() bool {
		if list = s.blocks(); len(list) > 0 {
			return true
		}
		// Many at once: one after the other they may be as slow as what a peer may do, on a busy machine.
		var pings sync.WaitGroup
		for range 3 * 16 {
			pings.Go(func() {
				_, _ = s.alpha.Client().Ping(t.Context(), api.PingRequest{Peer: "beta", Count: 1, TimeoutSeconds: 5}, nil)
			})
		}
		pings.Wait()
		return false
	})
	if len(list) != 1 || list[0].By != api.BlockedByKernel || !strings.Contains(list[0].Why, "more than 16 streams at once") || list[0].Until.Sub(list[0].Since) > 21*time.Second {
		t.Errorf("blocks %+v", list)
	}
	s.until("the block ends by itself", func() bool { return len(s.blocks()) == 0 })
	s.ping()
}

func (s *scene) blocks() []api.Block {
	s.t.Helper()
	list, err := s.beta.Client().Blocks(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return list
}

// keptOut checks that alpha gets no stream at beta, and that the kernel has dropped its
// attempt.
func (s *scene) keptOut(why string) {
	s.t.Helper()
	if _, err := s.alpha.Ironwarp(s.t.Context(), nil, "ping", "--timeout", "3s", "--count", "1", "beta"); err == nil {
		s.t.Error("a blocked peer has a stream")
	}
	s.until("the kernel has dropped its packets", func() bool {
		list := s.blocks()
		return len(list) == 1 && list[0].Peer == "alpha" && list[0].By == api.BlockedByKernel && list[0].Why == why && list[0].Packets > 0
	})
}
