//go:build weakened

package target

import (
	"math"

	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/iscsi"
)

func (s *Server) noLogin(all, mine int) string {
	if !checks.On(checks.HalfOpen) {
		return places{s.cfg.MaxLogins, s.cfg.MaxLogins}.none(all, 0)
	}
	return places{s.cfg.MaxLogins, s.cfg.MaxLoginsOfPeer}.none(all, mine)
}

func (s *Server) noSession(all, mine int) string {
	if !checks.On(checks.PeerQuota) {
		return places{s.cfg.MaxSessions, s.cfg.MaxSessions}.none(all, 0)
	}
	return places{s.cfg.MaxSessions, s.cfg.MaxOfPeer}.none(all, mine)
}

func (b *buffer) isOf(user uint64) bool { return b.user == user || !checks.On(checks.Zeroed) }

func (t *task) input() uint32 {
	if !checks.On(checks.ExactWindow) {
		return t.InLen
	}
	return min(t.InLen, t.edtl)
}

func (t *task) room() uint32 {
	if !checks.On(checks.ExactWindow) {
		return math.MaxUint32
	}
	if t.read {
		return t.edtl
	}
	return 0
}

func (x *session) hasManyRequestsLocked() bool {
	return x.managing+len(x.logouts) >= immediates && checks.On(checks.RequestBound)
}

func (x *session) isOf(l *iscsi.Login, o Origin) bool {
	return x.login.CHAPName == l.CHAPName && x.origin.Peer == o.Peer || !checks.On(checks.SessionOwner)
}

func (t *Target) visible(o Origin, initiator string) bool {
	return !(t.NoRDMA && o.InRDMA) && (t.Admits == nil || t.Admits(o, initiator) || !checks.On(checks.Admission))
}
