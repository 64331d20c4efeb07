//go:build weakened

package rnbd

import (
	"slices"
	"testing"

	"github.com/ironwarp/ironwarp/internal/checks"
)

// TestScenesWithoutTheirChecks shows that each scene finds the fault that its check
// keeps away.
func TestScenesWithoutTheirChecks(t *testing.T) {
	for _, s := range slices.Concat(detachScenes, successionScenes, neighbourScenes, waitScenes, reservationScenes, fenceScenes) {
		if s.check == checks.None {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			checks.SwitchOff(s.check)
			defer checks.SwitchOff(checks.None)
			if err := s.show(t); err == nil {
				t.Error("the fault is not found")
			} else {
				t.Log(err)
			}
		})
	}
}
