package directory

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/ironwarp/ironwarp/fabric/agent"
	"github.com/ironwarp/ironwarp/fabric/conf"
	"github.com/ironwarp/ironwarp/fabric/gsi"
	"github.com/ironwarp/ironwarp/fabric/mad"
	election "github.com/ironwarp/ironwarp/fabric/manager"
	"github.com/ironwarp/ironwarp/fabric/sa"
	"github.com/ironwarp/ironwarp/verbs"
)

// Config is what a directory needs from the rest of the host. The functions may be called at any time from Apply on.
type Config struct {
	Log *slog.Logger
	// Run starts a goroutine that the host's end waits for, and whose context ends then.
	Run func(func(context.Context))
	// Dial sets up a link with a peer.
	Dial func(ctx context.Context, peer string, h gsi.Handler) (*gsi.Link, error)
	// Services is what this host announces, VPorts are the alias GUIDs of its local consumers, and Hosts the GUIDs of its peers.
	Services func() []Service
	VPorts   func() []mad.GUID
	Hosts    func() []mad.GUID
	// NameOf is the name here of the peer with a GUID, "" if there is none.
	NameOf func(mad.GUID) string
	// Happened is called with each event, and Dropped with each request that was dropped and that an administrator should know of.
	// They must not block.
	Happened func(Event)
	Dropped  func(sa.Drop)
	// Drain has the host take no new streams, or take them again, and PKeys has it use these partitions alone, as managers want it.
	Drain func(bool)
	PKeys func([]uint16)
	// Syslog gets the lines that belong there.
	Syslog func(string)
	// Secret is what this host's ServiceKeys are derived from.
	Secret func() []byte
}

// Self is this host.
type Self struct {
	Identity string
	GUID     mad.GUID
}

// Manager is a host that keeps a directory.
type Manager struct {
	Identity string
	GUID     mad.GUID
	Peer     string // its name here; "": this host
}

// Plan is a host's part in a fabric, by its configuration.
type Plan struct {
	Self     Self
	Managers []Manager // none: no part
	Routers  []mad.GUID
	Agent    bool
	Settings *conf.Config
	StateDir string   // where what managers have set is kept
	Name     string   // of the host, for people
	PKeys    []uint16 // of its partitions, with the bit of full members
}

// keeps reports whether the host is a manager.
func (p *Plan) keeps() bool {
	return slices.ContainsFunc(p.Managers, func(m Manager) bool { return m.Peer == "" })
}

// Directory is a host's part in a fabric. Its methods are safe for concurrent use.
type Directory struct {
	cfg Config

	applying sync.Mutex // held by Apply; outermost

	mu     sync.Mutex // guards the fields below it
	plan   *Plan
	member *member // nil: no part
	keep   *keeper // nil: no manager
	manage *management
	stop   func()  // ends both, and waits
	events []Event // the last
}

// New returns a directory of which the host is no part, until Apply.
func New(cfg Config) *Directory { return &Directory{cfg: cfg, stop: func() {}} }

// Apply makes the host's part what a plan says. What is under way ends if the plan has other hosts, or another part for this one; other settings
// are applied to it, and no stream ends: who a host is, and may be, does not depend on them.
// It fails where what is kept in the plan's StateDir can't be used; the host has no part then.
func (d *Directory) Apply(plan Plan) error {
	d.applying.Lock()
	defer d.applying.Unlock()
	d.mu.Lock()
	stop, before := d.stop, d.plan
	part := d.member != nil && before.sameHosts(&plan)
	d.mu.Unlock()
	if part && d.renew(before, &plan) == nil {
		return nil
	}
	stop()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.plan, d.member, d.keep, d.manage, d.stop = &plan, nil, nil, nil, func() {}
	if len(plan.Managers) == 0 {
		return nil
	}
	var keep *keeper
	var err error
	if plan.keeps() {
		if keep, err = newKeeper(d, &plan); err != nil {
			return err
		}
	}
	if d.manage, err = newManagement(d, &plan, keep); err != nil {
		return err
	}
	d.keep = keep
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	run := func(f func(context.Context)) {
		wg.Add(1)
		d.cfg.Run(func(host context.Context) {
			defer wg.Done()
			defer context.AfterFunc(host, cancel)()
			f(ctx)
		})
	}
	if keep != nil {
		run(keep.run)
	}
	d.member = newMember(d, plan.Self, plan.Managers, keep)
	run(d.member.run)
	run(d.manage.run)
	d.stop = func() {
		cancel()
		wg.Wait()
	}
	return nil
}

// Suspend takes the host's part away, as it can't have the one that its configuration says, and keeps what managers have set of it as of
// the plan: by a fault the host is not to be back in partitions that they took it out of. It fails where that can't be read.
func (d *Directory) Suspend(plan Plan) error {
	plan.Managers, plan.Settings = nil, conf.Default()
	if err := d.Apply(plan); err != nil {
		return err
	}
	manage, err := newManagement(d, &plan, nil) // nobody is there who could ask it
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.manage = manage
	return nil
}

// renew applies a plan that has other settings alone. It fails as management.renew does.
func (d *Directory) renew(before, plan *Plan) error {
	d.mu.Lock()
	d.plan = plan
	manage, member, keep := d.manage, d.member, d.keep
	d.mu.Unlock()
	if err := manage.renew(before.Settings, plan.Settings); err != nil {
		return err
	}
	manage.poke()
	if keep != nil {
		keep.renew(plan.Settings)
	}
	member.poke()
	return nil
}

