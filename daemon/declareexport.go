package daemon

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/export"
)

// declareExport writes a declaration and applies it. Nobody else waits for its storage,
// which may be slow.
func (d *Daemon) declareExport(ctx context.Context, plan func(main string) (exportPlan, error)) (api.Export, error) {
	main := d.config().Path
	p, err := plan(main)
	if err == nil && d.isVolume(p.cfg.Name) {
		err = &api.Error{Code: api.CodeExists, Message: fmt.Sprintf("a volume is called %s, and is an export by itself", p.cfg.Name), Fix: "choose another name; `ironwarp volume` changes volumes"}
	}
	if err == nil {
		err = p.check(d.opt.offer)
	}
	if err == nil {
		err = d.writeExport(ctx, p, plan)
	}
	if err != nil {
		return api.Export{}, err
	}
	d.exports.AwaitOpening(p.cfg.Name, d.opt.offer)
	return d.describeExport(p.cfg.Name)
}

// writeExport writes and applies the declaration that a plan comes to now, if it names the
// storage that was looked at.
func (d *Daemon) writeExport(ctx context.Context, looked exportPlan, plan func(main string) (exportPlan, error)) error {
	d.changing.Lock()
	defer d.changing.Unlock()
	if err := cmp.Or(d.ctx.Err(), ctx.Err()); err != nil {
		return &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("export %s is not declared: the daemon is ending, or whoever asked has gone", looked.cfg.Name)}
	}
	main := d.config().Path
	p, err := plan(main)
	if err != nil {
		return err
	}
	if p.needsCheck && (!looked.needsCheck || p.cfg.Path != looked.cfg.Path || p.cfg.ReadOnly != looked.cfg.ReadOnly) {
		return &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("the declaration of export %s has changed meanwhile", p.cfg.Name), Fix: "try again"}
	}
	if _, err := p.declare(main); err != nil {
		return err
	}
	_, err = d.reload(ctx)
	return err
}

// describeExport describes an export that was declared.
func (d *Daemon) describeExport(name string) (api.Export, error) {
	for _, e := range d.exports.List() {
		if e.Name == name {
			return e, nil
		}
	}
	return api.Export{}, &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("export %s has just been removed", name)}
}

// repairExport offers an export again whose storage has lost acknowledged writes, once
// its administrator has seen to the storage. Peers that have it attached have to attach
// it anew.
func (d *Daemon) repairExport(name string) (api.Export, error) {
	if err := d.exports.Open(name); err != nil {
		return api.Export{}, err
	}
	d.changing.Lock()
	err := d.exports.Repair(name)
	d.changing.Unlock()
	if err == nil {
		err = d.exports.AwaitRepair(name)
	}
	if err != nil {
		return api.Export{}, err
	}
	return d.describeExport(name)
}

// resizeExport gives an export another size.
func (d *Daemon) resizeExport(name string, q api.ResizeRequest) (api.Export, error) {
	if d.isVolume(name) {
		return api.Export{}, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("export %s is a volume", name), Fix: "`ironwarp volume expand` makes it larger"}
	}
	d.changing.Lock()
	err := d.exports.Resize(name, q)
	d.changing.Unlock()
	if err != nil {
		return api.Export{}, err
	}
	return d.describeExport(name)
}

// removeExport removes an export's declaration and stops offering it. While peers have
// it open it takes force.
func (d *Daemon) removeExport(ctx context.Context, name string, force bool) (err error) {
	defer func() {
		if err == nil {
			d.exports.AwaitStorage()
		}
	}()
	d.changing.Lock()
	defer d.changing.Unlock()
	if d.isVolume(name) {
		return &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("export %s is a volume", name), Fix: "`ironwarp volume rm` removes it"}
	}
	for _, i := range d.exports.Server().Exports() {
		if i.Name == name && len(i.Openers) > 0 && !force {
			peer := d.peers.nameOrIdentity(i.Openers[0].Peer)
			return &api.Error{Code: api.CodeInUse, Message: fmt.Sprintf("export %s is in use: peer %s has it attached", name, peer),
				Fix: fmt.Sprintf("detach it there first, or use --force: I/O of %s fails then", peer)}
		}
	}
	if err := config.RemoveExport(d.config().Path, name); err != nil {
		return configError(err)
	}
	_, err = d.reload(ctx)
	return err
}

