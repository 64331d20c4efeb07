package target

import (
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/nvme"
	"github.com/ironwarp/ironwarp/verbs"
)

// command is a command between its arrival and the end of its response. Its way:
//
//	arrive ──▶ (take: fetch data) ──▶ run at the storage ──▶ end ──▶ Write of data, Send of the response ──▶ released
type command struct {
	c     *conn
	ctrl  *controller // nil before Connect
	index int         // in conn.all
	slot  int         // its receive, until it is answered
	cmd   nvme.Command
	data  []byte // that came in the capsule
	sgl   nvme.SGL

	mr    *verbs.MR // memory for data
	n     uint32    // their length
	buf   []byte    // the data
	out   bool      // they go to the host
	ready func(*command)
	step  func(*command, syscall.Errno) // when the storage has done what it was asked for

	ns      *Namespace // while it runs there
	epoch   uint64     // of ns when it began
	began   time.Time  // there
	joins   bool       // it is the Connect that is under way
	scratch []byte
	off, at uint64
	ranges  []nvme.Range
	result  uint64
}

// The kinds of work requests, in the lower bits of their IDs.
const (
	wrWrite = iota
	wrSend
	wrRead
	wrKinds
)

// Completions implements verbs.CQHandler.
func (c *conn) Completions(_ *verbs.CQ, wcs []verbs.WC) {
	for i := range wcs {
		wc := &wcs[i]
		switch {
		case wc.Op == verbs.WCRecv && wc.Err == nil:
			c.arrive(int(wc.ID), int(wc.Len))
		case wc.Op == verbs.WCRecvImm && wc.Err == nil:
			c.arrive(int(wc.ID), 0) // no capsule
		case wc.Op == verbs.WCRecv || wc.Op == verbs.WCRecvImm:
		default:
			c.completed(wc)
		}
	}
	c.flush()
}

// flush starts sending what was posted.
func (c *conn) flush() { c.qp.Flush() }

func (c *conn) completed(wc *verbs.WC) {
	c.mu.Lock()
	k := c.all[wc.ID/wrKinds]
	c.mu.Unlock()
	switch wc.ID % wrKinds {
	case wrSend:
		k.release()
	case wrRead:
		c.mu.Lock()
		c.reads.Pop()
		c.fetchMoreLocked()
		c.mu.Unlock()
		if wc.Err != nil {
			k.fail(nvme.DataTransferError) // the stream is over
			return
		}
		k.ready(k)
	}
}

// newLocked returns a command.
func (c *conn) newLocked() *command {
	var k *command
	if l := len(c.spare); l > 0 {
		k, c.spare = c.spare[l-1], c.spare[:l-1]
	} else {
		k = &command{c: c, index: len(c.all)}
		c.all = append(c.all, k)
	}
	c.busy++
	c.active++
	return k
}

// arrive handles a capsule.
func (c *conn) arrive(slot, n int) {
	capsule := c.ring.Bytes()[slot*capsuleLen:][:n]
	cmd, data, err := nvme.ParseCommand(capsule)
	c.mu.Lock()
	if c.dead {
		c.mu.Unlock()
		return
	}
	ctrl := c.ctrl
	tooMany := c.tooManyLocked()
	if err != nil || tooMany {
		c.mu.Unlock()
		if err == nil {
			err = errDepth
		}
		c.abort(err)
		return
	}
	k := c.newLocked()
	c.mu.Unlock()
	k.ctrl, k.slot, k.cmd, k.data, k.sgl = ctrl, slot, cmd, data, cmd.SGL()
	if ctrl != nil {
		ctrl.heard()
	}
	switch {
	case !cmd.HasSGL() || cmd.Fused():
		k.fail(nvme.InvalidField | nvme.DNR)
	case cmd.Opcode() == nvme.Fabrics:
		k.fabrics(ctrl)
	case ctrl == nil || !ctrl.isReady():
		k.fail(nvme.SequenceError | nvme.DNR)
	case c.asked.QID == 0:
		k.admin(ctrl)
	default:
		k.io(ctrl)
	}
}

