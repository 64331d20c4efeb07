//go:build weakened

package target

import (
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/nvme"
)

func (s *Server) noPending(all, mine int) bool {
	return all >= defaultConnections || mine >= defaultConnections/4 && checks.On(checks.HalfOpen)
}

func (s *Server) noController(all, mine int) bool {
	return all >= s.cfg.MaxControllers || mine >= s.cfg.MaxOfPeer && checks.On(checks.PeerQuota)
}

func (k *command) describes(n uint32) bool {
	return k.sgl.Length == n || !checks.On(checks.ExactWindow)
}

func (k *command) inCapsule(n uint32) (from uint64, ok bool) {
	have := uint64(len(k.data))
	if !checks.On(checks.Bounds) {
		have = uint64(cap(k.data))
	}
	return k.sgl.Address, k.sgl.Address <= have && uint64(n) <= have-k.sgl.Address
}

func (n *Namespace) holds(slba, blocks uint64) bool {
	size := n.size()
	return slba <= size && blocks <= size-slba || !checks.On(checks.Bounds)
}

func (c *conn) tooManyLocked() bool {
	if !checks.On(checks.CommandWindow) {
		return false
	}
	if c.entries > 0 {
		return c.active >= int(c.entries)
	}
	return c.active >= c.depth
}

func (x *controller) isOf(o Origin, d nvme.ConnectData) bool {
	return x.origin.principal() == o.principal() && x.host.HostID == d.HostID && x.host.HostNQN == d.HostNQN && x.host.SubsystemNQN == d.SubsystemNQN || !checks.On(checks.SessionOwner)
}

func (s *subsystem) visible(o Origin, host string) bool {
	c := s.cfg.Load()
	return c.Admits == nil || c.Admits(o, host) || !checks.On(checks.Admission)
}
