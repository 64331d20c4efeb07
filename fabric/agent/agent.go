package agent

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/ironwarp/ironwarp/fabric/mad"
)

// ErrConfig means that an agent can't be made of its configuration.
var ErrConfig = errors.New("agent's configuration refused")

// Requester is who has sent a request: from the authenticated peer of the stream, never from the wire.
type Requester struct {
	Name    string // of the peer
	GUID    mad.GUID
	LID     mad.LID
	Manager bool // its identity is among the configured managers
}

// SMInfoServer is this host's manager, where it has one: it answers Get and Set of SMInfo.
type SMInfoServer interface {
	// ServeSMInfo returns the answer, nil for silence. known reports that the requester is a manager by its
	// identity and that its M_Key matches; others may ask, and are not told the SM_Key.
	ServeSMInfo(from Requester, request *mad.SMP, known bool) *mad.SMP
}

// Config is what an agent is made of.
type Config struct {
	GUID      mad.GUID
	LID       mad.LID
	GIDPrefix uint64
	Name      string       // NodeDescription
	GUIDs     []mad.GUID   // the aliases of this host's vports
	PKeys     []uint16     // the partitions that the configuration has, with the membership bit (0x8000: full)
	Keys      KeyFields    // as the configuration has them
	Saved     *Saved       // what managers have set since, nil if nothing
	ReadOnly  bool         // take no Set, as a host does that is a manager but lets no manager set it
	SM        SMInfoServer // nil: no manager on this host

	// Event is called with what is to be logged, during the calls of the agent's methods. nil: nobody.
	Event func(Event)
}

// Agent is a host's agent. It is not safe for concurrent use.
type Agent struct {
	c          Config     // without Keys
	configured hiddenKeys // those
	guard      keyGuard
	drained    bool
	pkeys      []uint16 // the table, in whole blocks
	master     mad.LID
	trap       *trap // nil: none is under way
	nextTID    uint64
}

// Format does not write the keys, whatever the verb.
func (a *Agent) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "agent of "+a.c.GUID.String()) }

// New returns an agent. It fails with [ErrConfig] for a name that is no NodeDescription, too long tables and
// fields out of their range.
func New(c Config) (*Agent, error) {
	if _, err := mad.MakeName(c.Name); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	switch {
	case c.Keys.Protect > 3:
		return nil, fmt.Errorf("%w: protection %d, at most 3", ErrConfig, c.Keys.Protect)
	case len(c.PKeys) > maxPKeys:
		return nil, fmt.Errorf("%w: %d partitions, at most %d", ErrConfig, len(c.PKeys), maxPKeys)
	case len(c.GUIDs) >= maxGUIDs:
		return nil, fmt.Errorf("%w: %d vports, at most %d", ErrConfig, len(c.GUIDs), maxGUIDs-1)
	case slices.ContainsFunc(c.PKeys, func(k uint16) bool { return base(k) == 0 }):
		return nil, fmt.Errorf("%w: a P_Key without base key", ErrConfig)
	}
	if c.Event == nil {
		c.Event = func(Event) {}
	}
	a := &Agent{configured: hide(c.Keys), guard: keyGuard{keys: hide(c.Keys)}, pkeys: blocks(c.PKeys)}
	c.Keys = KeyFields{}
	a.c = c
	a.restore(c.Saved)
	return a, nil
}

// Result is the answer to a request and what the host has to do. The caller does it, saves what has changed,
// and sends the answer then.
type Result struct {
	Answer  *mad.SMP // nil: silence
	Changed bool     // [Agent.Saved] has changed
	Drain   *bool    // whether new streams may no longer begin; nil: as before
	PKeys   []uint16 // the partitions that this host is in from now on; nil: as before
}

