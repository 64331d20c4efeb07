package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/ironwarp/ironwarp/iscsi"
)

// Target is an iSCSI target of this host. All that it asks of an initiator has to hold.
type Target struct {
	Name       string       // for commands and files of this host alone
	IQN        string       // the iSCSI name
	Alias      string       // initiators show it
	Port       uint16       // of its portals
	Addresses  []netip.Addr // of its portals; empty: those at which its peers reach this host
	Peers      []string     // whose initiators may log in, as Export.Allow; sorted
	Initiators []string     // by their iSCSI names; empty: any
	CHAP       []CHAPUser   // empty: nobody is asked
	Recovery   uint32       // the highest ErrorRecoveryLevel that initiators may have
	Undeclared bool         // insecure_undeclared: hosts that are no peers may log in, in clear
	Redirect   string       // where initiators are sent, as host or host:port; empty: they are served here
	Moved      bool         // redirect_permanent: for good
	NoISER     bool         // sessions are over TCP alone (RFC 7145 section 6.3: RDMAExtensions)
	LUNs       []LUN        // by number
	Partition  string       // at whose iscsi_port its portals are; "": the service's
	Label      string       // the security label of its portals; "": the service's
	Origin     Pos
}

// CHAPUser is an initiator's secret, and the target's for it.
type CHAPUser struct {
	User, SecretFile             string
	TargetUser, TargetSecretFile string // empty: the target does not authenticate itself
}

// LUN is a disk of a target.
type LUN struct {
	Number    uint16
	Export    string // whose disk it is; Load makes one of those with a path
	Path      string // of a disk that is no other export's
	BlockSize uint32 // 512 or 4096; 0: 512
	ReadOnly  bool
	Removable bool
	Thick     bool // UNMAP is not offered
	Sanitize  bool // initiators may erase all of it by SANITIZE
}

// Equal reports whether two declarations are the same, wherever they are written.
func (t Target) Equal(u Target) bool {
	return t.Name == u.Name && t.IQN == u.IQN && t.Alias == u.Alias && t.Port == u.Port && t.Recovery == u.Recovery && t.Undeclared == u.Undeclared && t.NoISER == u.NoISER && t.Redirect == u.Redirect && t.Moved == u.Moved && t.Partition == u.Partition && t.Label == u.Label && slices.Equal(t.Addresses, u.Addresses) &&
		slices.Equal(t.Peers, u.Peers) && slices.Equal(t.Initiators, u.Initiators) && slices.Equal(t.CHAP, u.CHAP) && slices.Equal(t.LUNs, u.LUNs)
}

// Target finds a target by name.
func (c *Config) Target(name string) (Target, bool) {
	return findByName(c.Targets, name, func(t Target) string { return t.Name })
}

// iqnForm is what RFC 7143 section 4.2.7.4 has: a year and month, and the naming authority's
// domain, reversed.
var iqnForm = regexp.MustCompile(`^iqn\.[0-9]{4}-(0[1-9]|1[0-2])\.[a-z0-9-]+(\.[a-z0-9-]+)*(:.+)?$`)

// CheckTargetName fails if a name cannot be a target's on this host. The error is the reason.
func CheckTargetName(s string) error { return checkName(s, MaxTargetName) }

// checkInitiator is CheckIQN for an initiator's name, which others have chosen.
func checkInitiator(s string) error {
	if !iscsi.IsName(s) {
		return errors.New("is no iSCSI name, such as iqn.1993-08.org.debian:01:4bff, in small letters")
	}
	return nil
}

// CheckIQN fails if a text cannot be the name of an iSCSI node of this host. The error is the reason.
func CheckIQN(s string) error {
	switch {
	case !iscsi.IsName(s), strings.HasPrefix(s, "iqn.") && !iqnForm.MatchString(s):
		return errors.New("is no iSCSI name: such a one is iqn.2026-01.org.example:disk, with the year and month in which somebody had the domain, in small letters (RFC 7143 4.2.7)")
	}
	return nil
}