// take has the host's data, of n bytes, in buf, and goes on with ready.
func (k *command) take(n uint32, ready func(*command)) {
	if !k.describes(n) {
		k.fail(nvme.DataLengthInvalid | nvme.DNR)
		return
	}
	switch k.sgl.Type {
	case nvme.DataBlockOffset:
		from, ok := k.inCapsule(n)
		if !ok {
			k.fail(nvme.SGLOffsetInvalid | nvme.DNR)
			return
		}
		k.buf = k.data[from : from+uint64(n)]
		ready(k)
	case nvme.KeyedBlock, nvme.KeyedBlockInvalidate:
		k.n, k.ready = n, ready
		k.needMemory((*command).fetch)
	default:
		k.fail(nvme.SGLTypeInvalid | nvme.DNR)
	}
}

// give has memory for n bytes for the host in buf, and goes on with ready.
func (k *command) give(n uint32, ready func(*command)) {
	switch {
	case k.sgl.Type != nvme.KeyedBlock && k.sgl.Type != nvme.KeyedBlockInvalidate:
		k.fail(nvme.SGLTypeInvalid | nvme.DNR)
	case !k.describes(n):
		k.fail(nvme.DataLengthInvalid | nvme.DNR)
	default:
		k.n, k.out = n, true
		k.needMemory(ready)
	}
}

// answer sends data to the host: those that it has asked for, n bytes from off on. What is not there is zeroes.
func (k *command) answer(data []byte, off uint64, n uint32) {
	k.give(n, func(k *command) {
		clear(k.buf)
		if off < uint64(len(data)) {
			copy(k.buf, data[off:])
		}
		k.end(nvme.Success)
	})
}

