package ipsectest

import (
	"errors"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec"
)

func TestFlowIsAdmittedUnderTheIdentityThatIKEAuthenticated(t *testing.T) {
	p := newPair(t, lab.Config{})
	wire := capture(t, p.beta)
	p.addPeers(t)
	p.beta.echo(t, nil)
	begin := time.Now()
	c := p.alpha.mustDial(t, p.beta)
	t.Logf("from no SA to an admitted flow: %v", time.Since(begin).Round(time.Millisecond))
	if err := ping(c, "hello"); err != nil {
		t.Fatal(err)
	}
	pr := c.Protection()
	if pr.Peer() != "beta" || pr.Paused() || pr.Kind() != "ipsec ("+p.lab.DataPlane().String()+")" {
		t.Errorf("protection: peer %q, paused %v, kind %q", pr.Peer(), pr.Paused(), pr.Kind())
	}
	if n := installed(t, p.alpha, "beta-out"); n != 1 {
		t.Errorf("alpha has %d children beta-out", n)
	}
	if n := installed(t, p.beta, "alpha-in"); n != 1 {
		t.Errorf("beta has %d children alpha-in", n)
	}
	st, err := p.alpha.m.PeerStatus("beta")
	if err != nil || st.State != ipsec.StateUp || st.Flows != 1 || !st.Guarded {
		t.Errorf("status %+v, %v", st, err)
	}
	if k := counted(t, wire); k.Clear(port) != 0 || k.ESP == 0 || k.IKE == 0 {
		t.Errorf("on the wire: %v", k)
	}
}

func TestChildDeletedTenTimesFromBothSidesUnderEcho(t *testing.T) {
	p := newPair(t, lab.Config{})
	wire := capture(t, p.beta)
	p.addPeers(t)
	p.beta.echo(t, nil)
	k := talk(p.alpha.mustDial(t, p.beta))
	k.moves(t, 50)
	var gaps []time.Duration
	for i := range 10 {
		h, name := p.alpha, "beta"
		if i%2 == 1 {
			h, name = p.beta, "alpha"
		}
		k.longest()
		n, err := h.m.DeleteChild(t.Context(), name, "")
		if err != nil || n == 0 {
			t.Fatalf("delete %d on %s: %d children, %v", i, h.Name(), n, err)
		}
		k.moves(t, 50)
		gaps = append(gaps, k.longest().Round(time.Millisecond))
	}
	k.end(t)
	counts := counted(t, wire)
	t.Logf("%d echoes; longest gap after each delete: %v; %v", k.count(), gaps, counts)
	if counts.Clear(port) != 0 {
		t.Errorf("clear packets on the wire: %v", counts)
	}
	for _, h := range []*host{p.alpha, p.beta} {
		name := p.other(h).Name()
		st, _ := h.m.PeerStatus(name)
		t.Logf("%s: %+v", h.Name(), st)
		if st.Counters.ChildDeletes < 10 {
			t.Errorf("%s counted %d deletes, 10 were made", h.Name(), st.Counters.ChildDeletes)
		}
	}
}

func TestWrongKeySaysThatTheKeysDiffer(t *testing.T) {
	p := newPair(t, lab.Config{})
	if err := p.beta.m.AddPeer(t.Context(), p.peerOf(p.beta)); err != nil {
		t.Fatal(err)
	}
	p.key = ipsec.GenerateSecret()
	if err := p.alpha.m.AddPeer(t.Context(), p.peerOf(p.alpha)); err != nil {
		t.Fatal(err)
	}
	p.awaitCharon(t)
	p.beta.echo(t, nil)
	_, err := p.alpha.dial(t, p.beta)
	if !errors.Is(err, ipsec.ErrAuthFailed) {
		t.Fatalf("dialling with another key than the peer's: %v", err)
	}
	t.Log(err)
}