// Close ends the host's part.
func (d *Directory) Close() { _ = d.Apply(Plan{}) } // without managers it does not fail

// manages is what managers talk to on this host.
func (d *Directory) manages() *management {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.manage == nil {
		return &management{d: d} // without an agent
	}
	return d.manage
}

// Drained reports whether a manager has this host take no new streams.
func (d *Directory) Drained() bool { return d.manages().drained() }

// Keyed reports whether this host's agent has an M_Key, of its settings or of a manager.
func (d *Directory) Keyed() bool { return d.manages().keyed() }

// Partitions are the P_Keys that managers have left to this host; all: those of its configuration.
func (d *Directory) Partitions() (keys []uint16, all bool) { return d.manages().partitions() }

// log logs what an engine says; alarm: somebody tries what he may not.
func (d *Directory) log(alarm bool, text string, attrs ...any) {
	if alarm {
		d.cfg.Log.Warn("fabric: "+text, attrs...)
	} else {
		d.cfg.Log.Info("fabric: "+text, attrs...)
	}
}

// logOf logs what a host causes, under a message that is the same however it varies what it sends: repetitions
// are counted by message and peer.
func (d *Directory) logOf(peer string, alarm bool, kind, text string) {
	d.log(alarm, kind, "peer", peer, "what", text)
}

// agentEvent logs what the agent says.
func (d *Directory) agentEvent(e agent.Event) {
	if e.From.Name == "" {
		d.log(e.Alarm(), e.String())
		return
	}
	d.logOf(e.From.Name, e.Alarm(), e.Kind.String(), e.String())
}

// electionEvent logs what the election says. Rivals are counted there.
func (d *Directory) electionEvent(e election.Event) {
	if e.Peer == "" || e.Kind == election.Rival {
		d.log(e.Alarm, e.Text)
	} else {
		d.logOf(e.Peer, e.Alarm, e.Kind.String(), e.Text)
	}
	if e.Syslog != "" {
		d.cfg.Syslog(e.Syslog)
	}
}

// name is what people call a host.
func (d *Directory) name(g mad.GUID) string {
	if name := d.cfg.NameOf(g); name != "" {
		return name
	}
	return g.String()
}

// Changed has the directory look at this host's services and vports again.
func (d *Directory) Changed() {
	if m, _ := d.roles(); m != nil {
		m.poke()
	}
}

// PathChanged tells the directory that this host has lost its way to a host, or has it back.
func (d *Directory) PathChanged(to mad.GUID, back bool) {
	if m, _ := d.roles(); m != nil {
		m.pathChanged(to, back)
	}
}

func (d *Directory) roles() (*member, *keeper) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.member, d.keep
}

// asMember is this host as a member, and the way to the master. It fails with ErrNoFabric and ErrNoMaster.
func (d *Directory) asMember() (*member, *port, error) {
	m, _ := d.roles()
	if m == nil {
		return nil, nil, ErrNoFabric
	}
	at, err := m.master()
	return m, at, err
}

// Handle takes the stream that a peer has asked for by gsi.IsRequest. It does not block. It fails, and leaves the stream to the caller, on
// a host that keeps no directory.
func (d *Directory) Handle(cr *verbs.ConnRequest, ulp *verbs.ULP, peer Manager) error {
	_, k := d.roles()
	if k == nil || ulp == nil {
		return fmt.Errorf("%s wants to be in a directory, and this host keeps none: `fabric: {managers: ...}` of both hosts have to agree", peer.Identity)
	}
	k.handle(cr, ulp, peer)
	return nil
}

// event notes an event, and passes it on.
func (d *Directory) event(e Event) {
	d.mu.Lock()
	if d.events = append(d.events, e); len(d.events) > maxEvents {
		d.events = slices.Delete(d.events, 0, 1)
	}
	d.mu.Unlock()
	d.cfg.Happened(e)
}

// Events are the last, oldest first.
func (d *Directory) Events() []Event {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.events)
}

// saKey is this host's SA_Key, 0 if it has none: its requests are those of the untrusted then.
func (d *Directory) saKey() mad.Key {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.plan.Settings.Keys.SA()
}

// serviceKey is the secret by which this host alone changes and deletes a service of its.
func (d *Directory) serviceKey(name string) (key mad.ServiceKey) {
	h := hmac.New(sha256.New, d.cfg.Secret())
	h.Write([]byte(name))
	copy(key[:], h.Sum(nil))
	return key
}

// ManagerState is a manager as this host sees it.
type ManagerState struct {
	Manager
	Connected bool
	Info      mad.SMInfo
	Known     bool  // Info is
	Problem   error // why there is no stream with it
	Master    bool  // its directory is the one that is asked
}

// Managers are those of the fabric.
func (d *Directory) Managers() (all []ManagerState) {
	m, _ := d.roles()
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	best := m.masterLocked()
	for _, one := range m.managers {
		all = append(all, ManagerState{Manager: one.Manager, Connected: one.port != nil, Info: one.info, Known: one.known, Problem: one.problem, Master: one == best})
	}
	return all
}
