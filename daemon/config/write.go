package config

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

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
	Protection   string     `yaml:"protection,omitempty"`
	Plaintext    bool       `yaml:"insecure_plaintext,omitempty"`
	CRC          string     `yaml:"crc,omitempty"`
	FPDU         string     `yaml:"fpdu,omitempty"`
	Connections  int        `yaml:"connections,omitempty"`
}

type pathFile struct {
	Address      string `yaml:"address"`
	LocalAddress string `yaml:"local_address"`
}

type exportFile struct {
	Name     string   `yaml:"name"`
	Path     string   `yaml:"path"`
	ReadOnly bool     `yaml:"read_only,omitempty"`
	Allow    []string `yaml:"allow,omitempty,flow"`
	Trust    Trust    `yaml:"trust,omitempty"`
}

// AddPeer writes peers.d/NAME.yaml beside the main file, mode 0600, and returns
// its name. The whole configuration with the peer in it is checked first; what
// is wrong with it comes back as Errors and nothing is written. A peer of that
// name is ErrExists. A zero Port means the main file's.
func AddPeer(main string, p Peer) (string, error) {
	if err := CheckPeerName(p.Name); err != nil {
		return "", fmt.Errorf("peer name %q %w", p.Name, err)
	}
	out := peerFile{
		Name: p.Name, Port: p.Port, UDPPort: p.UDPPort, LocalID: p.LocalID, RemoteID: p.RemoteID,
		PSKFile: p.PSKFile, CertFile: p.CertFile, KeyFile: p.KeyFile, CAFiles: p.CAFiles, CRLURIs: p.CRLURIs, OCSPURIs: p.OCSPURIs,
		Revocation: string(p.Revocation), Profile: p.Profile, Mode: p.Mode,
	}
	if p.Transport != TransportTCP {
		out.Transport = string(p.Transport)
	}
	for _, q := range p.Paths {
		out.Paths = append(out.Paths, pathFile{Address: addrOf(q.Address), LocalAddress: addrOf(q.LocalAddress)})
	}
	if p.Auth == AuthCert {
		out.Auth = string(AuthCert)
	}
	out.Gateway, out.Address, out.LocalAddress = addrOf(p.Gateway), addrOf(p.Address), addrOf(p.LocalAddress)
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
	return add(main, "peers.d", p.Name, out)
}

// addrOf is the text of an address, "" if there is none.
func addrOf(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// AddExport writes exports.d/NAME.yaml like AddPeer does.
func AddExport(main string, e Export) (string, error) {
	if err := CheckExportName(e.Name); err != nil {
		return "", fmt.Errorf("export name %q %w", e.Name, err)
	}
	return add(main, "exports.d", e.Name, exportFile{Name: e.Name, Path: e.Path, ReadOnly: e.ReadOnly, Allow: e.Allow, Trust: e.Trust})
}

// add writes one declaration and takes it back if the whole does not check.
func add(main, sub, name string, v any) (string, error) {
	before, err := Load(main, false)
	if err != nil {
		return "", fmt.Errorf("the configuration has faults; repair it first:\n%w", err)
	}
	if at, dup := declared(before, sub, name); dup {
		return "", fmt.Errorf("%s is declared at %s: %w", name, at, ErrExists)
	}
	data, err := yaml.Marshal(v)
	if err != nil {
		return "", err
	}
	path := filepath.Join(before.Dir(), sub, name+".yaml")
	if _, err := os.Lstat(path); err == nil {
		return "", fmt.Errorf("%s exists and declares something else: %w", path, ErrExists)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", err
	}
	if err := WriteFile(path, data); err != nil {
		return "", err
	}
	if _, err := Load(main, false); err != nil {
		return "", errors.Join(err, os.Remove(path))
	}
	return path, nil
}

func declared(c *Config, sub, name string) (Pos, bool) {
	if sub == "peers.d" {
		p, ok := c.Peer(name)
		return p.Origin, ok
	}
	e, ok := c.Export(name)
	return e.Origin, ok
}

// RemovePeer removes the file that AddPeer wrote. A peer that a hand-written
// file declares among others is ErrInUse, with the place to edit; one that an
// export still allows is refused by the check of the rest.
func RemovePeer(main, name string) error { return remove(main, "peers.d", "peer", name) }

// RemoveExport removes the file that AddExport wrote, like RemovePeer.
func RemoveExport(main, name string) error { return remove(main, "exports.d", "export", name) }

func remove(main, sub, what, name string) error {
	c, err := Load(main, false)
	if err != nil {
		return fmt.Errorf("the configuration has faults; repair it first:\n%w", err)
	}
	at, ok := declared(c, sub, name)
	if !ok {
		return fmt.Errorf("%s %s: %w", what, name, ErrNotFound)
	}
	if filepath.Dir(at.File) != filepath.Join(c.Dir(), sub) {
		return fmt.Errorf("%s %s is declared at %s: remove it there, then run `ironwarp reload`: %w", what, name, at, ErrInUse)
	}
	data, err := readFile(at.File)
	if err != nil {
		return err
	}
	if err := os.Remove(at.File); err != nil {
		return err
	}
	if _, err := Load(main, false); err != nil {
		return errors.Join(err, WriteFile(at.File, data))
	}
	return nil
}

// WriteFile replaces a file in one step, mode 0600: after a crash there is
// either the old content or the new.
func WriteFile(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, fs.ErrInvalid) {
		return err
	}
	return nil
}
