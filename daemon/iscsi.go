package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/chap"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/export"
	"github.com/ironwarp/ironwarp/daemon/listen"
	"github.com/ironwarp/ironwarp/daemon/targets"
	"github.com/ironwarp/ironwarp/ipsec/auth"
	portals "github.com/ironwarp/ironwarp/iscsi/initiator"
	"github.com/ironwarp/ironwarp/transport"
)

// discoverTime bounds asking a portal for its targets: an SA may have to come up first.
const discoverTime = 30 * time.Second

func (d *Daemon) newTargets() *targets.Targets {
	return targets.New(targets.Config{
		Log: d.log, StateDir: d.config().StateDir, Sessions: d.config().Limits.ISCSISessions, Portals: d.portalsConfig(), ULP: d.ulps[config.ServiceTargets],
		Label: d.labelOfTarget, Denies: d.deniesTarget,
	})
}

// portalsConfig is what the portals of targets and of subsystems have in common.
func (d *Daemon) portalsConfig() listen.PortalsConfig {
	return listen.PortalsConfig{
		Log: d.log, Listen: d.dev.Listen, Protector: d.newAtPortals, Refused: d.onRefused, Stays: d.stays,
		Came: func(peer string) { d.blocks.Created(peer, nil) },
		PeerOf: func(id transport.Identity, a netip.Addr) (config.Peer, bool) {
			p, known := d.peers.ofStream(id, a)
			if !known {
				return config.Peer{}, false
			}
			return p.cfg, true
		},
	}
}

// portalProtector chooses the Protector of iSCSI connections with an address; anyone says that hosts
// which are no peers may come. What carries a peer's streams is no matter: iSCSI has TCP.
func (d *Daemon) portalProtector(a netip.Addr, anyone bool) (transport.Protector, error) {
	if anyone && d.peers.byAddress(a) == nil {
		return transport.Plaintext(d.log, a), nil
	}
	p, err := d.protectorFor(a)
	if n, ok := p.(namedProtector); ok {
		c := *n.peer
		c.Transport, c.Paths = config.TransportTCP, slices.Clone(c.Paths)
		for i := range c.Paths {
			c.Paths[i].Transport = config.TransportTCP
		}
		n.peer = &c
		return n, err
	}
	return p, err
}

// newAtPortals is portalProtector for initiators that come: to a drained host none do.
func (d *Daemon) newAtPortals(a netip.Addr, anyone bool) (transport.Protector, error) {
	if d.directory.Drained() {
		return nil, errDrained
	}
	return d.portalProtector(a, anyone)
}

// initiatorsOf are the peers whose initiators may come, by a configuration.
func (d *Daemon) initiatorsOf(next *config.Config) []listen.Awaited {
	if len(next.Targets) == 0 {
		return nil
	}
	return d.awaitedPeers(next)
}

// targetNamed describes a target that was declared.
func (d *Daemon) targetNamed(name string) (api.Target, error) {
	for _, t := range d.targets.List() {
		if t.Name == name {
			return t, nil
		}
	}
	return api.Target{}, unknownTarget(name)
}

func unknownTarget(name string) *api.Error {
	return &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("unknown target %q", name), Fix: "`ironwarp target ls` lists them"}
}

// declareTarget writes a declaration and applies it, if the storage of LUNs that are new may be that.
func (d *Daemon) declareTarget(ctx context.Context, name string, luns []api.LUNSpec, write func(main string) error) (api.Target, error) {
	for _, l := range luns {
		if err := d.mayBeLUN(name, l); err != nil {
			return api.Target{}, err
		}
	}
	d.changing.Lock()
	err := write(d.config().Path)
	if err == nil {
		_, err = d.reload(ctx)
	}
	d.changing.Unlock()
	if err != nil {
		return api.Target{}, err
	}
	d.exports.AwaitStorage()
	t, err := d.targetNamed(name)
	for _, l := range t.LUNs {
		d.exports.AwaitOpening(l.Export, d.opt.offer)
	}
	if err != nil {
		return t, err
	}
	return d.targetNamed(name)
}

