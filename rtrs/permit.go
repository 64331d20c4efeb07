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
// hold the connection (8 bits) and the path's incarnation, so that no late response is
// mistaken for its end.
//
//	idle ──Submit──▶ flying ──response──▶ idle
//	  │                │ ▲
//	  │          path lost│ path up
//	  │                ▼ │
//	  └──no path──▶ parked ──Close──▶ idle
const (
	permitIdle = iota
	permitParked
	permitFlying
)

func (c *clientConn) flying() uint64 {
	return permitFlying | uint64(c.cid)<<8 | c.path.inc<<16
}

// Permit is the right to have one I/O in flight, and the memory for it. It is
// used by one goroutine at a time: Get, fill Buffer, Submit, and after the
// completion Put or another Submit.
type Permit struct {
	// User is for the client's user; it keeps its value when the permit is put back.
	User any

	cl     *Client
	id     int
	buf    []byte // MaxIO bytes
	mr     *verbs.MR
	hdr    []byte // the user header and the message behind it
	hdrMR  *verbs.MR
	hdrOff uint32 // offset of hdr in hdrMR
	state  atomic.Uint64
	stag   uint32 // of the chunk

	dir  Dir
	n    uint32
	hlen int
	done Completion
	seq  uint64 // of the I/O, in the order of Submit
	sent bool   // sent on some path: the server may carry out the I/O

	share *Share // the share it was taken from; changed with permitPool.mu held
	sgl   [2]verbs.SGE
}

// Buffer returns the permit's memory, Client.MaxIO bytes, page-aligned. The client owns
// it between Submit and the completion.
func (p *Permit) Buffer() []byte { return p.buf }

// Header returns the user header of the last Submit; OnResend may change it.
func (p *Permit) Header() []byte { return p.hdr[:p.hlen] }

// ID returns the permit's number, from 0 to Client.QueueDepth()-1.
func (p *Permit) ID() int { return p.id }

// Submit starts an I/O of the first n bytes of Buffer, with a user header of at most
// MaxHeader bytes, which is copied. done is called exactly once. The I/O waits while
// there is no path to the server.
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
	p.done, p.sent = done, false
	p.cl.start(p, true)
}

func (p *Permit) submit(dir Dir, header []byte, n int, done Completion, more bool) {
	if n < 0 || n > len(p.buf) || len(header) > MaxHeader {
		done.Complete(p, syscall.EINVAL)
		return
	}
	p.dir, p.n, p.hlen, p.done = dir, uint32(n), copy(p.hdr[:MaxHeader], header), done
	p.seq, p.sent = p.cl.seq.Add(1), false
	p.cl.start(p, more)
}

// finish completes the I/O. The permit may be gone when it returns.
func (p *Permit) finish(errno syscall.Errno) {
	done := p.done
	p.done = nil
	done.Complete(p, errno)
}

// start sends p, or parks it until there is a path and its share is not suspended.
func (cl *Client) start(p *Permit, more bool) {
	for {
		if path := cl.path.Load(); path != nil && !p.waits() && path.post(p, more) {
			return
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
		p.finish(syscall.ESHUTDOWN)
		return true
	}
	defer cl.mu.Unlock()
	switch {
	case p.waits():
		cl.suspended = inOrder(cl.suspended, p)
	case cl.path.Load() == nil:
		cl.parked = append(cl.parked, p)
	default:
		return false
	}
	p.state.Store(permitParked)
	return true
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

// post sends p on its connection. It returns false if the path has been given up. A
// posted I/O ends by a response or by the teardown of the path, which waits for all
// posts.
func (t *clientPath) post(p *Permit, more bool) bool {
	c := t.conns[p.id%len(t.conns)]
	c.gate.RLock()
	defer c.gate.RUnlock()
	if c.shut {
		return false
	}
	msg := ioMsg{Type: msgWrite, UsrLen: uint16(p.hlen)}
	wr := verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.More, RemoteSTag: p.stag}
	hdr := verbs.SGE{MR: p.hdrMR, Off: p.hdrOff, Len: uint32(p.hlen)}
	if p.dir == Read {
		// The window is open until the response, and exactly as large as the answer (RFC
		// 5042 sections 6.3.3 and 6.3.4).
		msg.Type = msgRead
		if p.n > 0 {
			stag, err := p.mr.Reregister(0, p.window(), verbs.RemoteWrite)
			if err != nil {
				t.fail(fmt.Errorf("rtrs: open the window of a read: %w", err))
				return false
			}
			msg.Desc = sgDesc{STag: stag, Len: p.n}
		}
		wr.RemoteTO = uint64(p.n)
	}
	hdr.Len += uint32(len(msg.Append(p.hdr[:p.hlen])) - p.hlen)
	if p.dir == Write && p.n > 0 {
		p.sgl = [2]verbs.SGE{{MR: p.mr, Len: p.n}, hdr}
		wr.SGL = p.sgl[:2]
	} else {
		p.sgl[0] = hdr
		wr.SGL = p.sgl[:1]
	}
	off := p.n + uint32(p.hlen)
	p.sent = true
	p.state.Store(c.flying())
	if err := c.qp.PostSend(&wr); err != nil {
		t.fail(err)
		return true
	}
	c.post(verbs.SendWR{Op: verbs.OpImmediate, Imm: reqImm(uint32(p.id), off, t.offBits)}, more && p.n < sendAtOnce)
	return true
}

// Get returns a permit. It waits until one is free, and fails with ctx's error and, after
// Close, with ErrClosed.
func (cl *Client) Get(ctx context.Context) (*Permit, error) {
	var one [1]*Permit
	if ok, err := cl.pool.try(nil, one[:]); ok || err != nil {
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
func (cl *Client) TryGetN(ps []*Permit) (ok bool, err error) { return cl.pool.try(nil, ps) }

// Put returns permits. It may be called from any goroutine and within a completion.
func (cl *Client) Put(ps ...*Permit) {
	if cl.pool.put(ps...) {
		cl.release()
	}
}
