//go:build !weakened

package target

import "github.com/ironwarp/ironwarp/iscsi"

// The checks of docs/security.md, one function each. weakened.go has them with switches.

// R2 and R19, RFC 5042 section 6.4.1: a peer has a bounded part of what has not logged in, and of the
// sessions.
func (s *Server) noLogin(all, mine int) string {
	return places{s.cfg.MaxLogins, s.cfg.MaxLoginsOfPeer}.none(all, mine)
}

func (s *Server) noSession(all, mine int) string {
	return places{s.cfg.MaxSessions, s.cfg.MaxOfPeer}.none(all, mine)
}

// R14, section 6.3.2: a buffer that a session gets has nothing of another's.
func (b *buffer) isOf(user uint64) bool { return b.user == user }

// R16, section 6.3.4: an initiator gets no more than it expects.
func (t *task) input() uint32 { return min(t.InLen, t.edtl) }

// room is how many bytes the initiator takes.
func (t *task) room() uint32 {
	if t.read {
		return t.edtl
	}
	return 0
}

// R21, section 6.4.3: what an initiator has asked for besides commands, and has not been answered, is
// bounded.
func (x *session) hasManyRequestsLocked() bool { return x.managing+len(x.logouts) >= immediates }

// SessionOwner: a session is continued, and replaced, only by whom it is of (RFC 7143 section 9.2).
func (x *session) isOf(l *iscsi.Login, o Origin) bool {
	return x.login.CHAPName == l.CHAPName && x.origin.Peer == o.Peer
}

// Admission: an initiator sees, and logs in to, only what it may.
func (t *Target) visible(o Origin, initiator string) bool {
	return !(t.NoRDMA && o.InRDMA) && (t.Admits == nil || t.Admits(o, initiator))
}
