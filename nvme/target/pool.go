package target

import (
	"math/bits"

	"github.com/ironwarp/ironwarp/verbs"
)

const (
	minClass = 12 // 4 KiB
	classes  = transferShift + 1
)

// pool has the registered memory of a connection in sizes of powers of two. It is guarded by conn.mu.
type pool struct {
	used int // bytes that commands have
	all  int // and those that are kept besides
	free [classes][]*verbs.MR
}

func class(n uint32) int { return max(bits.Len32(n-1), minClass) - minClass }

// getLocked returns memory for n bytes, at most maxTransfer, or nil if there is none now: a command waits then. It fails
// if memory cannot be registered.
func (c *conn) getLocked(n uint32) (*verbs.MR, error) {
	k := class(n)
	size := 1 << (minClass + k)
	p := &c.pool
	if p.used > 0 && p.used+size > c.memoryLocked() {
		return nil, nil
	}
	if l := len(p.free[k]); l > 0 {
		mr := p.free[k][l-1]
		p.free[k] = p.free[k][:l-1]
		p.used += size
		return mr, nil
	}
	mr, err := c.pd.RegisterMR(make([]byte, size), verbs.LocalWrite)
	if err != nil {
		return nil, err
	}
	c.srv.memory.Add(int64(size))
	p.used, p.all = p.used+size, p.all+size
	return mr, nil
}

// memoryLocked is how much the commands of the connection may have.
func (c *conn) memoryLocked() int {
	if c.srv.memory.Load() > c.srv.cfg.Memory {
		return leastMemory
	}
	return queueMemory
}

// putLocked takes memory back, and frees it if too much is kept.
func (c *conn) putLocked(mr *verbs.MR) {
	p := &c.pool
	p.used -= mr.Len()
	if p.all > c.memoryLocked() {
		c.freeLocked(mr)
		return
	}
	k := class(uint32(mr.Len()))
	p.free[k] = append(p.free[k], mr)
}

func (c *conn) freeLocked(mr *verbs.MR) {
	c.pool.all -= mr.Len()
	c.srv.memory.Add(-int64(mr.Len()))
	mr.Deregister()
}

// emptyLocked frees all that is kept.
func (c *conn) emptyLocked() {
	for k := range c.pool.free {
		for _, mr := range c.pool.free[k] {
			c.freeLocked(mr)
		}
		c.pool.free[k] = nil
	}
}
