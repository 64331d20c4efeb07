package nbd

import (
	"bytes"
	"errors"
	"os"
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/block"
)

// Complete implements block.Completion: it queues the reply. A batch end sends it.
func (s *slot) Complete(errno syscall.Errno) {
	c := s.c
	s.since.Store(0)
	c.endIO()
	switch parent := s.parent; {
	case parent != nil:
		if errno != 0 {
			parent.failed.CompareAndSwap(0, uint32(errno))
		}
		s.parent, s.next = nil, nil
		c.freeSlots(s)
		parent.pieceDone()
	case s.waited:
		c.mu.Lock()
		s.errno, s.done = uint32(errno), true
		abandoned := s.abandoned
		c.change.Broadcast()
		c.mu.Unlock()
		if abandoned {
			c.freeSlots(s)
		}
	default:
		s.queueReply(errno)
	}
}

// queueReply queues the reply to the request.
func (s *slot) queueReply(errno syscall.Errno) {
	c := s.c
	code, words := wireErrno(errno)
	if code == nbdENOTSUP && s.fl&block.FastZero == 0 {
		code = nbdEINVAL // only a fast zero may fail so ("Error values")
	}
	s.errno, s.next = code, nil
	h, r := s.store[:0], &s.req
	s.hole = code == 0 && r.typ == cmdRead && c.structured && r.length >= minHole && s.isZero()
	switch {
	case c.structured && code != 0:
		h = c.appendErrorChunk(h, code, r, words)
	case code == 0 && r.typ == cmdBlockStatus:
		h = c.appendStatusChunk(h, r, s.extents())
	case !c.structured, r.typ != cmdRead && !c.extended:
		h = appendSimpleReply(h, code, r.cookie)
	case r.typ != cmdRead, r.length == 0:
		h = c.appendChunkHeader(h, replyTypeNone, r, 0)
	case s.hole:
		h = c.appendHoleChunk(h, r)
	default:
		h = c.appendDataChunk(h, r)
	}
	s.hdr = h
	s.countRequest()
	if s.io != nil && !s.hasData() {
		s.io.Release()
		s.io = nil
	}
	c.mu.Lock()
	if c.stuck.Load() && !c.dead && s.io != nil {
		c.mu.Unlock()
		s.keepCopy()
		c.mu.Lock()
	}
	if c.dead {
		c.mu.Unlock()
		c.freeSlots(s)
		return
	}
	c.ready.push(s)
	c.dirty.Store(true)
	c.mu.Unlock()
}

// hasData reports whether the reply carries the request's length of data.
func (s *slot) hasData() bool { return s.req.typ == cmdRead && s.errno == 0 && !s.hole }

var zeroes [minHole]byte

// isZero reports whether a read has read nothing but zeroes. Data are seldom mistaken for
// zeroes longer than for their first few bytes.
func (s *slot) isZero() bool {
	if s.large != nil {
		return isZero(s.large)
	}
	for _, b := range s.io.Buffers() {
		if !isZero(b) {
			return false
		}
	}
	return true
}

func isZero(b []byte) bool {
	for len(b) > 0 {
		n := min(len(b), len(zeroes))
		if !bytes.Equal(b[:n], zeroes[:n]) {
			return false
		}
		b = b[n:]
	}
	return true
}

// extents returns what the device has answered about a range.
func (s *slot) extents() []block.Extent {
	all := block.ParseExtents(s.io.Buffers()[0], uint32(min(s.req.length, maxRange)), s.c.geo.MinBlock)
	if s.req.flags&cmdFlagReqOne != 0 {
		all = all[:1]
	}
	return all
}

func (s *slot) countRequest() {
	st := &s.c.exp.stats
	switch {
	case s.errno != 0:
		st.errors.Add(1)
		return
	case s.op == block.OpRead:
		st.readBytes.Add(s.req.length)
	case s.op == block.OpWrite:
		st.writtenBytes.Add(s.req.length)
	}
	st.ops[s.op].Add(1)
}

// batchEnd is called by the device after a batch of completions.
func (c *conn) batchEnd() {
	if c.dirty.Load() {
		c.flush()
	}
}

