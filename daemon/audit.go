package daemon

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/audit"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/ipsec/guard"
)

// audit says how this daemon meets RFC 5042, as it is configured and running.
func (d *Daemon) audit(ctx context.Context) api.Audit {
	c := d.config()
	s := &audit.Snapshot{Config: c, Peers: d.describePeers(), Resources: d.Resources(), Files: controlFiles(c), Weakened: weakened, Permissive: d.permissive(), Captures: d.describeCaptures()}
	if fabric := d.fabricStatus(); fabric.Enabled {
		s.Fabric = &fabric
	}
	if slices.ContainsFunc(c.Peers, func(p config.Peer) bool { return p.Protection == config.ProtectIPsec }) {
		s.Block = guard.CanBlock()
		s.Holes = d.guardHoles(c)
	}
	return audit.Run(s)
}

// guardHoles looks for ways around the guards of the peers that are set up.
func (d *Daemon) guardHoles(c *config.Config) map[string][]guard.Hole {
	m := d.sas.Current()
	if m == nil {
		return nil
	}
	st := m.DaemonStatus()
	out := map[string][]guard.Hole{}
	for _, p := range c.Peers {
		if p.Protection != config.ProtectIPsec {
			continue
		}
		var specs []guard.Spec
		for _, s := range guardsOf(p) {
			s.DataPlane, s.Tun = st.DataPlane, st.Tun
			specs = append(specs, s)
		}
		holes, err := guard.Holes(specs...)
		if err != nil {
			holes = append(holes, guard.Hole{What: fmt.Sprintf("whether the guard has holes can't be found out: %v", err), Fix: "`sudo ironwarp doctor`", Shut: true})
		}
		if len(holes) > 0 {
			out[p.Name] = holes
		}
	}
	return out
}

// controlFiles are the files that say what this daemon does, the directories that
// they are in, and the socket that changes it. What is not there is left out.
func controlFiles(c *config.Config) []audit.File {
	paths := []string{c.Path}
	for _, p := range c.Peers {
		paths = append(paths, p.Origin.File)
	}
	for _, e := range c.Exports {
		paths = append(paths, e.Origin.File)
	}
	for _, t := range c.Targets {
		paths = append(paths, t.Origin.File)
	}
	for _, s := range c.Subsystems {
		paths = append(paths, s.Origin.File)
	}
	if c.Fabric.Enabled() {
		paths = append(paths, c.FabricFile())
	}
	for _, p := range slices.Clone(paths) {
		paths = append(paths, filepath.Dir(p))
	}
	paths = append(paths, c.ControlSocket)
	slices.Sort(paths)
	var out []audit.File
	for _, p := range slices.Compact(paths) {
		st, err := os.Stat(p)
		if err != nil {
			continue
		}
		f := audit.File{Path: p, Mode: st.Mode(), Socket: p == c.ControlSocket}
		if sys, ok := st.Sys().(*syscall.Stat_t); ok {
			f.Owner = sys.Uid
			f.Foreign = sys.Uid != 0 && int(sys.Uid) != os.Geteuid()
		}
		out = append(out, f)
	}
	return out
}
