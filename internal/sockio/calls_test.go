package sockio

import "testing"

// A goroutine that reads or sends without a pause must be seen by the runtime's monitor.
func TestMonitorLearnsOfEndlessWork(t *testing.T) {
	var c calls
	unknown := 0
	for range 10_000 {
		if unknown++; c.known() {
			unknown = 0
		}
		if unknown >= knownEvery {
			t.Fatalf("%d calls in a row were not made known, at most %d should be", unknown, knownEvery-1)
		}
	}
}
