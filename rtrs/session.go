package rtrs

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironwarp/ironwarp/verbs"
)

// SessionState is the state of a server's session.
//
//	Opening ──INFO_REQ──▶ Open ──▶ Fencing ──all requests ended──▶ gone
//	   └─────────────────────────────▲
type SessionState uint8

// The states.
const (
	SessionOpening SessionState = iota
	SessionOpen
	SessionFencing // the path is gone, but requests are still being executed
)

func (s SessionState) String() string {
	return [...]string{"opening", "open", "fencing"}[s]
}

// MarshalText implements encoding.TextMarshaler.
func (s SessionState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// session is one incarnation of a path, from its first connection to the end of
// its last request.
type session struct {
	srv *Server
	key sessionKey
	inc uint64

	trust    verbs.TrustModel
	trusting bool // ServerConfig.TrustClients is set, and the model trusts the peer
	domains  domains

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

	joining    sync.WaitGroup // connections being accepted
	failOnce   sync.Once
	failed     chan struct{}
	challenged chan chan bool // see isAlive
	closed     chan struct{}  // nothing is left

	conns []*serverConn // by cid

	err  error  // valid once failed is closed; set with mu held
	name string // set by run's goroutine with mu held; others read it with mu held

	mu    sync.Mutex // guards the fields below it
	since time.Time
	count int // connections that are up
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
	taken bool // being accepted; guarded by session.mu
	up    bool // guarded by session.mu
}

// fail begins to end the session.
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

// watch sends heartbeats until the session fails.
func (s *session) watch() {
	hb := s.srv.cfg.Heartbeat
	tick, stop := hb.ticker(hb.Interval)
	defer stop()
	for {
		select {
		case <-s.failed:
			return
		case q := <-s.challenged:
			q <- s.challenge()
			continue
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
	s.domains.free()
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

// acquire keeps the session's memory and handler for a request. It returns false once the
// session is closing.
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
