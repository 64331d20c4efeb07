package rtrs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
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
	Partition   string // that all of its connections are of; "": of none
	QueueDepth  int    // most concurrent requests
	MaxIO       int
	// Flush sends the responses made with Request.CompleteMore. It may be called from any
	// goroutine, even after the session's end.
	Flush func()
}

// ServerHandler serves a session.
type ServerHandler interface {
	// Serve carries out a request: quickly, or on another goroutine, because it holds up
	// its connection. It is called on engine goroutines, at most one per connection at a
	// time. Each request must be ended by Complete or CompleteMore exactly once, from any
	// goroutine.
	Serve(r *Request)
	// BatchEnd follows the last Serve of a batch, on the same goroutine.
	// Responses made with CompleteMore are sent after it.
	BatchEnd()
	// Closed is the last call: the session is over and all requests have ended. lost is
	// when it lost its last path.
	Closed(lost time.Time, err error)
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
	// TrustsClient, if not nil, decides that instead for each new path of a client.
	TrustsClient func(transport.Identity) bool

	// MaxSessions bounds the paths of all sessions, 0 means DefaultMaxSessions: each has
	// chunks of its own. Half of them is reserved for peers that have none, so that a few
	// cannot lock out others, and for those that Server.KeepRoom names the memory as well.
	MaxSessions        int
	MaxSessionsPerPeer int // the same of one peer; 0 means DefaultMaxSessionsPerPeer
	// Heartbeat is that of all paths. HeartbeatOf, if not nil, decides instead for each path
	// of a peer, see Server.HeartbeatsChanged.
	Heartbeat   HeartbeatConfig
	HeartbeatOf func(transport.Identity) HeartbeatConfig
	// Linger is for how long a session that has lost all of its paths waits for its client
	// to come back, with what it has open and what became of its requests; 0 means
	// DefaultLinger.
	Linger time.Duration

	// NewSession admits a session and returns its handler. It must not call the Server. The
	// client gets the syscall.Errno in the chain of its error, otherwise EACCES.
	NewSession func(SessionInfo) (ServerHandler, error)
	Logger     *slog.Logger

	predecessorWait, setupWait, challengeWait time.Duration
	version                                   Protocol // of another release, in tests; 0: Version
}

// Server serves sessions. The owner of a listener hands it the connection
// requests that IsRequest recognises.
type Server struct {
	cfg    ServerConfig
	log    *slog.Logger
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup // handlers of connection requests and paths

	mu        sync.Mutex // guards the fields below it; taken before a session's and a path's
	closed    bool
	pending   int // connection requests being handled
	pendingBy map[transport.Identity]int
	all       map[*serverPath]struct{} // that have not wholly gone
	paths     map[pathKey]*serverPath  // the last incarnation of each
	pathsBy   map[transport.Identity]int
	sessions  map[sessionKey]*session
	names     map[nameKey]*session
	kept      map[transport.Identity]struct{} // see KeepRoom
	past      Stats                           // of ended sessions
}

type pathKey struct {
	peer      transport.Identity
	path      uuid
	partition string
}

type nameKey struct {
	peer      transport.Identity
	name      string
	partition string
}

// NewServer makes a server. It fails if the configuration is impossible, and says what is
// possible.
func NewServer(cfg ServerConfig) (*Server, error) {
	cfg.QueueDepth = cmp.Or(cfg.QueueDepth, DefaultQueueDepth)
	cfg.MaxIO = cmp.Or(cfg.MaxIO, DefaultMaxIO)
	cfg.MaxSessions = cmp.Or(cfg.MaxSessions, DefaultMaxSessions)
	cfg.MaxSessionsPerPeer = cmp.Or(cfg.MaxSessionsPerPeer, DefaultMaxSessionsPerPeer)
	cfg.Linger = cmp.Or(cfg.Linger, DefaultLinger)
	cfg.version = cmp.Or(cfg.version, Version)
	cfg.predecessorWait = cmp.Or(cfg.predecessorWait, predecessorWait)
	cfg.setupWait = cmp.Or(cfg.setupWait, setupTimeout)
	cfg.challengeWait = cmp.Or(cfg.challengeWait, challengeWait)
	cfg.Heartbeat = cfg.Heartbeat.withDefaults()
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	switch {
	case cfg.ULP == nil || cfg.NewSession == nil:
		return nil, errors.New("rtrs: ServerConfig needs ULP and NewSession")
	case cfg.TrustClients && cfg.TrustOf == nil && !TrustsPeer(cfg.Trust):
		return nil, fmt.Errorf("rtrs: TrustClients with the trust model %v, which does not trust the peer: NS-RT and S-T do (RFC 5042 appendices A and C)", cfg.Trust)
	case cfg.QueueDepth < 1 || cfg.QueueDepth > MaxQueueDepth:
		return nil, fmt.Errorf("rtrs: queue depth %d: 1 to %d are possible", cfg.QueueDepth, MaxQueueDepth)
	case cfg.MaxIO < MinMaxIO || cfg.MaxIO > MaxMaxIO || cfg.MaxIO%MinMaxIO != 0:
		return nil, fmt.Errorf("rtrs: largest I/O of %d bytes: multiples of %d from there to %d are possible", cfg.MaxIO, MinMaxIO, MaxMaxIO)
	case cfg.MaxIO+chunkHeader > 1<<offsetBits(cfg.QueueDepth+controlChunks):
		return nil, fmt.Errorf("rtrs: %d chunks for %d bytes each: an immediate has too few bits to name their offsets; reduce one of them", cfg.QueueDepth, cfg.MaxIO)
	}
	s := &Server{cfg: cfg, log: cfg.Logger, pendingBy: make(map[transport.Identity]int), all: make(map[*serverPath]struct{}),
		paths: make(map[pathKey]*serverPath), pathsBy: make(map[transport.Identity]int),
		sessions: make(map[sessionKey]*session), names: make(map[nameKey]*session)}
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
	cr.Reject(ctx, s.Refusal(errno))
}

