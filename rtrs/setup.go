package rtrs

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/verbs"
)

func newSession(s *Server, key sessionKey, trust verbs.TrustModel, req *ConReq) (*session, error) {
	sess := &session{srv: s, key: key, inc: req.Incarnation, infoCh: make(chan infoReq, 1), allUp: make(chan struct{}), since: time.Now(),
		idle: make(chan struct{}), failed: make(chan struct{}), closed: make(chan struct{}), challenged: make(chan chan bool),
		conns: make([]*serverConn, req.CIDNum)}
	sess.refs.Store(1)
	for i := range sess.conns {
		sess.conns[i] = &serverConn{sess: sess, cid: i}
	}
	sess.conns[0].taken = true
	sess.trust, sess.trusting = trust, s.cfg.TrustClients && trustsPeer(trust)
	var err error
	if sess.domains, err = newDomains(s.cfg.ULP, sess.trust, int(req.CIDNum)); err != nil {
		return nil, err
	}
	buf := make([]byte, svcLen(s.cfg.QueueDepth+controlChunks))
	if sess.svcMR, err = sess.domains.of(0).RegisterMR(buf, verbs.LocalWrite); err != nil {
		sess.domains.free()
		return nil, err
	}
	return sess, nil
}

// join reserves the slot of a further connection.
func (s *session) join(req *ConReq) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil || int(req.CIDNum) != len(s.conns) || s.conns[req.CID].taken {
		return false
	}
	s.conns[req.CID].taken = true
	s.joining.Add(1)
	return true
}

// accept accepts the reserved connection cid. An error with errno 0 means that the
// connection is already gone.
func (s *session) accept(ctx context.Context, cr *verbs.ConnRequest, cid int) (syscall.Errno, error) {
	cfg := &s.srv.cfg
	c := s.conns[cid]
	slots := cfg.QueueDepth + controlChunks
	if err := s.domains.open(cfg.ULP, s.trust, cid); err != nil {
		s.fail(err)
		return syscall.ENOMEM, err
	}
	cq, err := cfg.ULP.CreateCQ(ConnEntries(cfg.QueueDepth), c)
	if err != nil {
		s.fail(err)
		return syscall.ENOMEM, err
	}
	c.cq = cq
	rsp := ConRsp{Version: Version, QueueDepth: uint16(slots), MaxIO: uint32(cfg.MaxIO), MaxHeader: chunkHeader}
	if !s.trusting {
		rsp.Flags = flagNewRKey
	}
	var prepared bool
	qp, err := cr.Accept(ctx, s.domains.of(cid), verbs.AcceptConfig{QP: verbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: sendSlots(slots), MaxRecv: recvSlots(slots)}, PrivateData: rsp.Append(nil), Prepare: func(qp *verbs.QP) error {
		c.qp = qp
		err := s.postReceives(c)
		prepared = err == nil
		return err
	}})
	if err != nil {
		cq.Destroy()
		c.cq, c.qp = nil, nil
		s.fail(err)
		if prepared {
			return 0, err
		}
		return syscall.ENOMEM, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c.up = true
	if s.count++; s.count == len(s.conns) {
		close(s.allUp)
	}
	if s.err != nil {
		qp.Abort(s.err)
	}
	return 0, nil
}

// postReceives fills a receive queue: INFO_REQ first on connection 0, then
// immediates only.
func (s *session) postReceives(c *serverConn) error {
	n := recvSlots(s.srv.cfg.QueueDepth + controlChunks)
	if c.cid == 0 {
		n--
		if err := c.qp.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{{MR: s.svcMR, Len: infoReqLen}}}); err != nil {
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

// setUp waits for INFO_REQ, and answers it.
func (s *session) setUp(ctx context.Context) error {
	t := time.NewTimer(s.srv.cfg.setupWait)
	defer t.Stop()
	var req infoReq
	select {
	case req = <-s.infoCh:
	case <-s.failed:
		return s.err
	case <-t.C:
		return fmt.Errorf("rtrs: the peer did not open the session within %v", s.srv.cfg.setupWait)
	}
	// The client may know about the last connection before we have recorded it.
	select {
	case <-s.allUp:
	case <-s.failed:
		return s.err
	case <-t.C:
		return violation("INFO_REQ before all connections were up")
	}
	err := s.admit(ctx, req.Name)
	rsp := infoRsp{}
	if err != nil {
		rsp.Errno = syscall.EACCES
		errors.As(err, &rsp.Errno)
	} else {
		for i := range s.chunks {
			ch := &s.chunks[i]
			rsp.Desc = append(rsp.Desc, sgDesc{STag: ch.mr.STag(), Len: uint32(len(ch.mem))})
		}
		s.open.Store(true)
	}
	msg := rsp.Append(s.svcMR.Bytes()[infoReqLen:infoReqLen])
	c := s.conns[0]
	wr := verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{{MR: s.svcMR, Off: infoReqLen, Len: uint32(len(msg))}}}
	if sendErr := c.qp.PostSend(&wr); sendErr != nil {
		return errors.Join(err, sendErr)
	}
	if err != nil {
		// The client closes after reading the refusal.
		s.srv.log.Warn("session refused", "peer", s.key.peer, "session", req.Name, "error", err)
		select {
		case <-s.failed:
		case <-t.C:
		}
	}
	return err
}

// admit gives the session its name, its chunks and its handler.
func (s *session) admit(ctx context.Context, name string) error {
	if err := s.srv.claimName(ctx, s, name); err != nil {
		return err
	}
	s.mu.Lock()
	s.name = name
	s.mu.Unlock()
	cfg := &s.srv.cfg
	n := cfg.QueueDepth + controlChunks
	var err error
	if s.mem, err = newArena(n, cfg.MaxIO+chunkHeader); err != nil {
		return fmt.Errorf("%w: %w", err, syscall.ENOMEM)
	}
	s.offBits = offsetBits(n)
	s.chunks = make([]Request, n)
	for i := range s.chunks {
		ch := &s.chunks[i]
		ch.id, ch.sess, ch.mem = uint32(i), s, s.mem.slot(i, cfg.MaxIO+chunkHeader)
		if ch.mr, err = s.domains.of(i).RegisterMR(ch.mem, verbs.LocalWrite|verbs.RemoteWrite); err != nil {
			s.chunks = s.chunks[:i]
			return fmt.Errorf("%w: %w", err, syscall.ENOMEM)
		}
	}
	s.handler, err = cfg.NewSession(SessionInfo{Peer: s.key.peer, Name: name, Incarnation: s.inc, Trust: s.trust,
		QueueDepth: n, MaxIO: cfg.MaxIO, Flush: s.flush})
	return err
}
