package rtrs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// SessionState is where a server's session is in its life.
//
//	Opening ──INFO_REQ──▶ Open ──▶ Fencing ──all requests ended──▶ gone
//	   └─────────────────────────────▲
type SessionState uint8

// The states.
const (
	SessionOpening SessionState = iota
	SessionOpen
	SessionFencing // the path is gone, requests are still being executed
)

func (s SessionState) String() string {
	return [...]string{"opening", "open", "fencing"}[s]
}

// MarshalText implements encoding.TextMarshaler.
func (s SessionState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// ServerSessionInfo is a session's state for people.
type ServerSessionInfo struct {
	Peer        transport.Identity
	Name        string // "" while opening
	State       SessionState
	Since       time.Time
	Incarnation uint64
	Executing   int   // requests at the handler
	Err         error // why it is being closed
	Conns       []ConnInfo
	Stats       Stats
}

// session is one incarnation of a path, from its first connection to the end of
// its last request.
type session struct {
	srv *Server
	key sessionKey
	inc uint64

	pd     *verbs.PD
	svcMR  *verbs.MR // INFO_REQ, INFO_RSP
	infoCh chan infoReq
	allUp  chan struct{} // closed when all connections are up

	// Set before INFO_RSP is sent; read by engine goroutines once open is set.
	handler  ServerHandler
	chunks   []Request
	mem      *arena
	offBits  int
	open     atomic.Bool
	counters counters

	refs     atomic.Int64 // requests at the handler, and one until teardown
	closing  atomic.Bool
	idleOnce sync.Once
	idle     chan struct{} // closed when refs is 0

	joining  sync.WaitGroup // connections being accepted
	failOnce sync.Once
	failed   chan struct{}
	closed   chan struct{} // nothing is left

	conns []*serverConn // by cid

	mu    sync.Mutex
	since time.Time
	name  string
	err   error
	count int // of connections that are up
}

// serverConn is one connection of a session. One goroutine at a time runs its
// Completions.
type serverConn struct {
	sess  *session
	cid   int
	qp    *verbs.QP
	cq    *verbs.CQ
	hb    heartbeat
	dirty atomic.Bool
	taken bool // guarded by session.mu: being accepted
	up    bool // guarded by session.mu
}

func newSession(s *Server, key sessionKey, req *ConReq) (*session, error) {
	sess := &session{srv: s, key: key, inc: req.Incarnation, infoCh: make(chan infoReq, 1), allUp: make(chan struct{}), since: time.Now(),
		idle: make(chan struct{}), failed: make(chan struct{}), closed: make(chan struct{}),
		conns: make([]*serverConn, req.CIDNum)}
	sess.refs.Store(1)
	for i := range sess.conns {
		sess.conns[i] = &serverConn{sess: sess, cid: i}
	}
	sess.conns[0].taken = true
	var err error
	if sess.pd, err = s.cfg.ULP.AllocPD(); err != nil {
		return nil, err
	}
	buf := make([]byte, infoReqLen+infoRspLen(s.cfg.QueueDepth+controlChunks))
	if sess.svcMR, err = sess.pd.RegisterMR(buf, verbs.LocalWrite); err != nil {
		sess.pd.Dealloc()
		return nil, err
	}
	return sess, nil
}

// join reserves the place of a further connection.
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

// accept brings the reserved connection cid up. errno 0 with an error: the
// connection is gone already.
func (s *session) accept(ctx context.Context, cr *verbs.ConnRequest, cid int) (syscall.Errno, error) {
	cfg := &s.srv.cfg
	c := s.conns[cid]
	slots := cfg.QueueDepth + controlChunks
	cq, err := cfg.ULP.CreateCQ(recvSlots(slots)+sendSlots(slots), c)
	if err != nil {
		s.fail(err)
		return syscall.ENOMEM, err
	}
	c.cq = cq
	rsp := ConRsp{Version: Version, QueueDepth: uint16(slots), MaxIO: uint32(cfg.MaxIO), MaxHeader: chunkHeader}
	if !cfg.TrustClients {
		rsp.Flags = flagNewRKey
	}
	var prepared bool
	qp, err := cr.Accept(ctx, s.pd, verbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: sendSlots(slots), MaxRecv: recvSlots(slots)},
		rsp.Append(nil), func(qp *verbs.QP) error {
			c.qp = qp
			err := s.postReceives(c)
			prepared = err == nil
			return err
		})
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

// fail starts the session's end.
func (s *session) fail(err error) {
	s.failOnce.Do(func() {
		s.mu.Lock()
		s.err, s.since = err, time.Now()
		s.mu.Unlock()
		close(s.failed)
	})
}

func (s *session) isFailed() bool {
	select {
	case <-s.failed:
		return true
	default:
		return false
	}
}

// run is the session's own goroutine.
func (s *session) run() {
	defer s.srv.wg.Done()
	ctx, cancel := context.WithCancel(s.srv.ctx)
	defer cancel()
	if err := s.setUp(ctx); err != nil {
		s.fail(err)
	} else {
		s.srv.log.Info("session open", "peer", s.key.peer, "session", s.name, "incarnation", s.inc)
		s.watch()
	}
	s.tearDown()
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
	// The client may have heard of the last connection before we have noted it.
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
		// The client closes when it has read the refusal.
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
		if ch.mr, err = s.pd.RegisterMR(ch.mem, verbs.LocalWrite|verbs.RemoteWrite); err != nil {
			s.chunks = s.chunks[:i]
			return fmt.Errorf("%w: %w", err, syscall.ENOMEM)
		}
	}
	s.handler, err = cfg.NewSession(SessionInfo{Peer: s.key.peer, Name: name, Incarnation: s.inc,
		QueueDepth: n, MaxIO: cfg.MaxIO, Flush: s.flush})
	return err
}

