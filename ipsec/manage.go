package ipsec

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/ipsec/ike"
	"github.com/ironwarp/ironwarp/ipsec/pad"
)

// AddPeer puts the guard in place, then hands the peer's key and connection to
// charon. A peer that exists already with the same name is replaced: if only
// its profile or key differ its SAs and flows stay, else they end. An error of
// the configuration leaves nothing behind; one of the guard, or of its self-test,
// leaves what could be blocked: guard.Remove takes it down. If
// charon is not there the peer is loaded when it comes, and the error is nil:
// PeerStatus says so. If charon refuses the connection, the guard stays and the
// error says why; RemovePeer removes it.
func (m *Manager) AddPeer(ctx context.Context, cfg pad.Peer) error {
	return m.AddPeers(ctx, []pad.Peer{cfg})[0]
}

// AddPeers is AddPeer for several peers, with an error for each. What the kernel has is
// looked at once for all of them, and changed at once: a thousand at a time take as long
// as some.
func (m *Manager) AddPeers(ctx context.Context, cfgs []pad.Peer) []error {
	m.editing.Lock()
	defer m.editing.Unlock()
	errs := make([]error, len(cfgs))
	of := make([]*peer, len(cfgs))
	fresh := batch{at: map[netip.Addr][]*peer{}}
	for i, cfg := range cfgs {
		of[i], errs[i] = m.declareLocked(ctx, cfg, &fresh)
	}
	before := m.DaemonStatus()
	failed := m.ensureGuards(fresh.peers...)
	added := map[*peer]bool{}
	for _, p := range fresh.peers {
		err := failed[p]
		if err == nil {
			err = m.extendBlock(p)
		}
		if err == nil {
			err = m.enterLocked(p)
		}
		if err != nil {
			failed[p] = fmt.Errorf("add peer %s: %w", p.name, err)
		}
		added[p] = err == nil
	}
	offer := slices.DeleteFunc(slices.Clone(of), func(p *peer) bool { return p == nil || failed[p] != nil })
	// If charon is not there, or goes away meanwhile, they are loaded when it comes back.
	if l := m.currentSession(); l != nil {
		if l.Status.DataPlane != before.DataPlane || l.Status.Tun != before.Tun {
			added = nil // it came meanwhile, and their guards are not those of its data plane
		}
		for p, err := range m.bringUpLocked(ctx, l, offer, added) {
			if m.currentSession() == l {
				failed[p] = err
			}
		}
	}
	for i, p := range of {
		if p != nil {
			errs[i] = failed[p]
		}
	}
	return errs
}

// batch is peers that are being added.
type batch struct {
	peers []*peer
	at    map[netip.Addr][]*peer
}

// declareLocked makes a peer and adds it to those that are being added, or changes one
// that is there already. editing is held.
func (m *Manager) declareLocked(ctx context.Context, cfg pad.Peer, fresh *batch) (*peer, error) {
	cfg, err := cfg.WithDefaults()
	if err != nil {
		return nil, err
	}
	m.warn(&cfg, fresh.peers...)
	if old, err := m.peer(cfg.Name); err == nil {
		if old.sameEnds(&cfg) {
			old.mu.Lock()
			old.cfg = cfg
			old.mu.Unlock()
			return old, nil
		}
		// Between the old and the new one the ports that both have stay closed.
		var keep []pad.Link
		if old.cfg.Remote == cfg.Remote { // unlocked: it changes only under editing
			keep = cfg.AllLinks()
		}
		var held *guard.HeldError
		if err := m.retire(ctx, old, keep); errors.As(err, &held) {
			m.cfg.Logger.Warn("the guard of what the peer was stays", "peer", cfg.Name, "err", err)
		} else if err != nil {
			return nil, fmt.Errorf("replace peer %s: %w", cfg.Name, err)
		}
	}
	m.mu.Lock()
	n := len(m.peers) + len(fresh.peers)
	var near []*peer
	for _, a := range (guard.Spec{Remote: cfg.Remote}).Addresses() {
		near = append(near, m.byAddr[a]...)
		near = append(near, fresh.at[a]...)
	}
	m.mu.Unlock()
	for _, o := range near {
		if k, both := sharedLink(&o.cfg, &cfg); both {
			return nil, fmt.Errorf("add peer %s: %w: %s has %v %v", cfg.Name, ErrPeerExists, o.name, cfg.Remote, k)
		}
	}
	switch {
	case slices.ContainsFunc(fresh.peers, func(p *peer) bool { return p.name == cfg.Name }):
		return nil, fmt.Errorf("add peer %s: %w: two have its name", cfg.Name, ErrPeerExists)
	case n >= MaxPeers:
		return nil, fmt.Errorf("add peer %s: there are %d peers, and no more are possible", cfg.Name, MaxPeers)
	}
	p := newPeer(m, cfg)
	fresh.peers = append(fresh.peers, p)
	fresh.at[cfg.Remote] = append(fresh.at[cfg.Remote], p)
	return p, nil
}

