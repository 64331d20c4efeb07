package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/syslog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/directory"
	"github.com/ironwarp/ironwarp/daemon/local"
	"github.com/ironwarp/ironwarp/fabric/conf"
	"github.com/ironwarp/ironwarp/fabric/gsi"
	"github.com/ironwarp/ironwarp/fabric/mad"
	"github.com/ironwarp/ironwarp/fabric/partition"
	"github.com/ironwarp/ironwarp/fabric/sa"
	"github.com/ironwarp/ironwarp/internal/rate"
	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// serviceFabric is what streams of the directory are listed under.
const serviceFabric = config.ServiceFabric

// peerLook is how often a peer is looked for that the configuration has and the host not yet.
const peerLook = 20 * time.Millisecond

// pathsEvery is how often the paths of sessions are looked at.
const pathsEvery = 2 * time.Second

// fabric is this host's part in a fabric, as far as it is the daemon's.
type fabric struct {
	plan    *directory.Plan // that is applied; touched while the configuration is being applied
	ulp     atomic.Pointer[verbs.ULP]
	problem atomic.Pointer[api.Error] // why the settings are not applied
	follow  following

	secretOnce sync.Once
	secret     []byte // set by secretOnce
}

func (d *Daemon) newDirectory() *directory.Directory {
	return directory.New(directory.Config{
		Log: d.log, Run: d.run, Dial: d.dialFabric, Services: d.fabricServices, VPorts: d.fabricVPorts, Hosts: d.fabricHosts, NameOf: d.peerOfGUID,
		Drain: d.onDrain, PKeys: d.onPKeys, Syslog: d.toSyslog, Happened: d.onFabricEvent, Dropped: d.onFabricDrop, Secret: d.fabricSecret,
	})
}

// applyFabric gives this host the part in the fabric that a configuration says, and says what is different. changing is held.
func (d *Daemon) applyFabric(next *config.Config) []string {
	settings, err := fabricSettings(next)
	d.fabric.problem.Store(fabricProblem(err))
	if err != nil {
		d.log.Error("the fabric's settings are not applied", "error", err)
		if d.fabric.plan == nil || len(d.fabric.plan.Managers) == 0 {
			d.suspendFabric(d.fabricPlan(next, conf.Default()))
			return nil // without settings there is no part: those of an empty file have no keys
		}
		// It goes on with those that it has: a file with a fault must not take the directory away from others, nor keep on what
		// the configuration has switched off meanwhile.
		settings = d.fabric.plan.Settings
	}
	plan := d.fabricPlan(next, settings)
	if d.fabric.plan != nil && d.fabric.plan.Equal(plan) {
		d.directory.Changed()
		return nil
	}
	if d.fabric.plan == nil && len(plan.Managers) == 0 {
		_ = d.directory.Apply(*plan) // it does not fail without managers; what a fault has left ends
		return nil
	}
	if d.fabric.ulp.Load() == nil {
		ulp, err := d.dev.NewULP(serviceFabric, verbs.ULPConfig{Privileged: true})
		if err != nil {
			d.log.Error("no part in the fabric", "error", err)
			return nil
		}
		d.fabric.ulp.Store(ulp)
	}
	d.fabric.plan = plan
	if err := d.directory.Apply(*plan); err != nil {
		d.fabric.plan = nil // the next reload tries again
		e := &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("no part in the fabric: %v", err), Fix: "correct or remove the file, then `ironwarp reload`"}
		d.fabric.problem.Store(e)
		d.log.Error("no part in the fabric", "error", err)
		d.suspendFabric(plan)
		return nil
	}
	if plan.Agent {
		d.log.Warn("INSECURE: the fabric's agent is on: managers change this host's management keys, drain it and restrict its partitions (RFC 5042, draft -07 5.4.7)")
	}
	for _, line := range d.directory.Insecure() {
		d.log.Warn("INSECURE: " + line)
	}
	return []string{"the host's part in the fabric changed"}
}

// suspendFabric has this host as managers have set it, though it has no part in the fabric by a fault.
func (d *Daemon) suspendFabric(plan *directory.Plan) {
	if err := d.directory.Suspend(*plan); err != nil {
		d.log.Error("what the fabric's managers have set of this host is not in force", "error", err)
	}
}

