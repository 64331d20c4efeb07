package carrier

import (
	"net/netip"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/transport"
)

// reached is how it stands with one path of SCTP to a peer. Guarded by
// Choice.mu.
type reached struct {
	up       bool
	since    time.Time
	failures uint64
}

// OnPath is told by SCTP that a path does not answer any more, or that it answers
// (again).
func (c *Chooser) OnPath(f transport.Flow, up bool) {
	p, ok := c.cfg.At(f.Remote.Addr())
	if !ok || !p.Carrier().sawPath(f.Remote.Addr(), up) {
		return
	}
	attrs := []any{"peer", p.Declared().Name, "address", f.Remote.Addr(), "local_address", f.Local.Addr()}
	if up {
		c.log.Info("a path of SCTP answers", attrs...)
		return
	}
	c.log.Warn("a path of SCTP does not answer; streams go on by another one if there is one", attrs...)
}

// sawPath notes what is known of a path, and reports whether it is news.
func (ch *Choice) sawPath(a netip.Addr, up bool) bool {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	r := ch.reached[a]
	if r != nil && r.up == up {
		return false
	}
	if r == nil {
		r = &reached{}
		ch.reached[a] = r
	}
	r.up, r.since = up, time.Now()
	if !up {
		r.failures++
	}
	return true
}

// DescribePath fills in what is known of a path; inUse: the peer has streams over SCTP.
func (ch *Choice) DescribePath(v *api.PathState, a netip.Addr, inUse bool) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	r := ch.reached[a]
	if r == nil {
		return
	}
	v.Failures = r.failures
	switch {
	case !inUse:
		return
	case r.up:
		v.Reachable = api.PathReachable
	default:
		v.Reachable = api.PathUnreachable
	}
	v.SinceSeconds = time.Since(r.since).Seconds()
}
