package chaos

import (
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/integration/node"
	"github.com/ironwarp/ironwarp/transport"
)

// linkDown is how long the link is cut: longer than several of TCP's and IKE's
// timeouts, shorter than the time for which the sessions bear a silent peer.
const linkDown = 20 * time.Second

func TestLinkIsCutForTwentySecondsUnderVerifiedIO(t *testing.T) { cutLink(t, newScene(t)) }

func TestLinkIsCutForTwentySecondsOverSCTPInUDP(t *testing.T) {
	cutLink(t, newSceneOver(t, transport.SCTPUDP))
}

func cutLink(t *testing.T, s *scene) {
	l := s.begin(t, node.Load{})
	if err := s.beta.Link(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	cut := time.NewTimer(linkDown)
	defer cut.Stop()
	select {
	case <-cut.C:
	case <-l.ended:
		t.Fatalf("the I/O has not waited: %v", l.err)
	}
	if err := s.beta.Link(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	up := time.Now()
	s.mustFlow(t, l)
	t.Logf("data flowed %v after the link was back", time.Since(up).Round(time.Millisecond))
	s.sameStreams(t, l)
	done := l.end(t)
	s.judge(t, done.Written+done.Read)
}
