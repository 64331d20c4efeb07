package rtrs

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// SessionState is the state of a server's session.
//
//	Open ◀──▶ Waiting ──no path for ServerConfig.Linger──▶ Fencing ──all requests ended──▶ gone
//	  └──closed by the client──────────────────────────────▲
type SessionState uint8

// The states.
const (
	SessionOpen    SessionState = iota
	SessionWaiting              // for its client to come back: it has lost all of its paths
	SessionFencing              // it is over, but requests are still being executed
)

func (s SessionState) String() string {
	return [...]string{"open", "waiting", "fencing"}[s]
}

// MarshalText implements encoding.TextMarshaler.
func (s SessionState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// session is what the paths of one client to this server have in common. It outlives them
// for a while, so that a client that comes back finds what became of its requests.
type session struct {
	srv      *Server
	key      sessionKey
	name     string
	epoch    uuid // no other session has it
	trust    verbs.TrustModel
	handler  ServerHandler
	slots    []slot
	counters counters
	closed   chan struct{} // nothing is left
	open     atomic.Pointer[[]*serverPath]

	mu    sync.Mutex               // guards the fields below it; taken after the server's
	err   error                    // why it is over
	since time.Time                // in this state
	alone time.Time                // when the last path was lost
	paths map[*serverPath]struct{} // those that have not wholly gone
	timer *time.Timer
	gone  bool
}

type sessionKey struct {
	peer      transport.Identity
	id        uuid
	partition string
}

// joinSession takes a path into the session that it names, which it begins if there is none.
func (s *Server) joinSession(ctx context.Context, p *serverPath, name string) error {
	for {
		sess, err := s.findSession(ctx, p, name)
		if err != nil {
			return err
		}
		switch {
		case sess.name != name:
			return fmt.Errorf("rtrs: a path of session %q to be one of %q: %w", sess.name, name, syscall.EINVAL)
		case sess.trust != p.trust:
			sess.end(ErrSuperseded)
		}
		joined, err := sess.addPath(p)
		if joined || err != nil {
			return err
		}
		if err := s.awaitPredecessor(ctx, sess.closed, sess.executing); err != nil {
			return fmt.Errorf("%w: %w", err, syscall.EBUSY)
		}
	}
}

// findSession returns the session that a path names, or begins it. A peer's sessions have
// different names: it waits for the end of another one of that name whose client is gone,
// since its requests may be those of the client before a restart, and must not be executed
// after its successor's.
func (s *Server) findSession(ctx context.Context, p *serverPath, name string) (*session, error) {
	key, nk := sessionKey{p.key.peer, p.session, p.key.partition}, nameKey{p.key.peer, name, p.key.partition}
	for {
		s.mu.Lock()
		sess, other := s.sessions[key], s.names[nk]
		var err error
		if sess == nil && other == nil {
			if other = s.surplusLocked(key.peer); other == nil {
				sess, err = s.beginLocked(key, p, name)
			}
		}
		s.mu.Unlock()
		switch {
		case sess != nil || err != nil:
			return sess, err
		case !other.isOver() && other.isAlive(ctx):
			return nil, fmt.Errorf("rtrs: the peer has another session %q open: %w", name, syscall.EEXIST)
		}
		if err := s.awaitPredecessor(ctx, other.closed, other.executing); err != nil {
			return nil, fmt.Errorf("%w: %w", err, syscall.EBUSY)
		}
	}
}

// surplusLocked returns the session of a peer that has waited longest for its client, where
// the peer has as many sessions as it may: those that wait have no path by which they would
// be counted, and a peer that leaves one behind after the other would have no bound.
func (s *Server) surplusLocked(peer transport.Identity) (oldest *session) {
	n := 0
	var since time.Time
	for key, sess := range s.sessions {
		if key.peer != peer {
			continue
		}
		n++
		if d := sess.waitsSince(); !d.IsZero() && (oldest == nil || d.Before(since)) {
			oldest, since = sess, d
		}
	}
	if n < s.cfg.MaxSessionsPerPeer {
		return nil
	}
	return oldest
}

// waitsSince is when the session lost its last path, zero while it has one or had none.
func (s *session) waitsSince() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(*s.open.Load()) > 0 {
		return time.Time{}
	}
	return s.alone
}

