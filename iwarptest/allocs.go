package iwarptest

import "testing"

// LeastAllocs returns the least number of allocations that a call of f makes, of several.
// What every call needs is in all of them; what a queue that grows to its greatest length
// yet or the runtime needs now and then is not.
func LeastAllocs(f func()) float64 {
	least := testing.AllocsPerRun(1, f)
	for range 4 {
		least = min(least, testing.AllocsPerRun(1, f))
	}
	return least
}
