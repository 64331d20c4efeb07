package verbs

import (
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/ironwarp/ironwarp/transport"
)

// Whatever the others ask for, a named peer within its share gets what it asks
// for, and no limit is ever exceeded (R2, R28).
func TestSharesAreKeptWhateverOthersAskFor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := []transport.Identity{"a", "b", "c", "stranger"}
		limit := defaultLimits.array()
		limit[resStreams] = rapid.Int64Range(8, 64).Draw(t, "device")
		d := &Device{}
		d.prm.init(limit, amounts{})
		if err := d.SetPeers(map[transport.Identity]Quota{"a": {}, "b": {Streams: 3}, "c": {}}); err != nil {
			t.Fatal(err)
		}
		var ulps []*ULP
		for i := range 2 {
			u, err := d.NewULP(fmt.Sprint(i), ULPConfig{Trust: ST})
			if err != nil {
				t.Fatal(err)
			}
			ulps = append(ulps, u)
		}
		var held []charge
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			if len(held) > 0 && rapid.IntRange(0, 2).Draw(t, "give") == 0 {
				i := rapid.IntRange(0, len(held)-1).Draw(t, "which")
				d.prm.give(&held[i])
				held = append(held[:i], held[i+1:]...)
				continue
			}
			c := charge{ulp: &rapid.SampledFrom(ulps).Draw(t, "ulp").acct, peer: rapid.SampledFrom(ids).Draw(t, "peer")}
			c.n[resStreams] = rapid.Int64Range(1, 4).Draw(t, "n")
			within := func(a *account) bool { return a.group.entitles(a, resStreams, c.n[resStreams]) }
			p := d.prm.known[c.peer]
			entitled := p != nil && p.fixed && within(p)
			err := d.prm.take(&c)
			if err == nil {
				held = append(held, c)
			} else if entitled {
				t.Fatalf("within its share, peer %s is refused: %v", c.peer, err)
			}
			if used := d.prm.device.used[resStreams]; used > limit[resStreams] {
				t.Fatalf("%d streams of %d are in use", used, limit[resStreams])
			}
			for _, g := range []*group{&d.prm.ulps, &d.prm.peers} {
				unmet := g.share[resStreams]
				for a := range g.members {
					unmet += g.lack(a, resStreams)
				}
				if unmet != g.unmet[resStreams] {
					t.Fatalf("%d are kept, %d should be", g.unmet[resStreams], unmet)
				}
			}
		}
		for _, c := range held {
			d.prm.give(&c)
		}
		for a := range d.prm.peers.members {
			if a.used != (amounts{}) || !a.fixed {
				t.Fatalf("%s has %v left", a.name, a.used)
			}
		}
	})
}

// A greedy peer alone may use the common half, and no more; a newcomer still gets
// its share, and the refusal says what is kept for others.
func TestGreedyPeerLeavesTheShares(t *testing.T) {
	e := newEnd(t, Config{Limits: Limits{Streams: 40}})
	if err := e.dev.SetPeers(map[transport.Identity]Quota{"greedy": {}, "modest": {}, "late": {}}); err != nil {
		t.Fatal(err)
	}
	got := 0
	var err error
	for err == nil {
		if _, err = newQP(e.pd, e.cfg, fakeConn{"greedy"}); err == nil {
			got++
		}
	}
	var q *QuotaError
	if !errors.As(err, &q) || q.Kept == 0 || q.Resource != "streams" || q.Principal != "peer greedy" && q.Principal != "ULP test" {
		t.Fatalf("after %d streams: %v", got, err)
	}
	if got < 20 || got > 30 {
		t.Errorf("the greedy peer has %d of 40 streams", got)
	}
	for _, id := range []string{"modest", "late"} {
		for i := range 5 { // 40/2/(3+1)
			if _, err := newQP(e.pd, e.cfg, fakeConn{transport.Identity(id)}); err != nil {
				t.Errorf("stream %d of peer %s: %v", i, id, err)
			}
		}
	}
}

// Limits change at run time: nothing is taken away, and the new ones count from
// then on.
func TestLimitsChangeAtRunTime(t *testing.T) {
	e := newEnd(t, Config{})
	pds := func(n int) (err error) {
		for range n {
			if _, err = e.ulp.AllocPD(); err != nil {
				return err
			}
		}
		return nil
	}
	if err := pds(3); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(l Limits) error{
		"ULP":    func(l Limits) error { return e.dev.SetQuota(e.ulp, l) },
		"device": e.dev.SetLimits,
	} {
		if err := change(Limits{PDs: 2}); err != nil {
			t.Fatal(err)
		}
		var q *QuotaError
		if err := pds(1); !errors.As(err, &q) {
			t.Errorf("beyond the new limit of the %s: %v", name, err)
		}
		if err := change(Limits{}); err != nil {
			t.Fatal(err)
		}
		if err := pds(1); err != nil {
			t.Errorf("after the limit of the %s is gone: %v", name, err)
		}
		if err := change(Limits{PDs: -1}); err == nil {
			t.Errorf("a negative limit of the %s is taken", name)
		}
	}
	res := e.dev.Resources()
	if res.Device.Used.PDs != 6 || len(res.ULPs) != 1 || res.ULPs[0].Used.PDs != 6 || res.ULPs[0].Principal != "ULP "+e.ulp.Name() || res.ULPs[0].Share.PDs == 0 {
		t.Errorf("use is %+v", res)
	}
}

// A closed ULP gives its share back and gets nothing any more; one that still has
// something can't be closed.
func TestClosedULPGivesItsShareBack(t *testing.T) {
	e := newEnd(t, Config{})
	u, err := e.dev.NewULP("guest", ULPConfig{Trust: ST})
	if err != nil {
		t.Fatal(err)
	}
	pd, err := u.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	share := e.dev.Resources().ULPs[0].Share.PDs
	if err := u.Close(); !errors.Is(err, ErrInUse) {
		t.Errorf("closed with a protection domain: %v", err)
	}
	if err := pd.Dealloc(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := u.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := u.AllocPD(); !errors.Is(err, ErrClosed) {
		t.Errorf("a closed ULP allocates: %v", err)
	}
	if res := e.dev.Resources(); len(res.ULPs) != 1 || res.ULPs[0].Share.PDs <= share {
		t.Errorf("shares after the end of one ULP: %+v, before %d", res.ULPs, share)
	}
}
