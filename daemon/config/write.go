package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"

	"github.com/goccy/go-yaml"
)

// peerFile is a peer as peers.d holds it: only what differs from the default.
type peerFile struct {
	Name         string     `yaml:"name"`
	Address      string     `yaml:"address"`
	LocalAddress string     `yaml:"local_address,omitempty"`
	Port         uint16     `yaml:"port,omitempty"`
	Transport    string     `yaml:"transport,omitempty"`
	UDPPort      uint16     `yaml:"udp_port,omitempty"`
	Multihoming  []pathFile `yaml:"multihoming,omitempty"`
	Paths        []pathFile `yaml:"paths,omitempty"`
	LocalID      string     `yaml:"local_id,omitempty"`
	RemoteID     string     `yaml:"remote_id,omitempty"`
	Auth         string     `yaml:"auth,omitempty"`
	PSKFile      string     `yaml:"psk_file,omitempty"`
	CertFile     string     `yaml:"cert_file,omitempty"`
	KeyFile      string     `yaml:"key_file,omitempty"`
	CAFiles      []string   `yaml:"ca_files,omitempty"`
	CRLURIs      []string   `yaml:"crl_uris,omitempty"`
	OCSPURIs     []string   `yaml:"ocsp_uris,omitempty"`
	Revocation   string     `yaml:"revocation,omitempty"`
	Profile      string     `yaml:"profile,omitempty"`
	Mode         string     `yaml:"mode,omitempty"`
	Gateway      string     `yaml:"gateway,omitempty"`
	ChildSAs     int        `yaml:"child_sas,omitempty"`
	IdleReap     string     `yaml:"idle_reap,omitempty"`
	ISCSIPort    uint16     `yaml:"iscsi_port,omitempty"`
	NVMePort     uint16     `yaml:"nvme_port,omitempty"`
	Protection   string     `yaml:"protection,omitempty"`
	Plaintext    bool       `yaml:"insecure_plaintext,omitempty"`
	CRC          string     `yaml:"crc,omitempty"`
	FPDU         string     `yaml:"fpdu,omitempty"`
	Connections  int        `yaml:"connections,omitempty"`
	Policy       string     `yaml:"policy,omitempty"`
	Heartbeat    string     `yaml:"heartbeat_interval,omitempty"`
	Misses       int        `yaml:"heartbeat_misses,omitempty"`
	NoPath       string     `yaml:"no_path,omitempty"`
	FailAfter    string     `yaml:"fail_after,omitempty"`
	Attempts     int        `yaml:"reconnect_attempts,omitempty"`
	Invalidate   *bool      `yaml:"always_invalidate,omitempty"`
}

type pathFile struct {
	Name         string `yaml:"name,omitempty"`
	Address      string `yaml:"address"`
	LocalAddress string `yaml:"local_address"`
	Port         uint16 `yaml:"port,omitempty"`
	Transport    string `yaml:"transport,omitempty"`
}

type exportFile struct {
	Name     string   `yaml:"name"`
	Path     string   `yaml:"path"`
	ReadOnly bool     `yaml:"read_only,omitempty"`
	Allow    []string `yaml:"allow,omitempty,flow"`
	Writers  Writers  `yaml:"writers,omitempty"`
	Trust    Trust    `yaml:"trust,omitempty"`

	Partition string `yaml:"partition,omitempty"`
	Label     string `yaml:"label,omitempty"`

	QoS *qosFile `yaml:"qos,omitempty,flow"`
}

// AddPeer writes peers.d/NAME.yaml beside the main file, mode 0600, and returns
// its name. The whole configuration with the peer in it is checked first; if it has
// faults they come back as Errors, and nothing is written. A peer of that
// name is ErrExists. A zero Port means the main file's.
func AddPeer(main string, p Peer) (string, error) {
	if err := CheckPeerName(p.Name); err != nil {
		return "", fmt.Errorf("peer name %q %w", p.Name, err)
	}
	return add(main, peersDir, p.Name, fileOfPeer(p))
}

