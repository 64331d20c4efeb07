package attack

import (
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/internal/checks"
)

// A peer creates streams without end and uses none of them: the daemon detects it,
// refuses them and blocks the peer, by itself. Another peer is served (R19, RFC 5042
// section 6.4.1).
func TestPeerThatKeepsCreatingStreams(t *testing.T) {
	const flood = 400
	runDaemon(t, daemonAttack{"it goes on", checks.StreamRate, "block: {per_second: 1, burst: 20, for: 1h}\n", func(s *station) bool {
		answered := 0
		for range flood {
			if s.answers(mallorys, []byte("no service has this")) {
				answered++
			}
		}
		if !s.answers(friends, nil) || s.blocked("friend") {
			s.Error("a peer that has done nothing is refused")
		}
		if !checks.Weakened && !s.blocked("mallory") {
			s.Errorf("the peer is not blocked after %d streams, of which %d were answered", flood, answered)
		}
		return answered == flood
	}})
}

// A peer breaks the same rule again and again, to fill the disk with the log (R30, RFC
// 5042 section 2.2.7).
func TestFullDiskByTheLog(t *testing.T) {
	const flood = 1000
	runDaemon(t, daemonAttack{"refusals", checks.LogRepeats, "block: off\n", func(s *station) bool {
		for range flood {
			s.answers(mallorys, []byte("no service has this"))
		}
		lines := strings.Count(s.log.String(), "\n")
		if !strings.Contains(s.log.String(), "peer=mallory") {
			s.Error("the log does not say who it was")
		}
		return lines >= flood
	}})
}
