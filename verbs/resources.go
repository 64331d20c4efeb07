package verbs

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/ironwarp/ironwarp/transport"
)

// Usage is one principal's use of the device.
type Usage struct {
	Principal string // "the device", "ULP NAME" or "peer IDENTITY"
	Name      string // that NAME or IDENTITY, "" for the device
	Used      Limits
	Limit     Limits // its own; 0: only the device's
	Share     Limits // never refused because of others; 0: not divided
}

// Resources is the use of a device by principal.
type Resources struct {
	Device      Usage
	ULPs, Peers []Usage // by name; only peers that use something or have a share of their own
}

// Resources returns the current use by principal.
func (d *Device) Resources() Resources {
	m := &d.prm
	m.mu.Lock()
	defer m.mu.Unlock()
	list := func(g *group) []Usage {
		all := make([]Usage, 0, len(g.members))
		for a := range g.members {
			all = append(all, a.usage())
		}
		slices.SortFunc(all, func(a, b Usage) int { return cmp.Compare(a.Principal, b.Principal) })
		return all
	}
	return Resources{Device: m.device.usage(), ULPs: list(&m.ulps), Peers: list(&m.peers)}
}

func (a *account) usage() Usage {
	u := Usage{Principal: a.name, Name: a.bare, Used: limitsFrom(a.used), Limit: limitsFrom(a.limit)}
	if a.group != nil {
		var share amounts
		for r := range resCount {
			share[r] = a.group.shareOf(a, r)
		}
		u.Share = limitsFrom(share)
	}
	return u
}

func (m *manager) usageOf(a *account) Usage {
	m.mu.Lock()
	defer m.mu.Unlock()
	return a.usage()
}

// Usage is the device's resources in use.
func (d *Device) Usage() Limits { return d.prm.usageOf(&d.prm.device).Used }

// SetLimits changes the device's limits; 0 fields take defaults. If more is in
// use than a new limit allows, nothing is taken away and nothing more is given. It
// fails if one is negative.
func (d *Device) SetLimits(l Limits) error {
	limit, err := l.check(defaultLimits.array())
	if err != nil {
		return fmt.Errorf("verbs: change the device's limits: %w", err)
	}
	m := &d.prm
	m.mu.Lock()
	defer m.mu.Unlock()
	m.device.limit = limit
	m.ulps.divide()
	m.peers.divide()
	return nil
}

// SetQuota changes the quota of a ULP, as SetLimits does. It fails as SetLimits does.
func (d *Device) SetQuota(u *ULP, q Quota) error {
	limit, err := q.check(amounts{})
	if err != nil {
		return fmt.Errorf("verbs: change the quota of ULP %s: %w", u.name, err)
	}
	m := &d.prm
	m.mu.Lock()
	defer m.mu.Unlock()
	u.acct.limit = limit
	m.ulps.divide()
	return nil
}

// SetPeers names the peers whose shares are reserved even while they use nothing, each
// with its quota, in place of those named before. Other peers have Config.Peer's quota.
// It fails if a quota is invalid, and then changes nothing.
func (d *Device) SetPeers(peers map[transport.Identity]Quota) error {
	m := &d.prm
	m.mu.Lock()
	defer m.mu.Unlock()
	limits := make(map[transport.Identity]amounts, len(peers))
	for id, q := range peers {
		limit, err := q.check(m.quota)
		if err != nil {
			return fmt.Errorf("verbs: set the quota of peer %s: %w", id, err)
		}
		limits[id] = limit
	}
	for id, p := range m.known {
		if _, ok := limits[id]; ok || !p.fixed {
			continue
		}
		p.fixed, p.limit = false, m.quota
		m.forgetLocked(id)
	}
	for id, limit := range limits {
		p := m.peerLocked(id)
		p.fixed, p.limit = true, limit
	}
	m.peers.divide()
	return nil
}

// SetPeerQuota changes the quota of peers that SetPeers does not name, in place of
// Config.Peer; SetPeers uses it from then on where a peer's own is 0. It fails
// if one is negative.
func (d *Device) SetPeerQuota(q Quota) error {
	limit, err := q.check(amounts{})
	if err != nil {
		return fmt.Errorf("verbs: change the quota of peers: %w", err)
	}
	m := &d.prm
	m.mu.Lock()
	defer m.mu.Unlock()
	m.quota = limit
	for _, p := range m.known {
		if !p.fixed {
			p.limit = limit
		}
	}
	m.peers.divide()
	return nil
}
