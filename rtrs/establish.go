package rtrs

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/ironwarp/ironwarp/verbs"
)

// establish makes a new incarnation of the path: all its connections, INFO, the user's
// OnConnect, and the waiting I/O.
func (cl *Client) establish(ctx context.Context, pc PathConfig) (*clientPath, error) {
	cl.mu.Lock()
	cl.inc++
	t := &clientPath{cl: cl, inc: cl.inc, info: make(chan infoRsp, 1), failed: make(chan struct{})}
	// All exist from the start, because the first may end while others are dialled.
	for cid := range cl.cfg.Conns {
		t.conns = append(t.conns, &clientConn{path: t, cid: cid})
	}
	cl.remote = pc.Remote
	cl.mu.Unlock()
	tried := func(error) {}
	var err error
	if pc.Choose != nil {
		pc.Transport, tried, err = pc.Choose(ctx)
	}
	if err == nil {
		err = cl.bringUp(ctx, t, pc)
		tried(err)
	}
	if err == nil {
		return t, nil
	}
	t.fail(err)
	t.shutdown(false)
	cl.collect(t)
	return nil, t.explain(err)
}

// explain prefers the error that the path itself found.
func (t *clientPath) explain(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, ErrPathLost) {
		return errors.Join(t.err, err)
	}
	return err
}

func (cl *Client) bringUp(ctx context.Context, t *clientPath, pc PathConfig) error {
	for cid := range cl.cfg.Conns {
		if err := cl.dial(ctx, t, pc, cid); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, setupTimeout)
	defer cancel()
	go func() {
		select {
		case <-t.failed:
			cancel()
		case <-ctx.Done():
		}
	}()
	if err := cl.exchangeInfo(ctx, t, pc); err != nil {
		return err
	}
	// A responder sends nothing on a connection on which nothing has arrived (RFC 5044
	// section 7.1.2 rule 4).
	for _, c := range t.conns {
		c.postImm(makeImm(immHB, 0), false)
	}
	cl.mu.Lock()
	cl.current, cl.ctlPath = t, t
	if !cl.closing {
		close(cl.ctlUp)
	}
	cl.mu.Unlock()
	if cl.cfg.OnConnect != nil {
		if err := cl.cfg.OnConnect(ctx, cl); err != nil {
			return err
		}
	}
	return cl.resume(t)
}

func (cl *Client) qpConfig(cq *verbs.CQ) verbs.QPConfig {
	slots := cl.cfg.QueueDepth + controlChunks
	return verbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: sendSlots(slots), MaxRecv: recvSlots(slots)}
}

// recvSlots returns how many receives a connection needs for slots I/Os in flight: one
// immediate each, and heartbeats.
func recvSlots(slots int) int { return slots + hbSlack }

// sendSlots returns how many sends it needs: two for each I/O, and two more, because the
// answer to an I/O may arrive, and its slot be reused, just before the engine notices
// that its bytes were sent. A third use cannot begin before that, because nothing of the
// second was sent.
func sendSlots(slots int) int { return 4*slots + hbSlack }

// dial opens connection cid.
func (cl *Client) dial(ctx context.Context, t *clientPath, pc PathConfig, cid int) error {
	c := t.conns[cid]
	cq, err := cl.cfg.ULP.CreateCQ(ConnEntries(cl.cfg.QueueDepth), c)
	if err != nil {
		return err
	}
	c.cq = cq
	req := ConReq{Version: Version, CID: uint16(cid), CIDNum: uint16(cl.cfg.Conns), Incarnation: t.inc,
		Path: cl.pathID, Session: cl.session, First: cid == 0 && t.inc == 1}
	cfg := verbs.DialConfig{Remote: pc.Remote, Transport: pc.Transport, PrivateData: req.Append(nil), QP: cl.qpConfig(cq), Setup: cl.cfg.Setup}
	dctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	qp, err := cl.domains.of(cid).Dial(dctx, cfg)
	if err != nil {
		return refusedBy(pc, cid, err)
	}
	c.qp = qp
	var rsp ConRsp
	if err := rsp.Parse(qp.PrivateData()); err != nil {
		return fmt.Errorf("rtrs: connection %d to %s: %w (is it an ironwarp daemon's port?)", cid, pc.Remote, err)
	}
	if rsp.Version != Version || rsp.Errno != 0 {
		return &RefusedError{Remote: pc.Remote, Step: fmt.Sprintf("connection %d", cid), Errno: cmpErrno(rsp.Errno, syscall.EPROTONOSUPPORT)}
	}
	if cid == 0 {
		if err := cl.adopt(t, &rsp); err != nil {
			return err
		}
	}
	return cl.postReceives(t, c)
}

