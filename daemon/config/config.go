package config

import (
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
)

// DefaultPath is where the daemon looks when neither --config nor
// IRONWARP_CONFIG names another file.
const DefaultPath = "/etc/ironwarp/ironwarp.yaml"

// DefaultSocket is the control socket of a daemon with default settings.
const DefaultSocket = "/run/ironwarp/ironwarp.sock"

// Config is everything an administrator said, checked and with defaults
// filled in.
type Config struct {
	Path          string // the main file
	ListenPort    uint16
	ListenOn      []netip.Addr // empty: the local address of each peer
	StateDir      string       // what survives a restart: attachments
	RuntimeDir    string       // sockets
	ControlSocket string
	Log           Log
	Metrics       Metrics
	IPsec         IPsec
	Limits        Limits
	Peers         []Peer   // sorted by name
	Exports       []Export // sorted by name
}

// Log says how the daemon logs.
type Log struct {
	Level  string // debug, info, warn, error
	Format string // text, json
}

// Metrics says where Prometheus may scrape. Without an address there is no
// listener.
type Metrics struct {
	Listen netip.AddrPort
}

// IPsec says how to reach the IKE daemon and which data plane to use.
type IPsec struct {
	VICI      string // VICI socket as a URL: unix:///var/run/charon.vici
	DataPlane string // auto, kernel, userland
}

// Limits bounds what the daemon spends on its peers.
type Limits struct {
	Memory    int64 // registered memory in bytes over all peers
	Streams   int   // RDMA streams over all peers
	Sessions  int   // block sessions one peer may hold open
	QueueSize int   // I/O requests in flight per session
}

// Protection is what guards a peer's streams.
type Protection string

// The kinds of Protection.
const (
	ProtectIPsec     Protection = "ipsec"     // ESP, proved for every stream
	ProtectLoopback  Protection = "loopback"  // 127.0.0.0/8 and ::1 only
	ProtectPlaintext Protection = "plaintext" // nothing: insecure_plaintext: true
)

// Peer is another host of the link.
type Peer struct {
	Name         string
	Address      netip.Addr
	LocalAddress netip.Addr // zero: the address the route to Address uses
	Port         uint16     // the port the peer listens on
	LocalID      string     // IKE identity of this host; empty: its address
	RemoteID     string     // IKE identity of the peer; empty: its address
	PSKFile      string
	Profile      string // name of an IPsec profile; empty: the default one
	Protection   Protection
	CRC          bool // ask for MPA CRCs
	LargeFPDU    bool // agree on FPDUs larger than a TCP segment
	Connections  int  // RDMA streams per session
	Origin       Pos
}

// Equal reports whether two declarations say the same, wherever they stand.
func (p Peer) Equal(q Peer) bool {
	p.Origin, q.Origin = Pos{}, Pos{}
	return p == q
}

// AddrPort is where the peer listens.
func (p Peer) AddrPort() netip.AddrPort { return netip.AddrPortFrom(p.Address, p.Port) }

// Identity is what IKE must have authenticated for a stream to be this peer's.
func (p Peer) Identity() string {
	if p.RemoteID != "" {
		return p.RemoteID
	}
	return p.Address.String()
}

// Export is a file or block device that named peers may attach.
type Export struct {
	Name     string
	Path     string
	ReadOnly bool
	Allow    []string // peer names, sorted
	Origin   Pos
}

// Equal reports whether two declarations say the same, wherever they stand.
func (e Export) Equal(f Export) bool {
	return e.Name == f.Name && e.Path == f.Path && e.ReadOnly == f.ReadOnly && slices.Equal(e.Allow, f.Allow)
}

// Allows reports whether the peer may attach the export.
func (e Export) Allows(peer string) bool { return slices.Contains(e.Allow, peer) }

// Peer finds a peer by name.
func (c *Config) Peer(name string) (Peer, bool) {
	i := slices.IndexFunc(c.Peers, func(p Peer) bool { return p.Name == name })
	if i < 0 {
		return Peer{}, false
	}
	return c.Peers[i], true
}

// Export finds an export by name.
func (c *Config) Export(name string) (Export, bool) {
	i := slices.IndexFunc(c.Exports, func(e Export) bool { return e.Name == name })
	if i < 0 {
		return Export{}, false
	}
	return c.Exports[i], true
}

// PeerNames lists the peers by name.
func (c *Config) PeerNames() []string {
	names := make([]string, len(c.Peers))
	for i, p := range c.Peers {
		names[i] = p.Name
	}
	return names
}

// Dir is the directory the main file stands in.
func (c *Config) Dir() string { return filepath.Dir(c.Path) }

// NBDDir is where the sockets of attached disks stand.
func (c *Config) NBDDir() string { return filepath.Join(c.RuntimeDir, "nbd") }

// Default is the configuration that an empty main file at path means.
func Default(path string) *Config {
	return &Config{
		Path:       path,
		ListenPort: DefaultPort,
		StateDir:   "/var/lib/ironwarp",
		RuntimeDir: "/run/ironwarp",
		Log:        Log{Level: "info", Format: "text"},
		IPsec:      IPsec{VICI: "unix:///var/run/charon.vici", DataPlane: "auto"},
		Limits: Limits{
			Memory:    DefaultMemory,
			Streams:   DefaultStreams,
			Sessions:  DefaultSessions,
			QueueSize: DefaultQueueSize,
		},
	}
}

// defaultPeer has the settings of a peer that says nothing but its name and
// address.
func defaultPeer() Peer {
	return Peer{Protection: ProtectIPsec, CRC: true, LargeFPDU: true, Connections: DefaultConnections}
}

// Pos is a place in a file.
type Pos struct {
	File   string
	Line   int // from 1; 0: the file as a whole
	Column int
}

func (p Pos) String() string {
	if p.Line == 0 {
		return p.File
	}
	return p.File + ":" + strconv.Itoa(p.Line) + ":" + strconv.Itoa(p.Column)
}
