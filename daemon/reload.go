package daemon

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/attach"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/verbs"
)

// Reload reads the configuration again and applies what is different. With a fault in
// it Reload fails, and nothing changes.
func (d *Daemon) Reload(ctx context.Context) (api.Reloaded, error) {
	d.changing.Lock()
	r, err := d.reload(ctx)
	d.changing.Unlock()
	d.exports.AwaitStorage()
	return r, err
}

// ReloadAndLog is Reload for a signal: what is wrong goes to the log.
func (d *Daemon) ReloadAndLog(ctx context.Context) {
	if _, err := d.Reload(ctx); err != nil {
		d.log.Error("the configuration was not reloaded; the daemon goes on with the old one", "error", err)
	}
}

// reload is Reload with changing held.
func (d *Daemon) reload(ctx context.Context) (api.Reloaded, error) {
	if d.ctx.Err() != nil {
		return api.Reloaded{}, &api.Error{Code: api.CodeUnavailable, Message: "the daemon is ending"}
	}
	old := d.config()
	next, err := config.Load(old.Path, d.opt.Named)
	if err != nil {
		return api.Reloaded{}, configError(err)
	}
	restart := d.keepUntilRestart(old, next)
	d.withVolumes(next)
	d.cfg.Store(next)
	// Once it has begun it is carried through, also if the client goes away.
	r := api.Reloaded{Changed: d.applyConfig(context.WithoutCancel(ctx), old, next), Restart: restart, Unusable: Unusable(next)}
	for _, c := range r.Changed {
		d.log.Info("configuration", "change", c)
	}
	return r, nil
}

// keepUntilRestart puts the settings that cannot change now back to what they
// were, and names them.
func (d *Daemon) keepUntilRestart(old, next *config.Config) []string {
	restart := []string{}
	keep := func(changed bool, name string, back func()) {
		if changed {
			restart = append(restart, name)
			back()
		}
	}
	keep(old.StateDir != next.StateDir, "state_dir", func() { next.StateDir = old.StateDir })
	keep(old.RuntimeDir != next.RuntimeDir, "runtime_dir", func() { next.RuntimeDir = old.RuntimeDir })
	keep(old.ControlSocket != next.ControlSocket, "control_socket", func() { next.ControlSocket = old.ControlSocket })
	keep(old.Log != next.Log, "log", func() { next.Log = old.Log })
	keep(old.Metrics != next.Metrics, "metrics", func() { next.Metrics = old.Metrics })
	differs := old.IPsec.VICI != next.IPsec.VICI || old.IPsec.DataPlane != next.IPsec.DataPlane
	keep(differs && d.sas.Current() != nil, "ipsec", func() { next.IPsec.VICI, next.IPsec.DataPlane = old.IPsec.VICI, old.IPsec.DataPlane })
	keep(old.Limits.Sessions != next.Limits.Sessions, "limits: sessions", func() { next.Limits.Sessions = old.Limits.Sessions })
	keep(old.Limits.AllSessions != next.Limits.AllSessions, "limits: all_sessions", func() { next.Limits.AllSessions = old.Limits.AllSessions })
	keep(old.Limits.ISCSISessions != next.Limits.ISCSISessions, "limits: iscsi_sessions", func() { next.Limits.ISCSISessions = old.Limits.ISCSISessions })
	keep(old.Limits.QueueSize != next.Limits.QueueSize, "limits: queue_size", func() { next.SetQueueSize(old.Limits.QueueSize) })
	return restart
}