func cmpErrno(e, def syscall.Errno) syscall.Errno {
	if e != 0 {
		return e
	}
	return def
}

// refusedBy finds the server's reason in an MPA rejection.
func refusedBy(pc PathConfig, cid int, err error) error {
	var rej *verbs.RejectedError
	var rsp ConRsp
	if errors.As(err, &rej) && rsp.Parse(rej.PrivateData) == nil {
		return &RefusedError{Remote: pc.Remote, Step: fmt.Sprintf("connection %d", cid), Errno: cmpErrno(rsp.Errno, syscall.ECONNREFUSED)}
	}
	return err
}

// adopt takes over the server's limits; those of the first connection stay.
func (cl *Client) adopt(t *clientPath, rsp *ConRsp) error {
	depth := min(int(rsp.QueueDepth)-controlChunks, cl.cfg.QueueDepth)
	maxIO := int(min(rsp.MaxIO, MaxMaxIO))
	switch {
	case depth < 1 || int(rsp.QueueDepth) > MaxQueueDepth+controlChunks:
		return violation("a queue depth of %d", rsp.QueueDepth)
	case maxIO < MinMaxIO || rsp.MaxHeader < MaxHeader+readMsgLen:
		return violation("chunks for %d bytes and %d of header", rsp.MaxIO, rsp.MaxHeader)
	case maxIO+MaxHeader >= 1<<offsetBits(int(rsp.QueueDepth)):
		return violation("chunks of %d bytes, which offsets in %d chunks cannot name", maxIO, rsp.QueueDepth)
	}
	if cl.permits == nil {
		cl.depth, cl.maxIO = depth, maxIO
		if err := cl.allocate(); err != nil {
			return err
		}
	}
	if depth < cl.depth {
		return &shrunkError{"queue depth", uint32(depth), uint32(cl.depth)}
	}
	if maxIO < cl.maxIO {
		return &shrunkError{"largest I/O", uint32(maxIO), uint32(cl.maxIO)}
	}
	t.chunks, t.offBits = int(rsp.QueueDepth), offsetBits(int(rsp.QueueDepth))
	t.newSTags = rsp.Flags&flagNewRKey != 0
	return nil
}

// hdrSlot is the size of a permit's part of the header memory.
const hdrSlot = MaxHeader + readMsgLen

// allocate reserves and registers the permits' memory. The server can reach none of it
// until a read is in flight.
//
// unlocked: nobody else has the client yet.
func (cl *Client) allocate() error {
	slots := cl.depth + controlChunks
	var err error
	if cl.bufs, err = newArena(slots, cl.maxIO); err != nil {
		return err
	}
	if err = cl.allocateHeaders(slots); err != nil {
		return err
	}
	permits := make([]*Permit, slots)
	for i := range permits {
		p := &Permit{cl: cl, id: i, buf: cl.bufs.slot(i, cl.maxIO)}
		n := len(cl.domains)
		p.hdrMR, p.hdrOff = cl.hdrMRs[i%n], uint32(i/n*hdrSlot)
		p.hdr = p.hdrMR.Bytes()[p.hdrOff:][:hdrSlot:hdrSlot]
		permits[i] = p
		if p.mr, err = cl.domains.of(i).RegisterMR(p.buf, verbs.LocalWrite); err == nil {
			err = p.mr.Invalidate()
		}
		if err != nil {
			cl.permits = permits[:i+1]
			return fmt.Errorf("rtrs: register %d buffers of %d bytes: %w", slots, cl.maxIO, err)
		}
	}
	cl.permits = permits
	cl.controls = &controls{cl: cl, own: permits[cl.depth]}
	cl.parked = make([]*Permit, 0, cl.depth)
	cl.pool.total = cl.depth
	for i := cl.depth - 1; i >= 0; i-- {
		cl.pool.free = append(cl.pool.free, permits[i])
	}
	return nil
}

