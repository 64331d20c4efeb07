// Package targets serves the iSCSI targets of the configuration: it listens at their portals, behind
// the same protection as the streams of peers, and makes LUNs of the storage of exports. A target is
// there for initiators while the storage of all its LUNs is open; meanwhile they are told to come
// back, which they do by themselves.
package targets

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"

	"github.com/ironwarp/ironwarp/chap"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/listen"
	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/iscsi/target"
	"github.com/ironwarp/ironwarp/scsi/lu"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// Config is what targets need from the rest of the host.
type Config struct {
	Log      *slog.Logger
	StateDir string
	Sessions int // that there may be
	Portals  listen.PortalsConfig
	// ULP has what sessions over RDMA take of the RNIC.
	ULP *verbs.ULP
	// Label is the security label of a target's portals, and Denies reports whether it keeps them from the target's
	// partition.
	Label  func(config.Target) string
	Denies func(config.Target) bool
}

// Targets are those of a host. What changes them, Apply, CloseBut, Listen and Close, is for one goroutine at
// a time.
type Targets struct {
	cfg    Config
	log    *slog.Logger
	server *target.Server
	*listen.Portals

	mu      sync.Mutex // guards the fields below it; taken before the server's
	all     map[string]*served
	ending  map[string][]<-chan struct{} // sessions and LUNs that may still use the storage of an export
	storage map[string]lu.Medium         // by export: the storage that is open
	disks   disks
}

// served is a target of the configuration.
type served struct {
	cfg     config.Target
	chap    []chap.Credentials
	secrets *api.Error // why those of the configuration are not used
	units   map[uint16]*unit
	device  *lu.Device // nil while the storage of a LUN is not open
}

// unit is a LUN.
type unit struct {
	cfg     config.LUN
	medium  lu.Medium // nil while the storage is not open
	lu      *lu.Unit  // nil if it is not, or cannot be used
	problem *api.Error
}

// New returns no targets.
func New(cfg Config) *Targets {
	t := &Targets{cfg: cfg, log: cfg.Log, all: map[string]*served{}, ending: map[string][]<-chan struct{}{}, storage: map[string]lu.Medium{}}
	t.Portals = t.newPortals()
	t.server = target.NewServer(target.Config{Logger: t.log, MaxSessions: cfg.Sessions})
	t.disks.load(filepath.Join(cfg.StateDir, stateDir), t.log)
	return t
}

// peerOf is the peer that a connection is from, if it is from one.
func (t *Targets) peerOf(o target.Origin) (config.Peer, bool) {
	return t.cfg.Portals.PeerOf(transport.Identity(o.Peer), o.Remote.Addr())
}

// admits reports whether an initiator on a host may log in to a target.
func (t *Targets) admits(c *config.Target, o target.Origin, initiator string) bool {
	if at := offered(c); !at.TakesAt(o.Local) {
		return false
	}
	if len(c.Initiators) > 0 && !slices.Contains(c.Initiators, initiator) {
		return false
	}
	if p, known := t.peerOf(o); known {
		return c.Allows(p) && t.cfg.Portals.Stays(transport.Flow{Local: o.Local, Remote: o.Remote}, transport.Identity(o.Peer)) == nil
	}
	return c.Undeclared
}

// Apply makes the targets those of the configuration, and returns what it did. Sessions that may go on
// do, also where LUNs are added, removed or changed: their initiators are told by unit attentions.
// Exports are to be changed after it.
func (t *Targets) Apply(next *config.Config) (changed []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(t.all)) {
		s := t.all[name]
		if n, ok := next.Target(name); !ok || n.IQN != s.cfg.IQN {
			t.server.Remove(s.cfg.IQN)
			for _, u := range s.units {
				t.forgetLocked(s, u)
			}
			t.endLocked(s, s.exports(), func(target.SessionInfo) bool { return true })
			delete(t.all, name)
			if !ok {
				changed = append(changed, fmt.Sprintf("target %s removed", name))
			}
		}
	}
	for _, c := range next.Targets {
		if s := t.all[c.Name]; s != nil {
			t.removeLocked(s, c)
		}
	}
	for _, c := range next.Targets {
		s := t.all[c.Name]
		switch {
		case s == nil:
			s = &served{units: map[uint16]*unit{}}
			t.all[c.Name] = s
			changed = append(changed, fmt.Sprintf("target %s added", c.Name))
		case !c.Equal(s.cfg):
			changed = append(changed, fmt.Sprintf("target %s changed", c.Name))
		}
		s.cfg = c
		s.loadSecrets(t.log)
		t.placeLocked(s)
		if s.device == nil {
			t.offerLocked(s)
		} else {
			t.setLocked(s)
		}
		t.endLocked(s, s.exports(), func(i target.SessionInfo) bool {
			return s.cfg.Redirect != "" || i.Transport == target.ISER && s.cfg.NoISER || !t.admits(&s.cfg, i.Origin, i.Initiator) || len(s.cfg.CHAP) > 0 && !slices.ContainsFunc(s.chap, func(c chap.Credentials) bool { return c.Name == i.CHAPName })
		})
	}
	return changed
}

