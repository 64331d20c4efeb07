package fifo

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// A queue does what a slice does, whatever it has been through.
func TestQueueIsAQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q Queue[int]
		var want []int
		next := 0
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "push") || len(want) == 0 {
				next++
				q.Push(next)
				want = append(want, next)
				continue
			}
			if got := q.Pop(); got != want[0] {
				t.Fatalf("popped %d, want %d", got, want[0])
			}
			want = want[1:]
		}
		var got []int
		for i := range q.Len() {
			got = append(got, *q.At(i))
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%v, want %v", got, want)
		}
	})
}

// What was taken is not kept from the garbage collector.
func TestPoppedElementsAreForgotten(t *testing.T) {
	var q Queue[*int]
	q.Push(new(int))
	q.Pop()
	for _, p := range q.buf {
		if p != nil {
			t.Error("a popped element is still referred to")
		}
	}
}
