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

// pool has buffers in sizes of powers of two. What a session leaves in them no other session gets.
type pool struct {
	mu   sync.Mutex // guards the fields below it; innermost
	free [classes][]used
}

// used is a buffer, and the session that has used it.
type used struct {
	b    []byte
	user uint64
}

func class(n int) int { return max(bits.Len(uint(n-1)), minClass) - minClass }

// size is the memory that a buffer of n bytes takes.
func size(n int) int {
	if n == 0 {
		return 0
	}
	return 1 << (class(n) + minClass)
}

// get returns a buffer of n bytes, at most lu.MaxTransfer, for a session. Its content is zeroes, or
// what the same session left there.
func (p *pool) get(n int, user uint64) []byte {
	if n == 0 {
		return nil
	}
	c := class(n)
	p.mu.Lock()
	l := len(p.free[c])
	if l == 0 {
		p.mu.Unlock()
		return make([]byte, n, 1<<(c+minClass))
	}
	u := p.free[c][l-1]
	p.free[c] = p.free[c][:l-1]
	p.mu.Unlock()
	if u.user != user {
		clear(u.b[:cap(u.b)])
	}
	return u.b[:n]
}

func (p *pool) put(b []byte, user uint64) {
	if cap(b) == 0 {
		return
	}
	c := class(cap(b))
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.free[c]) < maxFree {
		p.free[c] = append(p.free[c], used{b, user})
	}
}
