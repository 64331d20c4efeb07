package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// Load reads the main file and the peers.d, exports.d, targets.d, nvme.d and ulps.d directories beside it.
// A main file that does not exist means the defaults, unless it was named
// explicitly (mustExist). Every fault is reported, as Errors.
func Load(path string, mustExist bool) (*Config, error) { return files(nil).load(path, mustExist) }

// load is Load with changed files.
func (changed files) load(path string, mustExist bool) (*Config, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	c := Default(path)
	var errs Errors
	data, err := changed.read(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !mustExist:
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("read configuration: %w\n  name another file with --config or IRONWARP_CONFIG, or create this one: an empty map, {}, takes every default", err)
	case err != nil:
		return nil, fmt.Errorf("read configuration: %w", err)
	default:
		d := &decoder{file: path, base: c.Dir()}
		if root := d.parse(data); root != nil {
			d.config(root, c)
		}
		errs = append(errs, d.errs...)
	}
	errs = append(errs, changed.loadDir(filepath.Join(c.Dir(), peersDir), func(d *decoder, n ast.Node) {
		c.Peers = append(c.Peers, d.peer(n))
	})...)
	errs = append(errs, changed.loadDir(filepath.Join(c.Dir(), exportsDir), func(d *decoder, n ast.Node) {
		c.Exports = append(c.Exports, d.export(n))
	})...)
	errs = append(errs, changed.loadDir(filepath.Join(c.Dir(), targetsDir), func(d *decoder, n ast.Node) {
		c.Targets = append(c.Targets, d.target(n))
	})...)
	errs = append(errs, changed.loadDir(filepath.Join(c.Dir(), nvmeDir), func(d *decoder, n ast.Node) {
		c.Subsystems = append(c.Subsystems, d.subsystem(n))
	})...)
	// Behind those of the main file: the first that names one of a user's groups is the user's.
	errs = append(errs, changed.loadDir(filepath.Join(c.Dir(), ulpsDir), func(d *decoder, n ast.Node) {
		c.ULPs = append(c.ULPs, d.ulp(n))
	})...)
	errs = append(errs, changed.loadPolicy(c)...)
	partitionOfUses(c)
	addLUNExports(c)
	addNamespaceExports(c)
	c.ControlSocket = cmp.Or(c.ControlSocket, filepath.Join(c.RuntimeDir, "ironwarp.sock"))
	c.findAddresses()
	errs = append(errs, checkConflicts(c)...)
	if len(errs) > 0 {
		return nil, errs
	}
	slices.SortFunc(c.Peers, func(a, b Peer) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(c.Exports, func(a, b Export) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(c.Pools, func(a, b Pool) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(c.Partitions, func(a, b Partition) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(c.Targets, func(a, b Target) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(c.Subsystems, func(a, b Subsystem) int { return strings.Compare(a.Name, b.Name) })
	return c, nil
}

// loadDir reads each *.yaml of a directory, which need not exist, in order.
func (changed files) loadDir(dir string, read func(*decoder, ast.Node)) Errors {
	names, err := changed.names(dir)
	if err != nil {
		return Errors{{Pos: Pos{File: dir}, Msg: reason(err)}}
	}
	var errs Errors
	for _, name := range names {
		d := &decoder{file: filepath.Join(dir, name), base: filepath.Dir(dir)}
		data, err := changed.read(d.file)
		if err != nil {
			errs = append(errs, &Error{Pos: Pos{File: d.file}, Msg: reason(err)})
			continue
		}
		if root := d.parse(data); root != nil {
			read(d, root)
		} else if len(d.errs) == 0 {
			d.errs = append(d.errs, &Error{Pos: Pos{File: d.file}, Msg: "the file is empty", Fix: "remove it or declare one peer, export, target or ULP in it"})
		}
		errs = append(errs, d.errs...)
	}
	return errs
}

// names lists the configuration files of a directory, in order.
func (changed files) names(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if _, changes := changed[filepath.Join(dir, e.Name())]; !changes && !e.IsDir() {
			names = append(names, e.Name())
		}
	}
	for path, data := range changed {
		if data != nil && filepath.Dir(path) == dir {
			names = append(names, filepath.Base(path))
		}
	}
	names = slices.DeleteFunc(names, func(n string) bool { return !strings.HasSuffix(n, ".yaml") || strings.HasPrefix(n, ".") })
	slices.Sort(names)
	return names, nil
}

// read is readFile for a file that may change.
func (changed files) read(path string) ([]byte, error) {
	data, changes := changed[path]
	switch {
	case !changes:
		return readFile(path)
	case data == nil:
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	return data, nil
}

// readFile reads a small regular file.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "read", Path: path, Err: errors.New("not a regular file")}
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("more than %s", FormatSize(maxFile))}
	}
	return data, err
}

// reason is a file error without the file's name, which the position has.
func reason(err error) string {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Op + ": " + pe.Err.Error()
	}
	return err.Error()
}

func (d *decoder) config(n ast.Node, c *Config) {
	d.mapping(n, "the configuration", fields{
		"listen": func(n ast.Node) {
			d.mapping(n, "listen", fields{
				"port":     d.integer("port", 1, 65535, func(v uint64) { c.ListenPort = uint16(v) }),
				"udp_port": d.udpPort(func(v uint64) { c.ListenUDPPort = uint16(v) }),
				"addresses": func(n ast.Node) {
					d.sequence(n, "addresses", d.listenAddr(func(a netip.Addr) { c.ListenOn = append(c.ListenOn, a) }))
					if len(c.ListenOn) > 1 && slices.ContainsFunc(c.ListenOn, netip.Addr.IsUnspecified) {
						d.fail(n, "addresses has all addresses (0.0.0.0 or ::) beside others", "write one entry, 0.0.0.0, or only the addresses of this host that you mean")
					}
				},
			})
		},
		"state_dir":      d.path("state_dir", &c.StateDir),
		"runtime_dir":    d.path("runtime_dir", &c.RuntimeDir),
		"control_socket": d.path("control_socket", &c.ControlSocket),
		"log": func(n ast.Node) {
			d.mapping(n, "log", fields{
				"level":  d.enum("level", func(s string) { c.Log.Level = s }, "debug", "info", "warn", "error"),
				"format": d.enum("format", func(s string) { c.Log.Format = s }, "text", "json"),
			})
		},
		"metrics": func(n ast.Node) {
			d.mapping(n, "metrics", fields{"listen": func(n ast.Node) { d.metricsListen(n, c) }})
		},
		"ipsec": func(n ast.Node) {
			d.mapping(n, "ipsec", fields{
				"vici":       d.str("vici", &c.IPsec.VICI, checkVICI),
				"data_plane": d.enum("data_plane", func(s string) { c.IPsec.DataPlane = s }, "auto", "kernel", "userland"),
				"profiles":   func(n ast.Node) { c.IPsec.Profiles = d.profiles(n) },
			})
		},
		"limits":   d.limits(c),
		"trust":    d.trust(&c.Trust),
		"services": d.services(c),
		"idle":     d.idle(&c.Idle),
		"block":    d.block(&c.Block),
		"slow":     d.slow(&c.Slow),
		"peers": func(n ast.Node) {
			d.sequence(n, "peers", func(n ast.Node) { c.Peers = append(c.Peers, d.peer(n)) })
		},
		"fabric": d.fabric(&c.Fabric),
		"ulps": func(n ast.Node) {
			d.sequence(n, "ulps", func(n ast.Node) { c.ULPs = append(c.ULPs, d.ulp(n)) })
		},
		"exports": func(n ast.Node) {
			d.sequence(n, "exports", func(n ast.Node) { c.Exports = append(c.Exports, d.export(n)) })
		},
		"pools": func(n ast.Node) {
			d.sequence(n, "pools", func(n ast.Node) { c.Pools = append(c.Pools, d.pool(n)) })
		},
		"targets": func(n ast.Node) {
			d.sequence(n, "targets", func(n ast.Node) { c.Targets = append(c.Targets, d.target(n)) })
		},
		"nvme": func(n ast.Node) {
			d.sequence(n, "nvme", func(n ast.Node) { c.Subsystems = append(c.Subsystems, d.subsystem(n)) })
		},
		"partitions": func(n ast.Node) {
			d.sequence(n, "partitions", func(n ast.Node) { c.Partitions = append(c.Partitions, d.partition(n)) })
		},
		"labels": d.labels(&c.Labels),
	})
}

func (d *decoder) metricsListen(n ast.Node, c *Config) {
	var s string
	d.str("metrics listen", &s, nil)(n)
	if s == "" {
		return
	}
	ap, err := netip.ParseAddrPort(s)
	if err != nil || ap.Port() == 0 {
		d.fail(n, fmt.Sprintf("metrics listen %q is not an address and a port", s), "write for example 127.0.0.1:9471")
		return
	}
	c.Metrics.Listen = ap
}

func (d *decoder) export(n ast.Node) Export {
	e := Export{Origin: d.pos(n)}
	var writers string
	faults := len(d.errs)
	d.mapping(n, "an export", fields{
		"name":      d.str("export name", &e.Name, CheckExportName),
		"path":      d.path("path", &e.Path),
		"read_only": d.boolean("read_only", &e.ReadOnly),
		"writers":   d.str("writers", &writers, CheckWriters),
		"trust":     d.trust(&e.Trust),
		"partition": d.str("partition", &e.Partition, CheckPartitionName),
		"label":     d.str("label", &e.Label, CheckLabel),
		"qos":       d.qos(&e.QoS),
		"allow": func(n ast.Node) {
			d.sequence(n, "allow", func(n ast.Node) {
				var s string
				d.str("allowed peer", &s, CheckAllowed)(n)
				if s != "" && !slices.Contains(e.Allow, s) {
					e.Allow = append(e.Allow, s)
				}
			})
		},
	})
	e.Writers = ParseWriters(writers)
	slices.Sort(e.Allow)
	d.checkWhole(n, faults, e.fault)
	return e
}

func (e *Export) fault() (msg, fix string) {
	switch {
	case e.Name == "":
		return "an export without name", "add name: and a short name of your choice"
	case e.Path == "":
		return fmt.Sprintf("export %s without path", e.Name), "add path: and the file or block device"
	}
	return "", ""
}
