package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/ironwarp/ironwarp/nvme"
)

// Subsystem is an NVM subsystem of this host. All that it asks of a host has to hold.
type Subsystem struct {
	Name       string       // for commands and files of this host alone
	NQN        string       // the NVMe qualified name
	Port       uint16       // of its portals
	Addresses  []netip.Addr // of its portals; empty: those at which its peers reach this host
	Peers      []string     // whose hosts may connect, as Export.Allow; sorted
	Hosts      []string     // by their NQNs; empty: any
	Undeclared bool         // insecure_undeclared: hosts that are no peers may connect, in clear
	Namespaces []Namespace  // by number
	Origin     Pos
}

// Namespace is a disk of a subsystem.
type Namespace struct {
	NSID      uint32
	Export    string // whose disk it is; Load makes one of those with a path
	Path      string // of a disk that is no other export's
	BlockSize uint32 // 512 or 4096; 0: 512
	ReadOnly  bool
	Thick     bool // what hosts deallocate is not given back
}

// Equal reports whether two declarations are the same, wherever they are written.
func (s Subsystem) Equal(u Subsystem) bool {
	return s.Name == u.Name && s.NQN == u.NQN && s.Port == u.Port && s.Undeclared == u.Undeclared && slices.Equal(s.Addresses, u.Addresses) &&
		slices.Equal(s.Peers, u.Peers) && slices.Equal(s.Hosts, u.Hosts) && slices.Equal(s.Namespaces, u.Namespaces)
}

// Allows reports whether hosts on a peer may connect.
func (s Subsystem) Allows(p Peer) bool { return Export{Allow: s.Peers}.Allows(p) }

// Subsystem finds a subsystem by name.
func (c *Config) Subsystem(name string) (Subsystem, bool) {
	return findByName(c.Subsystems, name, func(s Subsystem) string { return s.Name })
}

// CheckSubsystemName fails if a name cannot be a subsystem's on this host. The error is the reason.
func CheckSubsystemName(s string) error { return checkName(s, MaxTargetName) }

// CheckNQN fails if a text cannot be the name of a subsystem of this host. The error is the reason.
func CheckNQN(s string) error {
	if s == nvme.DiscoveryNQN {
		return errors.New("is the name of discovery")
	}
	return nvme.CheckNQN(s)
}

// DefaultNQN is a name for a subsystem of a host.
func DefaultNQN(host, name string) string {
	return "nqn" + strings.TrimPrefix(DefaultIQN(host, name), "iqn")
}

func (d *decoder) subsystem(n ast.Node) Subsystem {
	s := Subsystem{Origin: d.pos(n), Port: DefaultNVMePort}
	faults := len(d.errs)
	d.mapping(n, "a subsystem", fields{
		"name":                d.str("subsystem name", &s.Name, CheckSubsystemName),
		"nqn":                 d.str("nqn", &s.NQN, CheckNQN),
		"port":                d.integer("port", 1, 65535, func(v uint64) { s.Port = uint16(v) }),
		"insecure_undeclared": d.boolean("insecure_undeclared", &s.Undeclared),
		"addresses": func(n ast.Node) {
			d.sequence(n, "addresses", d.addr("portal address", func(a netip.Addr) { s.Addresses = append(s.Addresses, a) }))
		},
		"peers": d.strings("allowed peer", &s.Peers, CheckAllowed),
		"hosts": d.strings("host", &s.Hosts, nvme.CheckNQN),
		"namespaces": func(n ast.Node) {
			d.sequence(n, "namespaces", func(n ast.Node) { s.Namespaces = append(s.Namespaces, d.namespace(n)) })
		},
	})
	slices.Sort(s.Peers)
	s.Peers = slices.Compact(s.Peers)
	slices.SortStableFunc(s.Namespaces, func(a, b Namespace) int { return cmp.Compare(a.NSID, b.NSID) })
	d.checkWhole(n, faults, s.fault)
	return s
}

