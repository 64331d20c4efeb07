package config

import (
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

	"github.com/ironwarp/ironwarp/ipsec"
)

// Load reads the main file and the peers.d and exports.d directories beside it.
// A main file that does not exist means the defaults, unless it was named
// explicitly (mustExist). Every fault is reported, as Errors.
func Load(path string, mustExist bool) (*Config, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	c := Default(path)
	var errs Errors
	data, err := readFile(path)
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
	errs = append(errs, loadDir(filepath.Join(c.Dir(), "peers.d"), func(d *decoder, n ast.Node) {
		c.Peers = append(c.Peers, d.peer(n))
	})...)
	errs = append(errs, loadDir(filepath.Join(c.Dir(), "exports.d"), func(d *decoder, n ast.Node) {
		c.Exports = append(c.Exports, d.export(n))
	})...)
	if c.ControlSocket == "" {
		c.ControlSocket = filepath.Join(c.RuntimeDir, "ironwarp.sock")
	}
	errs = append(errs, check(c)...)
	if len(errs) > 0 {
		return nil, errs
	}
	slices.SortFunc(c.Peers, func(a, b Peer) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(c.Exports, func(a, b Export) int { return strings.Compare(a.Name, b.Name) })
	return c, nil
}

// loadDir reads each *.yaml of a directory, which need not exist, in order.
func loadDir(dir string, read func(*decoder, ast.Node)) Errors {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return Errors{{Pos: Pos{File: dir}, Msg: reason(err)}}
	}
	var errs Errors
	for _, e := range entries {
		if e.IsDir() || !strings.HasSuffix(e.Name(), ".yaml") || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		d := &decoder{file: filepath.Join(dir, e.Name()), base: filepath.Dir(dir)}
		data, err := readFile(d.file)
		if err != nil {
			errs = append(errs, &Error{Pos: Pos{File: d.file}, Msg: reason(err)})
			continue
		}
		if root := d.parse(data); root != nil {
			read(d, root)
		} else if len(d.errs) == 0 {
			d.errs = append(d.errs, &Error{Pos: Pos{File: d.file}, Msg: "the file is empty", Fix: "remove it or declare one peer or export in it"})
		}
		errs = append(errs, d.errs...)
	}
	return errs
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
				"port": d.integer("port", 1, 65535, func(v uint64) { c.ListenPort = uint16(v) }),
				"addresses": func(n ast.Node) {
					d.sequence(n, "addresses", d.addr("listen address", func(a netip.Addr) { c.ListenOn = append(c.ListenOn, a) }))
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
			})
		},
		"limits": func(n ast.Node) {
			d.mapping(n, "limits", fields{
				"memory":     d.size("memory", 64<<20, func(v int64) { c.Limits.Memory = v }),
				"streams":    d.integer("streams", 1, 1<<20, func(v uint64) { c.Limits.Streams = int(v) }),
				"sessions":   d.integer("sessions", 1, 1024, func(v uint64) { c.Limits.Sessions = int(v) }),
				"queue_size": d.integer("queue_size", 1, 512, func(v uint64) { c.Limits.QueueSize = int(v) }),
			})
		},
		"peers": func(n ast.Node) {
			d.sequence(n, "peers", func(n ast.Node) { c.Peers = append(c.Peers, d.peer(n)) })
		},
		"exports": func(n ast.Node) {
			d.sequence(n, "exports", func(n ast.Node) { c.Exports = append(c.Exports, d.export(n)) })
		},
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

func (d *decoder) peer(n ast.Node) Peer {
	p := defaultPeer()
	p.Origin = d.pos(n)
	var protection string
	var plaintext bool
	faults := len(d.errs)
	d.mapping(n, "a peer", fields{
		"name":               d.str("peer name", &p.Name, CheckPeerName),
		"address":            d.addr("address", func(a netip.Addr) { p.Address = a }),
		"local_address":      d.addr("local_address", func(a netip.Addr) { p.LocalAddress = a }),
		"port":               d.integer("port", 1, 65535, func(v uint64) { p.Port = uint16(v) }),
		"local_id":           d.str("local_id", &p.LocalID, checkIdentity),
		"remote_id":          d.str("remote_id", &p.RemoteID, checkIdentity),
		"psk_file":           d.path("psk_file", &p.PSKFile),
		"profile":            d.enum("profile", func(s string) { p.Profile = s }, ipsec.DefaultProfile().Name),
		"protection":         d.enum("protection", func(s string) { protection = s }, "ipsec", "loopback"),
		"insecure_plaintext": d.boolean("insecure_plaintext", &plaintext),
		"crc":                d.enum("crc", func(s string) { p.CRC = s == "on" }, "on", "off"),
		"fpdu":               d.enum("fpdu", func(s string) { p.LargeFPDU = s == "large" }, "large", "emss"),
		"connections":        d.integer("connections", 1, MaxConnections, func(v uint64) { p.Connections = int(v) }),
	})
	if protection != "" {
		p.Protection = Protection(protection)
	}
	if plaintext {
		if protection != "" {
			d.fail(n, "insecure_plaintext: true beside protection: "+protection, "keep one of the two")
		}
		p.Protection = ProtectPlaintext
	}
	if len(d.errs) == faults {
		if msg, fix := p.fault(); msg != "" {
			d.fail(n, msg, fix)
		}
	}
	return p
}

