package rtrs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// SessionInfo describes a session to its service.
type SessionInfo struct {
	Peer        transport.Identity // authenticated
	Name        string             // what the peer calls the session
	Incarnation uint64
	Trust       verbs.TrustModel
	QueueDepth  int // most concurrent requests
	MaxIO       int
	// Flush sends the responses made with Request.CompleteMore. It may be called from any
	// goroutine, even after the session's end.
	Flush func()
}

// ServerHandler serves one incarnation of a session.
type ServerHandler interface {
	// Serve carries out a request: quickly, or on another goroutine, because it holds up
	// its connection. It is called on engine goroutines, at most one per connection at a
	// time. Each request must be ended by Complete or CompleteMore exactly once, from any
	// goroutine.
	Serve(r *Request)
	// BatchEnd follows the last Serve of a batch, on the same goroutine.
	// Responses made with CompleteMore are sent after it.
	BatchEnd()
	// Closed is the last call: the path is gone and all requests have ended.
	Closed(err error)
}

// ServerConfig describes a server.
type ServerConfig struct {
	ULP *verbs.ULP
	// Trust is how much the connections of a session, and its client, are trusted, at
	// most as much as the ULP permits. The zero value, NS-NT, trusts nobody. TrustOf, if
	// not nil, decides instead for each new session.
	Trust      verbs.TrustModel
	TrustOf    func(transport.Identity) verbs.TrustModel
	QueueDepth int // I/Os a session may have in flight; 0 means DefaultQueueDepth
	MaxIO      int // bytes of data in one; 0 means DefaultMaxIO
	// TrustClients leaves a chunk open to its client while its request is carried out
	// (always_invalidate=N): a client can then change its own requests during execution.
	// It applies only to sessions whose trust model trusts the peer, NS-RT and S-T: RFC
	// 5042 appendix A forbids it otherwise.
	TrustClients bool

	// MaxSessions bounds all sessions, 0 means DefaultMaxSessions. Half of them is
	// reserved for peers that have none, so that a few cannot lock out others, and for
	// those that Server.Keep names the memory as well.
	MaxSessions        int
	MaxSessionsPerPeer int // 0 means DefaultMaxSessionsPerPeer
	Heartbeat          HeartbeatConfig

	// NewSession admits a session and returns its handler. The client gets the
	// syscall.Errno in the chain of its error, otherwise EACCES.
	NewSession func(SessionInfo) (ServerHandler, error)
	Logger     *slog.Logger

	fenceWait, setupWait, challengeWait time.Duration
}

// Server serves sessions. The owner of a listener hands it the connection
// requests that IsRequest recognises.
type Server struct {
	cfg    ServerConfig
	log    *slog.Logger
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup // handlers of connection requests and sessions

	mu         sync.Mutex // guards the fields below it; taken before a session's
	closed     bool
	pending    int // connection requests being handled
	pendingBy  map[transport.Identity]int
	sessions   map[sessionKey]*session
	sessionsBy map[transport.Identity]int
	names      map[nameKey]*session
	kept       map[transport.Identity]struct{} // see Keep
	past       Stats                           // of ended sessions
}

type sessionKey struct {
	peer transport.Identity
	path uuid
}

type nameKey struct {
	peer transport.Identity
	name string
}

