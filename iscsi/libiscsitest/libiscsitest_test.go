package libiscsitest

import "testing"

// What CUnit 2.1-3 writes.
const (
	passes = `
Run Summary:    Type  Total    Ran Passed Failed Inactive
              suites      1      1    n/a      0        0
               tests      1      1      1      0        0
             asserts    512    512    512      0      n/a
`
	fails = `
              suites      1      1    n/a      0        0
               tests      1      1      0      1        0
             asserts    258    258    257      1      n/a
`
	nobodyLogsIn = `
error: Failed to login to target for test set-up

WARNING - Suite initialization failed for 'Read10'.

              suites      1      0    n/a      1        0
               tests      1      0      0      0        0
             asserts      0      0      0      0      n/a
`
)

func TestSummary(t *testing.T) {
	for output, want := range map[string][2]bool{passes: {true, true}, fails: {false, true}, nobodyLogsIn: {false, true}, "[OK] INQUIRY\n": {false, false}} {
		if well, ended := hasRun(output); well != want[0] || ended != want[1] {
			t.Errorf("%v, %v of%s", well, ended, output)
		}
	}
}
