package ipsectest

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec"
	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/negotiation"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/transport"
)

func childrenOf(t *testing.T, h *host) map[string]charon.Child {
	t.Helper()
	sas, err := h.m.SAs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]charon.Child{}
	for _, sa := range sas {
		for _, c := range sa.Children {
			if c.IsInstalled() {
				all[c.Name] = c
			}
		}
	}
	return all
}

func TestFlowsSpreadOverSeveralChildSAs(t *testing.T) {
	row(t, "streams spread over several child SAs of a peer")
	const n = 4
	p := newPair(t, lab.Config{})
	p.addWith(t, func(_ *host, c *pad.Peer) { c.Children = n })
	p.beta.echo(t, nil)
	wire := capture(t, p.beta)
	var flows []*transport.Conn
	for range n {
		c := p.alpha.mustDial(t, p.beta)
		if err := ping(c, "hello"); err != nil {
			t.Fatal(err)
		}
		flows = append(flows, c)
	}
	out, in := childrenOf(t, p.alpha), childrenOf(t, p.beta)
	for k := range n {
		a, b := out[fmt.Sprintf("beta-out-%d", k)], in[fmt.Sprintf("alpha-in-%d", k)]
		if a.Flows != 1 || b.Flows != 1 || a.BytesOut == 0 || a.BytesIn == 0 || b.BytesIn == 0 || b.BytesOut == 0 {
			t.Errorf("child %d: alpha %+v, beta %+v", k, a, b)
		}
	}

	// What one child carries does not wait for another. What is on its way yet would bring the deleted one back at once.
	p.acknowledged(t)
	name := "beta-out-1"
	if got, err := p.alpha.m.DeleteChild(t.Context(), "beta", name); got != 1 || err != nil {
		t.Fatalf("delete of %s: %d, %v", name, got, err)
	}
	eventually(t, "the flow of the deleted child is paused", func() bool {
		st, _ := p.alpha.m.PeerStatus("beta")
		return st.Paused == 1 && st.Flows == n && st.Lanes[1].Child == name && st.Lanes[1].State == ipsec.StatePaused
	})
	paused := 0
	for _, c := range flows {
		if c.Protection().Paused() {
			paused++
		}
	}
	if paused != 1 {
		t.Errorf("%d of %d flows are paused", paused, n)
	}
	for _, c := range flows {
		if !c.Protection().Paused() {
			if err := ping(c, "goes on"); err != nil {
				t.Error(err)
			}
		}
	}
	if st, _ := p.alpha.m.PeerStatus("beta"); st.Paused != 1 {
		t.Errorf("%d flows are paused after the others had traffic", st.Paused)
	}
	for _, c := range flows {
		if err := ping(c, "all of them"); err != nil {
			t.Error(err)
		}
	}

	// The least loaded child gets the next flow.
	port0 := flows[2].Flow().Local.Port()
	flows[2].Close()
	eventually(t, "a flow is gone", func() bool { st, _ := p.alpha.m.PeerStatus("beta"); return st.Flows == n-1 })
	c := p.alpha.mustDial(t, p.beta)
	if err := ping(c, "next"); err != nil {
		t.Fatal(err)
	}
	const block = 16384 / n
	if got, want := c.Flow().Local.Port()/block, port0/block; got != want {
		t.Errorf("the next flow has port %d, one near %d was free", c.Flow().Local.Port(), port0)
	}
	for _, h := range []*host{p.alpha, p.beta} {
		deleteIKE(t, h, p.other(h).Name())
		for _, c := range append(flows[:2:2], flows[3], c) {
			if err := ping(c, "after the end of the IKE SA"); err != nil {
				t.Error(err)
			}
		}
	}
	if counts := counted(t, wire); counts.Clear(port) != 0 || counts.ESP == 0 {
		t.Errorf("on the wire: %v", counts)
	}
}

func TestDifferentNumbersOfChildSAsAreExplained(t *testing.T) {
	for _, tc := range []struct{ dialler, dialled int }{{4, 1}, {1, 4}, {4, 2}, {2, 4}} {
		t.Run(fmt.Sprintf("%d dials %d", tc.dialler, tc.dialled), func(t *testing.T) {
			p := newPair(t, lab.Config{})
			p.addWith(t, func(h *host, c *pad.Peer) {
				c.Children = tc.dialler
				if h == p.beta {
					c.Children = tc.dialled
				}
			})
			p.beta.echo(t, nil)
			c, err := p.alpha.dial(t, p.beta)
			if err == nil {
				// The dialled side notices first, and removes the SA; a stream may have been
				// quicker.
				err = pingWithin(c, "hello", 5*time.Second)
			}
			t.Log(err)
			words := func(h *host) string {
				st, _ := h.m.PeerStatus(p.other(h).Name())
				return st.LastError
			}
			eventually(t, "one of the hosts says what is wrong", func() bool {
				return strings.Contains(words(p.alpha)+words(p.beta), "child_sas to the same number")
			})
			t.Logf("alpha: %s; beta: %s", words(p.alpha), words(p.beta))
			if tc.dialler < tc.dialled && !errors.Is(err, negotiation.ErrTrafficSelectors) {
				t.Errorf("the dialling host: %v", err)
			}
		})
	}
}
