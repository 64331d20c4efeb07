package audit

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/verbs"
)

// view is a Snapshot, and conclusions for several requirements.
type view struct {
	*Snapshot
	c *config.Config
	// trusted is who trusts how much, except those that trust nobody.
	trusted []trusted
}

// trusted is streams of one model.
type trusted struct {
	who     string // "sessions of peer beta"
	model   verbs.TrustModel
	setting string // that says so
	kept    bool   // idle streams are not ended if the model says so: it is the host's own ULP
}

func newView(s *Snapshot) *view {
	v := &view{Snapshot: s, c: s.Config}
	v.exports()
	attach := v.c.ServiceTrust(config.ServiceAttachments)
	if len(v.c.Peers) > 0 {
		v.trust(trusted{"sessions of this host", attach.Model(), v.serviceSetting(config.ServiceAttachments), true})
		v.trust(trusted{"streams of ping and bench", v.c.ServiceTrust(config.ServicePing).Model().Alone(), v.serviceSetting(config.ServicePing), true})
	}
	if len(v.c.Subsystems) > 0 {
		v.trust(trusted{"queues of NVMe hosts", v.c.ServiceTrust(config.ServiceTargets).Model().Alone(), v.serviceSetting(config.ServiceTargets), true})
	}
	if slices.ContainsFunc(v.c.Targets, func(t config.Target) bool { return !t.NoISER }) {
		v.trust(trusted{"sessions of initiators over RDMA", v.c.ServiceTrust(config.ServiceTargets).Model().Alone(), v.serviceSetting(config.ServiceTargets), true})
	}
	for _, u := range v.c.ULPs {
		model, setting := attach.Model(), v.serviceSetting(config.ServiceAttachments)
		if u.Trust != "" {
			model, setting = u.Trust.Model(), fmt.Sprintf("ulps: %s: trust: %s", u.Name, u.Trust)
		}
		v.trust(trusted{"sessions of ULP " + u.Name, model, setting, u.Privileged})
	}
	return v
}

// exports finds the models of the sessions of peers: each trusts no more than all
// exports permit that the peer may attach.
func (v *view) exports() {
	by := map[verbs.TrustModel][]string{}
	for _, p := range v.c.Peers {
		if model, any := v.sessionTrust(p); any {
			by[model] = append(by[model], p.Name)
		}
	}
	for _, m := range verbs.TrustModels() {
		if names := by[m]; len(names) > 0 {
			v.trust(trusted{"sessions of " + manyPeers(names) + " at the exports", m, v.serviceSetting(config.ServiceExports), true})
		}
	}
}

// sessionTrust is the model of the sessions by which a peer attaches exports; any is false if
// it may attach none.
func (v *view) sessionTrust(p config.Peer) (model verbs.TrustModel, any bool) {
	model = v.c.ServiceTrust(config.ServiceExports).Model()
	for _, e := range v.c.Exports {
		if e.Allows(p) {
			any = true
			model = model.Meet(v.c.ExportTrust(e).Model())
		}
	}
	return model, any
}

// openChunks are peers that can change requests while they are carried out (R13).
func (v *view) openChunks() []api.Weakness {
	var out []api.Weakness
	for _, p := range v.c.Peers {
		if model, any := v.sessionTrust(p); p.OpenChunks && any && rtrs.TrustsPeer(model) {
			out = append(out, api.Weakness{Setting: fmt.Sprintf("peer %s: always_invalidate: false", p.Name),
				Effect: "it can change what it writes while this host carries that out: what is stored may be a mixture, or other than what was looked at; it reaches no memory but that of its own requests",
				Fix:    fmt.Sprintf("`ironwarp peer set --always-invalidate %s`: one local revocation per request, and no message more", p.Name)})
		}
	}
	return out
}

func (v *view) trust(t trusted) {
	// In S-NT the services share nothing.
	if t.model != verbs.NSNT && t.model != verbs.SNT {
		v.trusted = append(v.trusted, t)
	}
}

// serviceSetting is the setting of how much a service trusts.
func (v *view) serviceSetting(name string) string {
	if t := v.c.Services[name].Trust; t != "" {
		return fmt.Sprintf("services: %s: trust: %s", name, t)
	}
	return fmt.Sprintf("trust: %s", v.c.Trust)
}

// manyPeers is one name or several.
func manyPeers(names []string) string {
	const most = 5
	if len(names) == 1 {
		return "peer " + names[0]
	}
	if len(names) > most {
		return fmt.Sprintf("peers %s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return "peers " + strings.Join(names, ", ")
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// waived is the part of a requirement that a trust model waives, by docs/trust-models.md.
var waived = map[string]struct {
	by     func(verbs.Trust) bool
	effect string
}{
	"R3":  {func(t verbs.Trust) bool { return t.ShareStreams }, "the connections of a session have one protection domain"},
	"R18": {func(t verbs.Trust) bool { return t.Alias || t.ShareStreams && t.ShareSTags }, "the RNIC would let memory be opened twice; no service does that"},
	"R20": {func(t verbs.Trust) bool { return t.KeepIdle }, "they are not ended when they are idle and streams run short"},
	"R21": {func(t verbs.Trust) bool { return t.UnlimitedSRQ }, "the RNIC would let one stream take all receives of a shared queue; no service shares one"},
	"R22": {func(t verbs.Trust) bool { return t.ShareStreams && t.Overcommit }, "the RNIC would let a completion queue be too small for its streams; no service has one that is"},
	"R25": {func(t verbs.Trust) bool { return t.ShareStreams && t.ShareSTags }, "the STag of a chunk opens it on each connection of its session, and on each the peer may invalidate it"},
}

// waivers are the weaknesses of a requirement that trust models make.
func (v *view) waivers(id string) []api.Weakness {
	w, ok := waived[id]
	if !ok {
		return nil
	}
	var out []api.Weakness
	for _, t := range v.trusted {
		rules := t.model.Trust()
		rules.KeepIdle = rules.KeepIdle && t.kept
		if w.by(rules) {
			out = append(out, api.Weakness{Setting: t.setting, Effect: fmt.Sprintf("%s are %v: %s", t.who, t.model, w.effect),
				Fix: "name a stricter model there, NS-NT being the default, unless the hosts trust each other that much"})
		}
	}
	return out
}

// peersWith are the peers of which f is true, by name.
func (v *view) peersWith(f func(config.Peer) bool) []string {
	var names []string
	for _, p := range v.c.Peers {
		if f(p) {
			names = append(names, p.Name)
		}
	}
	return names
}

// state is a peer as it is running.
func (v *view) state(name string) (api.Peer, bool) {
	i := slices.IndexFunc(v.Peers, func(p api.Peer) bool { return p.Name == name })
	if i < 0 {
		return api.Peer{}, false
	}
	return v.Peers[i], true
}

// share is how much of a resource is kept for a principal, if it is counted for it.
func share(p api.Principal, resource string) (kept int64, counted bool) {
	for _, r := range p.Uses {
		if r.Name == resource {
			return r.Share, true
		}
	}
	return 0, false
}
