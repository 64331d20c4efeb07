package rtrs

import (
	"fmt"
	"sync/atomic"
	"syscall"

	"github.com/ironwarp/ironwarp/verbs"
)

// Request is a client's request, and the chunk of memory that holds it. The handler owns
// it from Serve to Complete. A write is served once, however often and by however many
// paths the client sends it; a read may be served again.
type Request struct {
	// Dir is the direction of the data.
	Dir Dir
	// Header is the user's header. In sessions with ServerConfig.TrustClients the
	// client can still change it.
	Header []byte
	// Data is the payload of a write, or the space for a read's result, all of which the
	// handler fills unless it completes with an error.
	Data []byte
	// User is for the handler; it keeps its value from one request in this chunk
	// to the next.
	User any

	id     uint32
	seq    uint32
	path   *serverPath
	conn   *serverConn
	mem    []byte
	mr     *verbs.MR
	target sgDesc
	state  atomic.Uint32
	same   []*Request // the same request by other paths, while it is at the handler; guarded by slot.mu
}

// States of a chunk.
const (
	chunkFree = iota // the client's
	chunkBusy        // the server's
)

// Completions implements verbs.CQHandler.
func (c *serverConn) Completions(_ *verbs.CQ, wcs []verbs.WC) {
	s := c.path
	served := false
	for i := range wcs {
		wc := &wcs[i]
		if wc.Err != nil {
			if !s.isFailed() {
				s.fail(ended(c.cid, wc.Err))
			}
			continue
		}
		switch wc.Op {
		case verbs.WCRecvImm:
			c.hb.seen()
			served = c.immediate(wc.Imm) || served
		case verbs.WCRecv:
			c.message(wc)
		}
	}
	if served && s.acquire() {
		s.sess.handler.BatchEnd()
		s.sess.flush() // the answers to other paths' requests as well
		s.release()
	}
	s.flush()
}

func (c *serverConn) immediate(imm uint64) (served bool) {
	if err := c.qp.PostRecv(verbs.RecvWR{}); err != nil {
		c.path.fail(err)
	}
	switch immType(imm) {
	case immIOReq:
		return c.request(imm)
	case immHB:
		c.post(&verbs.SendWR{Op: verbs.OpImmediate, Flags: verbs.More, Imm: makeImm(immHBAck, 0)})
	case immHBAck:
	case immBye:
		c.path.bye.Store(true)
	default:
		c.path.fail(violation("immediate %#x of an unknown type", imm))
	}
	return false
}

// message handles the one Send that a client makes, INFO_REQ on connection 0.
func (c *serverConn) message(wc *verbs.WC) {
	c.hb.seen()
	var req infoReq
	if err := req.Parse(c.path.svcMR.Bytes()[:min(wc.Len, infoReqLen)]); err != nil {
		c.path.fail(fmt.Errorf("%w: %w", ErrProtocol, err))
		return
	}
	select {
	case c.path.infoCh <- req:
	default:
		c.path.fail(violation("a second INFO_REQ"))
	}
}

// request hands the request that imm names to the handler.
func (c *serverConn) request(imm uint64) bool {
	s := c.path
	if !s.open.Load() {
		s.fail(violation("a request before the session was open"))
		return false
	}
	if !s.acquire() {
		return false
	}
	r, err := c.acquireRequest(imm)
	if err != nil {
		s.fail(err)
		s.release()
		return false
	}
	switch verdict, errno := s.sess.slots[r.id].beginOnce(r); verdict {
	case verdictExecute:
		if r.Dir == Write && len(r.Header)+len(r.Data) == 0 {
			r.answerAll(0, verbs.More) // it settles another
			return false
		}
		s.sess.handler.Serve(r)
		return true
	case verdictAnswer:
		r.respond(errno, verbs.More)
	case verdictViolates:
		s.fail(violation("request %d in slot %d, whose last one has not been answered, or was another", r.seq, r.id))
		r.state.Store(chunkFree)
		s.release()
	}
	return false
}

