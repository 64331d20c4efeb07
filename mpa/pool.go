package mpa

import "sync"

// Pool shares buffers among connections: one that waits holds none, so that an
// idle stream costs little. Give the same Pool to all connections of a device.
// The zero value is ready to use. Its methods are safe for concurrent use.
type Pool struct {
	mu     sync.Mutex // guards the fields below it
	reads  [][]byte   // of readBuffer bytes, last used first since it is in the cache
	arenas [][]byte   // of arenaSize bytes
	copies [][]byte   // of detachSize bytes
}

func (p *Pool) getRead() []byte   { return p.get(&p.reads, readBuffer) }
func (p *Pool) getArena() []byte  { return p.get(&p.arenas, arenaSize) }
func (p *Pool) getCopy() []byte   { return p.get(&p.copies, detachSize) }
func (p *Pool) putRead(b []byte)  { p.put(&p.reads, b, poolKeep) }
func (p *Pool) putArena(b []byte) { p.put(&p.arenas, b, poolKeep) }
func (p *Pool) putCopy(b []byte)  { p.put(&p.copies, b, poolKeepCopies) }

func (p *Pool) get(list *[][]byte, size int) []byte {
	p.mu.Lock()
	if n := len(*list); n > 0 {
		b := (*list)[n-1]
		(*list)[n-1] = nil
		*list = (*list)[:n-1]
		p.mu.Unlock()
		return b
	}
	p.mu.Unlock()
	return make([]byte, size)
}

func (p *Pool) put(list *[][]byte, b []byte, keep int) {
	p.mu.Lock()
	if len(*list) < keep {
		*list = append(*list, b)
	}
	p.mu.Unlock()
}
