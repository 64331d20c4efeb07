package chaos

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/integration/node"
	"github.com/ironwarp/ironwarp/transport"
)

// stormVar sets how many child SAs the storm deletes.
const stormVar = "IRONWARP_STORM"

func stormSize(t *testing.T, otherwise int) int {
	t.Helper()
	v := os.Getenv(stormVar)
	if v == "" {
		return otherwise
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 {
		t.Fatalf("%s=%q: a number of deletes is needed", stormVar, v)
	}
	return n
}

// TestStormOfDeletesUnderVerifiedIO deletes child SAs (Phase 2) from alpha, from
// beta, and from both at once, while fio writes and verifies.
func TestStormOfDeletesUnderVerifiedIO(t *testing.T) {
	n := stormSize(t, 200)
	s := newScene(t)
	storm(t, s, n, node.Load{})
}

// TestStormOfDeletesOverIKEv1 is the same with IKEv1, whose deletes nobody
// acknowledges (RFC 2408 3.15).
func TestStormOfDeletesOverIKEv1(t *testing.T) {
	storm(t, newScene(t, "--profile", "rfc3723"), stormSize(t, 500)/10, node.Load{})
}

// TestStormOfDeletesOverSCTPInUDP is the same with SCTP in UDP, whose streams
// share one association.
func TestStormOfDeletesOverSCTPInUDP(t *testing.T) {
	storm(t, newSceneOver(t, transport.SCTPUDP), stormSize(t, 1000)/10, node.Load{})
}

func storm(t *testing.T, s *scene, deletes int, how node.Load) {
	how.Latency, how.Timeout = true, time.Duration(deletes)*time.Second+loadTimeout
	l := s.begin(t, how)
	var marks []time.Time
	var what []string
	by := map[string]int{}
	for step := 0; by["alpha"]+by["beta"] < deletes; step++ {
		who := [][]*node.Node{{s.alpha}, {s.beta}, {s.alpha, s.beta}}[step%3]
		var old []string
		var ended map[string]int
		var at time.Time
		// A host that does not know yet of the last child's replacement has nothing to
		// delete.
		s.eventually(t, "something to delete", l, func(context.Context) bool {
			old, at = s.children(t), time.Now()
			ended = s.deleteAtOnce(t, who)
			return ended["alpha"]+ended["beta"] > 0
		})
		marks = append(marks, at)
		for name, n := range ended {
			by[name] += n
		}
		what = append(what, fmt.Sprintf("deleted: %v", ended))
		s.awaitNewOrSharedChild(t, l, old)
		s.mustFlow(t, l)
	}
	took := time.Since(marks[0])
	done := l.end(t)
	t.Attr("measured", fmt.Sprintf("%d child SAs deleted by alpha, %d by beta, in %d steps and %.0f s", by["alpha"], by["beta"], len(marks), took.Seconds()))
	s.sameStreams(t, l)
	reportStalls(t, done.Stalls(marks), what)
	if got := len(done.Stalls(marks)); got < len(marks)/2 {
		t.Errorf("only %d of %d steps met I/O", got, len(marks))
	}
	s.judge(t, done.Written+done.Read)
}

// children are alpha's installed children, by inbound SPI.
func (s *scene) children(t *testing.T) (spis []string) {
	t.Helper()
	list, err := s.alpha.Client().SAs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return installed(list)
}

func installed(list []api.SA) (spis []string) {
	for _, sa := range list {
		if sa.State == "INSTALLED" {
			spis = append(spis, sa.SPIIn)
		}
	}
	return spis
}

// awaitNewChild waits for a child that is not among old.
func (s *scene) awaitNewChild(t *testing.T, l *load, old []string) {
	t.Helper()
	s.eventually(t, "a new child SA on alpha", l, func(ctx context.Context) bool {
		list, err := s.alpha.Client().SAs(ctx)
		return err == nil && slices.ContainsFunc(installed(list), func(spi string) bool { return !slices.Contains(old, spi) })
	})
}

// awaitNewOrSharedChild waits for a child that is not among old, or one that both hosts have, which may
// be older than a delete: a host that had not heard of it yet has deleted the one before.
func (s *scene) awaitNewOrSharedChild(t *testing.T, l *load, old []string) {
	t.Helper()
	s.eventually(t, "a new child SA, or one that both hosts have", l, func(ctx context.Context) bool {
		mine, err := s.alpha.Client().SAs(ctx)
		theirs, err2 := s.beta.Client().SAs(ctx)
		return err == nil && slices.ContainsFunc(installed(mine), func(spi string) bool {
			return !slices.Contains(old, spi) || err2 == nil && slices.ContainsFunc(theirs, func(sa api.SA) bool { return sa.State == "INSTALLED" && sa.SPIOut == spi })
		})
	})
}

// deleteAtOnce deletes the children of a peer on all of these hosts at the same
// time, and returns how many each of them ended.
func (s *scene) deleteAtOnce(t *testing.T, who []*node.Node) map[string]int {
	t.Helper()
	var mu sync.Mutex
	var wg sync.WaitGroup
	ended := map[string]int{}
	for _, n := range who {
		wg.Go(func() {
			count, err := n.Client().DeleteSAs(t.Context(), s.other(n).Name(), "")
			if err != nil {
				t.Errorf("delete on %s: %v", n.Name(), err)
			}
			mu.Lock()
			ended[n.Name()] += count
			mu.Unlock()
		})
	}
	wg.Wait()
	return ended
}

// reportStalls prints the distribution of the stalls and what came before the
// longest.
func reportStalls(t *testing.T, all []node.Stall, what []string) {
	t.Helper()
	if len(all) == 0 {
		t.Fatal("no stall was measured")
	}
	slices.SortFunc(all, func(a, b node.Stall) int { return int(a.For - b.For) })
	at := func(q float64) time.Duration { return all[int(q*float64(len(all)-1))].For.Round(time.Millisecond) }
	t.Attr("measured", fmt.Sprintf("stalls of I/O after %d steps: p50 %v, p90 %v, p99 %v, longest %v", len(all), at(0.5), at(0.9), at(0.99), at(1)))
	for _, st := range all[max(0, len(all)-5):] {
		t.Logf("  %v from %s, %s", st.For.Round(time.Millisecond), st.From.Format("15:04:05.000"), what[st.Mark])
	}
}
