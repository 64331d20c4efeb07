//go:build weakened

package invite

import (
	"testing"

	"github.com/ironwarp/ironwarp/internal/checks"
)

// TestScenesWithoutTheirChecks shows that each attack succeeds without the check that stops it.
func TestScenesWithoutTheirChecks(t *testing.T) {
	for _, s := range scenes {
		t.Run(s.name, func(t *testing.T) {
			checks.SwitchOff(s.check)
			defer checks.SwitchOff(checks.None)
			if err := s.show(t); err == nil {
				t.Error("the attack fails without the check, too")
			} else {
				t.Log(err)
			}
		})
	}
}
