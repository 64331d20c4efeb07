package attack

import (
	"context"
	"errors"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/verbs"
)

// TestAttacksThroughESP makes the core of the attacks from another host, through its SA:
// an authenticated peer is not a trusted one (RFC 5042 sections 2.1 and 5.4).
func TestAttacksThroughESP(t *testing.T) {
	e := newESP(t, "target", "mallory")
	reroute := e.ways(t, "mallory", "target")
	wire := must(e.hosts["target"].Capture(t.Context(), lab.CaptureOptions{}))(t)
	through := func(t *testing.T) *target {
		v := newTarget(t)
		v.reroute = reroute
		return v
	}
	for _, core := range []struct {
		name    string
		attacks []attack
	}{
		{"an STag of another protection domain", tries(checks.PDOfSTag, anothersDomain)},
		{"an STag of another stream", tries(checks.StreamOfSTag, anothersStream)},
		{"an answer to another STag", readAnswers()},
		{"an STag that has gone", deadSTags()},
		{"an access outside of the window", aroundTheWindow()},
		{"a fault and its Terminate", slices.DeleteFunc(probes(), func(a attack) bool {
			return a.name == "untagged: more Reads than agreed" // which takes an attacker that ignores TCP
		})},
	} {
		t.Run(core.name, func(t *testing.T) { runOn(t, through, core.attacks...) })
	}
	c, err := wire.Stop()
	if err != nil || c.Clear(espPort) > 0 || c.ESP == 0 {
		t.Errorf("on the wire: %v, %v", c, err)
	}
}

// TestFloodThroughESPIsBlocked has an authenticated peer open connections without
// end and send nothing on them. Its quota stops it, and the kernel drops what it sends
// from then on; a newcomer gets in, and so does the peer when the block is over (R19).
func TestFloodThroughESPIsBlocked(t *testing.T) {
	e := newESP(t, "target", "mallory", "newcomer")
	quota := func(t *testing.T) *target {
		return newTargetAs(t, verbs.Config{Peer: verbs.Quota{HalfOpen: 8}}, verbs.ST)
	}
	runOn(t, quota, attack{"half-open connections", checks.HalfOpen, func(v *target) bool {
		host := e.hosts["target"]
		e.serve(v, "target")
		for _, peer := range []string{"mallory", "newcomer"} { // both may come
			if err := e.start(v, peer, "target"); err != nil {
				v.Fatalf("%s: %v", peer, err)
			}
		}
		// What a daemon does with an event of this kind.
		ctx, cancel := context.WithCancel(v.Context())
		var watch sync.WaitGroup
		watch.Go(func() {
			for {
				ev, err := v.dev.Event(ctx)
				if err != nil {
					return
				}
				if ev.Kind == verbs.EventQuotaExceeded {
					if err := host.ipsec.Block(ctx, string(ev.Peer), time.Hour, "half-open connections"); err != nil {
						v.Error(err)
					}
					return
				}
			}
		})
		defer watch.Wait()
		defer cancel()
		enough := 64
		if !checks.Weakened {
			enough = 1 << 14 // it ends before
		}
		n := 0
		for patient := time.Now().Add(patience); n < enough && time.Now().Before(patient); {
			if e.open(v, "mallory", "target", time.Second) == nil {
				n++
				continue
			}
			if b := host.ipsec.Blocks(); len(b) > 0 && b[0].Packets > 0 {
				break
			}
		}
		if n == enough {
			return true
		}
		if b := host.ipsec.Blocks(); len(b) != 1 || b[0].Peer != "mallory" || b[0].Packets == 0 {
			v.Errorf("after %d connections the blocks are %v", n, b)
		}
		if err := e.start(v, "newcomer", "target"); err != nil {
			v.Errorf("a newcomer: %v", err)
		}
		if err := host.ipsec.Unblock(v.Context(), "mallory"); err != nil {
			v.Error(err)
		}
		// Its quota may be used up still: then it is answered by a reset, where the block was silent.
		if err := e.open(v, "mallory", "target", time.Minute); err != nil && !errors.Is(err, syscall.ECONNRESET) {
			v.Errorf("after the block: %v", err)
		}
		return false
	}})
}
