package nbd

import (
	"errors"
	"slices"
	"time"
)

// A client that does not read its replies holds no I/O of the device: after clientTime
// they are copied, and nothing more is begun for it until it has read what the socket
// was waiting for. When all such clients of a server together have more than
// Config.MaxKept bytes, the next is cut off.

var errKept = errors.New("clients that don't read their replies have more of them than is kept")

// reserveKept counts n more bytes as kept. It reports false if the limit does not permit it.
func (s *Server) reserveKept(n int) bool {
	if s.kept.Add(int64(n)) <= s.cfg.MaxKept {
		return true
	}
	s.kept.Add(-int64(n))
	return false
}

// sendCopy sends the loaded batch from a copy, however long it takes. It returns the slots
// that it has not released.
func (c *conn) sendCopy(batch *slot) (*slot, error) {
	if batch.large == nil {
		n := c.sock.Pending()
		if !c.srv.reserveKept(n) {
			return batch, errKept
		}
		defer c.srv.kept.Add(-int64(n))
		c.sock.Detach(make([]byte, 0, n))
		c.freeSlots(batch)
		batch = nil
	}
	c.mu.Lock()
	c.stuck.Store(true)
	// The replies that are ready hold I/Os, too. Nobody else sends them while we are flushing.
	ready := c.ready
	c.ready = slotList{}
	c.mu.Unlock()
	for s := ready.head; s != nil; s = s.next {
		if s.io != nil {
			s.keepCopy()
		}
	}
	c.mu.Lock()
	if ready.head != nil {
		ready.tail.next = c.ready.head
		if c.ready.tail == nil {
			c.ready.tail = ready.tail
		}
		c.ready.head = ready.head
	}
	c.mu.Unlock()
	err := c.sock.Flush()
	c.mu.Lock()
	c.stuck.Store(false)
	c.change.Broadcast()
	c.mu.Unlock()
	return batch, err
}

// keepCopy copies a read's data and releases its I/O. If there is no room for the copy,
// the client is cut off.
func (s *slot) keepCopy() {
	n := int(s.req.length)
	if !s.c.srv.reserveKept(n) {
		s.c.nc.Close()
		return
	}
	s.kept = slices.Concat(s.io.Buffers()...)
	s.io.Release()
	s.io = nil
}

// awaitReader waits until the client reads its replies.
func (c *conn) awaitReader() error {
	c.kick()
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.stuck.Load() && !c.cut && !c.gone.Load() {
		c.change.Wait()
	}
	switch {
	case c.gone.Load():
		return errGone
	case c.cut:
		return errCut
	}
	return nil
}

var epoch = time.Now()

// clock is a time in nanoseconds, greater than 0.
func clock() int64 { return int64(time.Since(epoch)) + 1 }

// oldest is how long the oldest request has been waiting for the device, 0 if none is.
func (x *succession) oldest() time.Duration {
	x.mu.Lock()
	conns := slices.Clone(x.conns)
	x.mu.Unlock()
	now := clock()
	first := now
	for _, c := range conns {
		c.mu.Lock()
		for _, s := range c.slots {
			if t := s.since.Load(); t != 0 && t < first {
				first = t
			}
		}
		c.mu.Unlock()
	}
	return time.Duration(now - first)
}
