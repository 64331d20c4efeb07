package config

import (
	"cmp"
	"errors"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/ironwarp/ironwarp/block/gate"
	"github.com/ironwarp/ironwarp/verbs"
)

// DefaultPath is where the daemon looks when neither --config nor
// IRONWARP_CONFIG names another file.
const DefaultPath = "/etc/ironwarp/ironwarp.yaml"

// DefaultSocket is the control socket of a daemon with default settings.
const DefaultSocket = "/run/ironwarp/ironwarp.sock"

// Config is everything that the administrator configured, checked and with defaults
// filled in.
type Config struct {
	Path          string       // the main file
	ListenPort    uint16       // of TCP, and of SCTP
	ListenUDPPort uint16       // of SCTP in UDP
	ListenOn      []netip.Addr // empty: the local address of each peer; 0.0.0.0 or :: alone: all
	StateDir      string       // for what survives a restart: attachments
	RuntimeDir    string       // sockets
	ControlSocket string
	Log           Log
	Metrics       Metrics
	IPsec         IPsec
	Limits        Limits
	Trust         Trust
	Services      map[string]Service // by name; only those that are configured
	Idle          Idle
	Block         Block
	Slow          Slow
	Peers         []Peer      // sorted by name
	Exports       []Export    // sorted by name
	Pools         []Pool      // sorted by name
	Targets       []Target    // sorted by name
	Subsystems    []Subsystem // sorted by name
	ULPs          []ULP       // in the order of the file
	Partitions    []Partition // sorted by name
	Labels        Labels
	Fabric        Fabric

	positions map[string]Pos // of some keys, by name
}

// Log is how the daemon logs.
type Log struct {
	Level  string // debug, info, warn, error
	Format string // text, json
}

// Metrics is where Prometheus may scrape. Without an address there is no
// listener.
type Metrics struct {
	Listen netip.AddrPort
}

// IPsec is how to reach the IKE daemon, which data plane to use, and the profiles
// besides the built-in ones.
type IPsec struct {
	VICI      string // VICI socket as a URL: unix:///var/run/charon.vici
	DataPlane string // auto, kernel, userland
	Profiles  []Profile
}

// Writers is how many may have an export attached for writing.
type Writers string

// OneWriter is the default: further ones are refused. SharedWriters know of each
// other, as a cluster's file system does.
const (
	OneWriter     Writers = ""
	SharedWriters Writers = "shared"
	// MigrationWriters are two at most, while a virtual machine moves from one to the other.
	MigrationWriters Writers = "migration"
)

// CheckWriters fails if a word is none of these.
func CheckWriters(s string) error {
	switch Writers(s) {
	case "one", MigrationWriters, SharedWriters:
		return nil
	}
	return errors.New("has to be one, migration or shared")
}

// ParseWriters is for a word that CheckWriters accepts; none is the default.
func ParseWriters(s string) Writers {
	if s == "one" {
		return OneWriter
	}
	return Writers(s)
}

// Export is a file or block device that named peers may attach.
type Export struct {
	Name     string
	Path     string
	ReadOnly bool
	Writers  Writers
	Allow    []string // peer names, and IKE identities behind AllowIdentity; sorted
	Readers  []string // of Allow, who may only read; of a volume
	Trust    Trust
	LUN      bool // it is one of a target, or a namespace of a subsystem: to peers that attach it, it is read-only
	// Partition is that in which alone it is offered; "": the service's.
	Partition string
	Label     string // the security label of who serves it; "": the service's
	QoS       gate.Limits
	Volume    bool // it is a volume of a pool, which no file declares
	// InDirectory: its path is a file of the pool's directory, and no link.
	InDirectory bool
	Origin      Pos
}

// Equal reports whether two declarations are the same, wherever they are written.
func (e Export) Equal(f Export) bool {
	return e.Name == f.Name && e.Path == f.Path && e.ReadOnly == f.ReadOnly && e.Writers == f.Writers && e.Trust == f.Trust && e.LUN == f.LUN && e.Partition == f.Partition && e.Label == f.Label && e.QoS == f.QoS && e.Volume == f.Volume && slices.Equal(e.Allow, f.Allow) && slices.Equal(e.Readers, f.Readers)
}

// AllowIdentity begins an entry of Export.Allow that names an IKE identity in
// place of a peer. No peer's name has a colon.
const AllowIdentity = "id:"

// Allows reports whether the peer may attach the export: by its name, or by the
// identity that IKE has to authenticate for it.
func (e Export) Allows(p Peer) bool {
	return slices.Contains(e.Allow, p.Name) || p.Protection == ProtectIPsec && slices.Contains(e.Allow, AllowIdentity+p.Identity())
}

// Peer finds a peer by name.
func (c *Config) Peer(name string) (Peer, bool) {
	return findByName(c.Peers, name, func(p Peer) string { return p.Name })
}

// Export finds an export by name.
func (c *Config) Export(name string) (Export, bool) {
	return findByName(c.Exports, name, func(e Export) string { return e.Name })
}

// findByName finds a declaration in a list that is sorted by name.
func findByName[T any](list []T, name string, nameOf func(T) string) (found T, ok bool) {
	i, ok := slices.BinarySearchFunc(list, name, func(v T, name string) int { return cmp.Compare(nameOf(v), name) })
	if ok {
		found = list[i]
	}
	return found, ok
}

// PeerNames lists the peers by name.
func (c *Config) PeerNames() []string {
	names := make([]string, len(c.Peers))
	for i, p := range c.Peers {
		names[i] = p.Name
	}
	return names
}

// Dir is the directory of the main file.
func (c *Config) Dir() string { return filepath.Dir(c.Path) }

// NBDDir is the directory of the sockets of attached disks.
func (c *Config) NBDDir() string { return filepath.Join(c.RuntimeDir, "nbd") }

// Default is the configuration that an empty main file at path means.
func Default(path string) *Config {
	return &Config{
		Path:       path,
		ListenPort: DefaultPort, ListenUDPPort: DefaultUDPPort,
		StateDir:   "/var/lib/ironwarp",
		RuntimeDir: "/run/ironwarp",
		Log:        Log{Level: "info", Format: "text"},
		IPsec:      IPsec{VICI: "unix:///var/run/charon.vici", DataPlane: "auto"},
		Limits:     Limits{Device: deviceLimits(), Sessions: DefaultSessions, AllSessions: DefaultAllSessions, ISCSISessions: DefaultISCSISessions, QueueSize: DefaultQueueSize},
		Trust:      Trust(verbs.NSNT.String()),
		Labels:     Labels{Engine: EngineAuto},
		Services: map[string]Service{
			ServiceExports: {}, ServiceAttachments: {}, ServiceTargets: {},
			ServicePing: {Limits: Quota{Streams: DefaultPingStreams, Bytes: DefaultPingMemory}},
		},
		Idle:  Idle{After: DefaultIdle, Bytes: DefaultIdleBytes, Mark: DefaultIdleMark},
		Block: Block{PerSecond: DefaultBlockRate, Burst: DefaultBlockBurst, For: DefaultBlock},
		Slow:  Slow{PerSecond: DefaultSlowRate, Burst: DefaultSlowBurst},
	}
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