// Handle takes a request of subnet management.
func (a *Agent) Handle(now time.Time, from Requester, request *mad.SMP) (r Result) {
	if request.Method.Response() || request.Returning() {
		return Result{}
	}
	if request.Attribute == mad.AttrSMInfo && request.Method == mad.MethodGet && !isManager(from) && a.c.SM != nil {
		// Everybody may ask who the master is. No key is compared, so that nobody but managers can try one.
		return Result{Answer: a.sminfo(from, request, false)}
	}
	if !isManager(from) {
		a.event(Event{Kind: NotManager, From: from, Method: request.Method, Attribute: request.Attribute})
		return Result{}
	}
	if request.ClassVersion != mad.SMPClassVersion {
		return refuse(request, mad.StatusBadVersion)
	}
	switch request.Method {
	case mad.MethodGet, mad.MethodSet, mad.MethodTrapRepress:
	default:
		return refuse(request, mad.StatusUnsupportedMethod)
	}
	r.Changed = a.expire(now)
	v := a.guard.judge(now, request.Method, request.MKey)
	if v == keyViolation {
		a.violated(now, from, request)
		return r
	}
	done := a.serve(from, request, v)
	done.Changed = done.Changed || r.Changed
	return done
}

// serve answers a valid request.
func (a *Agent) serve(from Requester, request *mad.SMP, v verdict) Result {
	if request.Attribute == mad.AttrSMInfo && request.Method != mad.MethodTrapRepress {
		return Result{Answer: a.sminfo(from, request, v == keyMatches)}
	}
	switch request.Method {
	case mad.MethodGet:
		return a.get(request, v)
	case mad.MethodSet:
		return a.set(from, request)
	default:
		a.repress(request)
		return Result{}
	}
}

func (a *Agent) sminfo(from Requester, request *mad.SMP, known bool) *mad.SMP {
	if a.c.SM == nil {
		return refuse(request, mad.StatusUnsupportedAttribute).Answer
	}
	return a.c.SM.ServeSMInfo(from, request, known)
}

// refuse is an answer without data. A trap and what represses one have none.
func refuse(request *mad.SMP, status mad.Status) Result {
	if request.Method == mad.MethodTrap || request.Method == mad.MethodTrapRepress {
		return Result{}
	}
	answer := request.Answer(status)
	return Result{Answer: &answer}
}

// answer is an answer with data.
func answer(request *mad.SMP, data []byte) Result {
	a := request.Answer(mad.StatusOK)
	copy(a.Data[:], data)
	return Result{Answer: &a}
}

// SetMaster names the LID of the master, which PortInfo shows as MasterSMLID; 0: none is known.
func (a *Agent) SetMaster(lid mad.LID) { a.master = lid }

// Keys returns the key fields as they are now.
func (a *Agent) Keys() KeyFields { return *a.guard.keys.fields() }

// Violations returns the count of violations of the M_Key; it saturates at 65535.
func (a *Agent) Violations() uint16 { return a.guard.violations }

// Drained reports whether a manager has drained the host.
func (a *Agent) Drained() bool { return a.drained }

// PKeys returns the partitions that the host is in.
func (a *Agent) PKeys() []uint16 { return used(a.pkeys) }

// Insecure returns what is insecure in the agent as it is now, one sentence each, for the log and for
// `ironwarp security audit`.
func (a *Agent) Insecure() []string {
	switch k := a.guard.keys.fields(); {
	case k.MKey == 0:
		return []string{"m_key: there is none, so every manager may set this host by its identity alone"}
	case a.guard.lease == leaseEnded:
		return []string{"m_key_protection 0: the lease of the M_Key has ended, and every manager is shown the key that asks for it; look for the manager that has violated it, and have the master set protection again"}
	case k.Protect == 0:
		return []string{"m_key_protection 0: the M_Key is shown to every manager that asks for it"}
	}
	return nil
}

// Next returns when Tick has to be called, and false if nothing is due.
func (a *Agent) Next() (at time.Time, due bool) {
	if a.trap != nil {
		at, due = a.trap.next, true
	}
	if a.guard.lease == leaseRunning && (!due || a.guard.until.Before(at)) {
		at, due = a.guard.until, true
	}
	return at, due
}

// Tick does what is due, and returns the traps to send to the master. changed reports that [Agent.Saved]
// has changed.
func (a *Agent) Tick(now time.Time) (traps []mad.SMP, changed bool) {
	changed = a.expire(now)
	return a.dueTraps(now), changed
}

func (a *Agent) expire(now time.Time) bool {
	if !a.guard.expire(now) {
		return false
	}
	a.event(Event{Kind: LeaseEnded})
	return true
}