func (d *decoder) namespace(n ast.Node) Namespace {
	s, thin := Namespace{}, true
	d.mapping(n, "a namespace", fields{
		"nsid":   d.integer("nsid", 1, MaxNSID, func(v uint64) { s.NSID = uint32(v) }),
		"export": d.str("export", &s.Export, CheckExportName),
		"path":   d.path("path", &s.Path),
		"block_size": d.integer("block_size", 512, 4096, func(v uint64) {
			if s.BlockSize = uint32(v); v != 512 && v != 4096 {
				d.fail(n, fmt.Sprintf("block_size is %d", v), "allowed: 512, 4096")
			}
		}),
		"read_only": d.boolean("read_only", &s.ReadOnly),
		"thin":      d.boolean("thin", &thin),
	})
	if s.Thick = !thin; s.NSID == 0 {
		d.fail(n, "a namespace without nsid", "add nsid: 1 for the first")
	}
	return s
}

// fault is what is wrong with a subsystem as a whole, and what to do.
func (s *Subsystem) fault() (msg, fix string) {
	switch {
	case s.Name == "":
		return "a subsystem without name", "add name: and a short name of your choice"
	case s.NQN == "":
		return fmt.Sprintf("subsystem %s without nqn", s.Name), "add nqn: and its NVMe qualified name, such as " + DefaultNQN("host", s.Name)
	}
	for i, n := range s.Namespaces {
		switch {
		case (n.Export == "") == (n.Path == ""):
			return fmt.Sprintf("namespace %d of subsystem %s has not one of export and path", n.NSID, s.Name), "give export: and the name of an export, or path: and a file or block device that no export has"
		case i > 0 && s.Namespaces[i-1].NSID == n.NSID:
			return fmt.Sprintf("subsystem %s has namespace %d twice", s.Name, n.NSID), "give each namespace a number of its own"
		}
	}
	return "", ""
}

// addNamespaceExports makes exports of namespaces with a path, and notes which exports are namespaces.
func addNamespaceExports(c *Config) {
	for i := range c.Subsystems {
		s := &c.Subsystems[i]
		for j := range s.Namespaces {
			n := &s.Namespaces[j]
			if n.Path != "" && s.Name != "" {
				n.Export = NamespaceExport(s.Name, n.NSID)
				c.Exports = append(c.Exports, Export{Name: n.Export, Path: n.Path, ReadOnly: n.ReadOnly, Origin: s.Origin})
			}
			for k := range c.Exports {
				c.Exports[k].LUN = c.Exports[k].LUN || c.Exports[k].Name == n.Export
			}
		}
	}
}

// NamespaceExport is the name of the export of a namespace with a path.
func NamespaceExport(subsystem string, nsid uint32) string {
	return fmt.Sprintf("%s-ns%d", subsystem, nsid)
}

// exportUse is what an export is.
type exportUse struct {
	what     string
	readOnly bool
}

// usesByNamespaces are the exports that are namespaces.
func (c *Config) usesByNamespaces() map[string]exportUse {
	uses := map[string]exportUse{}
	for _, s := range c.Subsystems {
		for _, n := range s.Namespaces {
			e, _ := c.exportUnsorted(n.Export)
			uses[n.Export] = exportUse{fmt.Sprintf("namespace %d of subsystem %s", n.NSID, s.Name), n.ReadOnly || e.ReadOnly}
		}
	}
	return uses
}

// exportUnsorted finds an export while those of the configuration are not sorted yet.
func (c *Config) exportUnsorted(name string) (Export, bool) {
	i := slices.IndexFunc(c.Exports, func(e Export) bool { return e.Name == name })
	if i < 0 {
		return Export{}, false
	}
	return c.Exports[i], true
}

