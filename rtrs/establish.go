package rtrs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/ironwarp/ironwarp/verbs"
)

// establish makes a new incarnation of the path: all its connections, INFO, and where the
// server does not know the session the user's OnConnect. Then it takes waiting I/O.
func (t *Path) establish(ctx context.Context) (*clientPath, error) {
	cl := t.cl
	cl.mu.Lock()
	t.inc++
	cl.ids++
	i := &clientPath{cl: cl, path: t, id: cl.ids, inc: t.inc, version: cl.cfg.version, info: make(chan infoRsp, 1), failed: make(chan struct{})}
	// All exist from the start, because the first may end while others are dialled.
	for cid := range cl.cfg.Conns {
		i.conns = append(i.conns, &clientConn{path: i, cid: cid})
	}
	cl.mu.Unlock()
	pc, tried := t.cfg, func(error) {}
	var err error
	if pc.Choose != nil {
		pc.Transport, tried, err = pc.Choose(ctx)
	}
	if err == nil {
		err = i.bringUp(ctx, pc)
		tried(err)
	}
	if err == nil {
		return i, nil
	}
	i.fail(err)
	i.end(false)
	return nil, i.explain(err)
}

// explain prefers the error that the path itself found.
func (t *clientPath) explain(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, ErrPathLost) {
		return errors.Join(t.err, err)
	}
	return err
}