// fault says what is wrong with a peer as a whole, and what to do.
func (p *Peer) fault() (msg, fix string) {
	switch {
	case p.Name == "":
		return "a peer without name", "add name: and a short name of your choice"
	case !p.Address.IsValid():
		return fmt.Sprintf("peer %s without address", p.Name), "add address: and the peer's IP address"
	case p.LocalAddress.IsValid() && p.LocalAddress.Is4() != p.Address.Is4():
		return fmt.Sprintf("peer %s mixes IPv4 and IPv6: address %s, local_address %s", p.Name, p.Address, p.LocalAddress), "use two addresses of one family"
	case p.Protection == ProtectIPsec && p.Address.IsLoopback():
		return fmt.Sprintf("peer %s at %s cannot have protection: ipsec", p.Name, p.Address), "use protection: loopback for a daemon on this host"
	case p.Protection == ProtectIPsec && p.PSKFile == "":
		return fmt.Sprintf("peer %s without psk_file", p.Name), "add psk_file: and the file that holds the secret both hosts share"
	case p.Protection == ProtectLoopback && !p.Address.IsLoopback():
		return fmt.Sprintf("peer %s has protection: loopback but %s is not on this host", p.Name, p.Address), "use protection: ipsec"
	case p.Protection != ProtectIPsec && (p.PSKFile != "" || p.LocalID != "" || p.RemoteID != "" || p.Profile != ""):
		return fmt.Sprintf("peer %s has IPsec settings (psk_file, local_id, remote_id, profile) but its protection is %s", p.Name, p.Protection), "remove them or use protection: ipsec"
	case !p.CRC && p.Protection != ProtectIPsec:
		return fmt.Sprintf("peer %s has crc: off without ESP", p.Name), "crc: off is allowed with protection: ipsec only, where ESP guards integrity (RFC 5044 section 4.4)"
	}
	return "", ""
}

func (d *decoder) export(n ast.Node) Export {
	e := Export{Origin: d.pos(n)}
	faults := len(d.errs)
	d.mapping(n, "an export", fields{
		"name":      d.str("export name", &e.Name, CheckExportName),
		"path":      d.path("path", &e.Path),
		"read_only": d.boolean("read_only", &e.ReadOnly),
		"allow": func(n ast.Node) {
			d.sequence(n, "allow", func(n ast.Node) {
				var s string
				d.str("allowed peer", &s, CheckPeerName)(n)
				if s != "" && !e.Allows(s) {
					e.Allow = append(e.Allow, s)
				}
			})
		},
	})
	slices.Sort(e.Allow)
	if len(d.errs) == faults {
		if msg, fix := e.fault(); msg != "" {
			d.fail(n, msg, fix)
		}
	}
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

// check finds what is wrong between declarations.
func check(c *Config) Errors {
	var errs Errors
	fail := func(at Pos, msg, fix string) { errs = append(errs, &Error{Pos: at, Msg: msg, Fix: fix}) }
	names, addrs, ids := map[string]Pos{}, map[netip.Addr]Peer{}, map[string]Peer{}
	for i := range c.Peers {
		p := &c.Peers[i]
		if p.Port == 0 {
			p.Port = c.ListenPort
		}
		if p.Name == "" || !p.Address.IsValid() {
			continue
		}
		if at, dup := names[p.Name]; dup {
			fail(p.Origin, fmt.Sprintf("peer %s is already declared at %s", p.Name, at), "give each peer its own name")
			continue
		}
		names[p.Name] = p.Origin
		if q, dup := addrs[p.Address]; dup {
			fail(p.Origin, fmt.Sprintf("peers %s and %s have the same address %s", q.Name, p.Name, p.Address), "a peer is told by its address: give each host its own (on loopback any of 127.0.0.0/8)")
			continue
		}
		addrs[p.Address] = *p
		if p.Protection != ProtectIPsec {
			continue
		}
		if p.Port != c.ListenPort {
			fail(p.Origin, fmt.Sprintf("peer %s listens on port %d and this host on %d", p.Name, p.Port, c.ListenPort), "the SAs of a link are for one port: set listen: {port: ...} to the same on both hosts")
		}
		if q, dup := ids[p.Identity()]; dup {
			fail(p.Origin, fmt.Sprintf("peers %s and %s have the same IKE identity %s", q.Name, p.Name, p.Identity()), "give each a remote_id of its own")
		}
		ids[p.Identity()] = *p
	}
	seen := map[string]Pos{}
	for _, e := range c.Exports {
		if e.Name == "" {
			continue
		}
		if at, dup := seen[e.Name]; dup {
			fail(e.Origin, fmt.Sprintf("export %s is already declared at %s", e.Name, at), "give each export its own name")
		}
		seen[e.Name] = e.Origin
		for _, a := range e.Allow {
			if _, ok := names[a]; !ok {
				fail(e.Origin, fmt.Sprintf("export %s allows peer %s, which is not configured", e.Name, a), "add it with `ironwarp peer add`, or remove it from allow")
			}
		}
	}
	return errs
}
