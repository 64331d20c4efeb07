package attack

import (
	"math"
	"slices"
	"testing"

	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/verbs"
)

// regular looks in STags, which came in this order, for what an attacker could
// guess by: bits that lean to one side or go with the bits before, steps that are
// small, values that come twice too often. Each limit is 6 standard deviations or
// more, so that random numbers fail once in a billion runs.
func regular(stags []uint32) (why string) {
	n := float64(len(stags))
	var ones, flips [32]uint32
	var small, twice float64
	for i, s := range stags {
		var step uint32
		if i > 0 {
			step = s ^ stags[i-1]
			if d := s - stags[i-1]; d < 1<<16 || d > math.MaxUint32-1<<16 {
				small++
			}
		}
		for b := range 32 {
			ones[b] += s >> b & 1
			flips[b] += step >> b & 1
		}
	}
	sorted := slices.Sorted(slices.Values(stags))
	for i := range len(sorted) - 1 {
		if sorted[i] == sorted[i+1] {
			twice++
		}
	}
	limit := 7 * math.Sqrt(n) / 2
	for b := range 32 {
		if math.Abs(float64(ones[b])-n/2) > limit {
			return "a bit leans to one side"
		}
		if math.Abs(float64(flips[b])-n/2) > limit {
			return "a bit goes with the same bit of the STag before"
		}
	}
	// By chance one step in 2^15 is that small.
	if mean := n / (1 << 15); math.Abs(small-mean) > 7*math.Sqrt(mean)+7 {
		return "steps between STags are small"
	}
	// And n²/2^33 values come again, less those that are kept from that for a while.
	if mean := n * n / (1 << 33); twice > mean+7*math.Sqrt(mean)+7 {
		return "STags repeat themselves"
	}
	return ""
}

// An attacker who has seen a million STags, one after the other, guesses the next
// (R7; RFC 5042 sections 5.1.1 and 6.1.1).
func TestSTagsCannotBeGuessed(t *testing.T) {
	run(t, attack{"from a million", checks.RandomSTag, func(v *victim) bool {
		mr := v.region(v.pd, 8, verbs.LocalWrite)
		stags := make([]uint32, 1_000_000)
		if checks.Weakened { // numbers in a row make the table slow
			stags = stags[:20_000]
		}
		for i := range stags {
			stags[i] = must(mr.Reregister(0, 8, verbs.RemoteWrite))(v.T)
		}
		why := regular(stags)
		if why != "" {
			v.Log(why)
		}
		return why != ""
	}})
}

// An attacker keeps the STags that have gone and waits until one of the last thousand
// is given to somebody else (R7).
func TestSTagIsNotGivenAgainSoon(t *testing.T) {
	const last, many = 1000, 300_000
	run(t, attack{"stale STags", checks.FreshSTag, func(v *victim) bool {
		mr := v.region(v.pd, 8, verbs.LocalWrite)
		var ring [last]uint32
		var count [1 << 16]uint16 // of those in ring, by their lower half
		for i := range many {
			stag := must(mr.Reregister(0, 8, verbs.RemoteWrite))(v.T)
			if count[uint16(stag)] > 0 && slices.Contains(ring[:], stag) {
				return true
			}
			if i >= last {
				count[uint16(ring[i%last])]--
			}
			ring[i%last] = stag
			count[uint16(stag)]++
		}
		return false
	}})
}
