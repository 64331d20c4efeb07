package probe

import (
	"sync"
)

// memoryPool keeps the memory of clients that have gone for the next ones, so that a peer
// cannot have megabytes allocated again and again by coming and going.
type memoryPool struct {
	mu   sync.Mutex // guards the fields below it
	free [][]byte
}

// get returns a client's memory, all zero: the client may read a part of it, and
// nothing of another's may be left there (RFC 5042 section 6.3.2).
func (m *memoryPool) get() []byte {
	m.mu.Lock()
	var mem []byte
	if n := len(m.free); n > 0 {
		mem, m.free = m.free[n-1], m.free[:n-1]
	}
	m.mu.Unlock()
	if mem == nil {
		return make([]byte, RegionSize+(window+1)*MaxMessage)
	}
	zero(mem)
	return mem
}

// put takes it back, when nobody can reach it any more.
func (m *memoryPool) put(mem []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.free) < keptMemory {
		m.free = append(m.free, mem)
	}
}
