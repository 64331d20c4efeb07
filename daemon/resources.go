package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// registerServices registers the services with the RNIC.
func (d *Daemon) registerServices() (err error) {
	for _, name := range config.ServiceNames() {
		d.ulps[name], err = d.dev.NewULP(name, verbs.ULPConfig{Quota: d.config().Services[name].Limits, Trust: d.config().ServiceTrust(name).Model(), Privileged: true})
		if err != nil {
			return err
		}
	}
	d.local.Root.Disks, d.local.Root.Pings = d.ulps[config.ServiceAttachments], d.ulps[config.ServicePing]
	return nil
}

// applyShares gives the RNIC the limits, trust and policies of next, and says what
// is different. changing is held.
func (d *Daemon) applyShares(old, next *config.Config) []string {
	changed := []string{}
	say := func(differs bool, what string) {
		if differs {
			changed = append(changed, what+" changed")
		}
	}
	failed := func(what string, err error) {
		if err != nil {
			d.log.Error("the RNIC keeps its "+what, "error", err)
		}
	}
	failed("limits", d.dev.SetLimits(next.Limits.Device))
	failed("quota of peers", d.dev.SetPeerQuota(next.Limits.PerPeer))
	say(old.ConfiguredLimits() != next.ConfiguredLimits() || old.Limits.PerPeer != next.Limits.PerPeer, "limits")
	for _, name := range config.ServiceNames() {
		u := d.ulps[name]
		failed("quota of "+name, d.dev.SetQuota(u, next.Services[name].Limits))
		say(old.Services[name].Limits != next.Services[name].Limits, "limits of "+name)
		d.dev.SetTrust(u, next.ServiceTrust(name).Model())
		if t := next.ServiceTrust(name); t != old.ServiceTrust(name) {
			changed = append(changed, fmt.Sprintf("trust of %s is %s now%s", name, t, map[string]string{config.ServiceAttachments: ", for sessions from now on"}[name]))
		}
	}
	d.probes.SetTrust(next.ServiceTrust(config.ServicePing).Model())
	d.dev.SetIdlePolicy(verbs.IdlePolicy{After: next.Idle.After, Bytes: uint64(next.Idle.Bytes), Mark: next.Idle.Mark})
	say(old.Idle != next.Idle, "idle policy")
	failed("slow-path policy", d.dev.SetSlowPolicy(verbs.SlowPolicy{PerSecond: next.Slow.PerSecond, Burst: next.Slow.Burst}))
	say(old.Slow != next.Slow, "slow-path policy")
	d.blocks.SetPolicy(next.Block)
	say(old.Block != next.Block, "block policy")
	return changed
}

// applyPeerShares keeps a share of the RNIC for each configured peer, and room for a
// session of each that may attach something. changing is held.
func (d *Daemon) applyPeerShares(next *config.Config) {
	quotas := map[transport.Identity]verbs.Quota{}
	var attaching []transport.Identity
	for _, p := range d.peers.list() {
		quotas[p.identity] = next.PeerLimits(p.cfg)
		if next.MayAttach(p.cfg) {
			attaching = append(attaching, p.identity)
		}
	}
	if err := d.dev.SetPeers(quotas); err != nil {
		d.log.Error("the RNIC keeps the quotas that peers had", "error", err)
	}
	if err := d.sessions.KeepRoom(attaching); err != nil {
		d.log.Warn("memory is too short now for a session of each peer that may attach exports; until it is there nobody gets a second one", "error", err)
	}
	d.endOvertrusted()
}

// endOvertrusted ends the streams of exports that are trusted too much; their sessions make
// new ones.
func (d *Daemon) endOvertrusted() {
	d.endExportStreams(func(qp *verbs.QP) bool { return !d.trustOf(qp.Peer()).Permits(qp.PD().Trust()) }, errors.New("sessions of the peer are trusted less now"))
}

// endExportStreams ends streams of exports; their sessions make new ones.
func (d *Daemon) endExportStreams(which func(*verbs.QP) bool, why error) {
	for _, qp := range d.dev.QPs() {
		if qp.PD().ULP() == d.ulps[config.ServiceExports] && which(qp) {
			qp.Abort(why)
		}
	}
}

// trustOf is how much the sessions of a peer are trusted that attach exports.
func (d *Daemon) trustOf(id transport.Identity) verbs.TrustModel {
	return d.exports.Server().TrustOf(id, d.config().ServiceTrust(config.ServiceExports).Model())
}

// Resources reports who uses how much of the RNIC.
func (d *Daemon) Resources() api.Resources {
	r := d.dev.Resources()
	out := api.Resources{
		Device: principal(api.PrincipalDevice, "", r.Device), ULPs: []api.Principal{}, Peers: []api.Principal{},
		Events: d.events.list(), EventsDropped: d.dev.EventsDropped(),
	}
	trust := d.ulpTrust()
	for _, u := range r.ULPs {
		p := principal(api.PrincipalULP, u.Name, u)
		p.Trust = trust[u.Name]
		out.ULPs = append(out.ULPs, p)
	}
	sessions, kept := d.sessions.Rooms()
	limits, one := d.config().Limits, d.config().SessionMemory()
	all := api.Resource{Name: "sessions", Limit: int64(max(limits.AllSessions, len(kept)))}
	for _, n := range sessions {
		all.Used += int64(n)
	}
	out.Device.Uses = append(out.Device.Uses, all)
	for _, u := range r.Peers {
		id := transport.Identity(u.Name)
		p := principal(api.PrincipalPeer, d.peers.nameOrIdentity(id), u)
		mine := api.Resource{Name: "sessions", Used: int64(sessions[id]), Limit: int64(limits.Sessions)}
		if _, ok := kept[id]; ok {
			mine.Share = 1
		}
		p.Uses = append(p.Uses, api.Resource{Name: "memory", Used: mine.Used * one, Share: mine.Share * one}, mine)
		p.Identity = string(id)
		out.Peers = append(out.Peers, p)
	}
	slices.SortFunc(out.Peers, func(a, b api.Principal) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Identity, b.Identity))
	})
	return out
}

// ulpTrust is the trust model of each ULP.
func (d *Daemon) ulpTrust() map[string]string {
	out := map[string]string{}
	for name, u := range d.ulps {
		out[name] = u.Trust().String()
	}
	for _, c := range d.local.ULPs() {
		out[c.Name] = c.Disks.Trust().String()
	}
	return out
}

func principal(kind, name string, u verbs.Usage) api.Principal {
	p := api.Principal{Kind: kind, Name: name, Uses: []api.Resource{}}
	for _, word := range config.QuotaWords() {
		if kind != api.PrincipalPeer || config.CountedForPeers(word) {
			p.Uses = append(p.Uses, api.Resource{Name: word, Used: config.Amount(u.Used, word), Limit: config.Amount(u.Limit, word), Share: config.Amount(u.Share, word)})
		}
	}
	return p
}