// mayBeLUN fails for storage that cannot be a LUN now: it cannot be opened, or a peer has it attached for
// writing.
func (d *Daemon) mayBeLUN(target string, l api.LUNSpec) error {
	if l.Path != "" {
		return export.CheckStorage(config.Export{Name: fmt.Sprintf("%s-lun%d", target, l.Number), Path: l.Path, ReadOnly: l.ReadOnly}, "", d.opt.offer)
	}
	for _, i := range d.exports.Server().Exports() {
		for _, o := range i.Openers {
			if i.Name == l.Export && !o.ReadOnly {
				return &api.Error{Code: api.CodeInUse, Message: fmt.Sprintf("export %s is in use: peer %s has it attached for writing, and a LUN is written by its initiators alone", i.Name, d.peers.nameOrIdentity(o.Peer)),
					Fix: "detach it there first, or attach it read-only"}
			}
		}
	}
	return nil
}

// removeTarget removes a target's declaration, and ends its sessions. While it has some it takes force.
func (d *Daemon) removeTarget(ctx context.Context, name string, force bool) error {
	t, err := d.targetNamed(name)
	if err != nil {
		return err
	}
	if t.Sessions > 0 && !force {
		return &api.Error{Code: api.CodeInUse, Message: fmt.Sprintf("target %s is in use: it has %d sessions", name, t.Sessions),
			Fix: "log the initiators out first, or use --force: their I/O fails then"}
	}
	d.changing.Lock()
	if err = config.RemoveTarget(d.config().Path, name); err != nil {
		err = configError(err)
	} else {
		_, err = d.reload(ctx)
	}
	d.changing.Unlock()
	d.exports.AwaitStorage()
	return err
}

// AddTarget declares a target like AddPeer. It fails as that does.
func AddTarget(mainFile string, s api.TargetSpec) (string, error) {
	if s.IQN == "" {
		host, err := os.Hostname()
		if err != nil {
			return "", err
		}
		s.IQN = config.DefaultIQN(host, s.Name)
	}
	c, err := targets.Declaration(s)
	if err != nil {
		return "", err
	}
	if _, problem := targets.Secrets(c); problem != nil {
		return "", problem
	}
	path, err := config.AddTarget(mainFile, c)
	return path, declareError(err, "`ironwarp target set "+s.Name+"` changes it, and `ironwarp target lun add "+s.Name+"` adds LUNs")
}

// SetTarget changes a target's declaration like SetPeer. It fails as that does.
func SetTarget(mainFile, name string, c api.TargetChange) (string, error) {
	path, err := config.SetTarget(mainFile, name, func(t *config.Target) error {
		s, err := changeTarget(targets.Spec(*t), c)
		if err != nil {
			return err
		}
		n, err := targets.Declaration(s)
		if err != nil {
			return err
		}
		if _, problem := targets.Secrets(n); problem != nil {
			return problem
		}
		n.LUNs, n.Origin = t.LUNs, t.Origin
		*t = n
		return nil
	})
	return path, targetError(err, name)
}

// settable are the keys that SetTarget changes.
var settable = []string{"alias", "port", "addresses", "peers", "initiators", "chap", "error_recovery_level", "insecure_undeclared", "iser", "redirect", "redirect_permanent", "partition", "label"}