// enterLocked begins to look after a peer. editing is held.
func (m *Manager) enterLocked(p *peer) error {
	keeping, stop := context.WithCancel(m.ctx)
	p.stop = stop
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		stop()
		return ErrClosed
	}
	m.peers[p.name] = p
	m.indexLocked(p, true)
	m.wg.Go(func() { p.keep(keeping) })
	return nil
}

// warn logs what is allowed and dangerous all the same. Keys that strongSwan
// would confuse are no reason to refuse a peer, which would leave it without a
// guard, and a rotation passes through that state.
func (m *Manager) warn(p *pad.Peer, fresh ...*peer) {
	for _, w := range p.Profile.Warnings() {
		m.cfg.Logger.Warn(w, "peer", p.Name, "profile", p.Profile.Name)
	}
	for _, o := range slices.Concat(m.allPeers(), fresh) {
		cfg := o.config()
		if err := p.KeyClash(&cfg); err != nil {
			m.cfg.Logger.Warn("one of two peers cannot authenticate", "peer", p.Name, "err", err)
		}
	}
}

// sameEnds reports whether two configurations are of the same hosts and flows.
func (p *peer) sameEnds(o *pad.Peer) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := &p.cfg
	return c.Local == o.Local && c.Remote == o.Remote && slices.Equal(c.AllLinks(), o.AllLinks()) && c.LocalID == o.LocalID && c.RemoteID == o.RemoteID &&
		c.Gateway == o.Gateway && max(c.Children, 1) == max(o.Children, 1)
}

// sharedLink returns a link of one peer of which another with the same address, in whatever
// form, has a port as well: the guards of both would be of the same packets.
func sharedLink(p, o *pad.Peer) (pad.Link, bool) {
	if !slices.Contains(guard.Spec{Remote: p.Remote}.Addresses(), o.Remote) {
		return pad.Link{}, false
	}
	for _, k := range p.AllLinks() {
		if slices.ContainsFunc(o.AllLinks(), k.Overlaps) {
			return k, true
		}
	}
	return pad.Link{}, false
}

// RemovePeer ends the peer's SAs, unloads its connection and key, and then
// removes its guard, but that of the links in keep: from then on the port's traffic
// with the peer may flow in clear. Before that the kernel's sockets of its links are
// ended. The guard of a link stays whose sockets cannot be, and the error is a
// *HeldError: guard.Remove takes it down later.
func (m *Manager) RemovePeer(ctx context.Context, name string, keep ...pad.Link) error {
	m.editing.Lock()
	defer m.editing.Unlock()
	p, err := m.peer(name)
	if err != nil {
		return err
	}
	return m.retire(ctx, p, keep)
}

