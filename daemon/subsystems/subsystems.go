// Package subsystems serves the NVM subsystems of the configuration to hosts over RDMA: it listens at their portals,
// behind the same protection as the streams of peers, and makes namespaces of the storage of exports. A namespace comes
// and goes with its storage, of which hosts are told; controllers stay.
package subsystems

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/listen"
	"github.com/ironwarp/ironwarp/nvme/target"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// stateDir is the directory, in that of the daemon's state, for the reservations of namespaces.
const stateDir = "nvme"

// Config is what subsystems need from the rest of the host.
type Config struct {
	Log      *slog.Logger
	StateDir string
	Sessions int // controllers that there may be
	Portals  listen.PortalsConfig
	// ULP has what connections take of the RNIC.
	ULP *verbs.ULP
}

// Subsystems are those of a host. What changes them, Apply, CloseBut, Listen and Close, is for one goroutine at a time.
type Subsystems struct {
	cfg    Config
	log    *slog.Logger
	server *target.Server
	*listen.Portals

	mu      sync.Mutex // guards the fields below it; taken before the server's
	all     map[string]*served
	storage map[string]block.Storage     // by export: the storage that is open
	ending  map[string][]<-chan struct{} // namespaces that may still use the storage of an export
}

// served is a subsystem of the configuration.
type served struct {
	cfg    config.Subsystem
	spaces map[uint32]*space
}

// space is a namespace.
type space struct {
	cfg     config.Namespace
	ns      *target.Namespace // nil while the storage is not open, or cannot be used
	problem *api.Error
	file    string // of its reservations
}

// New returns no subsystems.
func New(cfg Config) *Subsystems {
	s := &Subsystems{cfg: cfg, log: cfg.Log, all: map[string]*served{}, storage: map[string]block.Storage{}, ending: map[string][]<-chan struct{}{}}
	s.Portals = s.newPortals()
	s.server = target.NewServer(target.Config{Logger: s.log, MaxControllers: cfg.Sessions})
	return s
}

// peerOf is the peer that a connection is from, if it is from one.
func (s *Subsystems) peerOf(o target.Origin) (config.Peer, bool) {
	return s.cfg.Portals.PeerOf(transport.Identity(o.Peer), o.Remote.Addr())
}

// admits reports whether a host may see a subsystem and connect.
func (s *Subsystems) admits(c *config.Subsystem, o target.Origin, host string) bool {
	if at := offered(c); !at.TakesAt(o.Local) {
		return false
	}
	if len(c.Hosts) > 0 && !slices.Contains(c.Hosts, host) {
		return false
	}
	if p, known := s.peerOf(o); known {
		return c.Allows(p)
	}
	return c.Undeclared
}

// Apply makes the subsystems those of the configuration, and returns what it did. Controllers that may go on do, also
// where namespaces are added or removed, of which their hosts are told. Exports are to be changed after it.
func (s *Subsystems) Apply(next *config.Config) (changed []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(s.all)) {
		x := s.all[name]
		n, ok := next.Subsystem(name)
		if ok && n.NQN == x.cfg.NQN {
			s.removeLocked(x, n)
			continue
		}
		for nsid := range x.spaces {
			s.takeLocked(x, nsid, true)
		}
		s.server.Remove(x.cfg.NQN)
		delete(s.all, name)
		if !ok {
			changed = append(changed, fmt.Sprintf("subsystem %s removed", name))
		}
	}
	for _, c := range next.Subsystems {
		x := s.all[c.Name]
		switch {
		case x == nil:
			x = &served{spaces: map[uint32]*space{}}
			s.all[c.Name] = x
			changed = append(changed, fmt.Sprintf("subsystem %s added", c.Name))
		case !c.Equal(x.cfg):
			changed = append(changed, fmt.Sprintf("subsystem %s changed", c.Name))
		}
		x.cfg = c
		s.offerLocked(x)
	}
	return changed
}

// offerLocked has the server offer a subsystem as it is declared.
func (s *Subsystems) offerLocked(x *served) {
	c := x.cfg
	serial := sha256.Sum256([]byte(c.NQN))
	err := s.server.Set(target.Subsystem{NQN: c.NQN, Model: "IronWarp", Serial: hex.EncodeToString(serial[:10]), Admits: func(o target.Origin, host string) bool { return s.admits(&c, o, host) }})
	if err != nil { // which the configuration's check prevents, but for the number
		s.log.Error("a subsystem cannot be offered", "subsystem", c.Name, "error", err)
		return
	}
	if c.Undeclared {
		s.log.Warn("INSECURE: hosts that are no peers may connect, in clear", "subsystem", c.Name)
	}
	for _, n := range c.Namespaces {
		if x.spaces[n.NSID] == nil {
			x.spaces[n.NSID] = &space{cfg: n}
			s.equipLocked(x, x.spaces[n.NSID])
		}
	}
	s.server.Drop(func(i target.ControllerInfo) bool { return i.Subsystem == c.NQN && !s.admits(&c, i.Origin, i.HostNQN) })
}

// removeLocked takes those namespaces from a subsystem that a declaration has not, or has otherwise.
func (s *Subsystems) removeLocked(x *served, next config.Subsystem) {
	for nsid, sp := range x.spaces {
		i := slices.IndexFunc(next.Namespaces, func(n config.Namespace) bool { return n.NSID == nsid })
		if i >= 0 && next.Namespaces[i] == sp.cfg {
			continue
		}
		other := i < 0 || next.Namespaces[i].Export != sp.cfg.Export || next.Namespaces[i].Path != sp.cfg.Path
		s.takeLocked(x, nsid, other)
	}
}

