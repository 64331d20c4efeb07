package attack

import (
	"crypto/rand"
	"encoding/binary"
	"io"
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

// csprng replaces the system's: it gives these words, one after the other.
type csprng struct {
	word  func(i uint32) uint32
	given uint32
}

func (c *csprng) Read(p []byte) (int, error) {
	for i := 0; i+4 <= len(p); i += 4 {
		binary.LittleEndian.PutUint32(p[i:], c.word(c.given))
		c.given++
	}
	return len(p), nil
}

// draw replaces the system's CSPRNG until f has returned.
func (c *csprng) draw(f func()) {
	defer func(r io.Reader) { rand.Reader = r }(rand.Reader)
	rand.Reader = c
	f()
}

// scatter permutes the words, so that none comes twice.
func scatter(i uint32) uint32 { return i*2654435761 + 0x9e3779b9 }

// An attacker guesses the next STag: from a million, one after the other, or from a
// device of his own whose random numbers agree with the target's for a while (R7; RFC
// 5042 sections 5.1.1 and 6.1.1).
func TestSTagsCannotBeGuessed(t *testing.T) {
	run(t, attack{"from a million", checks.RandomSTag, func(v *target) bool {
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
	}}, attack{"from another device", checks.RandomSTag, func(v *target) bool {
		const same, many = 100, 5000
		his := func(i uint32) uint32 {
			if i < same {
				return scatter(i)
			}
			return scatter(i + 1<<31)
		}
		var stags [2][]uint32
		for i, word := range []func(uint32) uint32{scatter, his} {
			c := csprng{word: word}
			c.draw(func() {
				mr := newTarget(v.T).region(v.pd, 8, verbs.LocalWrite)
				for range many {
					stags[i] = append(stags[i], must(mr.Reregister(0, 8, verbs.RemoteWrite))(v.T))
				}
			})
			if c.given < many {
				v.Logf("%d STags take %d random numbers of 32 bits", many, c.given)
				return true
			}
		}
		for i := same; i < many; i++ {
			if stags[0][i] == stags[1][i] {
				v.Logf("number %d is the same as on the other device", i)
				return true
			}
		}
		return false
	}})
}

// An attacker keeps the last thousand STags that have gone, and chance draws one of
// them for somebody else (R7).
func TestSTagIsNotGivenAgainSoon(t *testing.T) {
	const last, many = 1000, 5000
	run(t, attack{"stale STags", checks.FreshSTag, func(v *target) (again bool) {
		var gone []uint32
		c := csprng{word: func(i uint32) uint32 {
			if n := uint32(len(gone)); i%2 == 1 && n > 0 {
				return gone[n-1-min(n-1, i/2%last)]
			}
			return scatter(i)
		}}
		c.draw(func() {
			mr := v.region(v.pd, 8, verbs.LocalWrite)
			for !again && len(gone) < many {
				gone = append(gone, mr.STag())
				again = slices.Contains(gone[max(0, len(gone)-last):], must(mr.Reregister(0, 8, verbs.RemoteWrite))(v.T))
			}
		})
		return again
	}})
}