// watch sends heartbeats until the session fails.
func (s *session) watch() {
	hb := s.srv.cfg.Heartbeat
	tick, stop := hb.ticker(hb.Interval)
	defer stop()
	for {
		select {
		case <-s.failed:
			return
		case <-tick:
		}
		for _, c := range s.conns {
			send, dead := c.hb.tick(c.qp.Paused(), hb.Missed)
			if dead {
				s.fail(silent(c.cid, hb))
			}
			if send {
				c.post(&verbs.SendWR{Op: verbs.OpImmediate, Imm: makeImm(immHB, 0)})
			}
		}
	}
}

// tearDown ends the connections, waits for the requests at the handler and
// frees everything.
func (s *session) tearDown() {
	s.closing.Store(true)
	s.abort()
	s.joining.Wait()
	s.abort()
	for _, c := range s.conns {
		if c.qp == nil {
			continue
		}
		<-c.qp.Done()
		c.cq.Destroy()
	}
	s.release()
	<-s.idle
	if s.handler != nil {
		s.handler.Closed(s.err)
	}
	for i := range s.chunks {
		s.chunks[i].mr.Deregister()
	}
	s.svcMR.Deregister()
	s.pd.Dealloc()
	s.mem.free()
	level := slog.LevelWarn
	if errors.Is(s.err, ErrPeerClosed) || errors.Is(s.err, ErrSuperseded) || errors.Is(s.err, ErrClosed) {
		level = slog.LevelInfo
	}
	s.srv.log.Log(context.Background(), level, "session closed", "peer", s.key.peer, "session", s.name, "incarnation", s.inc, "error", s.err)
	s.srv.remove(s, s.name)
	close(s.closed)
}

func (s *session) abort() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		if c.up {
			c.qp.Abort(s.err)
		}
	}
}

// acquire keeps the session's memory and handler for a request. It fails once
// the session is being closed.
func (s *session) acquire() bool {
	s.refs.Add(1)
	if s.closing.Load() {
		s.release()
		return false
	}
	return true
}

func (s *session) release() {
	if s.refs.Add(-1) == 0 {
		s.idleOnce.Do(func() { close(s.idle) })
	}
}

func (s *session) executing() int {
	n := int(s.refs.Load())
	if !s.closing.Load() {
		n--
	}
	return max(n, 0)
}

// flush sends responses that were posted with More.
func (s *session) flush() {
	for _, c := range s.conns {
		if c.dirty.Load() && c.dirty.Swap(false) {
			c.qp.Flush()
		}
	}
}

func (s *session) describe() ServerSessionInfo {
	i := ServerSessionInfo{Peer: s.key.peer, Incarnation: s.inc, Executing: s.executing(), Stats: s.counters.snapshot()}
	s.mu.Lock()
	defer s.mu.Unlock()
	i.Name, i.Since, i.Err = s.name, s.since, s.err
	switch {
	case s.err != nil:
		i.State = SessionFencing
	case s.open.Load():
		i.State = SessionOpen
	}
	for _, c := range s.conns {
		if c.up {
			i.Conns = append(i.Conns, connInfo(c.qp))
		}
	}
	return i
}