// retire ends a peer; the guard of the links in keep stays.
func (m *Manager) retire(ctx context.Context, p *peer, keep []pad.Link) error {
	m.mu.Lock()
	delete(m.peers, p.name)
	m.indexLocked(p, false)
	l := m.session
	m.mu.Unlock()
	p.stop()
	<-p.done
	var errs []error
	p.expectEndOfIKE(ReasonRemoved)
	if l != nil {
		if _, err := l.Terminate(ctx, p.name, charon.Section("ike", p.name), true); err != nil {
			errs = append(errs, err)
		}
		errs = append(errs, l.Unload(ctx, p.name))
	}
	p.applying.Lock()
	p.takeListLocked(nil, 0, false)
	p.applying.Unlock()
	p.mu.Lock()
	p.removed = true
	for _, ln := range p.lanes {
		ln.answer(errRemoved(p.name))
	}
	p.mu.Unlock()
	errs = append(errs, m.dropGuard(p, m.empty, keep...))
	if st := m.DaemonStatus(); st.DataPlane.Offers().HoldsSAs {
		for _, g := range p.guards(st.DataPlane, "") {
			errs = append(errs, guard.RemoveChildren(g))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove peer %s: %w", p.name, err)
	}
	return nil
}

// errRemoved is for those who wait for a peer that was removed.
func errRemoved(name string) error {
	return fmt.Errorf("%w: %q was removed", ErrUnknownPeer, name)
}

// SAs lists the SAs of the peers, as charon has them now, by peer. It fails with
// ErrNotConnected, and as charon.ListSAs does.
func (m *Manager) SAs(ctx context.Context) ([]charon.SA, error) {
	all, err := m.listAll(ctx)
	if err != nil {
		return nil, err
	}
	var ours []charon.SA
	for _, sa := range all {
		if p, err := m.peer(sa.Peer); err == nil {
			ours = append(ours, p.annotate(sa))
		}
	}
	slices.SortStableFunc(ours, func(a, b charon.SA) int { return cmp.Compare(a.Peer, b.Peer) })
	return ours, nil
}

// annotate adds to a listed SA what only this package knows.
func (p *peer) annotate(sa charon.SA) charon.SA {
	p.mu.Lock()
	defer p.mu.Unlock()
	sa.Gateway = sa.RemoteHost != p.cfg.Remote
	sa.Children = slices.Clone(sa.Children) // the list is shared
	for i := range sa.Children {
		c := &sa.Children[i]
		for _, l := range p.lanes {
			if c.Name == l.Name && c.IsInstalled() {
				c.Flows = len(l.flows)
			}
		}
	}
	return sa
}

// DeleteChild ends the children of a peer; child is a name such as NAME-out or NAME-in,
// or "" for all of them. It returns how many there were. Streams are paused, and the
// children come back as soon as one of them has data to send. It fails with
// ErrUnknownPeer, ErrNotConnected, where the peer has no such child, and with
// strongSwan's error.
func (m *Manager) DeleteChild(ctx context.Context, name, child string) (int, error) {
	return m.eachChild(ctx, name, child, func(p *peer, l *ike.Session, child string) (int, error) {
		ids := p.installedIDs(child)
		p.expectEnd(ReasonHere, func(_ uint32, c charon.Child) bool { return c.Name == child })
		n, err := l.Terminate(ctx, child, charon.Section("ike", name, "child", child), false)
		if !charon.Refused(err, "") || p.refresh(ctx) != nil {
			return n, err
		}
		// The peer may have deleted it at the same time, or rekeyed it: what counts is
		// that it is gone.
		if left := p.installedIDs(child); !slices.ContainsFunc(left, func(id uint32) bool { return slices.Contains(ids, id) }) {
			return max(n, len(ids)), nil
		}
		return n, err
	})
}

// installedIDs are those of the installed children of a name.
func (p *peer) installedIDs(child string) (ids []uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.laneNamed(child); l != nil {
		for _, c := range l.installed {
			ids = append(ids, c.UniqueID)
		}
	}
	return ids
}

// DeleteIKE ends the peer's IKE SAs with their children. It returns how many there
// were, and fails as DeleteChild does.
func (m *Manager) DeleteIKE(ctx context.Context, name string) (int, error) {
	p, l, err := m.peerAndSession(name)
	if err != nil {
		return 0, err
	}
	p.expectEndOfIKE(ReasonHere)
	n, err := l.Terminate(ctx, name, charon.Section("ike", name), false)
	return n, errors.Join(err, p.refresh(ctx))
}

// RekeyIKE makes fresh keys for the peer's IKE SAs; with IKEv1 the peers authenticate
// anew. It returns how many there were. It fails as DeleteChild does.
func (m *Manager) RekeyIKE(ctx context.Context, name string) (int, error) {
	p, l, err := m.peerAndSession(name)
	if err != nil {
		return 0, err
	}
	n, err := l.Rekey(ctx, name, charon.Section("ike", name))
	if err != nil || n == 0 {
		return 0, err
	}
	return n, p.refresh(ctx)
}

// Rekey makes fresh keys for a peer's children (child as in DeleteChild). It returns
// how many there were, and fails as DeleteChild does.
func (m *Manager) Rekey(ctx context.Context, name, child string) (int, error) {
	return m.eachChild(ctx, name, child, func(_ *peer, l *ike.Session, child string) (int, error) {
		return l.Rekey(ctx, child, charon.Section("ike", name, "child", child))
	})
}

func (m *Manager) eachChild(ctx context.Context, name, child string, do func(*peer, *ike.Session, string) (int, error)) (int, error) {
	p, l, err := m.peerAndSession(name)
	if err != nil {
		return 0, err
	}
	total := 0
	var errs []error
	found := child == ""
	for _, ln := range p.lanes {
		if child != "" && child != ln.Name {
			continue
		}
		found = true
		n, err := do(p, l, ln.Name)
		total += n
		errs = append(errs, err)
	}
	if !found {
		var names []string
		for _, ln := range p.lanes {
			names = append(names, ln.Name)
		}
		return 0, fmt.Errorf("peer %s has no child %q: it has %s", name, child, strings.Join(names, ", "))
	}
	errs = append(errs, p.refresh(ctx))
	return total, errors.Join(errs...)
}

func (m *Manager) peerAndSession(name string) (*peer, *ike.Session, error) {
	p, err := m.peer(name)
	if err != nil {
		return nil, nil, err
	}
	l := m.currentSession()
	if l == nil {
		return nil, nil, m.notConnected()
	}
	return p, l, nil
}

// PeerStatus returns the state of a peer, or ErrUnknownPeer.
func (m *Manager) PeerStatus(name string) (Status, error) {
	p, err := m.peer(name)
	if err != nil {
		return Status{}, err
	}
	return p.status(m.DaemonStatus().DataPlane), nil
}

// Peers returns the states of all peers, by name.
func (m *Manager) Peers() []Status {
	plane := m.DaemonStatus().DataPlane
	var all []Status
	for _, p := range m.allPeers() {
		all = append(all, p.status(plane))
	}
	return all
}

// DaemonStatus returns the state of charon and of the connection to it.
func (m *Manager) DaemonStatus() ike.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	st := m.status
	st.Refused = m.refused
	return st
}

// Events returns a subscription. A subscriber that does not keep up loses the
// oldest events. cancel ends it and closes the channel.
func (m *Manager) Events() (events <-chan Event, cancel func()) { return m.board.subscribe() }
