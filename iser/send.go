package iser

import (
	"errors"
	"slices"
	"time"

	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/verbs"
)

// SendControl implements iscsi.Datamover.
func (c *Conn) SendControl(o *iscsi.Out) { c.queue(o, false) }

// PutData implements iscsi.Datamover: the data are written to the memory that the command named.
func (c *Conn) PutData(o *iscsi.Out) { c.queue(o, true) }

// queue queues a PDU or, as input, the data of a command.
func (c *Conn) queue(o *iscsi.Out, input bool) {
	o.Input = input
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queued.Push(o)
}

// GetData implements iscsi.Datamover: the data are read from the memory that the command named, when
// fewer than ORD Reads are under way.
func (c *Conn) GetData(g *iscsi.Get) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting.Push(g)
	c.gets = append(c.gets, g)
}

// Flush implements iscsi.Datamover. Before Run nothing is sent: nobody could be told.
func (c *Conn) Flush() {
	c.mu.Lock()
	if c.upper == nil || !c.up && !c.dead {
		c.mu.Unlock()
		return
	}
	before := c.next
	back := c.postLocked()
	posted := c.next != before
	c.mu.Unlock()
	if posted {
		c.qp.Flush()
	}
	c.giveBack(back)
}

func (c *Conn) giveBack(back iscsi.OutQueue) {
	for o := back.Pop(); o != nil; o = back.Pop() {
		c.upper.SentNotify(o)
	}
}

// postLocked posts what is queued, as far as there is room, and returns what is not needed any more.
func (c *Conn) postLocked() (back iscsi.OutQueue) {
	for c.waiting.Len() > 0 && (c.reads < c.ord || c.dead || c.ord == 0) && c.roomLocked() {
		g := c.waiting.Pop()
		err := errNoReads
		if c.ord > 0 {
			err = c.postGetLocked(g)
		}
		if err != nil {
			c.failedLocked(err)
			c.forgetLocked(g)
			back.Push(&g.Out)
		}
	}
	for !c.queued.Empty() && c.roomLocked() {
		o := c.queued.Pop()
		flags := verbs.More
		if c.queued.Empty() || c.next%signalEvery == 0 {
			flags |= verbs.Signaled
		}
		err := c.postOutLocked(o, flags)
		if err != nil {
			c.failedLocked(err)
		}
		if err != nil || !o.Input {
			back.Push(o)
		}
	}
	return back
}

// roomLocked reports whether one more operation may be posted. If the connection is dead it is to be tried:
// it fails.
func (c *Conn) roomLocked() bool { return c.next-c.retired < maxSend || c.dead }

// failedLocked ends the connection since something can't be sent.
func (c *Conn) failedLocked(err error) {
	if c.err == nil && !errors.Is(err, verbs.ErrClosed) { // otherwise Run knows why it is closed
		c.err = err
	}
	c.tell()
}

// enterLocked notes the operation that was posted.
func (c *Conn) enterLocked(p posted) {
	c.posted[c.next%maxSend] = p
	c.next++
}

// postOutLocked posts a Send, whose bytes are copied, or a Write.
func (c *Conn) postOutLocked(o *iscsi.Out, flags verbs.Flags) error {
	if c.dead {
		return verbs.ErrClosed
	}
	wr := verbs.SendWR{ID: c.next, Flags: flags}
	var sge [1]verbs.SGE
	p := posted{}
	if o.Input {
		if !o.Remote.Read {
			return errNoTag
		}
		off := o.BHS.BufferOffset()
		sge[0] = verbs.SGE{MR: o.Memory.(*verbs.MR), Len: uint32(len(o.Data))}
		wr.Op, wr.RemoteSTag, wr.RemoteTO = verbs.OpWrite, o.Remote.ReadTag, o.Remote.ReadBase+uint64(off)
		p.out = o
	} else {
		b := AppendMessage(c.scratch.Bytes()[:0], &Header{Op: OpControl}, &o.BHS, o.Data)
		sge[0] = verbs.SGE{MR: c.scratch, Len: uint32(len(b))}
		wr.Op = verbs.OpSend
		wr.Flags |= verbs.Inline | verbs.Solicited
		if o.BHS.Opcode() == iscsi.OpResponse && c.invalidates && (o.Remote.Read || o.Remote.Write) {
			wr.Invalidate, wr.InvalidateSTag = true, o.Remote.WriteTag // RFC 7145 section 7.3.2
			if o.Remote.Read {
				wr.InvalidateSTag = o.Remote.ReadTag
			}
		}
	}
	wr.SGL = sge[:]
	if err := c.qp.PostSend(&wr); err != nil {
		return err
	}
	c.enterLocked(p)
	return nil
}