// removeLocked takes those LUNs from a target that a declaration has not, or has with another disk.
func (t *Targets) removeLocked(s *served, c config.Target) {
	for n, u := range s.units {
		if slices.ContainsFunc(c.LUNs, func(l config.LUN) bool { return l.Number == n && l.Export == u.cfg.Export && l.Path == u.cfg.Path }) {
			continue
		}
		if s.device != nil {
			t.ending[u.cfg.Export] = append(stillOpen(t.ending[u.cfg.Export]), s.device.Withdraw(n))
		}
		t.forgetLocked(s, u)
		delete(s.units, n)
	}
}

// placeLocked gives a target the LUNs of its declaration that it has not, or has as others.
func (t *Targets) placeLocked(s *served) {
	for _, l := range s.cfg.LUNs {
		u := s.units[l.Number]
		switch {
		case u == nil:
			s.units[l.Number] = &unit{cfg: l}
		case u.cfg == l:
			continue
		default:
			if s.device != nil && u.lu != nil {
				t.ending[l.Export] = append(stillOpen(t.ending[l.Export]), s.device.Suspend(l.Number))
			}
			u.cfg = l
		}
		t.equipLocked(s, s.units[l.Number])
	}
}

// equipLocked gives a LUN the storage of its export, if that is open, once nobody uses it any more who had
// it as another LUN, or as one that was otherwise.
func (t *Targets) equipLocked(s *served, u *unit) {
	name, l := s.cfg.Name, u.cfg
	medium := t.storage[l.Export]
	if medium == nil {
		return
	}
	waits := stillOpen(t.ending[l.Export])
	if len(waits) == 0 {
		t.setMediumLocked(s, u, medium)
		t.addLocked(s, u)
		return
	}
	u.medium = medium
	go func() {
		for _, over := range waits {
			<-over
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.all[name] == s && s.units[l.Number] == u && u.cfg == l && t.storage[l.Export] == medium {
			t.setMediumLocked(s, u, medium)
			t.addLocked(s, u)
			if s.device == nil {
				t.offerLocked(s)
			}
		}
	}()
}

// addLocked gives sessions that there are a LUN whose storage is open.
func (t *Targets) addLocked(s *served, u *unit) {
	if s.device == nil || u.lu == nil {
		return
	}
	if err := s.device.Add(u.cfg.Number, u.lu); err != nil {
		t.log.Error("a LUN cannot be offered", "target", s.cfg.Name, "lun", u.cfg.Number, "error", err)
	}
}

// forgetLocked forgets the disk and the reservations of a LUN that has been removed.
func (t *Targets) forgetLocked(s *served, u *unit) {
	t.disks.forget(s.cfg.IQN, u.cfg.Number)
}

// exports are those that the LUNs are of.
func (s *served) exports() (names []string) {
	for _, u := range s.units {
		names = append(names, u.cfg.Export)
	}
	return names
}

// loadSecrets reads the files of secrets. Those that were read before stay in use while one cannot be
// read, but for users that there are no more.
func (s *served) loadSecrets(log *slog.Logger) {
	was := s.secrets
	list, err := Secrets(s.cfg)
	if s.secrets = err; err == nil {
		s.chap = list
		return
	}
	s.chap = slices.DeleteFunc(slices.Clone(s.chap), func(x chap.Credentials) bool {
		return !slices.ContainsFunc(s.cfg.CHAP, func(u config.CHAPUser) bool { return u.User == x.Name })
	})
	if was == nil || was.Message != err.Message {
		log.Warn("a target's secrets cannot be used", "target", s.cfg.Name, "error", err)
	}
}

// Secrets are what a target knows of its initiators. It fails with an *api.Error where a file of a
// secret cannot be used.
func Secrets(c config.Target) ([]chap.Credentials, *api.Error) {
	list := []chap.Credentials{}
	for _, u := range c.CHAP {
		x := chap.Credentials{Name: u.User, OwnName: u.TargetUser}
		for _, f := range []struct {
			file string
			to   *[]byte
		}{{u.SecretFile, &x.Secret}, {u.TargetSecretFile, &x.OwnSecret}} {
			if f.file == "" {
				continue
			}
			secret, err := auth.LoadSecret(f.file)
			if err != nil {
				return nil, &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("target %s: the CHAP secret of %s cannot be used: %v", c.Name, u.User, err),
					Fix: "`ironwarp target chap generate FILE` makes one, of mode 0600"}
			}
			*f.to = secret.Reveal()
		}
		list = append(list, x)
	}
	if err := chap.CheckAll(list); err != nil {
		return nil, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("target %s: its CHAP secrets cannot be used: %v", c.Name, err), Fix: "`ironwarp target chap generate FILE` makes one"}
	}
	return list, nil
}

