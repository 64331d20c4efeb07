package rtrs

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"syscall"

	"github.com/ironwarp/ironwarp/verbs"
)

// Dir is the direction of an I/O's data.
type Dir uint8

// The directions.
const (
	Read  Dir = iota // from the server
	Write            // to the server
)

func (d Dir) String() string {
	if d == Read {
		return "read"
	}
	return "write"
}

// Completion is called when an I/O ends: Complete is called once, on an engine goroutine
// (or on the client's, when it closes), and must not block.
type Completion interface {
	Complete(p *Permit, errno syscall.Errno)
}

// States of a permit, the low byte of Permit.state. While it is flying, the bits above
// hold the path's incarnation, so that no late response is mistaken for its end.
//
//	idle ──Submit──▶ flying ──response──▶ idle
//	  │                │ ▲
//	  │   its path is lost│ a path takes it
//	  │                ▼ │
//	  └──no path──▶ parked ──Close──▶ idle
const (
	permitIdle = iota
	permitParked
	permitFlying
	permitControl // flying, with a control request, which goes on by no other path
	permitSettle  // flying, to settle it
	permitMoved   // parked, after it was sent
)

// flying is the state of a permit whose request is in flight on t.
func (t *clientPath) flying(kind uint64) uint64 { return kind | t.id<<8 }

// Permit is the right to have one I/O in flight, and the memory for it. It is
// used by one goroutine at a time: Get, fill Buffer, Submit, and after the
// completion Put or another Submit; Put alone where the result is ENOTCONN.
type Permit struct {
	// User is for the client's user; it keeps its value when the permit is put back.
	User any

	cl      *Client
	id      int
	control bool // its request is a control request
	state   atomic.Uint64
	at      *Path // whose memory has the data; nil: the client's

	dir      Dir
	n        uint32
	hdr      [MaxHeader]byte
	hlen     int
	done     Completion
	seq      uint64 // of the I/O, in the order of Submit
	turn     uint32 // of the I/O, among those of the server's slot
	sent     bool   // sent on some path: the server may carry out the I/O
	tried    bool   // sent on some path: the server may have carried out the I/O
	inDoubt  bool   // tried in a session that the server has forgotten
	greeting uint64 // Client.greetings when the I/O was submitted, or OnResend saw it

	unsettled bool        // a write that failed for want of a path, or a control request, may still be executed
	settled   func()      // called when it is not any more
	holder    *clientPath // by which a control request was sent that is made void

	aim aim // of a read

	share *Share // the share it was taken from; changed with permitPool.mu held
}

// Buffer returns the permit's memory, Client.MaxIO bytes, page-aligned. The client owns
// it between Submit and the completion, after which it may be another memory, with what a
// read has brought or with what was written.
func (p *Permit) Buffer() []byte {
	if p.at == nil {
		return p.cl.homes.slot(p.id, p.cl.maxIO)
	}
	return p.at.chunks[p.id].buf
}

// aim is where a read's data is placed instead of Buffer.
type aim struct {
	to verbs.Target // nil: nowhere
	at uint64
}

// Place implements verbs.Target.
func (a *aim) Place(off uint64, b []byte) bool { return a.to.Place(a.at+off, b) }

// Aim has the data of the reads that are submitted from now on go to a target, where it
// begins at byte at, and not to Buffer, which then has what the target has not kept. The
// target takes nothing after the completion, whatever paths still bring. Put, and a nil
// target, end that.
func (p *Permit) Aim(to verbs.Target, at uint64) { p.aim = aim{to, at} }

// withdraw has nothing more go to the target: what the path still brings stays in its memory.
func (p *Permit) withdraw() {
	if p.aim.to != nil && p.at != nil {
		divert(p.at.chunks[p.id].mr)
	}
}

// moveTo has the permit's data in another path's memory, unless that is gone, or with nil in
// the client's. A write's is copied there.
func (p *Permit) moveTo(t *Path) {
	if p.at == t || t != nil && !t.addUser() {
		return
	}
	p.withdraw()
	old, from := p.at, p.Buffer()
	p.at = t
	if p.dir == Write {
		copy(p.Buffer(), from[:p.n])
	}
	if old != nil {
		old.dropUser()
	}
}

// Header returns the user header of the last Submit; OnResend may change it.
func (p *Permit) Header() []byte { return p.hdr[:p.hlen] }

// InDoubt reports that the I/O was sent in a session that the server has forgotten since: it
// may have been carried out then, and other clients may have done I/O after it. It stays so
// until the next Submit.
func (p *Permit) InDoubt() bool { return p.inDoubt }

// ID returns the permit's number, from 0 to Client.QueueDepth()-1.
func (p *Permit) ID() int { return p.id }