func (c *Conn) postGetLocked(g *iscsi.Get) error {
	switch {
	case c.dead:
		return verbs.ErrClosed
	case !g.Remote.Write:
		return errNoTag
	}
	sge := [1]verbs.SGE{{MR: g.Memory.(*verbs.MR), Off: g.R2T.Offset, Len: g.R2T.Length}}
	wr := verbs.SendWR{
		ID: c.next, Op: verbs.OpRead, Flags: verbs.More | verbs.Signaled, SGL: sge[:],
		RemoteSTag: g.Remote.WriteTag, RemoteTO: g.Remote.WriteBase + uint64(g.R2T.Offset),
	}
	if err := c.qp.PostSend(&wr); err != nil {
		return err
	}
	now := time.Now()
	c.enterLocked(posted{get: g, at: now})
	if c.reads++; c.reads == 1 {
		c.watchLocked(c.cfg.ReadAge)
	}
	return nil
}

// watchLocked has the age of the oldest Read looked at later.
func (c *Conn) watchLocked(later time.Duration) {
	if c.age == nil {
		c.age = time.AfterFunc(later, c.checkAge)
		return
	}
	c.age.Reset(later)
}

// checkAge ends the connection if the oldest Read is too old.
func (c *Conn) checkAge() {
	if c.isOverdue() {
		c.qp.Abort(errReadAge)
	}
}

func (c *Conn) isOverdue() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := c.retired; i != c.next; i++ {
		p := &c.posted[i%maxSend]
		if p.get == nil {
			continue
		}
		left := c.cfg.ReadAge - time.Since(p.at)
		if c.qp.Paused() {
			left = c.cfg.ReadAge
		}
		if left > 0 {
			c.watchLocked(left)
			return false
		}
		if c.err == nil {
			c.err = errReadAge
		}
		return true
	}
	return false
}

// forgetLocked takes a Get from those that are not done.
func (c *Conn) forgetLocked(g *iscsi.Get) {
	for i, o := range c.gets {
		if o == g {
			n := len(c.gets) - 1
			c.gets[i], c.gets[n] = c.gets[n], nil
			c.gets = c.gets[:n]
			return
		}
	}
}

// DeallocateTaskResources implements iscsi.Datamover. It waits for the Reads that are under way: the
// initiator's memory is its own again when it is told of the end.
func (c *Conn) DeallocateTaskResources(itt uint32) (placing bool) {
	var back iscsi.OutQueue
	c.mu.Lock()
	for n := c.waiting.Len(); n > 0; n-- {
		g := c.waiting.Pop()
		if g.R2T.ITT != itt {
			c.waiting.Push(g)
			continue
		}
		c.forgetLocked(g)
		back.Push(&g.Out)
	}
	for c.readsForLocked(itt) {
		c.settled.Wait()
	}
	kept := c.done[:0]
	for _, g := range c.done {
		if g.R2T.ITT != itt {
			kept = append(kept, g)
		}
	}
	clear(c.done[len(kept):])
	c.done = kept
	c.mu.Unlock()
	c.giveBack(back)
	return false
}

// readsForLocked reports whether Reads of a task are under way.
func (c *Conn) readsForLocked(itt uint32) bool {
	return slices.ContainsFunc(c.gets, func(g *iscsi.Get) bool { return g.R2T.ITT == itt })
}

// Completions implements verbs.CQHandler. What was sent is given back here; Run handles the rest.
func (c *Conn) Completions(_ *verbs.CQ, wcs []verbs.WC) {
	var back iscsi.OutQueue
	c.ended = c.ended[:0]
	c.mu.Lock()
	for i := range wcs {
		wc := &wcs[i]
		switch {
		case wc.Op == verbs.WCRecv && wc.Err == nil:
			c.arrived = append(c.arrived, arrival{wc.ID, wc.Len})
		case wc.Op == verbs.WCRecvImm && wc.Err == nil:
			c.arrived = append(c.arrived, arrival{wc.ID, 0}) // no message
		case wc.Op == verbs.WCRecv || wc.Op == verbs.WCRecvImm:
		default:
			c.retireLocked(wc, &back)
		}
	}
	more := !c.queued.Empty() || c.waiting.Len() > 0
	c.mu.Unlock()
	c.giveBack(back)
	if len(c.ended) > 0 { // not before the Get has been given back, for then it may be used again
		c.mu.Lock()
		for _, p := range c.ended {
			c.forgetLocked(p.get)
			if !p.failed {
				c.done = append(c.done, p.get)
			}
		}
		clear(c.ended)
		c.settled.Broadcast()
		c.mu.Unlock()
	}
	if more {
		c.Flush()
	}
	c.tell()
}

// retireLocked notes the end of an operation and of those before it: they end in the order of their
// posting. What a failed Read brought is nobody's: its stream is over.
func (c *Conn) retireLocked(wc *verbs.WC, back *iscsi.OutQueue) {
	for c.retired <= wc.ID && c.retired < c.next {
		p := c.posted[c.retired%maxSend]
		c.posted[c.retired%maxSend] = posted{}
		c.retired++
		switch {
		case p.out != nil:
			back.Push(p.out)
		case p.get != nil:
			c.reads--
			back.Push(&p.get.Out)
			p.failed = wc.Err != nil || wc.Op != verbs.WCRead
			c.ended = append(c.ended, p)
		}
	}
}
