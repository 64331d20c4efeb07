package simulation

import (
	"slices"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/internal/checks"
)

// controls are checks without which the simulation has to find damage.
var controls = []checks.Check{checks.AtMostOnce, checks.StoreLife, checks.OneWriter}

// controlSeeds is within how many seeds.
const controlSeeds = 1000

// TestControls switches one check off at a time.
func TestControls(t *testing.T) {
	if !checks.Weakened {
		t.Skip("checks are switched off with -tags weakened")
	}
	for _, c := range controls {
		t.Run(checkNames[c], func(t *testing.T) {
			weaken(c)
			defer weaken(checks.None)
			for seed := uint64(1); seed <= controlSeeds; seed++ {
				w := simulate(t, seed, false)
				if i := slices.IndexFunc(w.faults, isDamage); i >= 0 {
					t.Logf("found by seed %d: %s", seed, w.faults[i])
					return
				}
			}
			t.Errorf("%d seeds have found nothing", controlSeeds)
		})
	}
}

// isDamage reports whether a fault is more than an operation that failed.
func isDamage(fault string) bool { return !strings.Contains(fault, "failed without a cause") }

var checkNames = map[checks.Check]string{
	checks.AtMostOnce: "AtMostOnce", checks.StoreLife: "StoreLife",
	checks.OneWriter: "OneWriter",
}
