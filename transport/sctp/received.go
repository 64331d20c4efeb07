package sctp

import "math/bits"

// received records which TSNs have arrived (RFC 9260 section 6.7). TSNs beyond the
// cumulative point are bits in a ring that grows with the distance.
type received struct {
	cum  uint32   // Cumulative TSN Ack Point
	high uint32   // highest TSN received
	ring []uint64 // bit tsn%(64*len): received, for those above cum
	dups []uint32 // received again since the last SACK
}

// before reports whether TSN a precedes b in serial number arithmetic.
func before(a, b uint32) bool { return int32(a-b) < 0 }

type verdict uint8

const (
	fresh verdict = iota
	duplicate
	tooFar
)

// judge classifies tsn; it changes nothing.
func (r *received) judge(tsn uint32) verdict {
	switch ahead := int32(tsn - r.cum); {
	case ahead <= 0:
		return duplicate
	case ahead > maxAhead:
		return tooFar
	case !before(r.high, tsn) && r.has(tsn):
		return duplicate
	}
	return fresh
}

func (r *received) has(tsn uint32) bool {
	n := uint32(len(r.ring) * 64)
	if n == 0 {
		return false
	}
	i := tsn & (n - 1)
	return r.ring[i/64]>>(i%64)&1 != 0
}

// add records a fresh tsn.
func (r *received) add(tsn uint32) {
	if before(r.high, tsn) {
		r.high = tsn
	}
	if tsn == r.cum+1 && len(r.ring) == 0 {
		r.cum = tsn
		return
	}
	r.grow(int(tsn - r.cum))
	n := uint32(len(r.ring) * 64)
	i := tsn & (n - 1)
	r.ring[i/64] |= 1 << (i % 64)
	for r.cum != r.high {
		i := (r.cum + 1) & (n - 1)
		if r.ring[i/64]>>(i%64)&1 == 0 {
			return
		}
		r.ring[i/64] &^= 1 << (i % 64)
		r.cum++
	}
}

// idle frees the ring if nothing is missing.
func (r *received) idle() {
	if !r.missing() {
		r.ring = nil
	}
}

// grow makes room for a TSN that is ahead of the cumulative point by so much.
func (r *received) grow(ahead int) {
	words := max(len(r.ring), 1)
	for words*64 <= ahead {
		words *= 2
	}
	if words == len(r.ring) {
		return
	}
	old := *r
	r.ring = make([]uint64, words)
	n := uint32(words * 64)
	for tsn := r.cum + 1; old.ring != nil && !before(r.high, tsn); tsn++ {
		if int(tsn-r.cum) < len(old.ring)*64 && old.has(tsn) {
			i := tsn & (n - 1)
			r.ring[i/64] |= 1 << (i % 64)
		}
	}
}

// missing reports whether there is a gap.
func (r *received) missing() bool { return r.cum != r.high }

// again records a duplicate for the next SACK.
func (r *received) again(tsn uint32) {
	if len(r.dups) < maxDups {
		r.dups = append(r.dups, tsn)
	}
}

// gaps appends the Gap Ack Blocks to g, as many as there is room for.
func (r *received) gaps(g []gapBlock) []gapBlock {
	n := uint32(len(r.ring) * 64)
	if n == 0 {
		return g
	}
	end := r.high - r.cum // the last offset
	for off := uint32(1); off <= end && len(g) < cap(g); {
		// To the next received TSN, word by word.
		i := (r.cum + off) & (n - 1)
		if w := r.ring[i/64] >> (i % 64); w == 0 {
			off += 64 - i%64
			continue
		} else {
			off += uint32(bits.TrailingZeros64(w))
		}
		first := off
		for off <= end {
			i := (r.cum + off) & (n - 1)
			run := uint32(bits.TrailingZeros64(^(r.ring[i/64] >> (i % 64))))
			left := 64 - i%64
			off += min(run, left)
			if run < left {
				break
			}
		}
		if first <= end {
			g = append(g, gapBlock{uint16(first), uint16(off - 1)})
		}
	}
	return g
}