func (s *Server) beginLocked(key sessionKey, p *serverPath, name string) (*session, error) {
	if s.closed {
		return nil, ErrClosed
	}
	n := len(p.chunks)
	sess := &session{srv: s, key: key, name: name, trust: p.trust, slots: make([]slot, n), paths: make(map[*serverPath]struct{}), closed: make(chan struct{}), since: time.Now()}
	sess.open.Store(new([]*serverPath))
	rand.Read(sess.epoch[:])
	var err error
	sess.handler, err = s.cfg.NewSession(SessionInfo{Peer: key.peer, Name: name, Trust: p.trust, Partition: key.partition, QueueDepth: n, MaxIO: s.cfg.MaxIO, Flush: sess.flush})
	if err != nil {
		return nil, err
	}
	s.sessions[key], s.names[nameKey{key.peer, name, key.partition}] = sess, sess
	s.log.Info("session open", "peer", key.peer, "session", name)
	return sess, nil
}

// forgetSession forgets a session of which nothing is left.
func (s *Server) forgetSession(sess *session, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, sess.key)
	delete(s.names, nameKey{sess.key.peer, sess.name, sess.key.partition})
	s.past.Add(sess.counters.snapshot())
	s.log.Info("session closed", "peer", sess.key.peer, "session", sess.name, "error", why)
}

// addPath adds a path. It returns false if the session is over.
func (s *session) addPath(p *serverPath) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	open := *s.open.Load()
	switch {
	case s.err != nil:
		return false, nil
	case len(open) >= MaxPaths:
		return false, fmt.Errorf("rtrs: session %q has %d paths, the limit: %w", s.name, len(open), syscall.EUSERS)
	}
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	if len(open) == 0 {
		s.since = time.Now()
	}
	s.paths[p] = struct{}{}
	p.sess = s
	open = append(slices.Clone(open), p)
	s.open.Store(&open)
	return true, nil
}

// losePath takes a path out of use. The session is over if its client has closed it, by whichever
// path: the others may not have heard of it. Without another path it is over as well if the
// client has broken the protocol, and waits for its client otherwise.
func (s *session) losePath(p *serverPath) {
	s.mu.Lock()
	open := slices.DeleteFunc(slices.Clone(*s.open.Load()), func(o *serverPath) bool { return o == p })
	s.open.Store(&open)
	over := p.bye.Load()
	if len(open) == 0 {
		s.alone = time.Now()
	}
	if len(open) == 0 && s.err == nil {
		s.since = s.alone
		if over = over || errors.Is(p.err, ErrProtocol); !over {
			s.timer = time.AfterFunc(s.srv.cfg.Linger, func() {
				if len(*s.open.Load()) == 0 {
					s.end(fmt.Errorf("%w: %w", errNotBack, p.err))
				}
			})
		}
	}
	s.mu.Unlock()
	if over {
		s.end(p.err)
	}
}

var errNotBack = errors.New("rtrs: the peer did not come back")

// end ends the session. Its paths are given up, and when the last request has ended
// nothing of it is left.
func (s *session) end(err error) {
	s.mu.Lock()
	if s.err == nil {
		s.err, s.since = err, time.Now()
	}
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	s.mu.Unlock()
	for _, p := range s.openPaths() {
		p.fail(err)
	}
	s.pathGone(nil)
}

// EndSessions ends the sessions of a peer, which may begin others: none goes on with what
// it had open.
func (s *Server) EndSessions(peer transport.Identity, why error) {
	s.mu.Lock()
	var ended []*session
	for key, sess := range s.sessions {
		if key.peer == peer {
			ended = append(ended, sess)
		}
	}
	s.mu.Unlock()
	for _, sess := range ended {
		sess.end(why)
	}
}

// pathGone forgets the session if it is over and nothing is left of its paths, of which p,
// if not nil, has gone.
func (s *session) pathGone(p *serverPath) {
	s.mu.Lock()
	delete(s.paths, p)
	last := len(s.paths) == 0 && s.err != nil && !s.gone
	s.gone = s.gone || last
	lost, why := s.alone, s.err
	s.mu.Unlock()
	if last {
		s.handler.Closed(lost, why)
		s.srv.forgetSession(s, why)
		close(s.closed)
	}
}

func (s *session) isOver() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err != nil
}

// openPaths returns the paths that are in use.
func (s *session) openPaths() []*serverPath { return *s.open.Load() }

// flush sends responses that were posted with More.
func (s *session) flush() {
	for _, p := range s.openPaths() {
		p.flush()
	}
}

// executing is how many requests have not been answered.
func (s *session) executing() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.paths {
		n += p.executing()
	}
	return n
}
