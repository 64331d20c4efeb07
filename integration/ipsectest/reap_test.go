package ipsectest

import (
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/ipsec/profile"
	"github.com/ironwarp/ironwarp/transport"
)

// TestIdleChildIsReapedAndComesBackWithTheFirstByte is RFC 5042 5.4.5: Phase 2
// deletes may be sent for idle SAs. One side reaps, and neither brings the SA
// back until there is data.
func TestIdleChildIsReapedAndComesBackWithTheFirstByte(t *testing.T) {
	for _, v := range versions {
		t.Run(v.name, func(t *testing.T) {
			reap(t, newPair(t, lab.Config{}), v.profile())
		})
	}
}

func reap(t *testing.T, p *pair, profile *profile.Profile) {
	p.addWith(t, func(h *host, c *pad.Peer) {
		c.Profile = profile
		if h == p.alpha {
			c.IdleReap = time.Second
		}
	})
	p.echo(t, p.beta, nil)
	c, err := p.open(t, p.alpha, transport.Config{DeadAfter: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	for round := range uint64(3) {
		reaped := busier(t, p, c)
		eventually(t, "reaped", func() bool {
			st, _ := p.alpha.m.PeerStatus("beta")
			return st.Counters.IdleReaps > reaped && st.State == ipsec.StatePaused && st.Lanes[0].Reaped
		})
		eventually(t, "the other side has taken note", func() bool {
			st, _ := p.beta.m.PeerStatus("alpha")
			return st.State == ipsec.StatePaused && st.Counters.DeletedByPeer > round
		})
		before := initiations(t, p)
		pause(t, 1500*time.Millisecond)
		if n := initiations(t, p); n != before {
			t.Errorf("%d attempts while both sides are idle", n-before)
		}
		if len(childrenOf(t, p.alpha))+len(childrenOf(t, p.beta)) != 0 {
			t.Error("there are children although all is idle")
		}
	}
	begin := time.Now()
	if err := ping(c, "the first byte"); err != nil {
		t.Fatal(err)
	}
	t.Logf("the first byte was answered after %v", time.Since(begin).Round(time.Millisecond))
}

// busier makes a stream carry traffic at shorter intervals than idle SAs are reaped
// after, for a longer time than that, which keeps the SA. It returns how many were
// reaped before. A machine that itself stood still for so long has to try again.
func busier(t *testing.T, p *pair, c stream) (reaped uint64) {
	t.Helper()
	for {
		var longest time.Duration
		var st ipsec.Status
		if err := ping(c, "up"); err != nil {
			t.Fatal(err)
		}
		before, _ := p.alpha.m.PeerStatus("beta")
		for at := range 8 {
			begin := time.Now()
			if at > 0 {
				pause(t, 200*time.Millisecond)
			}
			if err := ping(c, string(canary.Bytes(500))); err != nil {
				t.Fatal(err)
			}
			st, _ = p.alpha.m.PeerStatus("beta")
			longest = max(longest, time.Since(begin))
		}
		switch up := st.State == ipsec.StateUp && st.Counters.IdleReaps == before.Counters.IdleReaps; {
		case up:
			return st.Counters.IdleReaps
		case longest < 900*time.Millisecond:
			t.Errorf("reaped under traffic: %+v", st)
			return st.Counters.IdleReaps
		}
		t.Logf("the machine stood still for %v", longest)
	}
}

// pause lets time pass where the test is that nothing happens.
func pause(t *testing.T, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
	}
}