// Submit starts an I/O of the first n bytes of Buffer, with a user header of at most
// MaxHeader bytes, which is copied. done is called exactly once. The I/O waits while
// there is no path to the server, or fails with ENOTCONN as ClientConfig.NoPath has it.
func (p *Permit) Submit(dir Dir, header []byte, n int, done Completion) {
	p.submit(dir, header, n, done, false)
}

// SubmitMore is Submit when another I/O follows at once: it need not be sent before
// Client.Flush.
func (p *Permit) SubmitMore(dir Dir, header []byte, n int, done Completion) {
	p.submit(dir, header, n, done, true)
}

// SubmitAgain resubmits with SubmitMore an I/O that ended without having been carried
// out. It keeps its place in the order of posting.
func (p *Permit) SubmitAgain(done Completion) {
	p.done, p.sent, p.tried = done, false, false
	p.turn++
	p.cl.start(p, true)
}

func (p *Permit) submit(dir Dir, header []byte, n int, done Completion, more bool) {
	if n < 0 || n > p.cl.maxIO || len(header) > MaxHeader || p.unsettled {
		done.Complete(p, syscall.EINVAL)
		return
	}
	p.dir, p.n, p.hlen, p.done = dir, uint32(n), copy(p.hdr[:], header), done
	p.seq, p.sent, p.tried, p.inDoubt, p.greeting = p.cl.seq.Add(1), false, false, false, p.cl.greetings.Load()
	p.turn++
	p.cl.start(p, more)
}

// finish completes the I/O. The permit may be gone when it returns.
func (p *Permit) finish(errno syscall.Errno) {
	p.withdraw()
	done := p.done
	p.done = nil
	done.Complete(p, errno)
}

// start sends p, or parks it until there is a path and its share is not suspended.
func (cl *Client) start(p *Permit, more bool) {
	for {
		if !p.isSuspended() {
			if t := cl.choosePath(p); t != nil {
				if t.post(p, more) {
					return
				}
				continue
			}
		}
		if cl.park(p) {
			return
		}
	}
}

// park queues p until it may be sent. It returns false if it may be sent now.
func (cl *Client) park(p *Permit) bool {
	cl.mu.Lock()
	if cl.closing {
		cl.mu.Unlock()
		p.state.Store(permitIdle)
		p.finish(syscall.ESHUTDOWN)
		return true
	}
	if cl.failing && !p.unsettled {
		cl.mu.Unlock()
		p.failWithoutPath()
		return true
	}
	defer cl.mu.Unlock()
	switch {
	case p.isSuspended():
		cl.suspended = inOrder(cl.suspended, p)
	case cl.choosePath(p) == nil:
		cl.parked = inOrder(cl.parked, p)
	default:
		return false
	}
	p.state.Store(permitParked)
	if p.sent {
		p.state.Store(permitMoved)
	}
	return true
}

// unpark sends p if it has waited for a chunk that is free again, unless it is from before the
// session was introduced to the server and OnResend refuses it.
func (cl *Client) unpark(p *Permit) {
	cl.mu.Lock()
	i := slices.Index(cl.parked, p)
	if i >= 0 && len(*cl.up.Load()) > 0 {
		cl.parked = slices.Delete(cl.parked, i, i+1)
	} else {
		i = -1
	}
	cl.mu.Unlock()
	if i >= 0 && !cl.endForgotten(p) {
		cl.start(p, false)
	}
}

// DropParked ends I/O that waits for a path, or whose share is suspended, with the result
// of drop, unless that is 0. I/O that has been sent is left alone: the server may be
// carrying it out until another path is up, and then OnResend is called. drop must not
// block.
func (cl *Client) DropParked(drop func(p *Permit) syscall.Errno) {
	var dropped []*Permit
	var results []syscall.Errno
	cl.mu.Lock()
	judge := func(p *Permit) bool {
		if p.sent {
			return false
		}
		errno := drop(p)
		if errno != 0 {
			dropped, results = append(dropped, p), append(results, errno)
		}
		return errno != 0
	}
	cl.parked = slices.DeleteFunc(cl.parked, judge)
	cl.suspended = slices.DeleteFunc(cl.suspended, judge)
	cl.mu.Unlock()
	for i, p := range dropped {
		p.state.Store(permitIdle)
		p.finish(results[i])
	}
	if len(dropped) > 0 {
		cl.EndBatch()
	}
}