// CheckPeer fails as AddPeer would, and writes nothing.
func CheckPeer(main string, p Peer) error {
	if err := CheckPeerName(p.Name); err != nil {
		return fmt.Errorf("peer name %q %w", p.Name, err)
	}
	err := changeFiles(main, func(c *fileChange) error {
		if _, err := c.add(peersDir, p.Name, fileOfPeer(p)); err != nil {
			return err
		}
		if _, err := c.after.load(c.main, false); err != nil {
			return err
		}
		return errCheckOnly
	})
	if errors.Is(err, errCheckOnly) {
		return nil
	}
	return err
}

// errCheckOnly ends a change that would be right.
var errCheckOnly = errors.New("only to be checked")

// SetPeer changes a peer's declaration to p, and returns the name of its file. Other
// content and comments stay. As with AddPeer nothing is written that has faults. A peer
// that does not exist is ErrNotFound.
func SetPeer(main string, p Peer) (string, error) {
	return set(main, peersDir, "peer", p.Name, func(c *Config) (before, after any, err error) {
		old, _ := c.Peer(p.Name)
		return fileOfPeer(old), fileOfPeer(p), nil
	})
}

func fileOfPeer(p Peer) peerFile {
	out := peerFile{
		Name: p.Name, Port: p.Port, UDPPort: p.UDPPort, LocalID: p.LocalID, RemoteID: p.RemoteID,
		PSKFile: p.PSKFile, CertFile: p.CertFile, KeyFile: p.KeyFile, CAFiles: p.CAFiles, CRLURIs: p.CRLURIs, OCSPURIs: p.OCSPURIs,
		Revocation: string(p.Revocation), Profile: p.Profile, Mode: p.Mode, ISCSIPort: p.ISCSIPort, NVMePort: p.NVMePort,
	}
	if p.Transport != TransportTCP {
		out.Transport = string(p.Transport)
	}
	for _, q := range p.Multihoming {
		out.Multihoming = append(out.Multihoming, pathFile{Address: FormatAddr(q.Address), LocalAddress: FormatAddr(q.LocalAddress)})
	}
	for _, q := range p.Paths {
		f := pathFile{Address: FormatAddr(q.Address), LocalAddress: FormatAddr(q.LocalAddress)}
		if q.Name != f.Address {
			f.Name = q.Name
		}
		if q.Port != p.Port {
			f.Port = q.Port
		}
		if q.Transport != p.Transport || p.Transport == TransportSCTP {
			f.Transport = string(q.Transport)
		}
		out.Paths = append(out.Paths, f)
	}
	if p.Auth == AuthCert {
		out.Auth = string(AuthCert)
	}
	out.Gateway, out.Address, out.LocalAddress = FormatAddr(p.Gateway), cmp.Or(p.Host, FormatAddr(p.Address)), FormatAddr(p.LocalAddress)
	if p.ChildSAs > 1 {
		out.ChildSAs = p.ChildSAs
	}
	if p.IdleReap > 0 {
		out.IdleReap = FormatDuration(p.IdleReap)
	}
	switch p.Protection {
	case ProtectLoopback:
		out.Protection = string(ProtectLoopback)
	case ProtectPlaintext:
		out.Plaintext = true
	}
	if !p.CRC {
		out.CRC = "off"
	}
	if !p.LargeFPDU {
		out.FPDU = "emss"
	}
	if p.Connections != DefaultConnections {
		out.Connections = p.Connections
	}
	if p.Policy != 0 {
		out.Policy = p.Policy.String()
	}
	if p.Heartbeat.Interval > 0 {
		out.Heartbeat = FormatDuration(p.Heartbeat.Interval)
	}
	out.Misses, out.Attempts = p.Heartbeat.Missed, p.ReconnectAttempts
	if p.OpenChunks {
		out.Invalidate = new(false)
	}
	if p.NoPath.Fail {
		out.NoPath, out.FailAfter = NoPathWords(p.NoPath)
	}
	return out
}

