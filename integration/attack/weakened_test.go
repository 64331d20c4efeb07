//go:build weakened

package attack

import (
	"testing"

	"github.com/ironwarp/ironwarp/internal/checks"
)

func switchOff(t *testing.T, c checks.Check) {
	if c == checks.None {
		t.Skip("what this shows is no check that could be switched off")
	}
	checks.SwitchOff(c)
	t.Cleanup(func() { checks.SwitchOff(checks.None) })
}