// fabricSettings are those of the file that a configuration names. It fails as conf.Load does, and where the file is named and is not there.
func fabricSettings(c *config.Config) (*conf.Config, error) {
	if !c.Fabric.Enabled() {
		return conf.Default(), nil
	}
	if c.Fabric.Conf != "" {
		if _, err := os.Stat(c.Fabric.Conf); err != nil {
			return nil, fmt.Errorf("the file that %s names as fabric: conf: %w", c.Fabric.Origin, err)
		}
	}
	return conf.Load(c.FabricFile())
}

// fabricProblem is why settings are not applied, nil without an error.
func fabricProblem(err error) *api.Error {
	if err == nil {
		return nil
	}
	return &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("the fabric's settings are not applied: %v", err), Fix: "correct the file, then `ironwarp reload`"}
}

// fabricPlan is what a configuration says of the fabric, with these settings.
func (d *Daemon) fabricPlan(c *config.Config, settings *conf.Config) *directory.Plan {
	plan := &directory.Plan{Settings: settings, Agent: c.Fabric.Agent, StateDir: c.StateDir, Name: hostname()}
	if !c.Fabric.Enabled() {
		return plan
	}
	own, _ := c.FabricIdentity() // Load has checked that there is one
	plan.PKeys = pkeysOf(c, own)
	plan.Self = directory.Self{Identity: own, GUID: directory.GUIDOf(own)}
	for _, id := range c.Fabric.Managers {
		m := directory.Manager{Identity: id, GUID: directory.GUIDOf(id)}
		if !auth.SameIdentity(id, own) {
			m.Peer = peerWithIdentity(c, id)
		}
		plan.Managers = append(plan.Managers, m)
	}
	for _, id := range c.Fabric.Routers {
		plan.Routers = append(plan.Routers, directory.GUIDOf(id))
	}
	return plan
}

// hostname is what this host is called by people, as far as the fabric can carry it.
func hostname() string {
	name, err := os.Hostname()
	if err == nil {
		_, err = mad.MakeName(name)
	}
	if err != nil {
		return "ironwarp"
	}
	return name
}

// onDrain has this host take no new streams, or take them again: streams that are up go on.
func (d *Daemon) onDrain(on bool) {
	if on {
		d.log.Warn("fabric: a manager has drained this host: it takes no new streams")
	} else {
		d.log.Info("fabric: this host takes new streams again")
	}
	d.directory.Changed()
}

// errDrained refuses what begins on a host that a manager has drained.
var errDrained = errors.New("a manager of the fabric has drained this host: it takes no new streams; `ironwarp fabric drain --off` on the master ends that")

// toSyslog has a line for who watches the host's log, as OpenSM sends it to syslog: the daemon's own log is what
// the journal has of it, and syslog.
func (d *Daemon) toSyslog(line string) {
	w, err := syslog.New(syslog.LOG_WARNING|syslog.LOG_DAEMON, "ironwarp")
	if err != nil {
		d.log.Warn(line, "syslog", err)
		return
	}
	defer w.Close()
	if err := w.Warning(line); err != nil {
		d.log.Warn(line, "syslog", err)
	}
}

func peerWithIdentity(c *config.Config, id string) string {
	i := slices.IndexFunc(c.Peers, func(p config.Peer) bool {
		return p.Protection != config.ProtectPlaintext && auth.SameIdentity(p.Identity(), id)
	})
	if i < 0 {
		return ""
	}
	return c.Peers[i].Name
}

// dialFabric sets up a link with a peer that is a manager.
func (d *Daemon) dialFabric(ctx context.Context, peer string, h gsi.Handler) (l *gsi.Link, err error) {
	p, err := d.findPeer(peer)
	for err != nil { // its declaration is being applied
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(peerLook):
		}
		p, err = d.findPeer(peer)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.lifetime, cancel)()
	err = p.TryCarriers(ctx, func() error {
		tc, tried, err := d.carriers.ChooseNamed(ctx, d.local.Root, p, "")
		if err != nil {
			return err
		}
		l, err = gsi.Dial(ctx, d.fabric.ulp.Load(), verbs.DialConfig{Remote: p.cfg.AddrPort(), Transport: tc, Setup: p.cfg.Setup()}, h)
		tried(err)
		return err
	})
	if err != nil && !errors.Is(err, gsi.ErrRefused) {
		err = p.Unreachable(err)
	}
	return l, err
}