// acquireRequest takes ownership of the chunk that imm names, and parses the request once
// the client can no longer change it.
func (c *serverConn) acquireRequest(imm uint64) (*Request, error) {
	s := c.path
	id, off := splitReq(imm, s.offBits)
	if int(id) >= len(s.chunks) {
		return nil, violation("a request in chunk %d of %d", id, len(s.chunks))
	}
	if !s.domains.same(int(id), c.cid) {
		return nil, violation("a request in chunk %d on connection %d of %d, which is not the chunk's", id, c.cid, len(s.conns))
	}
	r := &s.chunks[id]
	if !r.state.CompareAndSwap(chunkFree, chunkBusy) {
		return nil, violation("a request in chunk %d, whose last request has not been answered", id)
	}
	if err := r.revoke(); err != nil {
		return nil, err
	}
	if err := r.parse(off, uint32(s.srv.cfg.MaxIO)); err != nil {
		return nil, err
	}
	r.conn = c
	return r, nil
}

func (r *Request) parse(off, maxIO uint32) error {
	if int(off) > len(r.mem) {
		return violation("a message at %d of a chunk of %d bytes", off, len(r.mem))
	}
	var msg ioMsg
	if err := msg.Parse(r.mem[off:]); err != nil {
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	n := off - uint32(msg.UsrLen)
	switch {
	case msg.UsrLen > MaxHeader || uint32(msg.UsrLen) > off:
		return violation("a user header of %d bytes in front of a message at %d", msg.UsrLen, off)
	case n > maxIO:
		return violation("a request of %d bytes, at most %d are possible", n, maxIO)
	case msg.Type == msgRead && msg.Desc.Len != n:
		return violation("a read of %d bytes into a window of %d", n, msg.Desc.Len)
	}
	r.Dir = Write
	if msg.Type == msgRead {
		r.Dir = Read
	}
	r.target, r.seq = msg.Desc, msg.Seq
	r.Data, r.Header = r.mem[:n:n], r.mem[n:off:off]
	return nil
}

// Complete ends the request with errno, 0 for success, and sends the response.
func (r *Request) Complete(errno syscall.Errno) { r.complete(errno, 0) }

// CompleteMore is Complete that leaves sending to SessionInfo.Flush or, on the goroutine
// of Serve or BatchEnd, to the end of the batch.
func (r *Request) CompleteMore(errno syscall.Errno) { r.complete(errno, verbs.More) }

func (r *Request) complete(errno syscall.Errno, more verbs.Flags) {
	if r.state.Load() != chunkBusy {
		panic("rtrs: request completed twice")
	}
	var stats Stats
	stats.count(r.Dir, uint32(len(r.Data)), errno)
	r.path.sess.counters.add(&stats)
	r.answerAll(errno, more)
}

// answerAll answers the request, and those that are the same.
func (r *Request) answerAll(errno syscall.Errno, more verbs.Flags) {
	for _, again := range r.path.sess.slots[r.id].endExecution(r, errno) {
		if r.Dir == Read && errno == 0 {
			copy(again.Data, r.Data)
		}
		again.respond(errno, 0)
	}
	r.respond(errno, more)
}

// respond answers the request on the path that it came by, if that is still there. The
// memory may be gone when it returns.
func (r *Request) respond(errno syscall.Errno, more verbs.Flags) {
	s, c, id, n := r.path, r.conn, r.id, uint32(len(r.Data))
	defer s.release()
	if s.closing.Load() {
		r.state.Store(chunkFree)
		return
	}
	if r.Dir == Read && errno == 0 && n > 0 {
		if n >= sendAtOnce {
			more = 0
		}
		sgl := [1]verbs.SGE{{MR: r.mr, Len: n}}
		c.post(&verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.More, SGL: sgl[:], RemoteSTag: r.target.STag, RemoteTO: r.target.TO})
	}
	var stag uint32
	if !s.trusting {
		var err error
		if stag, err = r.mr.Reregister(0, len(r.mem), verbs.RemoteWrite); err != nil {
			s.fail(err)
		}
	}
	// From here the client owns the chunk, and its next request may arrive before the
	// response is sent.
	r.state.Store(chunkFree)
	c.post(&verbs.SendWR{Op: verbs.OpImmediate, Flags: more, Imm: rspImm(id, errno, stag)})
}

// post sends wr. If the connection is full because its peer accepts nothing, or gone, the
// session ends.
func (c *serverConn) post(wr *verbs.SendWR) {
	if err := c.qp.PostSend(wr); err != nil {
		c.path.fail(err)
		return
	}
	if wr.Flags&verbs.More != 0 {
		c.dirty.Store(true)
	}
}
