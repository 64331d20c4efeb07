package ipsec

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironwarp/ironwarp/transport"
)

// lane is one of the two children of a peer, and the flows that it carries. The
// peer's mutex guards it.
//
//	        flow needs it              child INSTALLED
//	down ------------------> connecting --------------> up
//	                              ^                      | child gone
//	                              | data waits, or a     v
//	                              +--- flow is opened- paused/down
type lane struct {
	child string // NAME-out or NAME-in
	role  role

	local, remote Selector // what the child has to cover

	up        atomic.Bool // a child is installed; read by Protection.Paused
	installed []Child     // by the last list
	narrowed  []Child     // those that the peer has agreed to in part only
	flows     map[*protection]struct{}
	waiters   map[chan error]struct{} // calls of Prepare

	want       bool      // bring it up although no flow has data waiting
	risenAt    time.Time // when it last came up
	dialling   time.Time // until then a flow may be on its way from Prepare to Admit
	lost       time.Time // since when admitted flows are without it; zero: they are not
	lostBefore bool      // it has been up since the peer was added
	attempts   backoff
	notBefore  time.Time // of the next attempt
	duplicates time.Time // since when there is more than one
	kicks      int       // how often waiting flows are still to be kicked
	kickAt     time.Time
}

// role tells who dials the flows of a lane.
type role uint8

const (
	dialler  role = iota // this host
	listener             // the peer
)

// peer is a configured peer. Its keeper goroutine (keeper.go) brings lost
// children back.
type peer struct {
	m    *Manager
	name string
	wake chan struct{} // one slot
	stop func()        // ends the keeper
	done chan struct{} // closed when it has ended

	lists    flights[struct{}]
	applying sync.Mutex // held while a list is compared with the link and applied
	steered  bool       // there is a route for it; guarded by applying

	mu        sync.Mutex
	cfg       Peer
	lanes     [2]*lane
	state     State
	since     time.Time
	guarded   bool
	hadGuard  bool
	noGuard   bool // taken down on request
	loaded    bool // in the present life of charon
	hasIKE    bool // an IKE SA is established
	ikes      []uint32
	busy      bool // an attempt is under way
	lastErr   string
	lastErrAt time.Time
	counters  Counters
	changed   chan struct{} // closed and replaced when the lanes change
}

func newPeer(m *Manager, cfg Peer) *peer {
	p := &peer{m: m, name: cfg.Name, cfg: cfg, wake: make(chan struct{}, 1), done: make(chan struct{}), state: StateDown, since: time.Now(), changed: make(chan struct{})}
	for r, name := range []string{dialler: cfg.outName(), listener: cfg.inName()} {
		l := &lane{child: name, role: role(r), flows: map[*protection]struct{}{}, waiters: map[chan error]struct{}{},
			attempts: backoff{min: retryMin, max: retryMax}}
		l.local, l.remote = cfg.selectors(l.role, 0)
		p.lanes[r] = l
	}
	return p
}

func (p *peer) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *peer) guard(plane DataPlane, tun string) GuardSpec {
	return GuardSpec{NetNS: p.m.cfg.NetNS, Remote: p.cfg.Remote, Port: p.cfg.Port, DataPlane: plane, Tun: tun}
}

// leads tells whether this host is the one of the two that acts first where both
// might: the one with the lower address.
func (p *peer) leads() bool { return p.cfg.Local.Less(p.cfg.Remote) }

// apply takes over what charon lists of this peer; lost tells that charon itself
// has gone.
func (p *peer) apply(sas []SA, lost bool) {
	now := time.Now()
	p.mu.Lock()
	hadIKE, before := p.hasIKE, p.ikes
	p.hasIKE, p.ikes = false, nil
	var installed, narrowed [2][]Child
	for i := range sas {
		if !alive(&sas[i]) {
			continue
		}
		p.hasIKE = true
		p.ikes = append(p.ikes, sas[i].UniqueID)
		for _, c := range sas[i].Children {
			for r, l := range p.lanes {
				switch {
				case c.Name != l.child || !c.IsInstalled():
				case anyContains(c.LocalTS, l.local) && anyContains(c.RemoteTS, l.remote):
					installed[r] = append(installed[r], c)
				default:
					narrowed[r] = append(narrowed[r], c)
				}
			}
		}
	}
	// All IKE SAs gone and a new one there: the peer has started afresh and knows
	// nothing of what it had agreed to.
	afresh := len(before) > 0 && p.hasIKE && !slices.ContainsFunc(p.ikes, func(id uint32) bool { return slices.Contains(before, id) })
	var restored []*lane
	for r, l := range p.lanes {
		was := l.up.Load()
		replaced := was && !slices.ContainsFunc(installed[r], func(c Child) bool {
			return slices.ContainsFunc(l.installed, func(o Child) bool { return o.UniqueID == c.UniqueID })
		})
		l.installed, l.narrowed = installed[r], narrowed[r]
		is := len(l.installed) > 0
		l.up.Store(is)
		switch {
		case is && !was:
			if !l.lost.IsZero() {
				restored = append(restored, l)
			}
			p.risen(l, now)
		case is && replaced: // lost and restored by the peer between two lists, or rekeyed
			l.kicks, l.kickAt = kickTimes, now
		case was && !is:
			p.fallen(l, now, lost, hadIKE && !p.hasIKE)
			l.want = l.want || afresh && len(l.flows) > 0
		case !is && (lost || afresh) && len(l.flows) > 0:
			l.want = true
		}
		if len(l.installed) < 2 {
			l.duplicates = time.Time{}
		} else if l.duplicates.IsZero() {
			l.duplicates = now
		}
	}
	p.restate(now)
	close(p.changed)
	p.changed = make(chan struct{})
	p.mu.Unlock()
	p.steer(len(installed[dialler])+len(installed[listener]) > 0)
	for _, l := range restored {
		p.m.board.post(Event{Kind: EventRestored, Peer: p.name, Child: l.child})
	}
	p.poke()
}

