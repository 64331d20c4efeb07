package target

import (
	"bytes"
	"testing"
)

// TestBuffersAreHandedOnEmpty: what one session has left in a buffer no other finds there.
func TestBuffersAreHandedOnEmpty(t *testing.T) {
	var p pool
	b := p.get(5000, 1)
	for i := range b {
		b[i] = 0xee
	}
	p.put(b[:100], 1)
	if again := p.get(4097, 1); &again[0] != &b[0] {
		t.Error("a buffer is not used again")
	}
	p.put(b, 1)
	other := p.get(8192, 2)
	if &other[0] != &b[0] || !bytes.Equal(other, make([]byte, 8192)) {
		t.Error("another session finds what was left")
	}
}
