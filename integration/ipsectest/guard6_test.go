package ipsectest

import (
	"fmt"
	"testing"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/ipsec/guard"
)

func newPair6(t *testing.T) *pair {
	t.Helper()
	p := newPair(t, lab.Config{})
	p.alpha.v6, p.beta.v6 = true, true
	return p
}

const flushed = "policies flushed"

func TestIPv6StreamSurvivesLossesAndNothingLeavesInClear(t *testing.T) {
	p := newPair6(t)
	wire := capture(t, p.beta)
	p.addPeers(t)
	p.beta.echo(t, nil)
	k := talk(p.alpha.mustDial(t, p.beta))
	for _, tc := range []struct {
		what string
		lose func()
	}{
		{"child deleted", func() { deleteChild(t, p.beta, "alpha") }},
		{"IKE SA deleted", func() { deleteIKE(t, p.alpha, "beta") }},
		{"charon killed", func() { restart(t, p.alpha) }},
		{"charon of the peer killed", func() { restart(t, p.beta) }},
		{flushed, func() { sh(t, p.alpha.Host, "ip xfrm policy flush") }},
	} {
		k.moves(t, 20)
		if tc.what == flushed && p.lab.DataPlane() == esp.Kernel {
			// The guard of kernel ESP is only policies: a packet may leave in clear until they
			// are restored.
			if c := counted(t, wire); c.Clear(port) != 0 || c.ESP == 0 {
				t.Errorf("on the wire: %v", c)
			}
		}
		tc.lose()
		k.moves(t, 50)
		if p.lab.DataPlane() == esp.Kernel {
			continue // the states of a charon that was killed may be in use
		}
		eventually(t, tc.what+": the guard is whole", func() bool {
			st := p.alpha.m.DaemonStatus()
			h, err := guard.Holes(guard.Spec{NetNS: p.alpha.NetNS(), Remote: p.beta.Addr6(), Port: port, DataPlane: st.DataPlane, Tun: st.Tun})
			return err == nil && len(h) == 0
		})
	}
	k.end(t)
	if c := counted(t, wire); c.Clear(port) != 0 || c.ESP == 0 {
		t.Errorf("on the wire: %v", c)
	}
}

// TestIPv6RulesArePutBackUnderAStream flushes the routing rules that lead into the tun
// of userland ESP, but not those that block the other ways.
func TestIPv6RulesArePutBackUnderAStream(t *testing.T) {
	lab.Require(t)
	if esp.ProbeKernel() == nil {
		t.Skip("kernel ESP has no routing rules; it runs where the kernel has no ESP")
	}
	p := newPair6(t)
	wire := capture(t, p.beta)
	p.addPeers(t)
	p.beta.echo(t, nil)
	k := talk(p.alpha.mustDial(t, p.beta))
	k.moves(t, 20)
	for _, pref := range []int{217, 219} {
		sh(t, p.alpha.Host, fmt.Sprintf("while ip -6 rule del pref %d; do :; done 2>/dev/null; true", pref))
		k.moves(t, 50)
	}
	k.end(t)
	if c := counted(t, wire); c.Clear(port) != 0 || c.ESP == 0 {
		t.Errorf("on the wire: %v", c)
	}
}
