package attack

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/ddp/enhanced"
	"github.com/ironwarp/ironwarp/ddp/sctpadapt"
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/transport/assoc"
	"github.com/ironwarp/ironwarp/transport/sctp/sctptest"
)

// TestAttacksOverSCTP makes the core of the attacks over SCTP in UDP, on a path that
// puts packets out of order, so that many segments are checked and placed ahead of
// their turn.
func TestAttacksOverSCTP(t *testing.T) {
	over := func(t *testing.T) *target {
		v := newTarget(t)
		v.reroute = rerouteOverSCTP(t)
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
			// The first is TestChunksAheadOfTheirTurn's. A message whose turn it is not has no
			// buffer yet, if it comes early.
			return slices.Contains([]string{"untagged: more Reads than agreed", "untagged: message sequence number", "untagged: message offset"}, a.name)
		})},
		{"a flood of a shared receive queue", slices.DeleteFunc(receiveFloods(), func(a attack) bool {
			return a.name == "Sends out of order" // as well
		})},
		{"a flood of a shared completion queue", completionFloods()},
	} {
		t.Run(core.name, func(t *testing.T) { runOn(t, over, core.attacks...) })
	}
}

// rerouteOverSCTP returns a reroute that gives each attacker a session of an association
// of its own.
func rerouteOverSCTP(t *testing.T) func(t *testing.T, attacker ddp.LLP) ddp.LLP {
	t.Helper()
	to := iwarptest.SCTPInUDP(t)
	relay := must(sctptest.NewRelay(netip.AddrPortFrom(home, to.UDPPort), sctptest.Faults{Reorder: 0.2}, 1))(t)
	t.Cleanup(func() { relay.Close() })
	mux := func(dialled bool) transport.NewReceiver {
		return func(a assoc.Association) assoc.Receiver { return sctpadapt.New(a, sctpadapt.Config{}, dialled) }
	}
	at := netip.AddrPortFrom(home, 7000)
	ln := must(transport.ListenSCTP(t.Context(), at, to, mux(false)))(t)
	t.Cleanup(func() { ln.Close() })
	past := *to
	past.UDPPort = relay.Addr().Port()
	return func(t *testing.T, attacker ddp.LLP) ddp.LLP {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		near := must(transport.DialSCTP(ctx, at, &past, mux(true)))(t)
		far := must(ln.Accept(ctx))(t)
		t.Cleanup(func() {
			near.Close()
			far.Close()
		})
		depths := sctpadapt.Session{IRD: enhanced.DepthULP, ORD: enhanced.DepthULP}
		answered := make(chan *sctpadapt.Stream, 1)
		go func() {
			defer close(answered)
			r, err := far.Receiver().(*sctpadapt.Mux).Accept(ctx)
			if err != nil {
				return
			}
			if s, err := r.Accept(depths); err == nil {
				answered <- s
			}
		}()
		attackersEnd := must(near.Receiver().(*sctpadapt.Mux).Initiate(ctx, depths))(t)
		targetsEnd := <-answered
		if targetsEnd == nil {
			t.Fatal("the session did not start on the target's side")
		}
		pump(t, attacker, attackersEnd)
		return targetsEnd
	}
}