// acceptFabric takes the stream by which a peer is in this host's directory.
func (d *Daemon) acceptFabric(cr *verbs.ConnRequest, p *peer) {
	id := p.cfg.Identity()
	if p.cfg.Protection == config.ProtectPlaintext {
		d.refuse(cr, nil, fmt.Errorf("%s wants to be in the directory, and nothing proves that it is %s: its protection is plaintext", p.cfg.Name, id))
		return
	}
	if err := d.directory.Handle(cr, d.fabric.ulp.Load(), directory.Manager{Identity: id, GUID: directory.GUIDOf(id), Peer: p.cfg.Name}); err != nil {
		d.refuse(cr, nil, err)
	}
}

// fabricServices are the exports and targets that this host announces: those that can be used.
func (d *Daemon) fabricServices() (all []directory.Service) {
	c := d.config()
	if c.Fabric.Silent || d.directory.Drained() {
		return nil
	}
	kinds := d.listeners.Kinds(config.TransportAuto)
	for _, e := range d.exports.List() {
		if e.State == api.ExportReady && !e.LUN {
			all = append(all, directory.Service{Name: e.Name, Kind: directory.Export, Port: c.ListenPort, Carriers: kinds, Size: uint64(e.Size)})
		}
	}
	for _, t := range d.targets.List() {
		all = append(all, directory.Service{Name: t.Name, Kind: directory.Target, Port: t.Port, Carriers: []transport.Kind{transport.TCP}})
	}
	return all
}

// fabricVPorts are the alias GUIDs of this host's ULPs: each asks the directory under one of its own.
func (d *Daemon) fabricVPorts() (all []mad.GUID) {
	c := d.config()
	own, _ := c.FabricIdentity()
	for _, u := range c.ULPs {
		if u.Disabled == nil {
			all = append(all, directory.VPortOf(own, u.Name))
		}
	}
	return all
}

// fabricHosts are the hosts among which the directory's words choose: the peers that are authenticated.
func (d *Daemon) fabricHosts() (all []mad.GUID) {
	for _, p := range d.config().Peers {
		if p.Protection != config.ProtectPlaintext {
			all = append(all, directory.GUIDOf(p.Identity()))
		}
	}
	return all
}

// peerOfGUID is the name of the peer that has a GUID, "" if none has.
func (d *Daemon) peerOfGUID(g mad.GUID) string {
	for _, p := range d.config().Peers {
		if p.Protection != config.ProtectPlaintext && directory.GUIDOf(p.Identity()) == g {
			return p.Name
		}
	}
	return ""
}

// fabricSecret is what this host's keys of services are made of. It is made once, and kept: a host that comes back
// may change what it has registered.
func (d *Daemon) fabricSecret() []byte {
	d.fabric.secretOnce.Do(func() {
		path := filepath.Join(d.config().StateDir, "fabric.key")
		secret, err := auth.LoadSecret(path)
		if errors.Is(err, fs.ErrNotExist) {
			secret = auth.GenerateSecret()
			err = secret.Save(path)
		}
		if err != nil {
			d.log.Warn("the keys of this host's services are made anew at each start: until their leases end, the directory takes none of the same names", "file", path, "error", err)
			secret = auth.GenerateSecret()
		}
		d.fabric.secret = secret.Reveal()
	})
	return d.fabric.secret
}

// watchPaths tells the directory when this host has lost all paths of its sessions with a peer, and when they are back.
func (d *Daemon) watchPaths(ctx context.Context) {
	up := map[string]bool{}
	for range rate.Ticks(ctx, pathsEvery) {
		now := map[string]bool{}
		for _, s := range d.disks.Sessions(func(*local.Consumer, string) bool { return true }) {
			now[s.Peer] = now[s.Peer] || s.State == rtrs.Connected
		}
		for name, is := range now {
			if was, known := up[name]; known && was != is {
				if p, ok := d.config().Peer(name); ok {
					d.directory.PathChanged(directory.GUIDOf(p.Identity()), is)
				}
			}
		}
		up = now
	}
}