// NewServer makes a server. It fails if the configuration is impossible, and says what is
// possible.
func NewServer(cfg ServerConfig) (*Server, error) {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	def(&cfg.QueueDepth, DefaultQueueDepth)
	def(&cfg.MaxIO, DefaultMaxIO)
	def(&cfg.MaxSessions, DefaultMaxSessions)
	def(&cfg.MaxSessionsPerPeer, DefaultMaxSessionsPerPeer)
	if cfg.fenceWait == 0 {
		cfg.fenceWait = fenceWait
	}
	if cfg.setupWait == 0 {
		cfg.setupWait = setupTimeout
	}
	if cfg.challengeWait == 0 {
		cfg.challengeWait = challengeWait
	}
	cfg.Heartbeat = cfg.Heartbeat.withDefaults()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	switch {
	case cfg.ULP == nil || cfg.NewSession == nil:
		return nil, errors.New("rtrs: ServerConfig needs ULP and NewSession")
	case cfg.TrustClients && cfg.TrustOf == nil && !trustsPeer(cfg.Trust):
		return nil, fmt.Errorf("rtrs: TrustClients with the trust model %v, which does not trust the peer: NS-RT and S-T do (RFC 5042 appendices A and C)", cfg.Trust)
	case cfg.QueueDepth < 1 || cfg.QueueDepth > MaxQueueDepth:
		return nil, fmt.Errorf("rtrs: queue depth %d: 1 to %d are possible", cfg.QueueDepth, MaxQueueDepth)
	case cfg.MaxIO < MinMaxIO || cfg.MaxIO > MaxMaxIO || cfg.MaxIO%MinMaxIO != 0:
		return nil, fmt.Errorf("rtrs: largest I/O of %d bytes: multiples of %d from there to %d are possible", cfg.MaxIO, MinMaxIO, MaxMaxIO)
	case cfg.MaxIO+chunkHeader > 1<<offsetBits(cfg.QueueDepth+controlChunks):
		return nil, fmt.Errorf("rtrs: %d chunks for %d bytes each: an immediate has too few bits to name their offsets; reduce one of them", cfg.QueueDepth, cfg.MaxIO)
	}
	s := &Server{cfg: cfg, log: cfg.Logger, pendingBy: make(map[transport.Identity]int),
		sessions: make(map[sessionKey]*session), sessionsBy: make(map[transport.Identity]int), names: make(map[nameKey]*session)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s, nil
}

// Handle answers a connection request. It does not block.
func (s *Server) Handle(cr *verbs.ConnRequest) {
	peer := cr.Peer()
	s.mu.Lock()
	mine := s.pendingBy[peer]
	ok := !s.closed && (mine == 0 || s.pending < maxPending && mine < maxPendingPeer)
	if ok {
		s.pending++
		s.pendingBy[peer]++
		s.wg.Add(1)
	}
	s.mu.Unlock()
	if !ok {
		s.reject(s.ctx, cr, syscall.EAGAIN)
		return
	}
	go func() {
		defer s.wg.Done()
		defer s.handled(peer)
		ctx, cancel := context.WithTimeout(s.ctx, setupTimeout)
		defer cancel()
		s.handle(ctx, cr)
	}()
}

func (s *Server) handled(peer transport.Identity) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending--
	if s.pendingBy[peer]--; s.pendingBy[peer] == 0 {
		delete(s.pendingBy, peer)
	}
}

func (s *Server) reject(ctx context.Context, cr *verbs.ConnRequest, errno syscall.Errno) {
	rsp := ConRsp{Version: Version, Errno: errno}
	cr.Reject(ctx, rsp.Append(nil))
}

func (s *Server) handle(ctx context.Context, cr *verbs.ConnRequest) {
	var req ConReq
	err := req.Parse(cr.PrivateData())
	var errno syscall.Errno
	switch {
	case err != nil && req.Version == Version:
		errno = syscall.EINVAL
	case req.Version != Version:
		errno, err = syscall.EPROTONOSUPPORT, fmt.Errorf("rtrs: version %#x, this is %#x", req.Version, Version)
	case req.CIDNum < 1 || req.CIDNum > MaxConns || req.CID >= req.CIDNum:
		errno, err = syscall.EINVAL, fmt.Errorf("rtrs: connection %d of %d", req.CID, req.CIDNum)
	}
	var sess *session
	if err == nil {
		sess, errno, err = s.sessionFor(ctx, cr, &req)
	}
	if err == nil {
		errno, err = sess.accept(ctx, cr, int(req.CID))
		sess.joining.Done()
	}
	if err != nil {
		s.log.Warn("connection refused", "peer", cr.Peer(), "flow", cr.Flow().String(), "error", err)
		if errno != 0 {
			s.reject(ctx, cr, errno)
		}
	}
}

