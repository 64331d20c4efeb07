package daemon

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strconv"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/export"
	"github.com/ironwarp/ironwarp/daemon/listen"
	"github.com/ironwarp/ironwarp/daemon/subsystems"
)

func (d *Daemon) newSubsystems() *subsystems.Subsystems {
	return subsystems.New(subsystems.Config{Log: d.log, StateDir: d.config().StateDir, Sessions: d.config().Limits.ISCSISessions, Portals: d.portalsConfig(), ULP: d.ulps[config.ServiceTargets]})
}

// openedForTargets gives the LUNs and namespaces of an export their storage.
func (d *Daemon) openedForTargets(name string, storage block.Storage) {
	d.targets.SetStorage(name, storage)
	d.subsystems.SetStorage(name, storage)
}

// closingForTargets takes it away from both. end waits until nobody uses it.
func (d *Daemon) closingForTargets(name string) (end func()) {
	luns, namespaces := d.targets.RemoveStorage(name), d.subsystems.RemoveStorage(name)
	return func() {
		luns()
		namespaces()
	}
}

func (d *Daemon) resizedForTargets(name string) {
	d.targets.Resized(name)
	d.subsystems.Resized(name)
}

// nvmeHostsOf are the peers whose hosts may come, by a configuration.
func (d *Daemon) nvmeHostsOf(next *config.Config) []listen.Awaited {
	if len(next.Subsystems) == 0 {
		return nil
	}
	return d.awaitedPeers(next)
}

// listenForTargets opens the portals of targets and subsystems that are wanted, and closes the others.
func (d *Daemon) listenForTargets(ctx context.Context, cfg *config.Config) {
	d.targets.Listen(ctx, cfg, d.initiatorsOf(cfg))
	d.subsystems.Listen(ctx, cfg, d.nvmeHostsOf(cfg))
}

func (d *Daemon) subsystemNamed(name string) (api.NVMeSubsystem, error) {
	for _, s := range d.subsystems.List() {
		if s.Name == name {
			return s, nil
		}
	}
	return api.NVMeSubsystem{}, &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("unknown subsystem %q", name), Fix: "`ironwarp nvme ls` lists them"}
}

// AddSubsystem declares a subsystem like AddPeer. It fails as that does.
func AddSubsystem(mainFile string, s api.NVMeSubsystemSpec) (string, error) {
	if s.NQN == "" {
		host, err := os.Hostname()
		if err != nil {
			return "", err
		}
		s.NQN = config.DefaultNQN(host, s.Name)
	}
	c, err := subsystems.Declaration(s)
	if err != nil {
		return "", err
	}
	path, err := config.AddSubsystem(mainFile, c)
	return path, declareError(err, "edit its file and run `ironwarp reload`")
}

// addSubsystem writes a declaration and applies it, if the storage of its namespaces may be that.
func (d *Daemon) addSubsystem(ctx context.Context, s api.NVMeSubsystemSpec) (api.NVMeSubsystem, error) {
	for _, n := range s.Namespaces {
		err := error(nil)
		if n.Path != "" {
			err = export.CheckStorage(config.Export{Name: config.NamespaceExport(s.Name, uint32(n.NSID)), Path: n.Path, ReadOnly: n.ReadOnly}, "", d.opt.offer)
		} else {
			err = d.mayBeLUN(s.Name, api.LUNSpec{Export: n.Export})
		}
		if err != nil {
			return api.NVMeSubsystem{}, err
		}
	}
	d.changing.Lock()
	_, err := AddSubsystem(d.config().Path, s)
	if err == nil {
		_, err = d.reload(ctx)
	}
	d.changing.Unlock()
	if err != nil {
		return api.NVMeSubsystem{}, err
	}
	d.exports.AwaitStorage()
	v, err := d.subsystemNamed(s.Name)
	if err != nil {
		return v, err
	}
	for _, n := range v.Namespaces {
		d.exports.AwaitOpening(n.Export, d.opt.offer)
	}
	return d.subsystemNamed(s.Name)
}

// removeSubsystem removes a subsystem's declaration, and ends its controllers. While it has some it takes force.
func (d *Daemon) removeSubsystem(ctx context.Context, name string, force bool) error {
	s, err := d.subsystemNamed(name)
	if err != nil {
		return err
	}
	if s.Controllers > 0 && !force {
		return &api.Error{Code: api.CodeInUse, Message: fmt.Sprintf("subsystem %s is in use: it has %d controllers", name, s.Controllers),
			Fix: "disconnect its hosts first, or use --force: their I/O fails then"}
	}
	d.changing.Lock()
	if err = config.RemoveSubsystem(d.config().Path, name); err != nil {
		err = configError(err)
	} else {
		_, err = d.reload(ctx)
	}
	d.changing.Unlock()
	d.exports.AwaitStorage()
	return err
}

func (d *Daemon) nvmeRoutes(mux *http.ServeMux) {
	get(mux, "GET /v1/nvme/subsystems", func(*http.Request) ([]api.NVMeSubsystem, error) { return d.subsystems.List(), nil })
	get(mux, "GET /v1/nvme/subsystems/{name}", func(r *http.Request) (api.NVMeSubsystem, error) { return d.subsystemNamed(r.PathValue("name")) })
	post(mux, "POST /v1/nvme/subsystems", func(r *http.Request, s api.NVMeSubsystemSpec) (api.NVMeSubsystem, error) {
		return d.addSubsystem(r.Context(), s)
	})
	get(mux, "DELETE /v1/nvme/subsystems/{name}", func(r *http.Request) (any, error) {
		return struct{}{}, d.removeSubsystem(r.Context(), r.PathValue("name"), r.URL.Query().Get("force") != "")
	})
	get(mux, "GET /v1/nvme/controllers", func(*http.Request) ([]api.NVMeController, error) { return d.subsystems.Controllers(), nil })
	get(mux, "DELETE /v1/nvme/controllers/{id}", func(r *http.Request) (api.NVMeController, error) {
		id, err := strconv.Atoi(r.PathValue("id"))
		if err != nil {
			id = -1
		}
		return d.subsystems.End(id)
	})
}
