package verbs

import (
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// What a ULP is guaranteed it gets, whatever the others take before and after, and what
// it is guaranteed changes as it asks, or not at all (R2, R28).
func TestAGuaranteedShareIsKeptWhateverOthersTake(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := defaultLimits.array()
		limit[resBytes] = rapid.Int64Range(10, 200).Draw(t, "device")
		d := &Device{}
		d.prm.init(limit, amounts{})
		var ulps []*ULP
		for i := range 3 {
			u, err := d.NewULP(fmt.Sprint(i), ULPConfig{Quota: Quota{Bytes: rapid.Int64Range(0, 100).Draw(t, "quota")}})
			if err != nil {
				t.Fatal(err)
			}
			ulps = append(ulps, u)
		}
		share := func(u *ULP) int64 { return d.prm.ulps.shareOf(&u.acct, resBytes) }
		var held []charge
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			u := rapid.SampledFrom(ulps).Draw(t, "ulp")
			n := rapid.Int64Range(1, 100).Draw(t, "n")
			switch rapid.SampledFrom([]string{"take", "take", "give", "guarantee"}).Draw(t, "step") {
			case "guarantee":
				least, had := u.acct.least, share(u)
				switch err := u.Guarantee(Limits{Bytes: n}); {
				case err != nil && u.acct.least != least:
					t.Fatalf("refused, %v, and changed from %v to %v", err, least, u.acct.least)
				case err != nil && n <= had:
					t.Fatalf("%d of the %d that it has anyway are refused: %v", n, had, err)
				case err == nil && share(u) < n:
					t.Fatalf("a share of %d, %d are guaranteed", share(u), n)
				}
			case "give":
				if len(held) > 0 {
					d.prm.give(&held[0])
					held = held[1:]
				}
			default:
				c := charge{ulp: &u.acct}
				c.n[resBytes] = n
				within := u.acct.used[resBytes]+n <= share(u)
				if err := d.prm.take(&c); err == nil {
					held = append(held, c)
				} else if within {
					t.Fatalf("%d more beside %d, of a share of %d: %v", n, u.acct.used[resBytes], share(u), err)
				}
			}
			unmet := d.prm.ulps.share[resBytes]
			for _, u := range ulps {
				unmet += max(0, share(u)-u.acct.used[resBytes])
			}
			if unmet != d.prm.ulps.unmet[resBytes] {
				t.Fatalf("%d are kept, %d should be", d.prm.ulps.unmet[resBytes], unmet)
			}
			if used := d.prm.device.used[resBytes]; used+unmet > limit[resBytes] {
				t.Fatalf("%d are in use and %d kept, of %d", used, unmet, limit[resBytes])
			}
		}
	})
}

// A guarantee of several resources is given as a whole.
func TestAGuaranteeThatCannotBeGivenChangesNothing(t *testing.T) {
	e := newEnd(t, Config{Limits: Limits{Bytes: 100, MRs: 100}})
	if err := e.ulp.Guarantee(Limits{Bytes: 60, MRs: 50}); err != nil {
		t.Fatal(err)
	}
	var q *QuotaError
	if err := e.ulp.Guarantee(Limits{Bytes: 70, MRs: 1}); err != nil {
		t.Fatal(err)
	}
	before := e.dev.Resources().ULPs[0].Share
	if err := e.ulp.Guarantee(Limits{Bytes: 101, MRs: 2}); !errors.As(err, &q) {
		t.Errorf("more than there is: %v", err)
	}
	if err := e.ulp.Guarantee(Limits{Bytes: 10, MRs: 1, CQEntries: 1 << 40}); !errors.As(err, &q) || q.Resource != "completion queue entries" {
		t.Errorf("more than there is: %v", err)
	}
	if err := e.ulp.Guarantee(Limits{Bytes: -1}); err == nil {
		t.Error("a negative guarantee is taken")
	}
	if after := e.dev.Resources().ULPs[0].Share; after != before || after.Bytes != 70 {
		t.Errorf("shares are %+v now, and were %+v", after, before)
	}
}
