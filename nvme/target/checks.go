//go:build !weakened

package target

import "github.com/ironwarp/ironwarp/nvme"

// The checks of docs/security.md, one function each. weakened.go has them with switches.

// R2 and R19, RFC 5042 section 6.4.1: a peer has a bounded part of what has no controller, and of the controllers.
func (s *Server) noPending(all, mine int) bool {
	return all >= defaultConnections || mine >= defaultConnections/4
}

func (s *Server) noController(all, mine int) bool {
	return all >= s.cfg.MaxControllers || mine >= s.cfg.MaxOfPeer
}

// R16, section 6.3.4: what is written to the host's memory, or read from it, is the data of the command.
func (k *command) describes(n uint32) bool { return k.sgl.Length == n }

// R11: data in a capsule are within what has come.
func (k *command) inCapsule(n uint32) (from uint64, ok bool) {
	have := uint64(len(k.data))
	return k.sgl.Address, k.sgl.Address <= have && uint64(n) <= have-k.sgl.Address
}

// R11: blocks are within the namespace.
func (n *Namespace) holds(slba, blocks uint64) bool {
	size := n.size()
	return slba <= size && blocks <= size-slba
}

// R21, section 6.4.3: a host has no more commands under way than its queue has entries.
func (c *conn) tooManyLocked() bool {
	if c.entries > 0 {
		return c.active >= int(c.entries)
	}
	return c.active >= c.depth
}

// SessionOwner: a controller gets queues from, and is replaced by, only whom it is of.
func (x *controller) isOf(o Origin, d nvme.ConnectData) bool {
	return x.origin.principal() == o.principal() && x.host.HostID == d.HostID && x.host.HostNQN == d.HostNQN && x.host.SubsystemNQN == d.SubsystemNQN
}

// Admission: a host sees, and connects to, only what it may.
func (s *subsystem) visible(o Origin, host string) bool {
	c := s.cfg.Load()
	return c.Admits == nil || c.Admits(o, host)
}
