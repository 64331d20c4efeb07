package rtrs

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// ConnInfo describes one connection of a path.
type ConnInfo struct {
	ID          uint64 // the QP's
	Flow        transport.Flow
	Peer        transport.Identity
	Established time.Time
	Paused      bool // its security association is down
}

func connInfo(qp *verbs.QP) ConnInfo {
	return ConnInfo{ID: qp.ID(), Flow: qp.Flow(), Peer: qp.Peer(), Established: qp.Established(), Paused: qp.Paused()}
}

// ClientInfo is a client's state for people.
type ClientInfo struct {
	Name       string
	State      State
	Since      time.Time // in this state
	LastError  error     // why no path is up; nil while connected
	Policy     Policy
	NoPath     NoPath
	Attempts   int  // ClientConfig.ReconnectAttempts
	Failing    bool // I/O fails, as NoPath has it
	QueueDepth int
	MaxIO      int
	InFlight   int // permits in use
	Paths      []PathInfo
	Remote     netip.AddrPort // of the first path that is up, or else of the first
	Reconnects uint64         // of all paths
	Conns      []ConnInfo     // of all paths
	Stats      Stats
}

// IsPaused reports whether I/O waits for a security association: each path that is up does.
func (i *ClientInfo) IsPaused() bool {
	paused := func(c ConnInfo) bool { return c.Paused }
	up := false
	for _, p := range i.Paths {
		if p.State == PathConnected {
			if up = true; !slices.ContainsFunc(p.Conns, paused) {
				return false
			}
		}
	}
	return up
}

// Info returns the client's state.
func (cl *Client) Info() ClientInfo {
	i := ClientInfo{Name: cl.cfg.Name, Policy: cl.Policy(), QueueDepth: cl.depth, MaxIO: cl.maxIO, InFlight: cl.pool.inUse(), Stats: cl.counters.snapshot()}
	cl.mu.Lock()
	defer cl.mu.Unlock()
	i.State, i.Since, i.NoPath, i.Attempts, i.Failing = cl.state, cl.since, cl.noPath, cl.attempts, cl.failing
	for _, t := range cl.paths {
		p := t.infoLocked()
		if len(i.Paths) == 0 || i.Paths[0].State != PathConnected && p.State == PathConnected && len(i.Conns) == 0 {
			i.Remote = p.Remote
		}
		i.Paths, i.Conns, i.Reconnects = append(i.Paths, p), append(i.Conns, p.Conns...), i.Reconnects+p.Reconnects
		if i.LastError == nil && cl.state != Connected {
			i.LastError = p.LastError
		}
	}
	return i
}

// Stats returns the counts of completed I/O.
func (cl *Client) Stats() Stats { return cl.counters.snapshot() }

func (p *permitPool) inUse() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.total - len(p.free)
}

// ServerSessionInfo is a session's state for people.
type ServerSessionInfo struct {
	Peer      transport.Identity
	Partition string
	Name      string
	State     SessionState
	Since     time.Time // in this state
	Trust     verbs.TrustModel
	Executing int   // requests at the handler
	Err       error // why it is over
	Paths     []ServerPathInfo
	Conns     []ConnInfo // of all paths
	Stats     Stats
}

// ServerPathInfo is a path's state for people.
type ServerPathInfo struct {
	Incarnation uint64
	Version     Protocol  // agreed on with the client
	Open        bool      // chunks stay open to the client, see ServerConfig.TrustClients
	Since       time.Time // open
	Executing   int       // requests that came by it
	Conns       []ConnInfo
}

func (s *session) describe() ServerSessionInfo {
	i := ServerSessionInfo{Peer: s.key.peer, Partition: s.key.partition, Name: s.name, Trust: s.trust, Executing: s.executing(), Stats: s.counters.snapshot()}
	for _, p := range s.openPaths() {
		d := p.describe()
		i.Paths, i.Conns = append(i.Paths, d), append(i.Conns, d.Conns...)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	i.Since, i.Err = s.since, s.err
	switch {
	case s.err != nil:
		i.State = SessionFencing
	case len(i.Paths) == 0:
		i.State = SessionWaiting
	}
	return i
}

func (s *serverPath) describe() ServerPathInfo {
	i := ServerPathInfo{Incarnation: s.inc, Version: s.version, Open: s.trusting, Executing: s.executing()}
	s.mu.Lock()
	defer s.mu.Unlock()
	i.Since = s.since
	for _, c := range s.conns {
		if c.up {
			i.Conns = append(i.Conns, connInfo(c.qp))
		}
	}
	return i
}

// Stats returns the counts of all sessions since the server began.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum := s.past
	for _, sess := range s.sessions {
		sum.Add(sess.counters.snapshot())
	}
	return sum
}

// Sessions describes the sessions that are open or not completely closed.
func (s *Server) Sessions() []ServerSessionInfo {
	s.mu.Lock()
	list := slices.Collect(maps.Values(s.sessions))
	s.mu.Unlock()
	infos := make([]ServerSessionInfo, 0, len(list))
	for _, sess := range list {
		infos = append(infos, sess.describe())
	}
	return infos
}
