package turn

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Those that are woken together have their turns in the order in which they have joined.
func TestWokenTogetherTheyComeInOrder(t *testing.T) {
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			var line Line
			var mu sync.Mutex
			var all sync.WaitGroup
			var order []int
			start := make(chan struct{})
			for i := range 8 {
				turn := line.Join()
				all.Go(func() {
					<-start
					turn.Let()
					mu.Lock()
					order = append(order, i)
					mu.Unlock()
					turn.End()
				})
			}
			synctest.Wait()
			close(start)
			all.Wait()
			if !slices.IsSorted(order) {
				t.Fatalf("they came as %v", order)
			}
		})
	}
}

// One that can't go on holds up nobody for more than a moment.
func TestWhoCannotGoOnIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var line Line
		stuck := line.Join()
		began := time.Now()
		for range 5 {
			next := line.Join()
			next.Let()
			next.End()
		}
		if d := time.Since(began); d > patience {
			t.Errorf("five behind one that does not go on have waited for %v", d)
		}
		stuck.Let()
		stuck.End()
	})
}