// FormatAddr is the text of an address, "" if there is none.
func FormatAddr(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// AddExport writes exports.d/NAME.yaml like AddPeer does. It fails as that does.
func AddExport(main string, e Export) (string, error) {
	if err := CheckExportName(e.Name); err != nil {
		return "", fmt.Errorf("export name %q %w", e.Name, err)
	}
	return add(main, exportsDir, e.Name, fileOfExport(e))
}

// SetExport changes the file that declares an export like SetPeer does. It fails as
// that does.
func SetExport(main string, e Export) (string, error) {
	return set(main, exportsDir, "export", e.Name, func(c *Config) (before, after any, err error) {
		old, _ := c.Export(e.Name)
		return fileOfExport(old), fileOfExport(e), nil
	})
}

func fileOfExport(e Export) exportFile {
	return exportFile{Name: e.Name, Path: e.Path, ReadOnly: e.ReadOnly, Writers: e.Writers, Allow: e.Allow, Trust: e.Trust, Partition: e.Partition, Label: e.Label, QoS: fileOfQoS(e.QoS)}
}

// add writes one declaration.
func add(main, sub, name string, v any) (file string, err error) {
	err = changeFiles(main, func(c *fileChange) (err error) {
		file, err = c.add(sub, name, v)
		return err
	})
	return file, err
}

// add is one declaration more.
func (c *fileChange) add(sub, name string, v any) (file string, err error) {
	if at, dup := declared(c.before, sub, name); dup {
		return "", fmt.Errorf("%s is declared at %s: %w", name, at, ErrExists)
	}
	data, err := yaml.Marshal(v)
	if err != nil {
		return "", err
	}
	file = filepath.Join(c.before.Dir(), sub, name+".yaml")
	if _, err := os.Lstat(file); err == nil {
		return file, fmt.Errorf("%s exists and declares something else: %w", file, ErrExists)
	}
	c.setFile(file, data)
	return file, nil
}

// set changes the file that declares a peer, export, target or ULP. edit returns the declaration before and
// after the change.
func set(main, sub, what, name string, edit func(*Config) (before, after any, err error)) (file string, err error) {
	err = changeFiles(main, func(c *fileChange) error {
		at, ok := declared(c.before, sub, name)
		if !ok {
			return fmt.Errorf("%s %s: %w", what, name, ErrNotFound)
		}
		before, after, err := edit(c.before)
		if err != nil {
			return err
		}
		file = at.File
		return c.edit(at, sub, what+" "+name, before, after)
	})
	return file, err
}

// declared returns where a peer, export, target or ULP is declared.
func declared(c *Config, sub, name string) (Pos, bool) {
	switch sub {
	case peersDir:
		p, ok := c.Peer(name)
		return p.Origin, ok
	case targetsDir:
		t, ok := c.Target(name)
		return t.Origin, ok
	case nvmeDir:
		s, ok := c.Subsystem(name)
		return s.Origin, ok
	case ulpsDir:
		u, ok := c.ULP(name)
		return u.Origin, ok
	}
	e, ok := c.Export(name)
	return e.Origin, ok
}

// RemovePeer removes the file that AddPeer wrote. A peer that the main file
// declares among others is ErrInUse, with the place to edit; one that exports
// or targets still allow is refused by the check of the rest, unless with force, which
// takes the peer out of these first.
func RemovePeer(main, name string, force bool) error {
	return changeFiles(main, func(c *fileChange) error {
		if force {
			if err := c.disallow(name); err != nil {
				return err
			}
		}
		return c.remove(peersDir, "peer", name)
	})
}

// disallow takes a peer out of the exports and targets that allow it.
func (c *fileChange) disallow(peer string) error {
	for _, t := range c.before.Targets {
		n := t
		n.Peers = slices.DeleteFunc(slices.Clone(t.Peers), func(a string) bool { return a == peer })
		if len(n.Peers) == len(t.Peers) {
			continue
		}
		if err := c.edit(t.Origin, targetsDir, "target "+t.Name, fileOfTarget(t), fileOfTarget(n)); err != nil {
			return err
		}
	}
	for _, s := range c.before.Subsystems {
		n := s
		n.Peers = slices.DeleteFunc(slices.Clone(s.Peers), func(a string) bool { return a == peer })
		if len(n.Peers) == len(s.Peers) {
			continue
		}
		if err := c.edit(s.Origin, nvmeDir, "subsystem "+s.Name, fileOfSubsystem(s), fileOfSubsystem(n)); err != nil {
			return err
		}
	}
	for _, e := range c.before.Exports {
		if !slices.Contains(e.Allow, peer) {
			continue
		}
		n := e
		n.Allow = slices.DeleteFunc(slices.Clone(e.Allow), func(a string) bool { return a == peer })
		if err := c.edit(e.Origin, exportsDir, "export "+e.Name, fileOfExport(e), fileOfExport(n)); err != nil {
			return err
		}
	}
	return nil
}

// RemoveExport removes the file that AddExport wrote, like RemovePeer. It fails as that
// does.
func RemoveExport(main, name string) error {
	return changeFiles(main, func(c *fileChange) error { return c.remove(exportsDir, "export", name) })
}

func (c *fileChange) remove(sub, what, name string) error {
	at, ok := declared(c.before, sub, name)
	if !ok {
		return fmt.Errorf("%s %s: %w", what, name, ErrNotFound)
	}
	if !c.hasOwnFile(at, sub) {
		return fmt.Errorf("%s %s is declared at %s: remove it there, then run `ironwarp reload`: %w", what, name, at, ErrInUse)
	}
	c.setFile(at.File, nil)
	return nil
}

// hasOwnFile reports whether a declaration has a file of its own.
func (c *fileChange) hasOwnFile(at Pos, sub string) bool {
	return filepath.Dir(at.File) == filepath.Join(c.before.Dir(), sub)
}

// edit changes the keys of a declaration in which its new form differs from the
// old one.
func (c *fileChange) edit(at Pos, sub, what string, before, after any) error {
	if !c.hasOwnFile(at, sub) {
		return fmt.Errorf("%s is declared at %s: change it there, then run `ironwarp reload`: %w", what, at, ErrInUse)
	}
	data, err := readFile(at.File)
	if err != nil {
		return err
	}
	if data, err = patch(data, before, after); err != nil {
		return fmt.Errorf("change %s: %w", at.File, err)
	}
	c.setFile(at.File, data)
	return nil
}

// patch changes the keys of a YAML mapping by which before and after differ.
func patch(data []byte, before, after any) ([]byte, error) {
	was, err := mapping(before)
	if err != nil {
		return nil, err
	}
	will, err := mapping(after)
	if err != nil {
		return nil, err
	}
	var doc yaml.MapSlice
	comments := yaml.CommentMap{}
	if err := yaml.UnmarshalWithOptions(data, &doc, yaml.UseOrderedMap(), yaml.CommentToMap(comments)); err != nil {
		return nil, err
	}
	find := func(m yaml.MapSlice, key any) int {
		return slices.IndexFunc(m, func(i yaml.MapItem) bool { return i.Key == key })
	}
	for _, i := range was {
		if find(will, i.Key) < 0 {
			doc = slices.DeleteFunc(doc, func(d yaml.MapItem) bool { return d.Key == i.Key })
		}
	}
	for _, i := range will {
		if w := find(was, i.Key); w >= 0 && reflect.DeepEqual(was[w].Value, i.Value) {
			continue
		}
		if at := find(doc, i.Key); at >= 0 {
			doc[at].Value = i.Value
		} else {
			doc = append(doc, i)
		}
	}
	return yaml.MarshalWithOptions(doc, yaml.WithComment(comments))
}

// mapping is a declaration in YAML.
func mapping(v any) (m yaml.MapSlice, err error) {
	data, err := yaml.Marshal(v)
	if err != nil {
		return nil, err
	}
	return m, yaml.UnmarshalWithOptions(data, &m, yaml.UseOrderedMap())
}