// hasSecrets reports whether the target knows its initiators' secrets.
func (s *served) hasSecrets() bool { return s.secrets == nil || len(s.chap) > 0 }

// offerLocked makes the device of a target anew if the storage of all its LUNs is open.
func (t *Targets) offerLocked(s *served) {
	was := s.device
	s.device = nil
	d := &lu.Device{}
	whole := s.hasSecrets()
	for n, u := range s.units {
		if u.lu == nil || d.Add(n, u.lu) != nil {
			whole = false
		}
	}
	if whole {
		s.device = d
	}
	t.setLocked(s)
	if whole && was == nil {
		t.log.Info("target is offered", "target", s.cfg.Name, "iqn", s.cfg.IQN, "luns", len(s.units), "peers", s.cfg.Peers)
		if s.cfg.Undeclared {
			t.log.Warn("INSECURE: hosts that are no peers may log in, in clear", "target", s.cfg.Name)
		}
	}
}

func (t *Targets) setLocked(s *served) {
	c := s.cfg
	x := &target.Target{Name: c.IQN, Alias: c.Alias, Device: s.device, NoRDMA: c.NoISER, Redirect: c.Redirect, Moved: c.Moved, ErrorRecoveryLevel: c.Recovery, Admits: func(o target.Origin, initiator string) bool { return t.admits(&c, o, initiator) }}
	if len(c.CHAP) > 0 {
		x.CHAP = append([]chap.Credentials{}, s.chap...) // not nil: nobody comes in without
	}
	if err := t.server.Set(x); err != nil { // which the configuration's check prevents
		t.log.Error("a target cannot be offered", "target", c.Name, "error", err)
		t.server.Remove(c.IQN)
	}
}

// endLocked ends sessions of a target. What they have at the storage of exports may take its time.
func (t *Targets) endLocked(s *served, exports []string, which func(target.SessionInfo) bool) (over []<-chan struct{}) {
	ended, over := t.server.Drop(func(i target.SessionInfo) bool { return i.Target == s.cfg.IQN && !i.Discovery && which(i) })
	for _, i := range ended {
		t.log.Info("a session of a target is ended", "target", s.cfg.Name, "initiator", i.Initiator, "session", sessionID(i.TSIH))
	}
	if len(over) > 0 {
		for _, e := range exports {
			t.ending[e] = append(stillOpen(t.ending[e]), over...)
		}
	}
	return over
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

// Resized tells the initiators of an export that it has another size.
func (t *Targets) Resized(export string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.all {
		for _, u := range s.units {
			if u.cfg.Export == export && u.lu != nil {
				u.lu.Resized()
			}
		}
	}
}

// SetStorage gives the LUNs of an export their storage. Whoever has opened it calls RemoveStorage before closing it.
func (t *Targets) SetStorage(export string, medium lu.Medium) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.storage[export] = medium
	for _, s := range t.all {
		found := false
		for _, u := range s.units {
			if u.cfg.Export == export {
				found = true
				t.setMediumLocked(s, u, medium)
				t.addLocked(s, u)
			}
		}
		if found && s.device == nil {
			t.offerLocked(s)
		}
	}
}