// needMemory goes on with next when there is memory for n bytes.
func (k *command) needMemory(next func(*command)) {
	c := k.c
	c.mu.Lock()
	if c.waiting.Len() > 0 && !c.dead {
		k.ready, k.step = chain(k.ready, next), nil
		c.waiting.Push(k)
		c.mu.Unlock()
		return
	}
	mr, err := c.getLocked(k.n)
	if mr == nil && err == nil && !c.dead {
		k.ready, k.step = chain(k.ready, next), nil
		c.waiting.Push(k)
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	k.equipped(mr, err, next)
}

// chain remembers what comes next in place of ready, which next needs afterwards.
func chain(ready, next func(*command)) func(*command) {
	return func(k *command) {
		k.ready = ready
		next(k)
	}
}

func (k *command) equipped(mr *verbs.MR, err error, next func(*command)) {
	if mr == nil {
		if err != nil {
			k.c.srv.log.Warn("nvme: no memory for a command", "address", k.c.origin.Remote, "error", err)
		}
		k.fail(nvme.InternalError)
		return
	}
	k.mr, k.buf = mr, mr.Bytes()[:k.n]
	next(k)
}

// serveWaiting gives memory to commands that wait for it.
func (c *conn) serveWaiting() {
	for {
		c.mu.Lock()
		if c.waiting.Len() == 0 {
			c.mu.Unlock()
			return
		}
		mr, err := c.getLocked((*c.waiting.At(0)).n)
		if mr == nil && err == nil {
			c.mu.Unlock()
			return
		}
		k := c.waiting.Pop()
		c.mu.Unlock()
		k.equipped(mr, err, k.ready)
	}
}

// fetch reads the data from the host's memory.
func (k *command) fetch() {
	c := k.c
	c.mu.Lock()
	dead := c.dead || c.qp.ORD() == 0
	if !dead {
		c.fetches.Push(k)
		c.fetchMoreLocked()
	}
	c.mu.Unlock()
	if dead {
		k.fail(nvme.DataTransferError)
	}
}

// fetchMoreLocked posts Reads, as many as the host takes.
func (c *conn) fetchMoreLocked() {
	for c.fetches.Len() > 0 && c.reads.Len() < min(c.qp.ORD(), maxReads) && !c.dead {
		k := *c.fetches.At(0)
		wr := verbs.SendWR{ID: uint64(k.index*wrKinds + wrRead), Op: verbs.OpRead, Flags: verbs.More | verbs.Signaled,
			SGL: []verbs.SGE{{MR: k.mr, Len: k.n}}, RemoteSTag: k.sgl.Key, RemoteTO: k.sgl.Address}
		if c.qp.PostSend(&wr) != nil {
			return // the stream is over: die ends the command
		}
		c.fetches.Pop()
		c.reads.Push(time.Now())
		if c.reads.Len() == 1 {
			c.age.Reset(c.srv.cfg.ReadAge)
		}
	}
}

// do has the storage do something, and then goes on with step.
func (k *command) do(op block.Op, buf []byte, off uint64, n int64, fl block.Flags, step func(*command, syscall.Errno)) {
	k.step = step
	k.c.queue(k.ns).Do(op, buf, int64(off), n, fl, k)
}

// Complete implements block.Completion.
func (k *command) Complete(errno syscall.Errno) { k.step(k, errno) }

func (k *command) fail(st nvme.Status) {
	k.out = false
	k.end(st)
}

// end answers the command. The response goes out with the next flush.
func (k *command) end(st nvme.Status) {
	c := k.c
	if ns := k.ns; ns != nil {
		k.ns = nil
		ns.end(k)
	}
	if st != nvme.Success {
		k.out = false
		k.note(st)
	}
	c.mu.Lock()
	if k.joins {
		k.joins, c.joining = false, false // c.ctrl says whether it has one now
	}
	c.active--
	sent := !c.dead && k.respondLocked(st)
	c.mu.Unlock()
	if !sent {
		k.release()
	}
}

// endLater is end for goroutines after which nobody flushes.
func (k *command) endLater(st nvme.Status) {
	c := k.c
	k.end(st)
	c.flush()
}

// respondLocked posts the receive of the next command, the data and the response. It returns false if the stream is
// over.
func (k *command) respondLocked(st nvme.Status) bool {
	c := k.c
	e := nvme.Completion{Result: k.result, SQHead: nvme.NoFlowControl, ID: k.cmd.ID(), Status: st}
	if c.entries > 0 {
		c.head = (c.head + 1) % c.entries
		if !c.noFlow {
			e.SQHead = c.head
		}
	}
	if postSlot(c.qp, c.ring, k.slot) != nil {
		return false
	}
	id := uint64(k.index * wrKinds)
	if k.out {
		wr := verbs.SendWR{ID: id + wrWrite, Op: verbs.OpWrite, Flags: verbs.More, SGL: []verbs.SGE{{MR: k.mr, Len: k.n}}, RemoteSTag: k.sgl.Key, RemoteTO: k.sgl.Address}
		if c.qp.PostSend(&wr) != nil {
			return false
		}
	}
	var b [nvme.CompletionLen]byte
	wr := verbs.SendWR{ID: id + wrSend, Op: verbs.OpSend, Flags: verbs.More | verbs.Signaled | verbs.Inline | verbs.Solicited, Data: e.Append(b[:0])}
	if k.sgl.Type == nvme.KeyedBlockInvalidate {
		wr.Invalidate, wr.InvalidateSTag = true, k.sgl.Key
	}
	return c.qp.PostSend(&wr) == nil
}

// release ends the command.
func (k *command) release() {
	c := k.c
	c.mu.Lock()
	mr := k.mr
	*k = command{c: c, index: k.index}
	if mr != nil {
		c.putLocked(mr)
	}
	c.spare = append(c.spare, k)
	c.busy--
	c.settled.Broadcast()
	c.mu.Unlock()
	if mr != nil {
		c.serveWaiting()
	}
}