// sessionFor finds or makes the session of a connection. It ends an older incarnation
// first, of which nothing is left when it succeeds. It has then counted the connection in
// the session's joining.
func (s *Server) sessionFor(ctx context.Context, cr *verbs.ConnRequest, req *ConReq) (*session, syscall.Errno, error) {
	key := sessionKey{cr.Peer(), uuid(req.Path)}
	trust := s.cfg.Trust
	if req.CID == 0 && s.cfg.TrustOf != nil {
		trust = s.cfg.TrustOf(key.peer)
	}
	for {
		s.mu.Lock()
		old := s.sessions[key]
		switch {
		case s.closed:
			s.mu.Unlock()
			return nil, syscall.EAGAIN, ErrClosed
		case old == nil && req.CID != 0:
			s.mu.Unlock()
			return nil, syscall.ESTALE, fmt.Errorf("rtrs: connection %d of a path that is not open", req.CID)
		case old == nil:
			sess, errno, err := s.newSessionLocked(key, trust, req)
			s.mu.Unlock()
			return sess, errno, err
		}
		s.mu.Unlock()
		if old.inc == req.Incarnation && old.join(req) {
			return old, 0, nil
		}
		if old.inc >= req.Incarnation {
			return nil, syscall.ESTALE, fmt.Errorf("rtrs: connection %d of incarnation %d, the path is at %d", req.CID, req.Incarnation, old.inc)
		}
		old.fail(ErrSuperseded)
		if err := s.fence(ctx, old); err != nil {
			return nil, syscall.EBUSY, err
		}
	}
}

// fence waits for the end of a session that is being closed.
func (s *Server) fence(ctx context.Context, old *session) error {
	t := time.NewTimer(s.cfg.fenceWait)
	defer t.Stop()
	select {
	case <-old.closed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return fmt.Errorf("rtrs: %d requests of the session's incarnation %d are still being executed", old.executing(), old.inc)
	}
}

func (s *Server) newSessionLocked(key sessionKey, trust verbs.TrustModel, req *ConReq) (*session, syscall.Errno, error) {
	if errno, err := s.enterLocked(key.peer); err != nil {
		return nil, errno, err
	}
	sess, err := newSession(s, key, trust, req)
	if err != nil {
		s.settleLocked()
		return nil, syscall.ENOMEM, err
	}
	s.sessions[key] = sess
	s.sessionsBy[key.peer]++
	s.wg.Add(1)
	sess.joining.Add(1)
	go sess.run()
	return sess, 0, nil
}

// claimName makes a session's name unique among its peer's sessions. It waits for the end
// of a session of that name that is closing or whose client is gone: its requests may be
// those of the client before a restart, and must not be executed after its successor's.
func (s *Server) claimName(ctx context.Context, sess *session, name string) error {
	key := nameKey{sess.key.peer, name}
	for {
		s.mu.Lock()
		other := s.names[key]
		if other == nil {
			s.names[key] = sess
			s.mu.Unlock()
			return nil
		}
		s.mu.Unlock()
		if !other.isFailed() && other.isAlive(ctx) {
			return fmt.Errorf("rtrs: the peer has another session %q open: %w", name, syscall.EEXIST)
		}
		if err := s.fence(ctx, other); err != nil {
			return fmt.Errorf("%w: %w", err, syscall.EBUSY)
		}
	}
}

// remove forgets a session of which nothing is left.
func (s *Server) remove(sess *session, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, sess.key)
	if s.sessionsBy[sess.key.peer]--; s.sessionsBy[sess.key.peer] == 0 {
		delete(s.sessionsBy, sess.key.peer)
	}
	if key := (nameKey{sess.key.peer, name}); s.names[key] == sess {
		delete(s.names, key)
	}
	s.past.Add(sess.counters.snapshot())
	s.settleLocked()
}

// Close ends all sessions and waits up to ten seconds for their requests to end. It is
// idempotent. The error says what still runs.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed, s.kept = true, nil
	s.settleLocked()
	for _, sess := range s.sessions {
		sess.fail(ErrClosed)
	}
	s.mu.Unlock()
	s.cancel()
	done := make(chan struct{})
	go func() {
		s.wg.Wait()
		close(done)
	}()
	t := time.NewTimer(closeWait)
	defer t.Stop()
	select {
	case <-done:
		return nil
	case <-t.C:
	}
	n := 0
	for _, i := range s.Sessions() {
		n += i.Executing
	}
	return fmt.Errorf("rtrs: close the server: %d requests have not ended after %v", n, closeWait)
}
