package manager

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/ironwarp/ironwarp/fabric/conf"
	"github.com/ironwarp/ironwarp/fabric/mad"
)

// ErrConfig means that a manager can't be made of its configuration.
var ErrConfig = errors.New("manager's configuration refused")

// Peer is another manager of the fabric, as the configuration names it.
type Peer struct {
	Name string
	GUID mad.GUID
	LID  mad.LID
}

// Config is what a manager is made of.
type Config struct {
	GUID     mad.GUID
	Options  conf.Options // of which it uses those of election
	Keys     conf.Keys
	Managers []Peer // the others

	// PortKey returns the M_Key of a port, and whether the port is known to have it, since a manager has set it
	// there (conf.Config.KeyOf). nil: ports have none.
	PortKey func(mad.GUID) (key mad.Key, known bool)
	// Event is called with what is to be logged, during the calls of the manager's methods. nil: nobody.
	Event func(Event)
}

// Outgoing is an SMP to send to another manager. One that can't be sent is dropped: it is repeated.
type Outgoing struct {
	To  mad.GUID
	SMP mad.SMP
}

// Manager is one of a fabric's managers. Its state is that of IBTA 14.4.1:
//
//	                   no master, no higher manager
//	     ┌──────────────────────────────────────────────────▶ MASTER
//	DISCOVERING ◀───────────────────────────────┐              │ ▲
//	     │        no master, no higher manager  │              │ │ HANDOVER
//	     │         for polling_retry_number     │   a higher   │ │ of the master
//	     │         intervals, or DISCOVER       │   one took   │ │
//	     │                                      │   HANDOVER   │ │
//	     └────────────────────────────────▶ STANDBY ◀──────────┘ │
//	       a master, or a higher manager      │ ▲ └──────────────┘
//	                        DISABLE of the    │ │ STANDBY of the
//	                        master            ▼ │ master
//	                                       NOTACTIVE
//
// Of managers that hear each other, the highest becomes the master: every other one waits while it hears a
// master or a higher one, and a master that hears a higher one hands over to it. It is not safe for
// concurrent use.
type Manager struct {
	c      Config
	state  mad.SMState
	others []*other
	next   time.Time // of the next poll
	polls  int       // of this discovery
	sent   uint32    // ActCount: SMPs sent
	tid    uint64
	hidden secrets
}

// Format does not write the keys, whatever the verb.
func (m *Manager) Format(f fmt.State, _ rune) {
	_, _ = io.WriteString(f, "manager "+m.c.GUID.String()+", "+m.state.String())
}

// New returns a manager that begins with discovery. It fails with [ErrConfig] for too many managers, one that
// is named twice or is this one, a priority above 15 and an interval of 0.
func New(c Config) (*Manager, error) {
	if len(c.Managers) >= conf.MaxManagers {
		return nil, fmt.Errorf("%w: %d managers, at most %d", ErrConfig, len(c.Managers)+1, conf.MaxManagers)
	}
	if err := checkOptions(&c.Options); err != nil {
		return nil, err
	}
	seen := map[mad.GUID]bool{c.GUID: true}
	m := &Manager{c: c, state: mad.SMDiscovering}
	for _, p := range c.Managers {
		if seen[p.GUID] {
			return nil, fmt.Errorf("%w: two managers have the GUID %s", ErrConfig, p.GUID)
		}
		seen[p.GUID] = true
		m.others = append(m.others, &other{Peer: p})
	}
	if m.c.Event == nil {
		m.c.Event = func(Event) {}
	}
	if m.c.PortKey == nil {
		m.c.PortKey = func(mad.GUID) (mad.Key, bool) { return 0, false }
	}
	m.hidden.add(c.Keys)
	return m, nil
}

// SetKeys replaces the keys. None of the old ones is ever logged.
func (m *Manager) SetKeys(k conf.Keys) {
	m.c.Keys = k
	m.hidden.add(k)
}

// SetOptions replaces the options: another priority counts from the next answer on, another interval from the next poll. It fails with [ErrConfig] for
// what New refuses of them, and the old ones stay.
func (m *Manager) SetOptions(o conf.Options) error {
	if err := checkOptions(&o); err != nil {
		return err
	}
	m.c.Options = o
	return nil
}

// checkOptions fails with [ErrConfig] for a priority above 15 and an interval of 0.
func checkOptions(o *conf.Options) error {
	switch {
	case o.SMPriority > 15:
		return fmt.Errorf("%w: sm_priority %d, at most 15", ErrConfig, o.SMPriority)
	case o.SMInfoPollingTimeout <= 0:
		return fmt.Errorf("%w: sminfo_polling_timeout %s", ErrConfig, o.SMInfoPollingTimeout)
	}
	return nil
}

// State returns what the manager is.
func (m *Manager) State() mad.SMState { return m.state }

