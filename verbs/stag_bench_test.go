package verbs

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// BenchmarkSTagAllocation gives an STag and takes it back, among others that live:
// the cost of STags alone, without memory.
func BenchmarkSTagAllocation(b *testing.B) {
	for _, live := range []int{0, 1_000_000} {
		b.Run(fmt.Sprintf("among %d", live), func(b *testing.B) {
			var t stagTable
			t.init()
			w := new(window)
			for range live {
				t.insert(w)
			}
			b.ReportAllocs()
			for b.Loop() {
				t.remove(t.insert(w))
			}
		})
	}
}

// BenchmarkLookupAmongAMillion looks up random STags of a full device, which stand in
// no cache.
func BenchmarkLookupAmongAMillion(b *testing.B) {
	var t stagTable
	t.init()
	w := new(window)
	tags := make([]uint32, 1<<20)
	for i := range tags {
		tags[i] = t.insert(w)
	}
	rand.Shuffle(len(tags), func(i, j int) { tags[i], tags[j] = tags[j], tags[i] })
	i := 0
	for b.Loop() {
		if t.find(tags[i&(len(tags)-1)]) != w {
			b.Fatal("lost")
		}
		i++
	}
}
