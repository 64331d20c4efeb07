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

// serverPath is one incarnation of a path, from its first connection to the end of the
// last request that came by it.
type serverPath struct {
	srv     *Server
	key     pathKey
	session uuid // of the session that it is to be part of
	inc     uint64
	version Protocol // agreed on

	trust    verbs.TrustModel
	trusting bool // ServerConfig trusts the client, and the model the peer
	domains  domains

	svcMR  *verbs.MR // INFO_REQ, INFO_RSP
	infoCh chan infoReq
	allUp  chan struct{} // closed when all connections are up

	// Set before INFO_RSP is sent; read by engine goroutines once open is set.
	sess    *session // nil unless the path was admitted to it
	chunks  []Request
	mem     *arena
	offBits int
	open    atomic.Bool
	bye     atomic.Bool // the client has ended the session

	refs     atomic.Int64 // requests that were not answered, and one until teardown
	closing  atomic.Bool
	idleOnce sync.Once
	idle     chan struct{} // closed when refs is 0

	joining    sync.WaitGroup // connections being accepted
	failOnce   sync.Once
	failed     chan struct{}
	poke       chan struct{}  // capacity 1: look at what heartbeats are to be
	challenged chan chan bool // see isAlive
	closed     chan struct{}  // nothing is left

	conns []*serverConn // by cid

	err error // valid once failed is closed; set with mu held

	mu    sync.Mutex // guards the fields below it
	since time.Time
	count int // connections that are up
}

// serverConn is one connection of a path. One goroutine at a time runs its
// Completions.
type serverConn struct {
	path  *serverPath
	cid   int
	qp    *verbs.QP
	cq    *verbs.CQ
	hb    heartbeat
	dirty atomic.Bool
	taken bool // being accepted; guarded by serverPath.mu
	up    bool // guarded by serverPath.mu
}

// fail begins to end the path.
func (s *serverPath) fail(err error) {
	s.failOnce.Do(func() {
		s.mu.Lock()
		s.err, s.since = err, time.Now()
		s.mu.Unlock()
		close(s.failed)
	})
}

func (s *serverPath) isFailed() bool {
	select {
	case <-s.failed:
		return true
	default:
		return false
	}
}

// run is the path's own goroutine.
func (s *serverPath) run() {
	defer s.srv.wg.Done()
	ctx, cancel := context.WithCancel(s.srv.ctx)
	defer cancel()
	if err := s.setUp(ctx); err != nil {
		s.fail(err)
	} else {
		s.srv.log.Info("path open", "peer", s.key.peer, "session", s.sess.name, "incarnation", s.inc)
		s.watch()
	}
	s.tearDown()
}

// watch sends heartbeats until the path fails.
func (s *serverPath) watch() {
	hb := s.heartbeat()
	tick, stop := hb.ticker(hb.Interval)
	defer func() { stop() }()
	for {
		select {
		case <-s.failed:
			return
		case q := <-s.challenged:
			q <- s.challenge()
			continue
		case <-s.poke:
			stop()
			hb = s.heartbeat()
			tick, stop = hb.ticker(hb.Interval)
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

func (s *serverPath) heartbeat() HeartbeatConfig {
	if of := s.srv.cfg.HeartbeatOf; of != nil {
		return of(s.key.peer).withDefaults()
	}
	return s.srv.cfg.Heartbeat
}

// tearDown ends the connections, waits for the requests at the handler and
// frees everything.
func (s *serverPath) tearDown() {
	if s.sess != nil {
		s.sess.losePath(s)
	}
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
	if s.sess != nil {
		// What waits for its execution by another path would keep the memory until that ends.
		for i := range s.sess.slots {
			for range s.sess.slots[i].dropWaiting(s) {
				s.release()
			}
		}
	}
	s.release()
	<-s.idle
	for i := range s.chunks {
		s.chunks[i].mr.Deregister()
	}
	s.svcMR.Deregister()
	s.domains.free()
	s.mem.free()
	level, name := slog.LevelWarn, ""
	if errors.Is(s.err, ErrPeerClosed) || errors.Is(s.err, ErrClosed) || errors.Is(s.err, ErrSuperseded) {
		level = slog.LevelInfo
	}
	if s.sess != nil {
		name = s.sess.name
	}
	s.srv.log.Log(context.Background(), level, "path closed", "peer", s.key.peer, "session", name, "incarnation", s.inc, "error", s.err)
	s.srv.forgetPath(s)
	close(s.closed)
	if s.sess != nil {
		s.sess.pathGone(s)
	}
}

func (s *serverPath) abort() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		if c.up {
			c.qp.Abort(s.err)
		}
	}
}

// acquire keeps the path's memory and the handler for a request. It returns false once the
// path is closing.
func (s *serverPath) acquire() bool {
	s.refs.Add(1)
	if s.closing.Load() {
		s.release()
		return false
	}
	return true
}

func (s *serverPath) release() {
	if s.refs.Add(-1) == 0 {
		s.idleOnce.Do(func() { close(s.idle) })
	}
}

func (s *serverPath) executing() int {
	n := int(s.refs.Load())
	if !s.closing.Load() {
		n--
	}
	return max(n, 0)
}

// flush sends responses that were posted with More.
func (s *serverPath) flush() {
	for _, c := range s.conns {
		if c.dirty.Load() && c.dirty.Swap(false) {
			c.qp.Flush()
		}
	}
}