func (t *clientPath) bringUp(ctx context.Context, pc PathConfig) error {
	for cid := range t.conns {
		err := t.dial(ctx, pc, cid)
		if cid == 0 && t.stepDown(err) {
			err = t.dial(ctx, pc, cid)
		}
		if err != nil {
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
	epoch, err := t.exchangeInfo(ctx, pc)
	if err != nil {
		return err
	}
	// A responder sends nothing on a connection on which nothing has arrived (RFC 5044
	// section 7.1.2 rule 4).
	for _, c := range t.conns {
		c.postImm(makeImm(immHB, 0), false)
	}
	return t.cl.enter(ctx, t, epoch)
}

// enter takes a path into use whose server has a session of this epoch. Where that is
// another one than so far, the server has forgotten the session, and nothing of it is
// executing there; or it is another server, while paths to the first are alive.
func (cl *Client) enter(ctx context.Context, t *clientPath, epoch uuid) error {
	select {
	case cl.entering <- struct{}{}:
		defer func() { <-cl.entering }()
	case <-ctx.Done():
		return ctx.Err()
	}
	cl.mu.Lock()
	known := cl.epoch == epoch
	cl.mu.Unlock()
	if !known {
		for _, o := range *cl.up.Load() {
			if o.answers(ctx) {
				return fmt.Errorf("%w: %s is not the server of path %q", ErrAnotherServer, t.path.cfg.Remote, o.path.cfg.Name)
			}
			o.fail(fmt.Errorf("%w: the server has begun the session anew", ErrPathLost))
		}
		cl.mu.Lock()
		cl.epoch = uuid{}
		cl.mu.Unlock()
	}
	cl.mu.Lock()
	if t.isDown() {
		cl.mu.Unlock()
		return t.err // nobody would take it out of use again
	}
	t.path.current = t
	if cl.ctlPath == nil || !known {
		if cl.ctlPath == nil && !cl.closing {
			close(cl.ctlUp)
		}
		cl.ctlPath = t
	}
	cl.mu.Unlock()
	if !known {
		if cl.cfg.OnConnect != nil {
			if err := cl.cfg.OnConnect(ctx, cl); err != nil {
				return err
			}
		}
		cl.greetings.Add(1)
		cl.mu.Lock()
		cl.epoch = epoch // before anything is sent that this server may be executing then
		cl.mu.Unlock()
	}
	return cl.resumeIO(t)
}

func (cl *Client) qpConfig(cq *verbs.CQ) verbs.QPConfig {
	slots := cl.cfg.QueueDepth + controlChunks
	return verbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: sendSlots(slots), MaxRecv: recvSlots(slots), Partition: cl.cfg.Partition, Label: cl.cfg.Label}
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
func (t *clientPath) dial(ctx context.Context, pc PathConfig, cid int) error {
	c, cl := t.conns[cid], t.cl
	cq, err := cl.cfg.ULP.CreateCQ(ConnEntries(cl.cfg.QueueDepth), c)
	if err != nil {
		return err
	}
	c.cq = cq
	req := ConReq{Version: t.version, CID: uint16(cid), CIDNum: uint16(cl.cfg.Conns), Incarnation: t.inc,
		Path: t.path.id, Session: cl.session, First: cid == 0 && t.inc == 1}
	cfg := verbs.DialConfig{Remote: pc.Remote, Transport: pc.Transport, PrivateData: req.Append(nil), QP: cl.qpConfig(cq), Setup: cl.cfg.Setup}
	dctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	qp, err := t.path.domains.of(cid).Dial(dctx, cfg)
	if err != nil {
		return t.refusedBy(pc, cid, err)
	}
	c.qp = qp
	var rsp ConRsp
	if err := rsp.Parse(qp.PrivateData()); err != nil {
		return fmt.Errorf("rtrs: connection %d to %s: %w (is it an ironwarp daemon's port?)", cid, pc.Remote, err)
	}
	switch {
	case !rsp.Version.Agrees(t.version) || rsp.Errno != 0:
		return t.refusal(pc, cid, &rsp, syscall.EPROTONOSUPPORT)
	case rsp.Version > t.version || cid > 0 && rsp.Version != t.version:
		return violation("an answer in version %v to a request in version %v", rsp.Version, t.version)
	}
	if t.version = rsp.Version; cid == 0 {
		if err := t.adopt(&rsp); err != nil {
			return err
		}
	}
	return c.postReceives()
}

// stepDown takes the server's version in place of a newer one, where that is why the server
// has refused. Servers that agree on a lower version by themselves do not refuse.
func (t *clientPath) stepDown(err error) bool {
	var refused *RefusedError
	c := t.conns[0]
	if !errors.As(err, &refused) || c.qp != nil || refused.Errno != syscall.EPROTONOSUPPORT || !refused.Theirs.Agrees(t.version) || refused.Theirs >= t.version {
		return false
	}
	t.version = refused.Theirs
	c.cq.Destroy()
	c.cq = nil
	return true
}

// refusedBy finds the server's reason in an MPA rejection.
func (t *clientPath) refusedBy(pc PathConfig, cid int, err error) error {
	var rej *verbs.RejectedError
	var rsp ConRsp
	if errors.As(err, &rej) && rsp.Parse(rej.PrivateData) == nil {
		return t.refusal(pc, cid, &rsp, syscall.ECONNREFUSED)
	}
	return err
}

func (t *clientPath) refusal(pc PathConfig, cid int, rsp *ConRsp, otherwise syscall.Errno) error {
	return &RefusedError{Remote: pc.Remote, Step: fmt.Sprintf("connection %d", cid), Errno: cmp.Or(rsp.Errno, otherwise), Ours: t.version, Theirs: rsp.Version}
}

// adopt takes over the server's limits; those of the first connection stay.
func (t *clientPath) adopt(rsp *ConRsp) error {
	cl := t.cl
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
	cl.mu.Lock() // other paths may come up at the same time
	err := cl.allocateLocked(depth, maxIO)
	cl.mu.Unlock()
	if err != nil {
		return err
	}
	if depth < cl.depth {
		return &shrunkError{"queue depth", uint32(depth), uint32(cl.depth)}
	}
	if maxIO < cl.maxIO {
		return &shrunkError{"largest I/O", uint32(maxIO), uint32(cl.maxIO)}
	}
	t.slots, t.offBits = int(rsp.QueueDepth), offsetBits(int(rsp.QueueDepth))
	t.newSTags = rsp.Flags&flagNewRKey != 0
	if t.path.chunks == nil {
		return t.path.allocate()
	}
	return nil
}

// hdrSlot is the size of a permit's part of the header memory.
const hdrSlot = MaxHeader + readMsgLen

// allocateLocked makes the permits, for the first path that learns of the server's limits.
func (cl *Client) allocateLocked(depth, maxIO int) (err error) {
	if cl.permits != nil {
		return nil
	}
	cl.depth, cl.maxIO = depth, maxIO
	slots := cl.depth + controlChunks
	if cl.homes, err = newArena(slots, cl.maxIO); err != nil {
		return err
	}
	cl.permits = make([]*Permit, slots)
	for i := range cl.permits {
		cl.permits[i] = &Permit{cl: cl, id: i}
	}
	cl.controls = &controls{cl: cl, own: cl.permits[cl.depth]}
	cl.parked = make([]*Permit, 0, cl.depth)
	cl.pool.total = cl.depth
	for i := cl.depth - 1; i >= 0; i-- {
		cl.pool.free = append(cl.pool.free, cl.permits[i])
	}
	return nil
}

// postReceives fills the receive queue. The server sends nothing before it has received
// INFO_REQ, and then INFO_RSP first.
func (c *clientConn) postReceives() error {
	t := c.path.path
	return postReceives(c.qp, c.cid, len(t.chunks), verbs.SGE{MR: t.hdrMRs[0], Off: t.infoOff + infoReqLen, Len: uint32(infoRspLen(c.path.slots))})
}

// postReceives fills the receive queue of a connection of so many chunks. On connection 0 info is for the
// first message; the others are empty.
func postReceives(qp *verbs.QP, cid, chunks int, info verbs.SGE) error {
	for i := range recvSlots(chunks) {
		var wr verbs.RecvWR
		if i == 0 && cid == 0 {
			wr.SGL = []verbs.SGE{info}
		}
		if err := qp.PostRecv(wr); err != nil {
			return err
		}
	}
	return nil
}

// exchangeInfo sends the session's name and learns the addresses of the chunks, and the
// epoch of the session at the server.
func (t *clientPath) exchangeInfo(ctx context.Context, pc PathConfig) (uuid, error) {
	p, cl := t.path, t.cl
	req := infoReq{Name: cl.cfg.Name}
	req.Append(p.hdrMRs[0].Bytes()[p.infoOff:p.infoOff])
	wr := verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{{MR: p.hdrMRs[0], Off: p.infoOff, Len: infoReqLen}}}
	if err := t.conns[0].qp.PostSend(&wr); err != nil {
		return uuid{}, err
	}
	var rsp infoRsp
	select {
	case rsp = <-t.info:
	case <-t.failed:
		return uuid{}, t.err
	case <-ctx.Done():
		if t.isDown() {
			return uuid{}, t.err
		}
		return uuid{}, fmt.Errorf("rtrs: no answer of %s to INFO_REQ: %w", pc.Remote, ctx.Err())
	}
	if rsp.Errno != 0 {
		return uuid{}, &RefusedError{Remote: pc.Remote, Step: fmt.Sprintf("the session %q", cl.cfg.Name), Errno: rsp.Errno}
	}
	if len(rsp.Desc) != t.slots || rsp.Epoch == (uuid{}) {
		return uuid{}, violation("INFO_RSP describes %d chunks, %d were announced, of epoch %v", len(rsp.Desc), t.slots, rsp.Epoch)
	}
	for i := range p.chunks {
		d := rsp.Desc[i]
		if d.TO != 0 || int(d.Len) < cl.maxIO+MaxHeader+readMsgLen {
			return uuid{}, violation("chunk %d has %d bytes at %d", i, d.Len, d.TO)
		}
		p.chunks[i].stag = d.STag
	}
	return rsp.Epoch, nil
}
