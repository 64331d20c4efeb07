package ipsectest

import (
	"sync"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec"
)

// lossCases are the ways in which an SA goes away. Each runs while echoes go
// back and forth.
var lossCases = []struct {
	name string
	lose func(*testing.T, *pair)
}{
	{"IKE SA deleted by the dialling side", func(t *testing.T, p *pair) { deleteIKE(t, p.alpha, "beta") }},
	{"IKE SA deleted by the side that was dialled", func(t *testing.T, p *pair) { deleteIKE(t, p.beta, "alpha") }},
	{"child deleted by both sides at once", func(t *testing.T, p *pair) {
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = p.alpha.m.DeleteChild(t.Context(), "beta", "") })
		wg.Go(func() { _, _ = p.beta.m.DeleteChild(t.Context(), "alpha", "") })
		wg.Wait()
	}},
	{"IKE SA deleted by both sides at once", func(t *testing.T, p *pair) {
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = p.alpha.m.DeleteIKE(t.Context(), "beta") })
		wg.Go(func() { _, _ = p.beta.m.DeleteIKE(t.Context(), "alpha") })
		wg.Wait()
	}},
	{"child rekeyed", func(t *testing.T, p *pair) {
		if n, err := p.alpha.m.Rekey(t.Context(), "beta", ""); n == 0 || err != nil {
			t.Errorf("rekey: %d, %v", n, err)
		}
	}},
	{"charon of the dialling side killed and restarted", func(t *testing.T, p *pair) { restart(t, p.alpha) }},
	{"charon of the side that was dialled killed and restarted", func(t *testing.T, p *pair) { restart(t, p.beta) }},
	{"charon stopped in good order and started", func(t *testing.T, p *pair) {
		if err := p.beta.StopCharon(t.Context()); err != nil {
			t.Error(err)
		}
		if err := p.beta.StartCharon(t.Context()); err != nil {
			t.Error(err)
		}
	}},
	{"both charons killed and restarted", func(t *testing.T, p *pair) {
		p.alpha.KillCharon()
		p.beta.KillCharon()
		for _, h := range []*host{p.alpha, p.beta} {
			if err := h.StartCharon(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}},
}

func deleteIKE(t *testing.T, h *host, peer string) {
	if n, err := h.m.DeleteIKE(t.Context(), peer); n == 0 || err != nil {
		t.Errorf("delete the IKE SA on %s: %d, %v", h.Name(), n, err)
	}
}

func restart(t *testing.T, h *host) {
	if err := h.RestartCharon(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestStreamSurvivesEveryLossAndNothingLeavesInClear(t *testing.T) {
	row(t, "echoes while the IKE SA or the child is deleted by either side or both at once, rekeyed, charon stopped or killed")
	survive(t, newPair(t, lab.Config{}))
}

func survive(t *testing.T, p *pair) {
	p.addPeers(t)
	p.echo(t, p.beta, nil)
	c := p.mustOpen(t, p.alpha)
	for _, tc := range lossCases {
		t.Run(tc.name, func(t *testing.T) {
			wire := capture(t, p.beta)
			k := talk(c)
			k.moves(t, 20)
			k.longest()
			tc.lose(t, p)
			k.moves(t, 100)
			gap := k.longest().Round(time.Millisecond)
			k.end(t)
			eventually(t, "the flow is not paused", func() bool { return !c.Protection().Paused() })
			counts := counted(t, wire)
			t.Logf("longest gap %v; %v", gap, counts)
			if p.clear(counts) != 0 || counts.ESP == 0 {
				t.Errorf("on the wire: %v", counts)
			}
		})
	}
	for _, h := range []*host{p.alpha, p.beta} {
		st, _ := h.m.PeerStatus(p.other(h).Name())
		t.Logf("%s: %+v", h.Name(), st)
	}
}

func TestIdleStreamGetsItsSABackWhenItHasDataAndNotBefore(t *testing.T) {
	p := newPair(t, lab.Config{})
	p.addPeers(t)
	p.beta.echo(t, nil)
	c := p.alpha.mustDial(t, p.beta)
	if err := ping(c, "before"); err != nil {
		t.Fatal(err)
	}
	p.acknowledged(t) // what is on its way yet would bring the SA back at once
	before, err := p.alpha.m.PeerStatus("beta")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := p.beta.m.DeleteChild(t.Context(), "alpha", ""); n != 1 || err != nil {
		t.Fatalf("delete: %d, %v", n, err)
	}
	eventually(t, "the idle flow is paused", func() bool { return c.Protection().Paused() })
	st, err := p.alpha.m.PeerStatus("beta")
	if err != nil || st.State != ipsec.StatePaused || st.Paused != 1 || st.Counters.Initiations != before.Counters.Initiations {
		t.Errorf("after the delete, idle: %+v, %v", st, err)
	}
	begin := time.Now()
	if err := ping(c, "after"); err != nil {
		t.Fatal(err)
	}
	t.Logf("data on demand took %v", time.Since(begin).Round(time.Millisecond))
	// The kernel may carry the echo before strongSwan's list has been read.
	eventually(t, "the flow is no longer paused after an echo", func() bool { return !c.Protection().Paused() })
}

func TestSimultaneousInitiationLeavesOneChildPerLane(t *testing.T) {
	initiateTogether(t, newPair(t, lab.Config{}))
}

func initiateTogether(t *testing.T, p *pair) {
	p.addPeers(t)
	p.echo(t, p.beta, nil)
	p.echo(t, p.alpha, nil)
	a, b := talk(p.mustOpen(t, p.alpha)), talk(p.mustOpen(t, p.beta))
	for range 5 {
		a.moves(t, 10)
		b.moves(t, 10)
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = p.alpha.m.DeleteIKE(t.Context(), "beta") })
		wg.Go(func() { _, _ = p.beta.m.DeleteIKE(t.Context(), "alpha") })
		wg.Wait()
		a.moves(t, 10)
		b.moves(t, 10)
	}
	for _, h := range []*host{p.alpha, p.beta} {
		st, err := h.m.PeerStatus(p.other(h).Name())
		if err != nil || len(st.Lanes) != 2 {
			t.Fatalf("status %+v, %v", st, err)
		}
		for _, l := range st.Lanes {
			eventually(t, h.Name()+" has one "+l.Child, func() bool { return installed(t, h, l.Child) == 1 })
		}
	}
	a.moves(t, 10)
	b.moves(t, 10)
	a.end(t)
	b.end(t)
}

// TestStreamKeepsItsRouteWhenTheOtherLaneGoes deletes the child that came first,
// while a stream runs over the other one.
func TestStreamKeepsItsRouteWhenTheOtherLaneGoes(t *testing.T) {
	p := newPair(t, lab.Config{})
	p.addPeers(t)
	p.beta.echo(t, nil)
	p.alpha.echo(t, nil)
	for range 3 {
		first := p.beta.mustDial(t, p.alpha)
		if err := ping(first, "first"); err != nil {
			t.Fatal(err)
		}
		k := talk(p.alpha.mustDial(t, p.beta))
		k.moves(t, 20)
		first.Close()
		for _, h := range []*host{p.alpha, p.beta} {
			child := "beta-in"
			if h == p.beta {
				child = "alpha-out"
			}
			if _, err := h.m.DeleteChild(t.Context(), p.other(h).Name(), child); err != nil {
				t.Fatal(err)
			}
			k.moves(t, 50)
		}
		k.end(t)
		deleteIKE(t, p.alpha, "beta")
	}
}
