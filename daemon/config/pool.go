package config

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/ironwarp/ironwarp/daemon/api"
)

const (
	// DefaultMaxVolumes is how many volumes and snapshots a pool has at most if its file does not say: more than most hosts need, and
	// few enough that whoever makes them without end neither fills a directory nor a thin pool's metadata.
	DefaultMaxVolumes = 1024
	// MaxVolumes bounds what a file may say: each is opened when the daemon starts.
	MaxVolumes = 16384
	// MaxPools bounds how many pools a host has: each is looked at every few seconds.
	MaxPools = 64
)

// DefaultAlarms are the percentages of a pool's usage at which the daemon warns.
func DefaultAlarms() []int { return []int{80, 90, 95} }

// Pool is storage of this host from which volumes are made.
type Pool struct {
	Name       string
	Driver     string   // api.DriverFile or api.DriverLVMThin
	Path       string   // of the directory, of DriverFile
	VG         string   // volume group, of DriverLVMThin
	ThinPool   string   // in it
	Manage     []string // peers that may make and remove volumes, like Export.Allow; sorted
	MaxVolumes int      // volumes and snapshots
	Alarms     []int    // percentages of usage, ascending
	Origin     Pos
}

// Where is where the pool's volumes are, for people.
func (p Pool) Where() string {
	if p.Driver == api.DriverLVMThin {
		return p.VG + "/" + p.ThinPool
	}
	return p.Path
}

// Managed reports whether a peer may manage the pool. Only one that IKE authenticates may, or this host by loopback.
func (p Pool) Managed(by Peer) bool {
	if by.Protection == ProtectPlaintext {
		return false
	}
	return Export{Allow: p.Manage}.Allows(by)
}

// Pool finds a pool by name.
func (c *Config) Pool(name string) (Pool, bool) {
	return findByName(c.Pools, name, func(p Pool) string { return p.Name })
}

// lvmName is what LVM lets its names be, but for the words that it keeps for itself.
var lvmName = regexp.MustCompile(`^[a-zA-Z0-9_.+][a-zA-Z0-9_.+-]{0,100}$`)

func checkLVMName(s string) error {
	if !lvmName.MatchString(s) || s == "." || s == ".." {
		return fmt.Errorf("is not a name of LVM")
	}
	return nil
}

func (d *decoder) pool(n ast.Node) Pool {
	p := Pool{Origin: d.pos(n), MaxVolumes: DefaultMaxVolumes, Alarms: DefaultAlarms()}
	faults := len(d.errs)
	d.mapping(n, "a pool", fields{
		"name":      d.str("pool name", &p.Name, CheckExportName),
		"driver":    d.enum("driver", func(s string) { p.Driver = s }, api.DriverFile, api.DriverLVMThin),
		"path":      d.path("path", &p.Path),
		"vg":        d.str("vg", &p.VG, checkLVMName),
		"thin_pool": d.str("thin_pool", &p.ThinPool, checkLVMName),
		"manage": func(n ast.Node) {
			d.sequence(n, "manage", func(n ast.Node) {
				var s string
				d.str("managing peer", &s, CheckAllowed)(n)
				if s != "" && !slices.Contains(p.Manage, s) {
					p.Manage = append(p.Manage, s)
				}
			})
		},
		"max_volumes": d.integer("max_volumes", 1, MaxVolumes, func(v uint64) { p.MaxVolumes = int(v) }),
		"alarms": func(n ast.Node) {
			p.Alarms = []int{}
			d.sequence(n, "alarms", func(n ast.Node) {
				d.integer("alarm", 1, 100, func(v uint64) { p.Alarms = append(p.Alarms, int(v)) })(n)
			})
			slices.Sort(p.Alarms)
			p.Alarms = slices.Compact(p.Alarms)
		},
	})
	slices.Sort(p.Manage)
	d.checkWhole(n, faults, p.fault)
	return p
}

func (p *Pool) fault() (msg, fix string) {
	switch {
	case p.Name == "":
		return "a pool without name", "add name: and a short name of your choice"
	case p.Driver == "":
		return fmt.Sprintf("pool %s without driver", p.Name), "add driver: file, for files in a directory, or lvmthin, for a thin pool of LVM"
	case p.Driver == api.DriverFile && p.Path == "":
		return fmt.Sprintf("pool %s without path", p.Name), "add path: and the directory"
	case p.Driver == api.DriverFile && (p.VG != "" || p.ThinPool != ""):
		return fmt.Sprintf("pool %s of files with vg or thin_pool", p.Name), "remove them, or set driver: lvmthin"
	case p.Driver == api.DriverLVMThin && (p.VG == "" || p.ThinPool == ""):
		return fmt.Sprintf("pool %s without vg and thin_pool", p.Name), "add both: `lvs` lists them"
	case p.Driver == api.DriverLVMThin && p.Path != "":
		return fmt.Sprintf("pool %s of LVM with path", p.Name), "remove it, or set driver: file"
	}
	return "", ""
}

// checkPools finds pools that are declared twice, or over one another, and peers that are not configured.
func checkPools(c *Config, isPeer func(string) bool) (errs Errors) {
	fail := func(at Pos, msg, fix string) { errs = append(errs, &Error{Pos: at, Msg: msg, Fix: fix}) }
	if len(c.Pools) > MaxPools {
		fail(c.Pools[MaxPools].Origin, fmt.Sprintf("%d pools; %d are allowed", len(c.Pools), MaxPools), "")
	}
	for i, p := range c.Pools {
		for _, q := range c.Pools[:i] {
			switch {
			case p.Name == q.Name:
				fail(p.Origin, fmt.Sprintf("pool %s is already declared at %s", p.Name, q.Origin), "give each pool its own name")
			case p.Where() == q.Where() || p.Path != "" && q.Path != "" && (isBelow(p.Path, q.Path) || isBelow(q.Path, p.Path)):
				fail(p.Origin, fmt.Sprintf("pools %s and %s have the same storage, or one has a part of the other's", q.Name, p.Name), "give each a directory or thin pool of its own")
			}
		}
		for _, m := range p.Manage {
			if !isPeer(m) {
				fail(p.Origin, fmt.Sprintf("pool %s may be managed by %s, which no configured peer is", p.Name, m), "add it with `ironwarp peer add`, or remove it from manage")
			}
		}
	}
	return errs
}

func isBelow(path, dir string) bool {
	return strings.HasPrefix(path, strings.TrimSuffix(filepath.Clean(dir), "/")+"/")
}