// CheckRedirect fails if a text is no TargetAddress of RFC 7143 section 13.8 without a portal group: a host
// name, an IPv4 address or an IPv6 address in brackets, with :PORT behind it or without. The error is the
// reason.
func CheckRedirect(s string) error {
	host, port := s, ""
	if i := strings.LastIndexByte(s, ':'); i >= 0 && !strings.HasSuffix(s, "]") {
		host, port = s[:i], s[i+1:]
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return errors.New("has no port from 1 to 65535 behind the colon")
		}
	}
	if inner, ok := strings.CutPrefix(host, "["); ok {
		if a, err := netip.ParseAddr(strings.TrimSuffix(inner, "]")); err != nil || !a.Is6() || a.Zone() != "" || !strings.HasSuffix(host, "]") {
			return errors.New("is no IPv6 address in brackets")
		}
		return nil
	}
	if strings.Contains(host, ":") {
		return errors.New("is no address: an IPv6 address is written in brackets")
	}
	if len(host) > 253 || !hostForm.MatchString(host) {
		return errors.New("is no address: such a one is 192.0.2.9:3260, [2001:db8::9]:3260 or disks.example.org")
	}
	return nil
}

var hostForm = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$`)

// CheckCHAPUser fails if a text cannot be CHAP_N. The error is the reason.
func CheckCHAPUser(s string) error {
	if s == "" || len(s) > iscsi.MaxName || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return fmt.Errorf("is no CHAP name: 1 to %d bytes without control characters", iscsi.MaxName)
	}
	return nil
}

// DefaultIQN is a name for a target of a host.
func DefaultIQN(host, name string) string {
	clean := func(s string) string {
		return strings.Trim(strings.Map(func(r rune) rune {
			if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '.' {
				return r
			}
			return '-'
		}, strings.ToLower(s)), "-.")
	}
	if host = clean(host); host == "" {
		host = "host"
	}
	return "iqn.2026-01.org.ironwarp:" + host + ":" + clean(name)
}

func (d *decoder) target(n ast.Node) Target {
	t, iser := Target{Origin: d.pos(n), Port: DefaultISCSIPort, Recovery: DefaultErrorRecoveryLevel}, true
	faults := len(d.errs)
	d.mapping(n, "a target", fields{
		"name":                 d.str("target name", &t.Name, CheckTargetName),
		"iqn":                  d.str("iqn", &t.IQN, CheckIQN),
		"alias":                d.str("alias", &t.Alias, checkAlias),
		"port":                 d.integer("port", 1, 65535, func(v uint64) { t.Port = uint16(v) }),
		"insecure_undeclared":  d.boolean("insecure_undeclared", &t.Undeclared),
		"redirect":             d.str("redirect", &t.Redirect, CheckRedirect),
		"redirect_permanent":   d.boolean("redirect_permanent", &t.Moved),
		"error_recovery_level": d.integer("error_recovery_level", 0, MaxErrorRecoveryLevel, func(v uint64) { t.Recovery = uint32(v) }),
		"iser":                 d.boolean("iser", &iser),
		"partition":            d.str("partition", &t.Partition, CheckPartitionName),
		"label":                d.str("label", &t.Label, CheckLabel),
		"addresses": func(n ast.Node) {
			d.sequence(n, "addresses", d.addr("portal address", func(a netip.Addr) { t.Addresses = append(t.Addresses, a) }))
		},
		"peers":      d.strings("allowed peer", &t.Peers, CheckAllowed),
		"initiators": d.strings("initiator", &t.Initiators, checkInitiator),
		"chap": func(n ast.Node) {
			d.sequence(n, "chap", func(n ast.Node) { t.CHAP = append(t.CHAP, d.chapUser(n)) })
		},
		"luns": func(n ast.Node) {
			d.sequence(n, "luns", func(n ast.Node) { t.LUNs = append(t.LUNs, d.lun(n)) })
		},
	})
	t.NoISER = !iser
	slices.Sort(t.Peers)
	t.Peers = slices.Compact(t.Peers)
	slices.SortStableFunc(t.LUNs, func(a, b LUN) int { return cmp.Compare(a.Number, b.Number) })
	d.checkWhole(n, faults, t.fault)
	return t
}

func checkAlias(s string) error {
	if len(s) > 255 || strings.ContainsRune(s, 0) {
		return errors.New("is too long: up to 255 bytes are possible")
	}
	return nil
}

func (d *decoder) chapUser(n ast.Node) (u CHAPUser) {
	d.mapping(n, "a CHAP user", fields{
		"user":               d.str("user", &u.User, CheckCHAPUser),
		"secret_file":        d.path("secret_file", &u.SecretFile),
		"target_user":        d.str("target_user", &u.TargetUser, CheckCHAPUser),
		"target_secret_file": d.path("target_secret_file", &u.TargetSecretFile),
	})
	return u
}

func (d *decoder) lun(n ast.Node) (l LUN) {
	thin, numbered := true, false
	d.mapping(n, "a LUN", fields{
		"number": d.integer("number", 0, MaxLUN, func(v uint64) { l.Number, numbered = uint16(v), true }),
		"export": d.str("export", &l.Export, CheckExportName),
		"path":   d.path("path", &l.Path),
		"block_size": d.integer("block_size", 512, 4096, func(v uint64) {
			if l.BlockSize = uint32(v); v != 512 && v != 4096 {
				d.fail(n, fmt.Sprintf("block_size is %d", v), "allowed: 512, 4096")
			}
		}),
		"read_only": d.boolean("read_only", &l.ReadOnly),
		"removable": d.boolean("removable", &l.Removable),
		"thin":      d.boolean("thin", &thin),
		"sanitize":  d.boolean("sanitize", &l.Sanitize),
	})
	if l.Thick = !thin; !numbered {
		d.fail(n, "a LUN without number", "add number: 0 for the first")
	}
	return l
}

// fault is what is wrong with a target as a whole, and what to do.
func (t *Target) fault() (msg, fix string) {
	switch {
	case t.Name == "":
		return "a target without name", "add name: and a short name of your choice"
	case t.IQN == "":
		return fmt.Sprintf("target %s without iqn", t.Name), "add iqn: and its iSCSI name, such as " + DefaultIQN("host", t.Name)
	}
	for i, u := range t.CHAP {
		switch {
		case u.User == "" || u.SecretFile == "":
			return fmt.Sprintf("target %s has a CHAP user without user or secret_file", t.Name), "give both: the initiator's name in CHAP, and the file that holds its secret"
		case (u.TargetUser == "") != (u.TargetSecretFile == ""):
			return fmt.Sprintf("target %s, CHAP user %s: target_user and target_secret_file belong together", t.Name, u.User), "give both, or neither"
		case u.SecretFile == u.TargetSecretFile:
			return fmt.Sprintf("target %s, CHAP user %s: one secret for both directions", t.Name, u.User), "each direction needs a secret of its own (RFC 7143 9.2.1)"
		case slices.ContainsFunc(t.CHAP[:i], func(o CHAPUser) bool { return o.User == u.User }):
			return fmt.Sprintf("target %s has the CHAP user %s twice", t.Name, u.User), "remove one of them"
		}
	}
	if t.Moved && t.Redirect == "" {
		return fmt.Sprintf("target %s has redirect_permanent, and no redirect", t.Name), "add redirect: and the address where it is now, or remove redirect_permanent"
	}
	for i, l := range t.LUNs {
		switch {
		case l.Sanitize && l.ReadOnly:
			return fmt.Sprintf("LUN %d of target %s is read_only, and sanitize would erase it", l.Number, t.Name), "remove one of them"
		case (l.Export == "") == (l.Path == ""):
			return fmt.Sprintf("LUN %d of target %s has not one of export and path", l.Number, t.Name), "give export: and the name of an export, or path: and a file or block device that no export has"
		case i > 0 && t.LUNs[i-1].Number == l.Number:
			return fmt.Sprintf("target %s has LUN %d twice", t.Name, l.Number), "give each LUN a number of its own"
		}
	}
	return "", ""
}

// addLUNExports makes exports of LUNs with a path, and notes which exports are LUNs.
func addLUNExports(c *Config) {
	for i := range c.Targets {
		t := &c.Targets[i]
		for j := range t.LUNs {
			if l := &t.LUNs[j]; l.Path != "" && t.Name != "" {
				l.Export = fmt.Sprintf("%s-lun%d", t.Name, l.Number)
				c.Exports = append(c.Exports, Export{Name: l.Export, Path: l.Path, ReadOnly: l.ReadOnly, Origin: t.Origin})
			}
			for k := range c.Exports {
				c.Exports[k].LUN = c.Exports[k].LUN || c.Exports[k].Name == t.LUNs[j].Export
			}
		}
	}
}

// checkTargets finds conflicts of targets with each other and with the rest.
func checkTargets(c *Config) Errors {
	var errs Errors
	fail := func(t *Target, msg, fix string) { errs = append(errs, &Error{Pos: t.Origin, Msg: msg, Fix: fix}) }
	names, iqns := map[string]Pos{}, map[string]string{}
	uses := c.usesByNamespaces()
	for i := range c.Targets {
		t := &c.Targets[i]
		if t.Name == "" {
			continue
		}
		if at, dup := names[t.Name]; dup {
			fail(t, fmt.Sprintf("target %s is already declared at %s", t.Name, at), "give each target its own name")
		}
		names[t.Name] = t.Origin
		if other, dup := iqns[t.IQN]; dup {
			fail(t, fmt.Sprintf("targets %s and %s have the same iqn %s", other, t.Name, t.IQN), "give each an iSCSI name of its own")
		}
		iqns[t.IQN] = t.Name
		if t.Port == c.ListenPort {
			fail(t, fmt.Sprintf("target %s has the port %d, which this host listens on for RDMA streams", t.Name, t.Port), fmt.Sprintf("use another: %d is that of iSCSI", DefaultISCSIPort))
		}
		for _, a := range t.Peers {
			p, ok := c.allowed(a)
			switch {
			case !ok:
				fail(t, fmt.Sprintf("target %s allows %s, which is no configured peer", t.Name, a), "add it with `ironwarp peer add`, or remove it from peers")
			case p.Protection == ProtectIPsec && p.ISCSIPort != t.Port && t.Partition == "":
				fail(t, fmt.Sprintf("target %s allows peer %s at port %d, and the SAs with that peer do not cover the port", t.Name, p.Name, t.Port),
					fmt.Sprintf("`ironwarp peer set --iscsi-port %d %s`, and the same for this host there", t.Port, p.Name))
			}
		}
		for _, l := range t.LUNs {
			what := fmt.Sprintf("LUN %d of target %s", l.Number, t.Name)
			e := slices.IndexFunc(c.Exports, func(e Export) bool { return e.Name == l.Export })
			if e < 0 {
				fail(t, fmt.Sprintf("%s is export %s, which is not declared", what, l.Export), "add it with `ironwarp export add`, or give a path")
				continue
			}
			readOnly := l.ReadOnly || c.Exports[e].ReadOnly
			if o, dup := uses[l.Export]; dup && !(o.readOnly && readOnly) {
				fail(t, fmt.Sprintf("export %s is %s and %s, and may be written", l.Export, o.what, what), "a disk that is written is one LUN: reservations and COMPARE AND WRITE hold within it. Give it more portals for more paths, or say read_only of both")
			}
			uses[l.Export] = exportUse{what, readOnly}
		}
	}
	return errs
}

// allowed is the peer that an entry of Export.Allow or Target.Peers names.
func (c *Config) allowed(a string) (Peer, bool) {
	id, byID := strings.CutPrefix(a, AllowIdentity)
	i := slices.IndexFunc(c.Peers, func(p Peer) bool {
		return !byID && p.Name == a || byID && p.Protection == ProtectIPsec && p.Identity() == id
	})
	if i < 0 {
		return Peer{}, false
	}
	return c.Peers[i], true
}

// Allows reports whether initiators on a peer may log in.
func (t Target) Allows(p Peer) bool { return Export{Allow: t.Peers}.Allows(p) }

type targetFile struct {
	Name       string     `yaml:"name"`
	IQN        string     `yaml:"iqn"`
	Alias      string     `yaml:"alias,omitempty"`
	Port       uint16     `yaml:"port,omitempty"`
	Addresses  []string   `yaml:"addresses,omitempty,flow"`
	Peers      []string   `yaml:"peers,omitempty,flow"`
	Initiators []string   `yaml:"initiators,omitempty,flow"`
	CHAP       []chapFile `yaml:"chap,omitempty"`
	Undeclared bool       `yaml:"insecure_undeclared,omitempty"`
	Redirect   string     `yaml:"redirect,omitempty"`
	Moved      bool       `yaml:"redirect_permanent,omitempty"`
	Recovery   *uint32    `yaml:"error_recovery_level,omitempty"`
	ISER       *bool      `yaml:"iser,omitempty"`
	LUNs       []lunFile  `yaml:"luns,omitempty"`
	Partition  string     `yaml:"partition,omitempty"`
	Label      string     `yaml:"label,omitempty"`
}

type chapFile struct {
	User             string `yaml:"user"`
	SecretFile       string `yaml:"secret_file"`
	TargetUser       string `yaml:"target_user,omitempty"`
	TargetSecretFile string `yaml:"target_secret_file,omitempty"`
}

type lunFile struct {
	Number    uint16 `yaml:"number"`
	Export    string `yaml:"export,omitempty"`
	Path      string `yaml:"path,omitempty"`
	BlockSize uint32 `yaml:"block_size,omitempty"`
	ReadOnly  bool   `yaml:"read_only,omitempty"`
	Removable bool   `yaml:"removable,omitempty"`
	Thin      *bool  `yaml:"thin,omitempty"`
	Sanitize  bool   `yaml:"sanitize,omitempty"`
}

func fileOfTarget(t Target) targetFile {
	f := targetFile{Name: t.Name, IQN: t.IQN, Alias: t.Alias, Peers: t.Peers, Initiators: t.Initiators, Undeclared: t.Undeclared, Redirect: t.Redirect, Moved: t.Moved, Partition: t.Partition, Label: t.Label}
	if t.Port != DefaultISCSIPort {
		f.Port = t.Port
	}
	if t.Recovery != DefaultErrorRecoveryLevel {
		f.Recovery = &t.Recovery
	}
	if t.NoISER {
		f.ISER = new(bool)
	}
	for _, a := range t.Addresses {
		f.Addresses = append(f.Addresses, a.String())
	}
	for _, u := range t.CHAP {
		f.CHAP = append(f.CHAP, chapFile(u))
	}
	for _, l := range t.LUNs {
		g := lunFile{Number: l.Number, Export: l.Export, Path: l.Path, BlockSize: l.BlockSize, ReadOnly: l.ReadOnly, Removable: l.Removable, Sanitize: l.Sanitize}
		if l.Path != "" {
			g.Export = ""
		}
		if l.Thick {
			g.Thin = new(false)
		}
		f.LUNs = append(f.LUNs, g)
	}
	return f
}

// AddTarget writes targets.d/NAME.yaml like AddPeer does. It fails as that does.
func AddTarget(main string, t Target) (string, error) {
	if err := CheckTargetName(t.Name); err != nil {
		return "", fmt.Errorf("target name %q %w", t.Name, err)
	}
	return add(main, targetsDir, t.Name, fileOfTarget(t))
}

// SetTarget changes the file that declares a target like SetPeer does, to what change makes of
// the target. It fails as that does, and as change does.
func SetTarget(main, name string, change func(*Target) error) (string, error) {
	return set(main, targetsDir, "target", name, func(c *Config) (before, after any, err error) {
		old, _ := c.Target(name)
		t := old
		t.LUNs = slices.Clone(t.LUNs)
		err = change(&t)
		return fileOfTarget(old), fileOfTarget(t), err
	})
}

// RemoveTarget removes the file that AddTarget wrote, like RemovePeer. It fails as that does.
func RemoveTarget(main, name string) error {
	return changeFiles(main, func(c *fileChange) error { return c.remove(targetsDir, "target", name) })
}