func (t *Targets) setMediumLocked(s *served, u *unit, medium lu.Medium) {
	u.medium, u.lu, u.problem = medium, nil, nil
	fail := func(fix, format string, a ...any) {
		u.problem = &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("LUN %d of target %s ", u.cfg.Number, s.cfg.Name) + fmt.Sprintf(format, a...), Fix: fix}
		t.log.Warn("a LUN cannot be offered", "target", s.cfg.Name, "lun", u.cfg.Number, "error", u.problem)
	}
	disk := medium.Identity().Disk
	if was, ok := t.disks.record(s.cfg.IQN, u.cfg.Number, disk); !ok {
		fail(fmt.Sprintf("put the disk back; if the other one is meant: `ironwarp target lun rm %s %d`, then `ironwarp target lun add`, and have the initiators log in anew", s.cfg.Name, u.cfg.Number),
			"was the disk %s, and another one, %s, stands there now: initiators would take it for the first", was, disk)
		return
	}
	c := lu.Config{Medium: medium, BlockSize: u.cfg.BlockSize, ReadOnly: u.cfg.ReadOnly, Removable: u.cfg.Removable, Reservations: t.disks.reservations(s.cfg.IQN, u.cfg.Number)}
	if u.cfg.Thick {
		c.Medium = thick{medium}
	}
	if u.cfg.Sanitize {
		c.Sanitize = t.disks.sanitize(s.cfg.IQN, u.cfg.Number)
	}
	var err error
	if u.lu, err = lu.New(c); err != nil {
		fail("see to what the error says; a file of reservations that is damaged may be removed", "cannot be used: %v", err)
	}
}

// RemoveStorage takes the storage of an export away from its LUNs, and ends the sessions that use it. end
// returns when nothing of these is under way any more, which may take as long as the storage does.
func (t *Targets) RemoveStorage(export string) (end func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.storage, export)
	var units []*lu.Unit
	for _, s := range t.all {
		found := false
		for _, u := range s.units {
			if u.cfg.Export == export && u.medium != nil {
				if found = true; u.lu != nil {
					units = append(units, u.lu)
				}
				u.medium, u.lu, u.problem = nil, nil, nil
			}
		}
		if found {
			t.offerLocked(s)
			t.endLocked(s, s.exports(), func(target.SessionInfo) bool { return true })
		}
	}
	waits := t.ending[export]
	delete(t.ending, export)
	return func() {
		for _, over := range waits {
			<-over
		}
		for _, u := range units {
			u.Close() // what SANITIZE does goes on without a session
		}
	}
}

// EndPeer ends the sessions of a peer.
func (t *Targets) EndPeer(id transport.Identity) {
	t.server.Drop(func(i target.SessionInfo) bool { return i.Origin.Peer == string(id) })
}

// End ends a session by its number, and returns what it was. It fails with an *api.Error if there is
// none.
func (t *Targets) End(id string) (api.TargetSession, error) {
	all := t.Sessions()
	i := slices.IndexFunc(all, func(s api.TargetSession) bool { return s.ID == id })
	if i < 0 {
		return api.TargetSession{}, &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("there is no iSCSI session %q", id), Fix: "`ironwarp target session ls` lists them"}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.all[all[i].Target]; s == nil || len(t.endLocked(s, s.exports(), func(i target.SessionInfo) bool { return sessionID(i.TSIH) == id })) == 0 {
		t.server.End(func(i target.SessionInfo) bool { return sessionID(i.TSIH) == id })
	}
	t.log.Warn("an iSCSI session was ended by request", "session", id, "target", all[i].Target, "initiator", all[i].Initiator)
	return all[i], nil
}

// sessionID is the number of a session, as people see it.
func sessionID(tsih uint16) string { return fmt.Sprintf("%04x", tsih) }

// byName sorts targets.
func byName(a, b *served) int { return cmp.Compare(a.cfg.Name, b.cfg.Name) }
