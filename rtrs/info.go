package rtrs

import (
	"net/netip"
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
	Name        string
	State       State
	Since       time.Time      // in this state
	LastError   error          // why the path was lost or cannot be established; nil while connected
	Remote      netip.AddrPort // of the path in use or last tried
	Incarnation uint64         // attempts to connect the path
	Reconnects  uint64         // successful ones after the first
	QueueDepth  int
	MaxIO       int
	InFlight    int // permits in use
	Conns       []ConnInfo
	Stats       Stats
}

// Info returns the client's state.
func (cl *Client) Info() ClientInfo {
	i := ClientInfo{Name: cl.cfg.Name, QueueDepth: cl.depth, MaxIO: cl.maxIO, InFlight: cl.pool.inUse(), Stats: cl.counters.snapshot()}
	cl.mu.Lock()
	defer cl.mu.Unlock()
	i.State, i.Since, i.LastError, i.Remote = cl.state, cl.since, cl.lastErr, cl.remote
	i.Incarnation, i.Reconnects = cl.inc, cl.reconnects
	if cl.current != nil {
		for _, c := range cl.current.conns {
			i.Conns = append(i.Conns, connInfo(c.qp))
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
	Peer        transport.Identity
	Name        string // "" while opening
	State       SessionState
	Since       time.Time
	Trust       verbs.TrustModel
	Incarnation uint64
	Executing   int   // requests at the handler
	Err         error // why it is being closed
	Conns       []ConnInfo
	Stats       Stats
}

func (s *session) describe() ServerSessionInfo {
	i := ServerSessionInfo{Peer: s.key.peer, Trust: s.trust, Incarnation: s.inc, Executing: s.executing(), Stats: s.counters.snapshot()}
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
	list := make([]*session, 0, len(s.sessions))
	for _, sess := range s.sessions {
		list = append(list, sess)
	}
	s.mu.Unlock()
	infos := make([]ServerSessionInfo, 0, len(list))
	for _, sess := range list {
		infos = append(infos, sess.describe())
	}
	return infos
}
