package chaos

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/integration/node"
	"github.com/ironwarp/ironwarp/transport"
)

// TestPathCutsUnderVerifiedIO cuts the wires of a session's two paths by turns, one over TCP
// and one over SCTP in UDP, while the disk is written and verified: the link goes down, or
// the wire swallows everything, until the path is given up or only until I/O has gone on.
// Each time the path comes back by itself. As a control both wires are cut now and then, and
// nothing moves until one is back. There are four cuts, and a hundred with IRONWARP_PATHS=1.
func TestPathCutsUnderVerifiedIO(t *testing.T) {
	cuts := 4
	if os.Getenv(everyScene) != "" {
		cuts = 100
	}
	s := byPaths(t, 2, transport.TCP, "sctp-udp", false)
	l := s.begin(t, node.Load{Timeout: loadTimeout + perCut*time.Duration(cuts)})
	s.pathsUp(t, l, -1)
	lost := 0
	for i := range cuts {
		wire := i % 2
		cut := faults[i/2%2] // the link is down; the wire swallows everything
		before := s.pathBy(t, wire)
		end := cut.do(t, s, wire)
		if i%3 < 2 {
			s.pathsUp(t, l, wire)
		}
		s.mustFlow(t, l)
		if i%10 == 3 {
			s.nothingMoves(t, l, 1-wire)
		}
		must(t, end())
		s.pathsUp(t, l, -1)
		s.mustFlow(t, l)
		if after := s.pathBy(t, wire); after.Reconnects+after.Failovers > before.Reconnects+before.Failovers {
			lost++
		}
	}
	done := l.end(t)
	s.judge(t, done.Written+done.Read)
	t.Logf("%d cuts, %d of which lost the path", cuts, lost)
	if lost < cuts/2 {
		t.Errorf("of %d cuts only %d lost the path", cuts, lost)
	}
}

// perCut is more than a cut takes, with all waiting.
const perCut = 30 * time.Second

// nothingMoves cuts the session's only path that is left, and joins it again.
func (s *scene) nothingMoves(t *testing.T, l *load, wire int) {
	t.Helper()
	must(t, s.beta.Sever(t.Context(), wire, true))
	s.eventually(t, "every path is given up", l, func(context.Context) bool { return s.up(t, s.alpha) == 0 })
	count := func() uint64 {
		io, err := s.alpha.DiskIO(t.Context(), s.export())
		must(t, err)
		return io.ReadBytes + io.WriteBytes
	}
	before := count()
	s.eventually(t, "the other end has given up as well, or waits for an SA", l, func(context.Context) bool {
		return s.up(t, s.beta) == 0 || slices.ContainsFunc(s.sessions(t, s.beta), func(x api.Session) bool { return x.State == api.PeerPaused })
	})
	if now := count(); now != before {
		t.Errorf("%d bytes moved although both wires were cut", now-before)
	}
	must(t, s.beta.Sever(t.Context(), wire, false))
}

// TestUnequalPathsUnderVerifiedIO: one of two wires takes 40 ms longer there and back. By min-latency nearly all I/O goes
// by the other; by round-robin, the control, both have about as many requests.
func TestUnequalPathsUnderVerifiedIO(t *testing.T) {
	s := byPaths(t, 2, transport.TCP, "", false)
	l := s.begin(t, node.Load{})
	s.pathsUp(t, l, -1)
	const slow = 1
	// More than the quick one takes on a busy machine.
	d, err := s.beta.Delay(t.Context(), slow, 100*time.Millisecond)
	must(t, err)
	for policy, mayBe := range map[string]func(quick, slow uint64) bool{
		"min-latency": func(quick, slow uint64) bool { return slow < quick/4 },
		"round-robin": func(quick, slow uint64) bool { return slow > quick/2 && slow < 2*quick },
	} {
		_, err := s.alpha.Ironwarp(t.Context(), nil, "session", "policy", "beta", policy)
		must(t, err)
		s.mustFlow(t, l) // the latencies are known by now
		var before, after [2]uint64
		count := func(into *[2]uint64) {
			for wire := range into {
				p := s.pathBy(t, wire)
				into[wire] = p.Reads + p.Writes
			}
		}
		count(&before)
		if err := s.await(t.Context(), "500 requests were carried out", l, func(context.Context) bool {
			count(&after)
			return after[0]+after[1] >= before[0]+before[1]+500
		}); err != nil {
			t.Fatal(err)
		}
		if q, w := after[0]-before[0], after[slow]-before[slow]; !mayBe(q, w) {
			t.Errorf("%s: %d requests by the quick path, %d by the slow one", policy, q, w)
		} else {
			t.Logf("%s: %d requests by the quick path, %d by the slow one", policy, q, w)
		}
	}
	must(t, d.End(t.Context()))
	done := l.end(t)
	s.judge(t, done.Written+done.Read)
}