// allocateHeaders reserves and registers the memory for headers: a part for each
// protection domain. That of connection 0 also holds INFO_REQ and INFO_RSP.
func (cl *Client) allocateHeaders(slots int) error {
	const info = infoReqLen + infoHdrLen + (MaxQueueDepth+controlChunks)*sgDescLen
	var err error
	if cl.hdrs, err = newArena(1, slots*hdrSlot+info); err != nil {
		return err
	}
	rest := cl.hdrs.mem
	cl.hdrMRs = make([]*verbs.MR, len(cl.domains))
	for g := range cl.hdrMRs {
		n := (slots - g + len(cl.domains) - 1) / len(cl.domains) * hdrSlot
		if g == 0 {
			cl.infoOff = uint32(n)
			n += info
		}
		if n <= 0 {
			break // more connections than permits
		}
		if cl.hdrMRs[g], err = cl.domains.of(g).RegisterMR(rest[:n:n], verbs.LocalWrite); err != nil {
			return err
		}
		rest = rest[n:]
	}
	return nil
}

// infoBuf returns the buffer for INFO_RSP.
func (cl *Client) infoBuf() []byte { return cl.hdrMRs[0].Bytes()[cl.infoOff+infoReqLen:] }

// postReceives fills the receive queue. The server sends nothing before it has received
// INFO_REQ, and then INFO_RSP first.
func (cl *Client) postReceives(t *clientPath, c *clientConn) error {
	n := recvSlots(cl.depth + controlChunks)
	if c.cid == 0 {
		n--
		wr := verbs.RecvWR{SGL: []verbs.SGE{{MR: cl.hdrMRs[0], Off: cl.infoOff + infoReqLen, Len: uint32(infoRspLen(t.chunks))}}}
		if err := c.qp.PostRecv(wr); err != nil {
			return err
		}
	}
	for range n {
		if err := c.qp.PostRecv(verbs.RecvWR{}); err != nil {
			return err
		}
	}
	return nil
}

// exchangeInfo sends the session's name and learns the addresses of the chunks.
func (cl *Client) exchangeInfo(ctx context.Context, t *clientPath, pc PathConfig) error {
	req := infoReq{Name: cl.cfg.Name}
	req.Append(cl.hdrMRs[0].Bytes()[cl.infoOff:cl.infoOff])
	wr := verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{{MR: cl.hdrMRs[0], Off: cl.infoOff, Len: infoReqLen}}}
	if err := t.conns[0].qp.PostSend(&wr); err != nil {
		return err
	}
	var rsp infoRsp
	select {
	case rsp = <-t.info:
	case <-t.failed:
		return t.err
	case <-ctx.Done():
		if t.isDown() {
			return t.err
		}
		return fmt.Errorf("rtrs: no answer of %s to INFO_REQ: %w", pc.Remote, ctx.Err())
	}
	if rsp.Errno != 0 {
		return &RefusedError{Remote: pc.Remote, Step: fmt.Sprintf("the session %q", cl.cfg.Name), Errno: rsp.Errno}
	}
	if len(rsp.Desc) != t.chunks {
		return violation("INFO_RSP describes %d chunks, %d were announced", len(rsp.Desc), t.chunks)
	}
	for i, p := range cl.permits {
		d := rsp.Desc[i]
		if d.TO != 0 || int(d.Len) < cl.maxIO+MaxHeader+readMsgLen {
			return violation("chunk %d has %d bytes at %d", i, d.Len, d.TO)
		}
		p.stag = d.STag
	}
	return nil
}