// changeTarget returns a target with the keys of a change.
func changeTarget(s api.TargetSpec, c api.TargetChange) (api.TargetSpec, error) {
	for _, k := range c.Set {
		if !slices.Contains(settable, k) {
			return s, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("%q of target %s is not changed so", k, s.Name), Fix: "allowed: " + strings.Join(settable, ", ")}
		}
	}
	hadUsers := len(s.CHAP) > 0
	for _, name := range c.RemoveCHAP {
		i := slices.IndexFunc(s.CHAP, func(u api.CHAPUser) bool { return u.User == name })
		if i < 0 {
			return s, &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("target %s has no CHAP user %q", s.Name, name), Fix: "`ironwarp target show " + s.Name + "` lists them"}
		}
		s.CHAP = slices.Delete(s.CHAP, i, i+1)
	}
	names := slices.Contains(c.Set, "chap")
	switch {
	case names && len(c.CHAP) > 0:
		for _, u := range c.CHAP {
			i := slices.IndexFunc(s.CHAP, func(o api.CHAPUser) bool { return o.User == u.User })
			if i < 0 {
				s.CHAP = append(s.CHAP, u)
				continue
			}
			o := &s.CHAP[i]
			o.SecretFile, o.TargetUser, o.TargetSecretFile = cmp.Or(u.SecretFile, o.SecretFile), cmp.Or(u.TargetUser, o.TargetUser), cmp.Or(u.TargetSecretFile, o.TargetSecretFile)
		}
		c.CHAP = s.CHAP
	case hadUsers && !names && len(s.CHAP) == 0:
		return s, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("target %s would let in initiators without a secret: nobody else is left in its CHAP", s.Name),
			Fix: "add another user in the same command, or say that nobody is to be asked: --no-chap"}
	}
	was, err := keysOf(s)
	if err != nil {
		return s, err
	}
	will, err := keysOf(c.TargetSpec)
	if err == nil {
		err = replaceKeys(&s, was, will, c.Set)
	}
	return s, err
}

// AddLUN gives a target one more LUN, or RemoveLUN takes one away, like SetPeer. It fails as that does.
func AddLUN(mainFile, name string, s api.LUNSpec) (string, error) {
	l, err := targets.LUN(s)
	if err != nil {
		return "", err
	}
	path, err := config.SetTarget(mainFile, name, func(t *config.Target) error {
		if slices.ContainsFunc(t.LUNs, func(o config.LUN) bool { return o.Number == l.Number }) {
			return &api.Error{Code: api.CodeExists, Message: fmt.Sprintf("target %s has LUN %d already", name, l.Number), Fix: "give another --number"}
		}
		t.LUNs = append(t.LUNs, l)
		return nil
	})
	return path, targetError(err, name)
}

// RemoveLUN is the reverse of AddLUN. It fails as that does.
func RemoveLUN(mainFile, name string, number int) (string, error) {
	path, err := config.SetTarget(mainFile, name, func(t *config.Target) error {
		n := len(t.LUNs)
		if t.LUNs = slices.DeleteFunc(t.LUNs, func(l config.LUN) bool { return int(l.Number) == number }); len(t.LUNs) == n {
			return &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("target %s has no LUN %d", name, number), Fix: "`ironwarp target show " + name + "` lists them"}
		}
		return nil
	})
	return path, targetError(err, name)
}

func targetError(err error, name string) error {
	var e *api.Error
	switch {
	case err == nil, errors.As(err, &e):
		return err
	case errors.Is(err, config.ErrNotFound):
		return unknownTarget(name)
	}
	return configError(err)
}