// takeLocked takes a namespace from its subsystem. forget has its reservations forgotten.
func (s *Subsystems) takeLocked(x *served, nsid uint32, forget bool) {
	sp := x.spaces[nsid]
	delete(x.spaces, nsid)
	over := s.server.Detach(x.cfg.NQN, nsid)
	s.ending[sp.cfg.Export] = append(stillOpen(s.ending[sp.cfg.Export]), over)
	if forget && sp.file != "" {
		if err := os.Remove(sp.file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.log.Warn("cannot remove the reservations of a namespace", "subsystem", x.cfg.Name, "nsid", nsid, "error", err)
		}
	}
}

// equipLocked gives a namespace the storage of its export, if that is open, once nobody uses it any more who had it as
// another namespace.
func (s *Subsystems) equipLocked(x *served, sp *space) {
	medium := s.storage[sp.cfg.Export]
	if medium == nil {
		return
	}
	waits := stillOpen(s.ending[sp.cfg.Export])
	if len(waits) == 0 {
		s.attachLocked(x, sp, medium)
		return
	}
	name, nsid := x.cfg.Name, sp.cfg.NSID
	go func() {
		for _, over := range waits {
			<-over
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.all[name] == x && x.spaces[nsid] == sp && sp.ns == nil && s.storage[sp.cfg.Export] == medium {
			s.attachLocked(x, sp, medium)
		}
	}()
}

// attachLocked makes a namespace of a storage.
func (s *Subsystems) attachLocked(x *served, sp *space, medium block.Storage) {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s,%d,%s", x.cfg.NQN, sp.cfg.NSID, medium.Identity().Disk))
	dir := filepath.Join(s.cfg.StateDir, stateDir)
	sp.file = filepath.Join(dir, hex.EncodeToString(sum[:8])+".reservations")
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		sp.ns, err = target.NewNamespace(target.NamespaceConfig{Medium: medium, BlockSize: sp.cfg.BlockSize, ReadOnly: sp.cfg.ReadOnly, Thick: sp.cfg.Thick, Reservations: sp.file})
	}
	if err == nil {
		err = s.server.Attach(x.cfg.NQN, sp.cfg.NSID, sp.ns)
	}
	if err != nil {
		sp.ns = nil
		sp.problem = &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("namespace %d of subsystem %s cannot be used: %v", sp.cfg.NSID, x.cfg.Name, err),
			Fix: "see to what the error says; a file of reservations that is damaged may be removed"}
		s.log.Warn("a namespace cannot be offered", "subsystem", x.cfg.Name, "nsid", sp.cfg.NSID, "error", err)
		return
	}
	sp.problem = nil
	s.log.Info("namespace is offered", "subsystem", x.cfg.Name, "nsid", sp.cfg.NSID, "peers", x.cfg.Peers)
}

// each calls f for the namespaces of an export.
func (s *Subsystems) eachLocked(export string, f func(x *served, sp *space)) {
	for _, x := range s.all {
		for _, sp := range x.spaces {
			if sp.cfg.Export == export {
				f(x, sp)
			}
		}
	}
}

// Resized tells the hosts of an export that it has another size.
func (s *Subsystems) Resized(export string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.eachLocked(export, func(x *served, sp *space) { s.server.Resized(x.cfg.NQN, sp.cfg.NSID) })
}

// SetStorage gives the namespaces of an export their storage. Whoever has opened it calls RemoveStorage before closing it.
func (s *Subsystems) SetStorage(export string, medium block.Storage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.storage[export] = medium
	s.eachLocked(export, s.equipLocked)
}

// RemoveStorage takes the storage of an export away from its namespaces. end returns when nothing of these is under way
// any more, which may take as long as the storage does.
func (s *Subsystems) RemoveStorage(export string) (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.storage, export)
	waits := s.ending[export]
	delete(s.ending, export)
	s.eachLocked(export, func(x *served, sp *space) {
		if sp.ns != nil {
			waits = append(waits, s.server.Detach(x.cfg.NQN, sp.cfg.NSID))
		}
		sp.ns, sp.problem = nil, nil
	})
	return func() {
		for _, over := range waits {
			<-over
		}
	}
}

// stillOpen are those of channels that are not closed. The list stays as it is.
func stillOpen(list []<-chan struct{}) (open []<-chan struct{}) {
	for _, c := range list {
		select {
		case <-c:
		default:
			open = append(open, c)
		}
	}
	return open
}

// EndPeer ends the controllers of a peer.
func (s *Subsystems) EndPeer(id transport.Identity) {
	s.server.Drop(func(i target.ControllerInfo) bool { return i.Origin.Peer == string(id) })
}

// End ends a controller by its number, and returns what it was. Its host may connect again. It fails with an *api.Error
// if there is none.
func (s *Subsystems) End(id int) (api.NVMeController, error) {
	all := s.Controllers()
	i := slices.IndexFunc(all, func(c api.NVMeController) bool { return c.ID == id })
	if i < 0 {
		return api.NVMeController{}, &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("there is no NVMe controller %d", id), Fix: "`ironwarp nvme controller ls` lists them"}
	}
	s.server.Drop(func(i target.ControllerInfo) bool { return int(i.ID) == id })
	s.log.Warn("an NVMe controller was ended by request", "controller", id, "subsystem", all[i].Subsystem, "host", all[i].Host)
	return all[i], nil
}

// byName sorts subsystems.
func byName(a, b *served) int { return cmp.Compare(a.cfg.Name, b.cfg.Name) }
