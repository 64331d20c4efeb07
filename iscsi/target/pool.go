package target

import (
	"math/bits"
	"sync"

	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/scsi/lu"
)

const (
	minClass = 12 // 4 KiB
	classes  = 9  // up to lu.MaxTransfer
)

var _ = [1]int{}[lu.MaxTransfer-1<<(minClass+classes-1)] // the largest class holds every transfer

// pool has buffers in sizes of powers of two. What a session leaves in them no other session gets.
type pool struct {
	registrar iscsi.Registrar // has memory registered, of a session's own pool; nil: nobody has
	most      int             // bytes that are kept

	mu   sync.Mutex // guards the fields below it; innermost
	kept int
	free [classes][]buffer
}

// buffer is memory for data, the session that has used it, and what a registrar calls it.
type buffer struct {
	b      []byte
	user   uint64
	memory any
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
// what the same session left there. It fails if the registrar does.
func (p *pool) get(n int, user uint64) (buffer, error) {
	if n == 0 {
		return buffer{}, nil
	}
	b, ok := p.take(class(n))
	if !ok {
		b = buffer{b: make([]byte, size(n)), user: user}
		if p.registrar != nil {
			var err error
			if b.memory, err = p.registrar.Register(b.b); err != nil {
				return buffer{}, err
			}
		}
	}
	if !b.isOf(user) {
		clear(b.b[:cap(b.b)])
		b.user = user
	}
	b.b = b.b[:n]
	return b, nil
}

func (p *pool) take(c int) (buffer, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := len(p.free[c])
	if l == 0 {
		return buffer{}, false
	}
	b := p.free[c][l-1]
	p.free[c][l-1] = buffer{}
	p.free[c] = p.free[c][:l-1]
	p.kept -= cap(b.b)
	return b, true
}

func (p *pool) put(b buffer) {
	if cap(b.b) > 0 && !p.keep(b) && p.registrar != nil {
		p.registrar.Deregister(b.memory)
	}
}

// keep returns false if there is no room.
func (p *pool) keep(b buffer) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kept+cap(b.b) > p.most {
		return false
	}
	p.kept += cap(b.b)
	c := class(cap(b.b))
	p.free[c] = append(p.free[c], b)
	return true
}

// drop frees what is kept by a session's own pool.
func (p *pool) drop() {
	for c := range classes {
		for b, ok := p.take(c); ok; b, ok = p.take(c) {
			p.registrar.Deregister(b.memory)
		}
	}
}
