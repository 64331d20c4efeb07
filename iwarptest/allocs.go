package iwarptest

import "testing"

// LeastAllocs returns the least number of allocations of several calls of f. Every call
// makes the allocations that f always needs; those of a growing queue or of the runtime
// are occasional.
func LeastAllocs(f func()) float64 {
	least := testing.AllocsPerRun(1, f)
	for range 4 {
		least = min(least, testing.AllocsPerRun(1, f))
	}
	return least
}