// exportPlan is an export as it is to be declared.
type exportPlan struct {
	cfg        config.Export
	needsCheck bool   // whether its storage can be exported is to be checked
	oldPath    string // the path that the export has
	write      func(mainFile string, e config.Export) (string, error)
	fixExists  string // what to do where the name is taken
}

// check fails if the storage cannot be exported.
func (p *exportPlan) check(most time.Duration) error {
	if !p.needsCheck {
		return nil
	}
	return export.CheckStorage(p.cfg, p.oldPath, most)
}

// declare writes the declaration, and returns the file.
func (p *exportPlan) declare(mainFile string) (string, error) {
	path, err := p.write(mainFile, p.cfg)
	return path, declareError(err, p.fixExists)
}

func planExport(mainFile string, s api.ExportSpec) (exportPlan, error) {
	e, err := export.Declaration(s)
	if err != nil {
		return exportPlan{}, err
	}
	cfg, err := config.Load(mainFile, false)
	if err != nil {
		return exportPlan{}, configError(err)
	}
	_, dup := cfg.Export(e.Name)
	return exportPlan{cfg: e, needsCheck: !dup, write: config.AddExport, fixExists: "`ironwarp export set " + e.Name + "` changes it"}, nil
}

func planChange(mainFile, name string, c api.ExportChange) (exportPlan, error) {
	cfg, err := config.Load(mainFile, false)
	if err != nil {
		return exportPlan{}, configError(err)
	}
	e, ok := cfg.Export(name)
	if !ok {
		return exportPlan{}, &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("unknown export %q", name), Fix: "`ironwarp export ls` lists them"}
	}
	s := export.Spec(e)
	for _, p := range c.Disallow {
		if !slices.Contains(s.Allow, p) {
			return exportPlan{}, &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("export %s does not allow %s", name, p), Fix: "it allows: " + strings.Join(append([]string{}, s.Allow...), ", ")}
		}
		s.Allow = slices.DeleteFunc(s.Allow, func(a string) bool { return a == p })
	}
	s.Allow = append(s.Allow, c.Allow...)
	if c.Path != nil {
		s.Path = *c.Path
	}
	if c.ReadOnly != nil {
		s.ReadOnly = *c.ReadOnly
	}
	if c.Writers != nil {
		s.Writers = *c.Writers
	}
	if c.Trust != nil {
		s.Trust = *c.Trust
	}
	if c.Partition != nil {
		s.Partition = *c.Partition
	}
	if c.Label != nil {
		s.Label = *c.Label
	}
	if c.QoS != nil {
		s.QoS = *c.QoS
	}
	n, err := export.Declaration(s)
	return exportPlan{cfg: n, needsCheck: n.Path != e.Path || n.ReadOnly != e.ReadOnly, oldPath: e.Path, write: config.SetExport}, err
}

// AddExport declares an export like AddPeer. It fails as that does.
func AddExport(mainFile string, s api.ExportSpec) (string, error) {
	p, err := planExport(mainFile, s)
	return checkAndDeclare(mainFile, p, err)
}

// SetExport changes an export's declaration like SetPeer. It fails as that does.
func SetExport(mainFile, name string, c api.ExportChange) (string, error) {
	p, err := planChange(mainFile, name, c)
	return checkAndDeclare(mainFile, p, err)
}

func checkAndDeclare(mainFile string, p exportPlan, err error) (string, error) {
	if err == nil {
		err = p.check(export.OfferTime)
	}
	if err != nil {
		return "", err
	}
	return p.declare(mainFile)
}