// applyConfig turns the daemon from old to next and says what it did. changing is
// held.
func (d *Daemon) applyConfig(ctx context.Context, old, next *config.Config) []string {
	changed := []string{}
	say := func(format string, a ...any) { changed = append(changed, fmt.Sprintf(format, a...)) }
	if old.ListenPort != next.ListenPort || old.ListenUDPPort != next.ListenUDPPort || !slices.Equal(old.ListenOn, next.ListenOn) {
		say("listen addresses changed")
	}
	// Whoever may not go on is cut off before anything is waited for.
	changed = append(changed, d.applyFabric(next)...) // before the partitions, of which its managers may have taken some
	d.applyPartitions(next)
	d.cutOffChanged(next)
	// A listener goes before the guard of its link: the kernel answers a SYN in clear.
	d.listeners.CloseBut(next, d.awaitedPeers(next))
	d.targets.CloseBut(next, d.initiatorsOf(next))
	d.subsystems.CloseBut(next, d.nvmeHostsOf(next))
	changed = append(changed, d.applyShares(old, next)...)
	changed = append(changed, d.targets.Apply(next)...)
	changed = append(changed, d.subsystems.Apply(next)...)
	changed = append(changed, d.exports.Apply(next)...)
	var removed sync.WaitGroup
	forgot := false // a disk
	for _, p := range d.peers.list() {
		n, ok := next.Peer(p.cfg.Name)
		switch {
		case !ok:
			d.forgetPeer(p)
			for _, at := range d.disks.List(attach.From(p.cfg.Name)) {
				forgot = true
				d.disks.DetachInBackground(at)
				say("%s detached, since its peer is removed", at.Key)
			}
			removed.Go(func() { d.dropPeer(ctx, p) })
			say("peer %s removed", p.cfg.Name)
		case !n.Equal(p.cfg):
			d.changePeer(ctx, p, n)
			say("peer %s changed", n.Name)
		case p.hasNewKeys():
			what := map[config.Auth]string{config.AuthCert: "certificates", config.AuthPSK: "secret"}[n.Auth]
			d.setUpPeer(ctx, p)
			if _, _, problem := p.state(); problem != nil {
				say("peer %s keeps the %s that it has: %s", n.Name, what, problem.Message)
			} else {
				say("peer %s has a new %s; SAs that are up stay, the next authentication uses it", n.Name, what)
			}
		case n.Auth == config.AuthCert:
			// Lists of revoked certificates may have changed, which strongSwan keeps
			// until they run out: with the peer they are loaded afresh.
			d.setUpPeer(ctx, p)
			say("peer %s: whether its certificate was revoked is asked for afresh at the next authentication", n.Name)
		}
	}
	removed.Wait()
	var added []*peer
	for _, c := range next.Peers {
		if d.peers.byName(c.Name) == nil {
			p := newPeer(c)
			d.peers.add(p)
			added = append(added, p)
			say("peer %s added", c.Name)
		}
	}
	d.setUpPeers(ctx, added, false)
	changed = append(changed, d.applyULPs(next)...)
	d.programs.Reconsider()
	d.disks.RestoreOrphans()
	if forgot {
		d.disks.SaveOrLog()
	}
	d.exports.RefreshAllowed()
	d.applyPeerShares(next)
	d.guards.removeUnneeded(d.peers.list())
	d.listeners.Listen(ctx, next, d.awaitedPeers(next))
	d.listenForTargets(ctx, next)
	return changed
}

// cutOffChanged ends the sessions and streams of peers and ULPs that another
// configuration does not have, or has as others.
func (d *Daemon) cutOffChanged(next *config.Config) {
	for _, p := range d.peers.list() {
		if n, ok := next.Peer(p.cfg.Name); !ok || !n.SameEndpoints(p.cfg) {
			d.cutOffPeer(p, fmt.Errorf("peer %s has changed, or is removed from the configuration", p.cfg.Name))
		}
	}
	for _, c := range d.local.ULPs() {
		if u, ok := next.ULP(c.Name); !ok || needsNewConsumer(next, c, u) {
			d.cutOffULP(c)
		}
	}
}

func (d *Daemon) forgetPeer(p *peer) {
	d.peers.remove(p)
	d.blocks.Forget(p.cfg.Name)
	d.events.forget(p.cfg.Name)
	d.repeats.Forget(p.cfg.Name)
}

// changePeer applies a different declaration of a peer. Its streams are only
// touched if they would not be allowed any more: another address, transport,
// identity or protection. Its disks stay attached and connect anew then, unless it is
// another peer by its identity.
func (d *Daemon) changePeer(ctx context.Context, p *peer, n config.Peer) {
	next := newPeer(n)
	same := n.SameEndpoints(p.cfg)
	if same {
		next.takeOver(p)
	}
	d.peers.add(next)
	if same {
		d.dropPaths(ctx, p, next)
		d.setUpPeer(ctx, next)
		d.disks.Follow(n.Name)
		d.sessions.HeartbeatsChanged()
		if n.OpenChunks != p.cfg.OpenChunks {
			d.endExportStreams(func(qp *verbs.QP) bool { return qp.Peer() == next.identity }, fmt.Errorf("always_invalidate of peer %s has changed", n.Name))
		}
		return
	}
	d.disks.Suspend(d.disks.List(attach.From(n.Name))...)
	d.cutOffPeer(p, fmt.Errorf("peer %s has changed", n.Name))
	d.dropPairs(ctx, p, p.cfg.Pairs())
	d.setUpPeer(ctx, next)
	d.disks.Resume()
}
