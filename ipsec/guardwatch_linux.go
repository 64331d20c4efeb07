package ipsec

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/ipsec/pad"
)

// watchGuard puts back at once what others take away from the guards, and lets
// a new tun pass.
func (m *Manager) watchGuard(ctx context.Context) {
	changed, stop, err := guard.Changes(ctx, m.cfg.NetNS)
	defer stop()
	if err != nil {
		m.cfg.Logger.Warn("cannot follow all changes of the guard; it is checked now and then", "err", err)
	}
	tick := time.NewTicker(guardRecheck)
	defer tick.Stop()
	for {
		select {
		case <-changed:
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		m.repairGuards(ctx)
	}
}

// ensureGuards puts the guards of peers in place, and returns what has kept some from
// that. The kernel lists all that it has for it: many at once cost what one does.
func (m *Manager) ensureGuards(peers ...*peer) map[*peer]error {
	m.guarding.Lock()
	defer m.guarding.Unlock()
	_, failed := m.reconcileLocked(peers)
	return failed
}

// reconcileLocked compares the guards of peers with what the kernel has, and adds what
// is missing. It returns the peers whose policies somebody had removed, and why guards
// are not complete.
func (m *Manager) reconcileLocked(peers []*peer) (repaired []*peer, failed map[*peer]error) {
	failed = map[*peer]error{}
	status := m.DaemonStatus()
	var specs []guard.Spec
	var of []*peer
	var count []int // of specs of each
	for _, p := range peers {
		p.mu.Lock()
		if !p.noGuard {
			own := p.guards(status.DataPlane, status.Tun)
			specs, of, count = append(specs, own...), append(of, p), append(count, len(own))
		}
		p.mu.Unlock()
	}
	if len(specs) == 0 {
		return nil, failed
	}
	results, err := m.install(m.cfg.NetNS, specs)
	for i, p := range of {
		own := specs[:count[i]]
		r := summed(results[:count[i]])
		specs, results = specs[count[i]:], results[count[i]:]
		if err != nil {
			r.Err = err
		}
		if r.Err == nil {
			r.Err = m.tryGuards(p, own)
		}
		if r.Err != nil {
			failed[p] = r.Err
		}
		p.mu.Lock()
		was := p.hadGuard
		p.guarded, p.hadGuard = r.Err == nil && p.tested, true
		p.ready.Store(p.guarded)
		if r.Err != nil {
			p.failedLocked(r.Err)
		}
		again := was && r.Blocks+r.Others > 0
		if again {
			p.counters.GuardRepairs++
			if r.Blocks > 0 {
				repaired = append(repaired, p)
			}
		}
		p.mu.Unlock()
		if r.Err != nil {
			m.cfg.Logger.Error("the guard is not complete", "peer", p.name, "err", r.Err)
		}
		if again {
			what := fmt.Sprintf("%d policies", r.Blocks)
			if r.Others > 0 {
				what += ", and what keeps ICMP from quoting the link"
			}
			m.cfg.Logger.Warn("somebody had removed the guard; it was put back", "peer", p.name, "what", what)
			m.board.post(Event{Kind: EventGuardRepair, Peer: p.name, Detail: what})
		}
	}
	return repaired, failed
}

// repairGuards looks after all guards.
func (m *Manager) repairGuards(ctx context.Context) {
	m.guarding.Lock()
	repaired, _ := m.reconcileLocked(m.allPeers())
	m.guarding.Unlock()
	m.sweepOrphans(ctx)
	// Who took the guard's policies has taken charon's as well, and charon does
	// not know: its children carry nothing any more.
	if !m.DaemonStatus().DataPlane.Offers().HoldsSAs {
		return
	}
	for _, p := range repaired {
		if _, err := m.DeleteChild(ctx, p.name, ""); err != nil {
			m.cfg.Logger.Warn("could not renew the SAs after the kernel's policies were removed", "peer", p.name, "err", err)
		}
	}
}

// summed is what became of the guards of one peer.
func summed(results []guard.Result) (sum guard.Result) {
	var errs []error
	for _, r := range results {
		sum.Blocks += r.Blocks
		sum.Others += r.Others
		errs = append(errs, r.Err)
	}
	sum.Err = errors.Join(errs...)
	return sum
}

// dropGuard takes a peer's guard down, when ready has ended what its links have. Those
// in keep and those for which ready has an error keep it; a link in keep that has some ports of
// one that goes is guarded before. Other guards are looked after while that waits.
func (m *Manager) dropGuard(p *peer, ready func(guard.Spec) error, keep ...pad.Link) error {
	m.guarding.Lock()
	p.mu.Lock()
	p.noGuard, p.guarded = true, false
	p.ready.Store(true)
	p.mu.Unlock()
	m.guarding.Unlock()
	var errs []error
	var gone []pad.Link
	for _, k := range p.links {
		err := ready(p.guardOf(k, esp.Auto, ""))
		if slices.ContainsFunc(keep, k.SamePorts) {
			continue // whatever that came to
		}
		if err == nil {
			gone = append(gone, k)
		}
		errs = append(errs, err)
	}
	m.guarding.Lock()
	defer m.guarding.Unlock()
	if err := m.guardBefore(p, gone, keep); err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, k := range gone {
		errs = append(errs, m.uninstall(p.guardOf(k, esp.Auto, "")))
	}
	return errors.Join(errs...)
}

// guardBefore guards those links that stay, and have ports of others that go.
func (m *Manager) guardBefore(p *peer, gone, stay []pad.Link) error {
	st := m.DaemonStatus()
	var specs []guard.Spec
	for _, k := range stay {
		if slices.ContainsFunc(gone, k.Overlaps) {
			specs = append(specs, p.guardOf(k, st.DataPlane, st.Tun))
		}
	}
	if len(specs) == 0 {
		return nil
	}
	results, err := m.install(m.cfg.NetNS, specs)
	return errors.Join(err, summed(results).Err)
}

// RemoveGuard takes down the guard of a peer that stays, and keeps it down, with its
// streams as they are. It exists for demonstrations of what the guard is good for. It
// fails with ErrUnknownPeer, and with the kernel's error.
func (m *Manager) RemoveGuard(_ context.Context, name string) error {
	m.editing.Lock()
	defer m.editing.Unlock()
	p, err := m.peer(name)
	if err != nil {
		return err
	}
	m.cfg.Logger.Warn("the guard is taken down: the link's port may be used in clear", "peer", name)
	return m.dropGuard(p, func(guard.Spec) error { return nil })
}

// guards are the guards of a peer, one for each link.
func (p *peer) guards(plane esp.Plane, tun string) []guard.Spec {
	var specs []guard.Spec
	for _, k := range p.links {
		specs = append(specs, p.guardOf(k, plane, tun))
	}
	return specs
}

func (p *peer) guardOf(k pad.Link, plane esp.Plane, tun string) guard.Spec {
	return guard.Spec{NetNS: p.m.cfg.NetNS, Remote: p.remote, Port: k.Port, Size: k.Size, Protocol: k.Protocol, DataPlane: plane, Tun: tun}
}

// host is a guard spec for what concerns all links of a peer.
func (p *peer) host(plane esp.Plane, tun string) guard.Spec {
	return p.guardOf(p.links[0], plane, tun)
}