// alive tells that an IKE SA has authenticated its peer and is not on its way
// out.
func alive(sa *SA) bool { return sa.State == "ESTABLISHED" || sa.State == "REKEYING" }

func (p *peer) risen(l *lane, now time.Time) {
	if !l.lost.IsZero() {
		p.counters.LongestOutage = max(p.counters.LongestOutage, now.Sub(l.lost))
		l.lost = time.Time{}
		l.kicks, l.kickAt = kickTimes, now
	}
	l.want, l.lostBefore, l.risenAt = false, true, now
	l.notBefore = time.Time{}
	p.lastErr = ""
	for w := range l.waiters {
		w <- nil
		delete(l.waiters, w)
	}
}

func (p *peer) fallen(l *lane, now time.Time, charonLost, ikeLost bool) {
	if len(l.flows) > 0 {
		l.lost = now
		p.counters.Outages++
	}
	// The peer's charon knows of a delete, but nothing of the death of ours: it
	// goes on sending into the void until it is told by a new SA.
	l.want = l.want || charonLost
	var grace time.Duration
	if l.role == listener {
		grace += listenerGrace
	}
	if ikeLost && !p.leads() {
		grace += followerGrace
	}
	switch {
	case charonLost:
		l.attempts.reset()
	case now.Sub(l.risenAt) >= stableAfter:
		l.attempts.reset()
		l.notBefore = now.Add(grace)
	default: // a child that is deleted as soon as it is there must not keep us busy
		l.notBefore = now.Add(max(grace, l.attempts.next()))
	}
}

// restate works out the state; p.mu is held.
func (p *peer) restate(now time.Time) {
	s := StateDown
	for _, l := range p.lanes {
		switch {
		case !l.up.Load() && len(l.flows) > 0:
			s = StatePaused
		case l.up.Load() && s != StatePaused:
			s = StateUp
		case s == StateDown && (len(l.waiters) > 0 || l.want && p.busy):
			s = StateConnecting
		}
	}
	if s != p.state {
		p.state, p.since = s, now
	}
}

func (p *peer) failed(err error) {
	p.lastErr, p.lastErrAt = err.Error(), time.Now()
}

func (p *peer) status(plane DataPlane) Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Status{Peer: p.cfg.Name, State: p.state, Since: p.since, DataPlane: plane, Guarded: p.guarded, Loaded: p.loaded,
		LastError: p.lastErr, LastErrorAt: p.lastErrAt, Counters: p.counters}
	for _, l := range p.lanes {
		s.Flows += len(l.flows)
		if !l.up.Load() {
			s.Paused += len(l.flows)
		}
	}
	return s
}

func (p *peer) isLoaded() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.loaded
}

func (p *peer) flowCount() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.lanes[dialler].flows) + len(p.lanes[listener].flows)
}

// laneOf returns the lane of a flow, nil if the flow is not of this peer's port.
func (p *peer) laneOf(f transport.Flow, outgoing bool) *lane {
	switch {
	case f.Protocol != transport.ProtoTCP || f.Remote.Addr() != p.cfg.Remote:
		return nil
	case outgoing && f.Remote.Port() == p.cfg.Port:
		return p.lanes[dialler]
	case !outgoing && f.Local.Port() == p.cfg.Port:
		return p.lanes[listener]
	}
	return nil
}

// kickWaiting kicks the flows that have data waiting; p.mu is held.
func (l *lane) kickWaiting() {
	for f := range l.flows {
		if n, err := f.c.Outq(); err == nil && n > 0 {
			kick(f.c)
		}
	}
}

// waiting tells whether a flow of the lane has data that was not acknowledged;
// p.mu is held.
func (l *lane) waiting() bool {
	for f := range l.flows {
		if !f.admitted.Load() {
			continue
		}
		if n, err := f.c.Outq(); err == nil && n > 0 {
			return true
		}
	}
	return false
}