// discover asks a portal of a peer for its targets.
func (d *Daemon) discover(ctx context.Context, q api.DiscoverRequest) ([]api.Discovered, error) {
	bad := func(format string, a ...any) error {
		return &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf(format, a...)}
	}
	var at netip.AddrPort
	if p := d.peers.byName(q.Portal); p != nil {
		at = netip.AddrPortFrom(p.cfg.Address, cmp.Or(p.cfg.ISCSIPort, config.DefaultISCSIPort))
	} else if a, err := netip.ParseAddr(strings.Trim(q.Portal, "[]")); err == nil {
		at = netip.AddrPortFrom(a, config.DefaultISCSIPort)
	} else if at, err = netip.ParseAddrPort(q.Portal); err != nil {
		return nil, bad("%q is neither a peer nor an address, which may have a port behind it", q.Portal)
	}
	cfg := portals.Config{Initiator: q.Initiator}
	if cfg.Initiator == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, err
		}
		cfg.Initiator = config.DefaultIQN(host, "discover")
	}
	if err := config.CheckIQN(cfg.Initiator); err != nil {
		return nil, bad("%q %s", cfg.Initiator, err)
	}
	if q.User != "" {
		secret, err := auth.LoadSecret(q.SecretFile)
		if err != nil {
			return nil, bad("the CHAP secret of %s cannot be used: %v", q.User, err)
		}
		cfg.CHAP = &chap.Credentials{Name: q.User, Secret: secret.Reveal()}
	}
	ctx, cancel := context.WithTimeout(ctx, discoverTime)
	defer cancel()
	c, err := transport.Dial(ctx, at, &transport.Config{Protector: transport.PerPeer(func(a netip.Addr) (transport.Protector, error) { return d.portalProtector(a, false) })})
	if err != nil {
		return nil, &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("cannot reach the portal %s: %v", at, err),
			Fix: "the portal's host has to be a peer of this one; with IPsec both hosts have --iscsi-port for each other"}
	}
	defer c.Close()
	all, err := portals.Targets(ctx, c, cfg)
	if err != nil {
		return nil, &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("portal %s: %v", at, err)}
	}
	out := []api.Discovered{}
	for _, t := range all {
		out = append(out, api.Discovered{IQN: t.Name, Portals: t.Portals})
	}
	return out, nil
}

func (d *Daemon) targetRoutes(mux *http.ServeMux) {
	get(mux, "GET /v1/targets", func(*http.Request) ([]api.Target, error) { return d.targets.List(), nil })
	get(mux, "GET /v1/targets/{name}", func(r *http.Request) (api.Target, error) { return d.targetNamed(r.PathValue("name")) })
	post(mux, "POST /v1/targets", func(r *http.Request, s api.TargetSpec) (api.Target, error) {
		return d.declareTarget(r.Context(), s.Name, s.LUNs, func(main string) error { _, err := AddTarget(main, s); return err })
	})
	post(mux, "PATCH /v1/targets/{name}", func(r *http.Request, c api.TargetChange) (api.Target, error) {
		name := r.PathValue("name")
		return d.declareTarget(r.Context(), name, nil, func(main string) error { _, err := SetTarget(main, name, c); return err })
	})
	get(mux, "DELETE /v1/targets/{name}", func(r *http.Request) (any, error) {
		return struct{}{}, d.removeTarget(r.Context(), r.PathValue("name"), r.URL.Query().Get("force") != "")
	})
	post(mux, "POST /v1/targets/{name}/luns", func(r *http.Request, l api.LUNSpec) (api.Target, error) {
		name := r.PathValue("name")
		return d.declareTarget(r.Context(), name, []api.LUNSpec{l}, func(main string) error { _, err := AddLUN(main, name, l); return err })
	})
	get(mux, "DELETE /v1/targets/{name}/luns/{number}", func(r *http.Request) (api.Target, error) {
		name := r.PathValue("name")
		number, err := strconv.Atoi(r.PathValue("number"))
		if err != nil {
			number = -1
		}
		return d.declareTarget(r.Context(), name, nil, func(main string) error { _, err := RemoveLUN(main, name, number); return err })
	})
	get(mux, "GET /v1/iscsi/sessions", func(*http.Request) ([]api.TargetSession, error) { return d.targets.Sessions(), nil })
	get(mux, "DELETE /v1/iscsi/sessions/{id}", func(r *http.Request) (api.TargetSession, error) { return d.targets.End(r.PathValue("id")) })
	post(mux, "POST /v1/iscsi/discover", func(r *http.Request, q api.DiscoverRequest) ([]api.Discovered, error) {
		return d.discover(r.Context(), q)
	})
}
