package chaos

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/integration/node"
	"github.com/ironwarp/ironwarp/ipsec/charon"
)

// rekeys is how many SAs get fresh keys, as alpha counts.
const rekeys = 200

// TestRekeyStormFromBothSidesUnderVerifiedIO rekeys children, and at times IKE
// SAs, from both hosts at the same moment: exchanges collide (RFC 7296 2.8.1).
func TestRekeyStormFromBothSidesUnderVerifiedIO(t *testing.T) {
	s := newScene(t)
	l := s.begin(t, node.Load{Latency: true})
	var marks []time.Time
	var what []string
	done := func() int { return int(s.ipsec(t, s.alpha).Rekeys) }
	refused := 0
	for step := 0; done() < rekeys; step++ {
		ask := func(n *node.Node) (int, error) { return n.Client().RekeySAs(t.Context(), s.other(n).Name(), "") }
		kind := "children"
		if step%5 == 4 {
			ask = func(n *node.Node) (int, error) { return n.Client().RekeyIKE(t.Context(), s.other(n).Name()) }
			kind = "IKE SA"
		}
		marks, what = append(marks, time.Now()), append(what, kind)
		var wg sync.WaitGroup
		var mu sync.Mutex
		for _, n := range s.nodes() {
			wg.Go(func() {
				// A rekey that collides with the other host's may be refused: it is
				// under way there.
				if _, err := ask(n); err != nil {
					mu.Lock()
					refused++
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		s.mustFlow(t, l)
	}
	s.sameStreams(t, l)
	load := l.end(t)
	t.Logf("%d rekeys in %d steps, %d requests refused", done(), len(marks), refused)
	reportStalls(t, load.Stalls(marks), what)
	for _, n := range s.nodes() {
		s.eventually(t, n.Name()+" has one child SA of each name", nil, func(ctx context.Context) bool {
			list, err := n.Client().SAs(ctx)
			seen := map[string]int{}
			for _, sa := range list {
				if sa.State == charon.StateInstalled {
					seen[sa.Child]++
				}
			}
			return err == nil && seen[s.other(n).Name()+"-out"] <= 1 && seen[s.other(n).Name()+"-in"] <= 1 && len(seen) > 0
		})
	}
	s.judge(t, load.Written+load.Read)
}

// ipsec is what a host has counted of its peer's SAs.
func (s *scene) ipsec(t *testing.T, n *node.Node) api.IPsec {
	t.Helper()
	p, err := n.Client().Peer(t.Context(), s.other(n).Name())
	if err != nil || p.IPsec == nil {
		t.Fatalf("%s does not list its SAs: %v", n.Name(), err)
	}
	return *p.IPsec
}