// Master returns the master's GUID, and whether one is known.
func (m *Manager) Master() (mad.GUID, bool) {
	if m.state == mad.SMMaster {
		return m.c.GUID, true
	}
	if o := m.best(func(o *other) bool { return o.info.State == mad.SMMaster }); o != nil {
		return o.GUID, true
	}
	return 0, false
}

// View is a manager as this one sees it, for users.
type View struct {
	Peer
	Self     bool
	Heard    bool // it answers; otherwise the rest is what it said last
	State    mad.SMState
	Priority uint8
	ActCount uint32 // SMPs that it has sent
	Rivals   uint64 // how often it had another sm_key since it last had the right one
}

// Managers returns this manager and then the others, in the order of the configuration.
func (m *Manager) Managers() []View {
	all := []View{{Peer: Peer{GUID: m.c.GUID}, Self: true, Heard: true, State: m.state, Priority: m.c.Options.SMPriority, ActCount: m.sent}}
	for _, o := range m.others {
		all = append(all, View{Peer: o.Peer, Heard: m.alive(o), State: o.info.State, Priority: o.info.Priority, ActCount: o.info.ActCount, Rivals: o.rival})
	}
	return all
}

// Next returns when Tick has to be called. It may be past.
func (m *Manager) Next() time.Time { return m.next }

// interval is the time between two polls.
func (m *Manager) interval() time.Duration {
	if m.state == mad.SMDiscovering {
		return min(discoverInterval, m.c.Options.SMInfoPollingTimeout)
	}
	return m.c.Options.SMInfoPollingTimeout
}

// Tick asks the other managers, if it is time to, and returns what to send.
func (m *Manager) Tick(now time.Time) (out []Outgoing) {
	if now.Before(m.next) {
		return nil
	}
	for _, o := range m.others {
		o.missedAnswer()
	}
	m.polls++
	out = m.decide()
	m.next = now.Add(m.interval())
	for _, o := range m.others {
		o.asked = m.nextTID()
		out = append(out, m.to(o, mad.MethodGet, 0, o.asked))
	}
	return out
}

func (m *Manager) nextTID() uint64 {
	m.tid++
	return m.tid
}

// to is an SMP about SMInfo for another manager. A Set has our own in it.
func (m *Manager) to(o *other, method mad.Method, modifier uint32, tid uint64) Outgoing {
	m.sent++
	key, _ := m.c.PortKey(o.GUID)
	smp := mad.SMP{MKey: key, Header: mad.Header{
		Class: mad.ClassSubn, ClassVersion: mad.SMPClassVersion, Method: method, Attribute: mad.AttrSMInfo, Modifier: modifier, TransactionID: tid,
	}}
	if method == mad.MethodSet {
		copy(smp.Data[:], m.info(true).Append(nil))
	}
	return Outgoing{To: o.GUID, SMP: smp}
}

// info is this manager's SMInfo.
func (m *Manager) info(withKey bool) mad.SMInfo {
	i := mad.SMInfo{GUID: m.c.GUID, ActCount: m.sent, Priority: m.c.Options.SMPriority, State: m.state}
	if withKey {
		i.SMKey = m.c.Keys.SM()
	}
	return i
}

// decide moves on to the state that what is known of the others asks for, and returns what to send for it.
func (m *Manager) decide() []Outgoing {
	master := m.best(func(o *other) bool { return o.info.State == mad.SMMaster })
	higher := m.best(func(o *other) bool { return o.info.State != mad.SMNotActive && m.isHigher(o) })
	switch m.state {
	case mad.SMDiscovering:
		switch {
		case master == nil && higher == nil && !m.discovered():
		case master == nil && higher == nil:
			m.become(mad.SMMaster)
		case m.discovered():
			m.become(mad.SMStandby)
		}
	case mad.SMStandby:
		if master == nil && higher == nil {
			m.become(mad.SMDiscovering)
		}
	case mad.SMMaster:
		if higher != nil && (higher.info.State == mad.SMMaster || higher.info.State == mad.SMStandby) {
			higher.handover = m.nextTID()
			return []Outgoing{m.to(higher, mad.MethodSet, mad.SMHandover, higher.handover)}
		}
	}
	return nil
}

// discovered reports whether each other manager has answered since the discovery began, or has had its time.
func (m *Manager) discovered() bool {
	if m.polls > discoverPolls {
		return true
	}
	for _, o := range m.others {
		if !o.answered {
			return false
		}
	}
	return true
}

func (m *Manager) become(s mad.SMState) {
	m.c.Event(Event{Kind: Entering, State: s, Text: "Entering " + s.String() + " state"})
	m.state = s
	if s == mad.SMDiscovering {
		m.polls, m.next = 0, time.Time{}
		for _, o := range m.others {
			o.answered = false
		}
	}
}