// checkSubsystems finds conflicts of subsystems with each other and with the rest.
func checkSubsystems(c *Config) Errors {
	var errs Errors
	fail := func(s *Subsystem, msg, fix string) { errs = append(errs, &Error{Pos: s.Origin, Msg: msg, Fix: fix}) }
	names, nqns := map[string]Pos{}, map[string]string{}
	uses := map[string]exportUse{} // of exports
	for i := range c.Subsystems {
		s := &c.Subsystems[i]
		if s.Name == "" {
			continue
		}
		if at, dup := names[s.Name]; dup {
			fail(s, fmt.Sprintf("subsystem %s is already declared at %s", s.Name, at), "give each subsystem its own name")
		}
		names[s.Name] = s.Origin
		if other, dup := nqns[s.NQN]; dup {
			fail(s, fmt.Sprintf("subsystems %s and %s have the same nqn %s", other, s.Name, s.NQN), "give each an NVMe qualified name of its own")
		}
		nqns[s.NQN] = s.Name
		if s.Port == c.ListenPort || slices.ContainsFunc(c.Targets, func(t Target) bool { return t.Port == s.Port }) {
			fail(s, fmt.Sprintf("subsystem %s has the port %d, which this host listens on for RDMA streams or iSCSI", s.Name, s.Port), fmt.Sprintf("use another: %d is that of NVMe over RDMA", DefaultNVMePort))
		}
		for _, a := range s.Peers {
			p, ok := c.allowed(a)
			switch {
			case !ok:
				fail(s, fmt.Sprintf("subsystem %s allows %s, which is no configured peer", s.Name, a), "add it with `ironwarp peer add`, or remove it from peers")
			case p.Protection == ProtectIPsec && p.NVMePort != s.Port:
				fail(s, fmt.Sprintf("subsystem %s allows peer %s at port %d, and the SAs with that peer do not cover the port", s.Name, p.Name, s.Port),
					fmt.Sprintf("`ironwarp peer set --nvme-port %d %s`, and the same for this host there", s.Port, p.Name))
			}
		}
		for _, n := range s.Namespaces {
			what := fmt.Sprintf("namespace %d of subsystem %s", n.NSID, s.Name)
			e, ok := c.exportUnsorted(n.Export)
			if !ok {
				fail(s, fmt.Sprintf("%s is export %s, which is not declared", what, n.Export), "add it with `ironwarp export add`, or give a path")
				continue
			}
			readOnly := n.ReadOnly || e.ReadOnly
			if o, dup := uses[n.Export]; dup && !(o.readOnly && readOnly) {
				fail(s, fmt.Sprintf("export %s is %s and %s, and may be written", n.Export, o.what, what), "a disk that is written is one namespace: reservations hold within it. Give the subsystem more portals for more hosts, or say read_only of both")
			}
			uses[n.Export] = exportUse{what, readOnly}
		}
	}
	return errs
}

type subsystemFile struct {
	Name       string          `yaml:"name"`
	NQN        string          `yaml:"nqn"`
	Port       uint16          `yaml:"port,omitempty"`
	Addresses  []string        `yaml:"addresses,omitempty,flow"`
	Peers      []string        `yaml:"peers,omitempty,flow"`
	Hosts      []string        `yaml:"hosts,omitempty"`
	Undeclared bool            `yaml:"insecure_undeclared,omitempty"`
	Namespaces []namespaceFile `yaml:"namespaces,omitempty"`
}

type namespaceFile struct {
	NSID      uint32 `yaml:"nsid"`
	Export    string `yaml:"export,omitempty"`
	Path      string `yaml:"path,omitempty"`
	BlockSize uint32 `yaml:"block_size,omitempty"`
	ReadOnly  bool   `yaml:"read_only,omitempty"`
	Thin      *bool  `yaml:"thin,omitempty"`
}

func fileOfSubsystem(s Subsystem) subsystemFile {
	f := subsystemFile{Name: s.Name, NQN: s.NQN, Peers: s.Peers, Hosts: s.Hosts, Undeclared: s.Undeclared}
	if s.Port != DefaultNVMePort {
		f.Port = s.Port
	}
	for _, a := range s.Addresses {
		f.Addresses = append(f.Addresses, a.String())
	}
	for _, n := range s.Namespaces {
		g := namespaceFile{NSID: n.NSID, Export: n.Export, Path: n.Path, BlockSize: n.BlockSize, ReadOnly: n.ReadOnly}
		if n.Path != "" {
			g.Export = ""
		}
		if n.Thick {
			g.Thin = new(false)
		}
		f.Namespaces = append(f.Namespaces, g)
	}
	return f
}

// AddSubsystem writes nvme.d/NAME.yaml like AddPeer does. It fails as that does.
func AddSubsystem(main string, s Subsystem) (string, error) {
	if err := CheckSubsystemName(s.Name); err != nil {
		return "", fmt.Errorf("subsystem name %q %w", s.Name, err)
	}
	return add(main, nvmeDir, s.Name, fileOfSubsystem(s))
}

// RemoveSubsystem removes the file that AddSubsystem wrote, like RemovePeer. It fails as that does.
func RemoveSubsystem(main, name string) error {
	return changeFiles(main, func(c *fileChange) error { return c.remove(nvmeDir, "subsystem", name) })
}
