//go:build weakened

package rtrs

import (
	"testing"

	"github.com/ironwarp/ironwarp/internal/checks"
)

// TestScenesWithoutTheirChecks shows that TestWriteWhoseAnswerWasLostIsNotExecutedAgain
// finds what the slots keep away.
func TestScenesWithoutTheirChecks(t *testing.T) {
	checks.SwitchOff(checks.AtMostOnce)
	defer checks.SwitchOff(checks.None)
	if n := answerLost(t); n < 2 {
		t.Errorf("%d executions, and nothing remembers the first", n)
	}
}