// hostName is what people call a host.
func (d *Daemon) hostName(g mad.GUID) string {
	if name := d.peerOfGUID(g); name != "" {
		return name
	}
	return g.String()
}

// onFabricDrop notes a request that this host's directory has dropped.
func (d *Daemon) onFabricDrop(x sa.Drop) {
	d.events.count(eventFabricDrop, d.peerOfGUID(x.From.GUID), 1)
}

// findService is the peer that has an export by the directory's word, among those of which the caller may attach it. It fails with an *api.Error where there is
// none, or several.
func (d *Daemon) findService(ctx context.Context, who local.Caller, name string) (peer, export string, err error) {
	if err := config.CheckExportName(name); err != nil {
		return "", "", &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("service name %q %s", name, err)}
	}
	vport := mad.GUID(0)
	if own, ok := d.config().FabricIdentity(); ok && who.Name != "" {
		vport = directory.VPortOf(own, who.Name)
	}
	all, err := d.directory.Lookup(ctx, name, vport)
	if err != nil {
		return "", "", fabricError(err)
	}
	var peers, others []string
	for _, s := range all {
		p := d.peerOfGUID(s.Host)
		switch {
		case s.Kind != directory.Export:
		case p == "" && who.Privileged: // what others have that it may not use is not for a user to know
			others = append(others, s.Host.String())
		case p != "" && who.MayAttach(p, name) == nil:
			peers = append(peers, p)
		}
	}
	switch {
	case len(peers) == 1:
		return peers[0], name, nil
	case len(peers) > 1:
		return "", "", &api.Error{Code: api.CodeInUse, Message: fmt.Sprintf("several hosts have a service %s: %s", name, strings.Join(peers, ", ")), Fix: fmt.Sprintf("say which: `ironwarp attach %s/%s`", peers[0], name)}
	case len(others) > 0:
		return "", "", &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("service %s is on %s, which is no peer of this host that you may use", name, strings.Join(others, ", ")),
			Fix: "the directory adds no peers: `ironwarp peer add` does, with the secret or certificate that both hosts need"}
	}
	return "", "", &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("the directory has no export %s", name), Fix: "`ironwarp fabric services` lists what it has"}
}

// attachRoute attaches a disk by its peer and export, or by the name of a service.
func (d *Daemon) attachDisk(ctx context.Context, who local.Caller, req api.AttachRequest, emit func(api.Event)) (api.Attachment, error) {
	if req.Service == "" {
		return d.disks.Attach(ctx, who, req, emit)
	}
	return d.disks.AttachService(ctx, who, req, func(ctx context.Context) (string, string, error) { return d.findService(ctx, who, req.Service) }, emit)
}

// fabricError is an error of the directory for people.
func fabricError(err error) error {
	var known *api.Error
	var status *directory.StatusError
	switch {
	case errors.As(err, &known):
		return known
	case errors.Is(err, directory.ErrNoFabric), errors.Is(err, directory.ErrNoMaster), errors.Is(err, directory.ErrSilence), errors.Is(err, directory.ErrNotMaster), errors.Is(err, directory.ErrNoAgent):
		return &api.Error{Code: api.CodeUnavailable, Message: err.Error()}
	case errors.As(err, &status):
		return &api.Error{Code: api.CodeUnavailable, Message: err.Error(), Fix: "`ironwarp fabric status` on the master shows its settings"}
	}
	return err
}

// onPKeys has this host use the partitions alone that managers have left to it: what is in others ends.
func (d *Daemon) onPKeys([]uint16) {
	d.run(func(ctx context.Context) { // not here: who changes the configuration waits for the directory
		d.changeSoon(ctx, func() {
			d.log.Warn("fabric: managers have changed which partitions this host is in")
			d.applyPartitions(d.config())
			d.exports.RefreshAllowed()
			d.programs.Reconsider()
			d.listenForTargets(ctx, d.config())
		})
	})
}

// pkeysOf are the P_Keys of a configuration's partitions, with the bit of full members where this host is one.
func pkeysOf(c *config.Config, own string) (keys []uint16) {
	for _, p := range c.Partitions {
		m := p.Own
		if m == partition.None {
			m = p.Members[own]
		}
		if m != partition.None {
			keys = append(keys, uint16(p.PKey.As(m)))
		}
	}
	return keys
}
