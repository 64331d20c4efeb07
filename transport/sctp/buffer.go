package sctp

import (
	"sync"
	"sync/atomic"

	"github.com/ironwarp/ironwarp/transport/assoc"
)

// buffer is memory that one datagram is read into. The reader fills it again only when no
// Receiver keeps it.
type buffer struct {
	bytes   [readBufferSize]byte
	keepers atomic.Int32 // the reader is one
	pool    *bufferPool
}

var _ assoc.Memory = (*buffer)(nil)

// Keep implements assoc.Memory.
func (b *buffer) Keep() { b.keepers.Add(1) }

// Release implements assoc.Memory.
func (b *buffer) Release() {
	if b.keepers.Add(-1) == 0 {
		b.pool.put(b)
	}
}

// bufferPool has the buffers of a socket that are neither read into nor kept.
type bufferPool struct {
	kept atomic.Int32 // buffers that only Receivers keep

	mu     sync.Mutex // guards the fields below it
	free   []*buffer  // the one last used comes first
	reader bool       // the reader has buffers; else none are needed
}

// get returns a buffer that the reader keeps.
func (p *bufferPool) get() *buffer {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reader = true
	n := len(p.free) - 1
	if n < 0 {
		b := &buffer{pool: p}
		b.Keep()
		return b
	}
	b := p.free[n]
	p.free[n] = nil
	p.free = p.free[:n]
	return b
}

// put takes a buffer that nobody keeps any more.
func (p *bufferPool) put(b *buffer) {
	p.kept.Add(-1)
	b.Keep()
	p.mu.Lock()
	if p.reader {
		p.free = append(p.free, b)
	}
	p.mu.Unlock()
}

// mayKeep reports whether Receivers may keep one more.
func (p *bufferPool) mayKeep() bool { return p.kept.Load() < mostKept }

// unkept returns b if the reader alone keeps it, otherwise another buffer.
func (p *bufferPool) unkept(b *buffer) *buffer {
	if b.keepers.Load() == 1 {
		return b
	}
	p.kept.Add(1)
	b.Release()
	return p.get()
}

// rest frees memory: the reader needs none for now.
func (p *bufferPool) rest() {
	p.mu.Lock()
	p.free, p.reader = nil, false
	p.mu.Unlock()
}
