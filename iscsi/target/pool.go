package target

import (
	"math/bits"
	"sync"

	"github.com/ironwarp/ironwarp/scsi/lu"
)

const (
	minClass = 12 // 4 KiB
	classes  = 9  // up to lu.MaxTransfer
	maxFree  = 64 // buffers of a class that are kept
)

var _ = [1]int{}[lu.MaxTransfer-1<<(minClass+classes-1)] // the largest class holds every transfer

// pool has buffers in sizes of powers of two.
type pool struct {
	mu   sync.Mutex // guards the fields below it; innermost
	free [classes][][]byte
}

func class(n int) int { return max(bits.Len(uint(n-1)), minClass) - minClass }

// size is the memory that a buffer of n bytes takes.
func size(n int) int {
	if n == 0 {
		return 0
	}
	return 1 << (class(n) + minClass)
}

// get returns a buffer of n bytes, at most lu.MaxTransfer. Its content is what somebody left there.
func (p *pool) get(n int) []byte {
	if n == 0 {
		return nil
	}
	c := class(n)
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := len(p.free[c]); l > 0 {
		b := p.free[c][l-1]
		p.free[c] = p.free[c][:l-1]
		return b[:n]
	}
	return make([]byte, n, 1<<(c+minClass))
}

func (p *pool) put(b []byte) {
	if cap(b) == 0 {
		return
	}
	c := class(cap(b))
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.free[c]) < maxFree {
		p.free[c] = append(p.free[c], b)
	}
}