// Refusal is the private data with which a connection is refused for a reason that the client gets as a [RefusedError]; ESHUTDOWN: the
// host takes no new streams.
func (s *Server) Refusal(errno syscall.Errno) []byte {
	rsp := ConRsp{Version: s.cfg.version, Errno: errno}
	return rsp.Append(nil)
}

func (s *Server) handle(ctx context.Context, cr *verbs.ConnRequest) {
	var req ConReq
	err := req.Parse(cr.PrivateData())
	var errno syscall.Errno
	switch {
	case !req.Version.Agrees(s.cfg.version) && (err == nil || req.Version != 0):
		errno, err = syscall.EPROTONOSUPPORT, errors.New("rtrs: the peer is of another release: "+s.cfg.version.Differs("RTRS", req.Version))
	case err != nil:
		errno = syscall.EINVAL
	case req.CIDNum < 1 || req.CIDNum > MaxConns || req.CID >= req.CIDNum:
		errno, err = syscall.EINVAL, fmt.Errorf("rtrs: connection %d of %d", req.CID, req.CIDNum)
	}
	req.Version = min(req.Version, s.cfg.version)
	var p *serverPath
	if err == nil {
		p, errno, err = s.pathFor(ctx, cr, &req)
	}
	if err == nil {
		errno, err = p.accept(ctx, cr, int(req.CID))
		p.joining.Done()
	}
	if err != nil {
		s.log.Warn("connection refused", "peer", cr.Peer(), "flow", cr.Flow().String(), "error", err)
		if errno != 0 {
			s.reject(ctx, cr, errno)
		}
	}
}

// pathFor finds or makes the path of a connection. It ends an older incarnation first;
// what that has at the handler goes on. It has then counted the connection in the path's
// joining.
func (s *Server) pathFor(ctx context.Context, cr *verbs.ConnRequest, req *ConReq) (*serverPath, syscall.Errno, error) {
	key := pathKey{cr.Peer(), uuid(req.Path), cr.Partition()}
	trust := s.cfg.Trust
	if req.CID == 0 && s.cfg.TrustOf != nil {
		trust = s.cfg.TrustOf(key.peer)
	}
	for {
		s.mu.Lock()
		old := s.paths[key]
		switch {
		case s.closed:
			s.mu.Unlock()
			return nil, syscall.EAGAIN, ErrClosed
		case (old == nil || old.inc < req.Incarnation) && req.CID != 0:
			s.mu.Unlock()
			return nil, syscall.ESTALE, fmt.Errorf("rtrs: connection %d of a path that is not open", req.CID)
		case old == nil || old.inc < req.Incarnation && s.dyingLocked(key) < maxDying:
			if old != nil {
				old.fail(ErrSuperseded)
			}
			p, errno, err := s.newPathLocked(key, trust, req)
			s.mu.Unlock()
			return p, errno, err
		}
		s.mu.Unlock()
		if old.inc == req.Incarnation && old.reserveConn(req) {
			return old, 0, nil
		}
		if old.inc >= req.Incarnation {
			return nil, syscall.ESTALE, fmt.Errorf("rtrs: connection %d of incarnation %d, the path is at %d", req.CID, req.Incarnation, old.inc)
		}
		old.fail(ErrSuperseded)
		if err := s.awaitPredecessor(ctx, old.closed, old.executing); err != nil {
			return nil, syscall.EBUSY, err
		}
	}
}

// dyingLocked is how many earlier incarnations of a path, which hold memory, wait for the
// end of their requests.
func (s *Server) dyingLocked(key pathKey) (n int) {
	for p := range s.all {
		if p.key == key && p != s.paths[key] {
			n++
		}
	}
	return n
}

// awaitPredecessor waits for the end of a path or session that is being closed.
func (s *Server) awaitPredecessor(ctx context.Context, closed <-chan struct{}, executing func() int) error {
	t := time.NewTimer(s.cfg.predecessorWait)
	defer t.Stop()
	select {
	case <-closed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return fmt.Errorf("rtrs: %d requests of the session's earlier connections are still being executed", executing())
	}
}

func (s *Server) newPathLocked(key pathKey, trust verbs.TrustModel, req *ConReq) (*serverPath, syscall.Errno, error) {
	if errno, err := s.makeRoomLocked(key.peer); err != nil {
		return nil, errno, err
	}
	p, err := newServerPath(s, key, trust, req)
	if err != nil {
		s.keepRoomLocked()
		return nil, syscall.ENOMEM, err
	}
	s.paths[key], s.all[p] = p, struct{}{}
	s.pathsBy[key.peer]++
	s.wg.Add(1)
	p.joining.Add(1)
	go p.run()
	return p, 0, nil
}

// forgetPath forgets a path of which nothing is left.
func (s *Server) forgetPath(p *serverPath) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, p)
	if s.paths[p.key] == p {
		delete(s.paths, p.key)
	}
	if s.pathsBy[p.key.peer]--; s.pathsBy[p.key.peer] == 0 {
		delete(s.pathsBy, p.key.peer)
	}
	s.keepRoomLocked()
}

// Close ends all sessions and waits up to ten seconds for their requests to end. It is
// idempotent. The error says what still runs.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed, s.kept = true, nil
	s.keepRoomLocked()
	for p := range s.all {
		p.fail(ErrClosed)
	}
	sessions := slices.Collect(maps.Values(s.sessions))
	s.mu.Unlock()
	for _, sess := range sessions {
		sess.end(ErrClosed)
	}
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
