package lab

import (
	"encoding/binary"
	"math/rand/v2"
)

// Canary is a random text of 8 letters that a test writes wherever it may: payloads,
// disks, names of files and exports. Where it repeats, any 8 bytes of it are
// recognised, wherever a packet was cut. A packet that contains it can be read by
// everybody.
type Canary string

// NewCanary returns a unique canary. Its letters differ, so that no two cuts of it are
// the same; 8 random bytes are one with a probability of 2^-61.
func NewCanary() Canary {
	letters := []byte("abcdefghijklmnopqrstuvwxyz")
	rand.Shuffle(len(letters), func(i, j int) { letters[i], letters[j] = letters[j], letters[i] })
	return Canary(letters[:canarySize])
}

// Fill repeats the canary over b.
func (c Canary) Fill(b []byte) {
	for n := copy(b, c); n > 0 && n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}

// Bytes returns n bytes of canary.
func (c Canary) Bytes(n int) []byte {
	b := make([]byte, n)
	c.Fill(b)
	return b
}

// finder knows the 8 ways to cut 8 bytes out of a repeated canary.
type finder struct {
	first [256]uint64 // by the first byte of a cut
}

func newFinder(c Canary) *finder {
	f := &finder{}
	twice := c.Bytes(2 * canarySize)
	for i := range len(c) {
		f.first[twice[i]] = binary.LittleEndian.Uint64(twice[i:])
	}
	return f
}

// in is the index of a cut of the canary in b, or -1.
func (f *finder) in(b []byte) int {
	for i := 0; i+canarySize <= len(b); i++ {
		if cut := f.first[b[i]]; cut != 0 && cut == binary.LittleEndian.Uint64(b[i:]) {
			return i
		}
	}
	return -1
}

const canarySize = 8
