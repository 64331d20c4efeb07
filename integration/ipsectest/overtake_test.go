package ipsectest

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/transport"
)

// hold makes alpha's wire hold back packets.
func (p *pair) hold(t *testing.T, what string) *lab.Held {
	t.Helper()
	k, err := p.alpha.Hold(t.Context(), 0, what)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// TestDeleteThatOvertakesTheSetUpOfItsChild makes a child's delete arrive before the
// message that creates the child on beta: beta then has a child that alpha does not
// have, and beta's data would wait until TCP's silence shows that nobody receives it.
func TestDeleteThatOvertakesTheSetUpOfItsChild(t *testing.T) {
	for i, tc := range []struct {
		initiator func(*pair) *host
		held      string // of alpha's IKE messages, with the exchange type at %[1]d of UDP and the flags at %[2]d
		unknown   string // what beta's charon logs about the delete
	}{
		// Of the two messages that the initiator of Quick Mode sends, the one without keys
		// (RFC 2409 section 5.5).
		{func(p *pair) *host { return p.alpha }, "udp[%[1]d] = 32 and udp[4:2] < 200", "CHILD_SA not found, ignored"},
		// The answer to CREATE_CHILD_SA (RFC 7296 section 1.3.1).
		{func(p *pair) *host { return p.beta }, "udp[%[1]d] = 36 and udp[%[2]d] & 0x20 != 0", "received DELETE for unknown ESP CHILD_SA"},
	} {
		t.Run(versions[i].name, func(t *testing.T) {
			p := newPair(t, lab.Config{})
			p.addWith(t, func(_ *host, c *pad.Peer) { c.Profile = versions[i].profile() })
			p.echo(t, p.beta, nil)
			if err := ping(p.mustOpen(t, p.alpha), "before"); err != nil {
				t.Fatal(err)
			}
			from, to := tc.initiator(p), p.other(tc.initiator(p))
			child := to.Name() + "-out"
			if from == p.beta {
				child = to.Name() + "-in"
			}
			for range 2 { // silence does not reveal a second one for 10 s after the first
				p.acknowledged(t)
				p.deleteBy(t, []*host{p.alpha})
				for _, h := range []*host{p.alpha, p.beta} {
					eventually(t, h.Name()+" has no child", func() bool {
						st, _ := h.m.PeerStatus(p.other(h).Name())
						return st.State == ipsec.StatePaused
					})
				}
				said := charonSaid(t, p.beta)
				held := p.hold(t, fmt.Sprintf("(udp dst port 500 and "+tc.held, 26, 27)+") or (udp dst port 4500 and udp[8:4] = 0 and "+fmt.Sprintf(tc.held, 30, 31)+")")
				if err := viciCall(t, from, "initiate", message(t, "ike", to.Name(), "child", child, "timeout", "-1")); err != nil {
					t.Fatal(err)
				}
				eventually(t, "beta is to make a child", func() bool { return held.Count() > 0 })
				eventually(t, "alpha has deleted it", func() bool { return p.deleteBy(t, []*host{p.alpha}) > 0 })
				eventually(t, "beta does not know it", func() bool { return strings.Contains(said(), tc.unknown) })
				if err := held.Release(t.Context()); err != nil {
					t.Fatal(err)
				}
				eventually(t, "beta has made it", func() bool { return strings.Contains(said(), "established with SPIs") })
				begin := time.Now()
				if _, err := p.beta.carries[0].(*transport.Conn).Write(canary.Bytes(pingSize)); err != nil {
					t.Fatal(err)
				}
				p.acknowledged(t)
				t.Logf("beta's data arrived after %v", time.Since(begin).Round(time.Millisecond))
			}
			if st, _ := p.beta.m.PeerStatus("alpha"); st.Counters.Stale != 0 {
				t.Errorf("TCP's silence had to show that beta's child leads nowhere: %+v", st.Counters)
			}
		})
	}
}

// charonSaid returns a function that returns what a host's charon has logged since.
func charonSaid(t *testing.T, h *host) func() string {
	t.Helper()
	all := func() string {
		t.Helper()
		log, err := os.ReadFile(h.CharonLog())
		if err != nil {
			t.Fatal(err)
		}
		return string(log)
	}
	before := len(all())
	return func() string { return all()[before:] }
}
