package chaos

import (
	"context"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/integration/node"
	"github.com/ironwarp/ironwarp/transport"
)

// row hands a result of the test to make interop, which writes docs/interop.md.
func row(t *testing.T, what string) { t.Attr("row", what) }

// gently keeps the load low, so that strongSwan gets to answer on an emulated machine.
var gently = node.Load{Pause: 50 * time.Millisecond, PauseEvery: 1}

// TestKernelSCTPStormOfDeletesUnderVerifiedIO is the storm over the kernel's SCTP,
// in the machine of make interop inside of the kernel's ESP.
func TestKernelSCTPStormOfDeletesUnderVerifiedIO(t *testing.T) {
	row(t, "two daemons, the kernel's SCTP inside of ESP: child SAs are deleted by one, by the other and by both at once while fio writes and verifies")
	storm(t, newSceneOver(t, transport.SCTP), stormSize(t, 1000)/100, gently)
}

// TestKernelSCTPFailsOverUnderVerifiedIO severs one of two wires and then the
// other. One association and its streams live through all of it.
func TestKernelSCTPFailsOverUnderVerifiedIO(t *testing.T) {
	row(t, "two daemons, a multihomed association over two wires inside of ESP: either wire is cut while fio writes and verifies, and the streams stay the same")
	s := &scene{kind: transport.SCTP, wires: 2, options: []string{"--transport", "sctp"}}
	s.start(t)
	l := s.begin(t, gently)
	s.unreachable(t, l, -1)
	var took []time.Duration
	for _, step := range []struct {
		wire int
		cut  func(ctx context.Context, cut bool) error
	}{
		// A wire that loses everything, and one whose carrier is gone.
		{0, func(ctx context.Context, cut bool) error { return s.beta.Sever(ctx, 0, cut) }},
		{1, func(ctx context.Context, cut bool) error { return s.beta.LinkOn(ctx, 1, !cut) }},
		{0, func(ctx context.Context, cut bool) error { return s.beta.LinkOn(ctx, 0, !cut) }},
	} {
		before := s.espOn(t, 1-step.wire)
		if err := step.cut(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		cut := time.Now()
		s.mustFlow(t, l)
		took = append(took, time.Since(cut).Round(time.Millisecond))
		s.unreachable(t, l, step.wire)
		s.mustFlow(t, l)
		if n := s.espOn(t, 1-step.wire) - before; n < flowed/1500 {
			t.Errorf("with wire %d cut the other has carried %d packets of ESP", step.wire, n)
		}
		s.sameStreams(t, l)
		if err := step.cut(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		s.unreachable(t, l, -1)
	}
	t.Attr("detail", "data flowed again after "+durations(took))
	s.sameStreams(t, l)
	done := l.end(t)
	s.judge(t, done.Written+done.Read)
}

func durations(ds []time.Duration) (s string) {
	for i, d := range ds {
		if i > 0 {
			s += ", "
		}
		s += d.String()
	}
	return s
}

// unreachable waits until alpha reports one path to beta as unreachable; -1: none. SCTP
// finds that out, unless the path's SA is known to be missing before.
func (s *scene) unreachable(t *testing.T, l *load, path int) {
	t.Helper()
	var got []api.PathState
	err := s.await(t.Context(), "the paths are as they should be", l, func(ctx context.Context) bool {
		p, err := s.alpha.Client().Peer(ctx, "beta")
		if err != nil || len(p.PathStates) != s.wires {
			return false
		}
		got = p.PathStates
		for i, st := range got {
			away := st.Reachable == api.PathUnreachable || st.Protection == api.PeerPaused || st.Protection == api.PeerProblem
			if away != (i == path) {
				return false
			}
		}
		return true
	})
	if err != nil {
		t.Fatalf("%v, which is path %d unreachable: %+v", err, path, got)
	}
}

// espOn is how many packets of ESP a wire has carried.
func (s *scene) espOn(t *testing.T, wire int) int {
	t.Helper()
	c, err := s.wire[wire].Count()
	if err != nil {
		t.Fatal(err)
	}
	return c.ESP
}