// flush sends what is ready without blocking. One goroutine at a time does so,
// for all; when the socket is full, one that may wait takes over.
func (c *conn) flush() {
	c.mu.Lock()
	if c.flushing || c.ready.head == nil {
		c.mu.Unlock()
		return
	}
	c.flushing = true
	batch := c.takeBatchLocked()
	c.mu.Unlock()
	c.loadBatch(batch)
	for round := 0; batch != nil; round++ {
		done := false
		if round < maxFlushRounds {
			var err error
			if done, err = c.sock.TryFlush(); err != nil {
				c.endUnsendable(batch)
				return
			}
		}
		if !done {
			c.sending = batch
			go c.writeLoop()
			return
		}
		batch = c.nextBatch(batch)
	}
}

// writeReplies is the goroutine that waits for a full socket. It ends when nothing is
// ready any more.
func (c *conn) writeReplies() {
	for batch, more := c.sending, true; more; more = batch != nil {
		c.nc.SetWriteDeadline(clientDeadline())
		err := c.sock.Flush()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			c.nc.SetWriteDeadline(time.Time{})
			batch, err = c.sendCopy(batch)
		}
		if err != nil {
			c.endUnsendable(batch)
			return
		}
		batch = c.nextBatch(batch)
	}
}

// nextBatch frees the slots of a batch that was sent and hands the next to the socket's
// writer. It returns nil if none is ready: then flushing has ended.
func (c *conn) nextBatch(sent *slot) *slot {
	tail, n := c.releaseData(sent)
	c.mu.Lock()
	if tail != nil {
		c.addFreedLocked(sent, tail, n)
	}
	if c.ready.head == nil {
		c.flushing = false
		c.change.Broadcast()
		c.mu.Unlock()
		return nil
	}
	batch := c.takeBatchLocked()
	c.mu.Unlock()
	c.loadBatch(batch)
	return batch
}

// endUnsendable ends the connection after a failed send.
func (c *conn) endUnsendable(batch *slot) {
	c.sock.Discard()
	c.exp.endConn(c) // before its client sees that, and asks on another connection
	c.nc.Close()     // ends the receiving goroutine
	c.dropReplies()
	c.freeSlots(batch)
	c.mu.Lock()
	c.flushing = false
	c.change.Broadcast()
	c.mu.Unlock()
}

// takeBatchLocked takes ready requests for about maxBatch bytes.
func (c *conn) takeBatchLocked() *slot {
	first := c.ready.head
	last, bytes := first, 0
	for {
		if last.hasData() {
			bytes += int(last.req.length)
		}
		// A large read goes by itself: it may be waited for as it is.
		if bytes >= maxBatch || last.next == nil || last.large != nil || last.next.large != nil {
			break
		}
		last = last.next
	}
	c.ready.head = last.next
	if last.next == nil {
		c.ready.tail = nil
		c.dirty.Store(false)
	}
	last.next = nil
	return first
}

// loadBatch hands a batch to the socket's writer.
func (c *conn) loadBatch(batch *slot) {
	for s := batch; s != nil; s = s.next {
		c.sock.Append(s.hdr)
		switch {
		case !s.hasData():
		case s.large != nil:
			c.sock.Append(s.large)
		case s.kept != nil:
			c.sock.Append(s.kept)
		case s.io != nil:
			for _, b := range s.io.Buffers() {
				c.sock.Append(b)
			}
		}
	}
}

// freeSlots frees slots whose replies have been sent or never will be.
func (c *conn) freeSlots(batch *slot) {
	if batch == nil {
		return
	}
	tail, n := c.releaseData(batch)
	c.mu.Lock()
	c.addFreedLocked(batch, tail, n)
	c.mu.Unlock()
}

// releaseData releases the data of requests. It returns the last of them, and how many.
func (c *conn) releaseData(batch *slot) (tail *slot, n int) {
	for s := batch; s != nil; s = s.next {
		if s.io != nil {
			s.io.Release()
			s.io = nil
		}
		if s.large != nil {
			c.releaseLarge(s)
		}
		if s.kept != nil {
			c.srv.kept.Add(-int64(len(s.kept)))
			s.kept = nil
		}
		s.waited = false
		tail = s
		n++
	}
	return tail, n
}

// addFreedLocked gives slots to the receiving goroutine.
func (c *conn) addFreedLocked(head, tail *slot, n int) {
	tail.next = c.freed
	c.freed = head
	c.freedN += n
	c.change.Broadcast()
}
