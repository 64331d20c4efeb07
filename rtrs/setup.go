package rtrs

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

func newServerPath(s *Server, key pathKey, trust verbs.TrustModel, req *ConReq) (*serverPath, error) {
	path := &serverPath{srv: s, key: key, session: uuid(req.Session), inc: req.Incarnation, version: req.Version, infoCh: make(chan infoReq, 1), allUp: make(chan struct{}), since: time.Now(),
		idle: make(chan struct{}), failed: make(chan struct{}), poke: make(chan struct{}, 1), closed: make(chan struct{}), challenged: make(chan chan bool),
		conns: make([]*serverConn, req.CIDNum)}
	path.refs.Store(1)
	for i := range path.conns {
		path.conns[i] = &serverConn{path: path, cid: i}
	}
	path.conns[0].taken = true
	path.trust, path.trusting = trust, s.trusts(key.peer) && TrustsPeer(trust)
	var err error
	if path.domains, err = newDomains(s.cfg.ULP, path.trust, int(req.CIDNum)); err != nil {
		return nil, err
	}
	buf := make([]byte, svcLen(s.cfg.QueueDepth+controlChunks))
	if path.svcMR, err = path.domains.of(0).RegisterMR(buf, verbs.LocalWrite); err != nil {
		path.domains.free()
		return nil, err
	}
	return path, nil
}

// trusts reports whether a client's chunks are left open to it, if its trust model permits.
func (s *Server) trusts(peer transport.Identity) bool {
	if s.cfg.TrustsClient != nil {
		return s.cfg.TrustsClient(peer)
	}
	return s.cfg.TrustClients
}

// reserveConn reserves the slot of a further connection.
func (s *serverPath) reserveConn(req *ConReq) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil || int(req.CIDNum) != len(s.conns) || s.conns[req.CID].taken || s.session != req.Session || s.version != req.Version {
		return false
	}
	s.conns[req.CID].taken = true
	s.joining.Add(1)
	return true
}

// accept accepts the reserved connection cid. An error with errno 0 means that the
// connection is already gone.
func (s *serverPath) accept(ctx context.Context, cr *verbs.ConnRequest, cid int) (syscall.Errno, error) {
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
	rsp := ConRsp{Version: s.version, QueueDepth: uint16(slots), MaxIO: uint32(cfg.MaxIO), MaxHeader: chunkHeader}
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
func (s *serverPath) postReceives(c *serverConn) error {
	return postReceives(c.qp, c.cid, s.srv.cfg.QueueDepth+controlChunks, verbs.SGE{MR: s.svcMR, Len: infoReqLen})
}

// setUp waits for INFO_REQ, and answers it.
func (s *serverPath) setUp(ctx context.Context) error {
	t := time.NewTimer(s.srv.cfg.setupWait)
	defer t.Stop()
	var req infoReq
	select {
	case req = <-s.infoCh:
	case <-s.failed:
		return s.err
	case <-t.C:
		return fmt.Errorf("rtrs: the peer did not open the path within %v", s.srv.cfg.setupWait)
	}
	// The client may know about the last connection before we have recorded it.
	select {
	case <-s.allUp:
	case <-s.failed:
		return s.err
	case <-t.C:
		return violation("INFO_REQ before all connections were up")
	}
	err := s.admitToSession(ctx, req.Name)
	rsp := infoRsp{}
	if err != nil {
		rsp.Errno = syscall.EACCES
		errors.As(err, &rsp.Errno)
	} else {
		for i := range s.chunks {
			ch := &s.chunks[i]
			rsp.Desc = append(rsp.Desc, sgDesc{STag: ch.mr.STag(), Len: uint32(len(ch.mem))})
		}
		rsp.Epoch = s.sess.epoch
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

// admitToSession gives the path its chunks and takes it into its session.
func (s *serverPath) admitToSession(ctx context.Context, name string) error {
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
		ch.id, ch.path, ch.mem = uint32(i), s, s.mem.slot(i, cfg.MaxIO+chunkHeader)
		if ch.mr, err = s.domains.of(i).RegisterMR(ch.mem, verbs.LocalWrite|verbs.RemoteWrite); err != nil {
			s.chunks = s.chunks[:i]
			return fmt.Errorf("%w: %w", err, syscall.ENOMEM)
		}
	}
	return s.srv.joinSession(ctx, s, name)
}
