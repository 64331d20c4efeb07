//go:build weakened

package rtrs

import (
	"testing"

	"github.com/ironwarp/ironwarp/internal/checks"
)

// TestScenesWithoutTheirChecks shows that TestWriteWhoseAnswerWasLostIsNotExecutedAgain
// finds what the slots keep away, and TestWhatALeftPathBringsReachesNoTarget what a read that
// has left a path does not want of it.
func TestScenesWithoutTheirChecks(t *testing.T) {
	defer checks.SwitchOff(checks.None)
	checks.SwitchOff(checks.AtMostOnce)
	if n := answerLost(t); n < 2 {
		t.Errorf("%d executions, and nothing remembers the first", n)
	}
	checks.SwitchOff(checks.Diversion)
	if err := leftPath(t); err == nil {
		t.Error("nothing comes late, although nothing keeps it away")
	}
}
