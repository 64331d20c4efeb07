package daemon

import (
	"net/netip"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/transport"
)

// reached is how it stands with one path of SCTP to a peer. The carrier's mutex
// guards it.
type reached struct {
	up       bool
	since    time.Time
	failures uint64
}

// onPath is told by SCTP that a path does not answer any more, or that it answers
// (again).
func (d *Daemon) onPath(f transport.Flow, up bool) {
	p := d.peerAt(f.Remote.Addr())
	if p == nil {
		return
	}
	if !p.carrier.sawPath(f.Remote.Addr(), up) {
		return
	}
	attrs := []any{"peer", p.cfg.Name, "address", f.Remote.Addr(), "local_address", f.Local.Addr()}
	if up {
		d.log.Info("a path of SCTP answers", attrs...)
		return
	}
	d.log.Warn("a path of SCTP does not answer; streams go on by another one if there is one", attrs...)
}

// sawPath notes what is known of a path, and reports whether it is news.
func (c *carrier) sawPath(a netip.Addr, up bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.reached[a]
	if r != nil && r.up == up {
		return false
	}
	if r == nil {
		r = &reached{}
		c.reached[a] = r
	}
	r.up, r.since = up, time.Now()
	if !up {
		r.failures++
	}
	return true
}

// pathStates describes the paths of a peer with several addresses, and the only
// one of another if it has failed. inUse: the peer has streams over SCTP.
func (d *Daemon) pathStates(p *peer, inUse bool) []api.PathState {
	_, local, _ := p.state()
	var out []api.PathState
	for i, a := range p.cfg.Addresses() {
		v := api.PathState{Path: api.Path{Address: a.String(), LocalAddress: addrText(local)}, Protection: api.PeerUp}
		if i > 0 {
			v.LocalAddress = addrText(p.cfg.Paths[i-1].LocalAddress)
		}
		p.carrier.describePath(&v, a, inUse)
		if p.cfg.Protection == config.ProtectIPsec {
			v.Protection = d.pathProtection(p.cfg.PathName(i))
		}
		out = append(out, v)
	}
	if len(out) == 1 && out[0].Failures == 0 {
		return nil
	}
	return out
}

func (c *carrier) describePath(v *api.PathState, a netip.Addr, inUse bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.reached[a]
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

// pathProtection is how it stands with the SAs of one path.
func (d *Daemon) pathProtection(name string) string {
	m := d.ike.current()
	if m == nil {
		return api.PeerProblem
	}
	st, err := m.PeerStatus(name)
	if err != nil {
		return api.PeerProblem
	}
	return stateOf(st)
}

// peerAt finds the peer that has an address, nil if none has.
func (d *Daemon) peerAt(a netip.Addr) *peer {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.index.addresses[a]
}