// post sends p by the path. It returns false if the path can't take it. A posted I/O ends
// by a response, or goes on elsewhere when the path is shut, which waits for all posts.
func (t *clientPath) post(p *Permit, more bool) bool {
	c := t.conns[p.id%len(t.conns)]
	c.gate.RLock()
	defer c.gate.RUnlock()
	ch := &t.path.chunks[p.id]
	if c.shut || !ch.busy.CompareAndSwap(false, true) {
		return false
	}
	t.path.flying.Add(1)
	ch.dir, ch.n, ch.posted = p.dir, 0, 0
	if t.timed() || p.turn%timedEvery == 0 {
		ch.posted = nanotime()
	}
	p.moveTo(t.path)
	msg := ioMsg{Type: msgWrite, UsrLen: uint16(p.hlen), Seq: p.turn}
	wr := verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.More, RemoteSTag: ch.stag}
	hdr := verbs.SGE{MR: ch.hdrMR, Off: ch.hdrOff, Len: uint32(p.hlen)}
	if p.dir == Read {
		// The window is open until the response, and exactly as large as the answer (RFC
		// 5042 sections 6.3.3 and 6.3.4).
		msg.Type = msgRead
		if p.n > 0 {
			stag, err := p.open(ch.mr)
			if err != nil {
				return t.refuse(ch, fmt.Errorf("rtrs: open the window of a read: %w", err))
			}
			ch.n = p.n
			msg.Desc = sgDesc{STag: stag, Len: p.n}
		}
		wr.RemoteTO = uint64(p.n)
	}
	hdr.Len += uint32(len(msg.Append(append(ch.hdr[:0], p.hdr[:p.hlen]...))) - p.hlen)
	if p.dir == Write && p.n > 0 {
		ch.sgl = [2]verbs.SGE{{MR: ch.mr, Len: p.n}, hdr}
		wr.SGL = ch.sgl[:2]
	} else {
		ch.sgl[0] = hdr
		wr.SGL = ch.sgl[:1]
	}
	more = more && p.n < sendAtOnce
	imm := reqImm(uint32(p.id), p.n+uint32(p.hlen), t.offBits)
	kind := uint64(permitFlying)
	switch {
	case p.unsettled:
		kind = permitSettle
	case p.control:
		kind = permitControl
	}
	if p.tried && !p.unsettled && !p.control {
		t.path.replays.add(t.cl.kindOf(p))
	}
	p.sent, p.tried = true, true
	p.state.Store(t.flying(kind))
	if err := c.qp.PostSend(&wr); err != nil {
		t.fail(err)
		return true
	}
	c.post(verbs.SendWR{Op: verbs.OpImmediate, Imm: imm}, more)
	return true
}

// open opens the window of a read.
func (p *Permit) open(mr *verbs.MR) (stag uint32, err error) {
	if p.aim.to != nil {
		return mr.ReregisterTo(p.window(), &p.aim)
	}
	return mr.Reregister(0, p.window(), verbs.RemoteWrite)
}

// refuse gives up a path that can't take a request.
func (t *clientPath) refuse(ch *pathChunk, err error) bool {
	t.path.freeChunk(ch)
	t.fail(err)
	return false
}

// kindOf is the kind of p's I/O for people.
func (cl *Client) kindOf(p *Permit) string {
	if cl.cfg.KindOf != nil {
		return cl.cfg.KindOf(p)
	}
	return p.dir.String()
}

// timed reports whether it matters how long each request takes.
func (t *clientPath) timed() bool { return len(*t.cl.up.Load()) > 1 }

// Get returns a permit. It waits until one is free, and fails with ctx's error and, after
// Close, with ErrClosed.
func (cl *Client) Get(ctx context.Context) (*Permit, error) {
	var one [1]*Permit
	if ok, err := cl.tryN(nil, one[:]); ok || err != nil {
		return one[0], err
	}
	return cl.getSlow(ctx)
}

func (cl *Client) getSlow(ctx context.Context) (*Permit, error) {
	ps := make([]*Permit, 1)
	err := cl.GetN(ctx, ps)
	return ps[0], err
}

// GetN fills ps with permits, all at once or none, in the order of the calls. It fails
// for more than QueueDepth permits, and as Get does.
func (cl *Client) GetN(ctx context.Context, ps []*Permit) error {
	return cl.getN(ctx, nil, ps)
}

// TryGetN is GetN that does not wait: ok is false when it would. It fails as GetN does.
func (cl *Client) TryGetN(ps []*Permit) (ok bool, err error) { return cl.tryN(nil, ps) }

// Put returns permits. It may be called from any goroutine and within a completion.
func (cl *Client) Put(ps ...*Permit) {
	owing := slices.ContainsFunc(ps, func(p *Permit) bool { return p.unsettled })
	for _, p := range ps {
		switch {
		case p.unsettled:
			cl.settlePermit(p)
		default:
			p.n = 0
			p.moveTo(nil)
			p.aim = aim{}
			if owing {
				cl.returnToPool(p)
			}
		}
	}
	if !owing {
		cl.returnToPool(ps...)
	}
}

func (cl *Client) returnToPool(ps ...*Permit) {
	if cl.pool.put(ps...) {
		cl.freeMemoryOnce()
	}
}
