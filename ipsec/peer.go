package ipsec

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/transport"
)

// lane is one of the children of a peer, and the flows that it carries. The
// peer's mutex guards it.
//
//	        flow needs it              child INSTALLED
//	down ------------------> connecting --------------> up
//	                              ^                      | child gone,
//	                              | data waits, or a     v or not the peer's
//	                              +--- flow is opened- paused/down
type lane struct {
	child string // NAME-out or NAME-in, with a number where there are several
	link  Link
	role  role

	local, remote charon.Selector // what the child has to cover

	up        atomic.Bool    // the peer's own child is installed, and nobody else's; read by Protection.Paused
	installed []charon.Child // by the last list
	narrowed  []charon.Child // those that the peer has agreed to in part only
	foreign   []foreign      // children of others that would carry the lane's flows
	flows     map[*protection]struct{}
	waiters   map[chan error]struct{} // calls of Prepare

	want       bool      // bring it up although no flow has data waiting
	why        Reason    // it is wanted, or was brought up
	trying     bool      // an attempt of ours is under way
	gone       Reason    // it went last
	atRest     bool      // it was deleted while its flows were idle, here or by the peer
	reaped     bool      // it was deleted here since its flows were idle
	risenAt    time.Time // when it last came up
	dialling   time.Time // until then a flow may be on its way from Prepare to Admit
	picks      []time.Time
	picked     time.Time // when a flow to dial was last given to it
	lost       time.Time // since when admitted flows are without it; zero: they are not
	lostBefore bool      // it has been up since the peer was added
	attempts   backoff
	notBefore  time.Time // of the next attempt
	vanished   int       // attempts in a row whose child went before it was listed
	duplicates time.Time // since when there is more than one
	evictAt    time.Time // when foreign children are ended (again)
	kicks      int       // how often waiting flows are still to be kicked
	kickAll    bool      // and idle ones: the peer may not have them any more
	kickAt     time.Time
	kickUntil  time.Time
	lookAt     time.Time // when idle flows are looked at for signs of fading
	quiet      time.Time // since when it is up without a flow
	fellAt     time.Time // when it last went
	dialledAt  time.Time // since when a flow is on its way from Prepare to Admit, while the lane is up
	dialledIn  uint64    // packetsIn at that time
	dials      int       // that are not known to be over
	proved     bool      // a flow was admitted since the last of them began
	stallAt    time.Time // when it is looked at for stalled flows
	reviveAt   time.Time // not made anew before
	revivals   backoff
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
	m     *Manager
	name  string
	links []Link

	local, remote netip.Addr

	wake chan struct{} // one slot
	stop func()        // ends the keeper
	done chan struct{} // closed when it has ended

	ready atomic.Bool // its guard is in place and tested, or was taken down on request

	lists    flights[struct{}]
	applying sync.Mutex // held while a list is compared with the link and applied
	steered  bool       // there is a route for it; guarded by applying

	mu          sync.Mutex
	cfg         Peer
	lanes       []*lane // those for flows that this host dials first
	state       State
	since       time.Time
	guarded     bool
	hadGuard    bool
	noGuard     bool          // taken down on request
	tested      bool          // the guard has stopped a probe
	orphans     []guard.State // of the kernel, left by an earlier charon
	loaded      bool          // in the present life of charon
	hasIKE      bool          // an IKE SA is established
	ikes        []uint32
	generation  []uint32        // those that the list had which first had none of the one before
	came        map[uint32]bool // IKE SAs that charon says are up, and no list has had yet
	live        []charon.SA     // by the last list
	endings     endings
	settling    bool      // a goroutine waits for reasons
	strangers   []foreign // children of other connections that overlap with this peer's
	busy        bool      // an attempt is under way
	lastErr     string
	lastFailure error // what lastErr is the text of
	lastErrAt   time.Time
	reloadedAt  time.Time
	counters    Counters
	changed     chan struct{} // closed and replaced when the lanes change
}

func newPeer(m *Manager, cfg Peer) *peer {
	p := &peer{m: m, name: cfg.Name, links: cfg.links(), local: cfg.Local, remote: cfg.Remote, cfg: cfg, wake: make(chan struct{}, 1), done: make(chan struct{}), state: StateDown, since: time.Now(), changed: make(chan struct{}),
		lists: flights[struct{}]{pace: newPace(m.ctx)}}
	for _, s := range cfg.laneSpecs() {
		p.lanes = append(p.lanes, &lane{child: s.child, link: s.link, role: s.role, local: s.local, remote: s.remote,
			flows: map[*protection]struct{}{}, waiters: map[chan error]struct{}{}, attempts: backoff{min: retryMin, max: retryMax}, revivals: backoff{min: reviveMin, max: reviveMax}})
	}
	return p
}

func (p *peer) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// leads tells whether this host is the one of the two that acts first where both
// might: the one with the lower address.
func (p *peer) leads() bool { return p.local.Less(p.remote) }

// laneNamed returns the lane of a child, or nil; p.mu need not be held.
func (p *peer) laneNamed(child string) *lane {
	for _, l := range p.lanes {
		if l.child == child {
			return l
		}
	}
	return nil
}

// apply takes over what charon lists of this peer; lost tells that charon itself
// has gone.
func (p *peer) apply(sas []charon.SA, lost bool) {
	now := time.Now()
	var events []Event
	p.mu.Lock()
	hadIKE, before := p.hasIKE, p.ikes
	p.hasIKE, p.ikes, p.live = false, nil, nil
	found := p.sort(sas)
	// All IKE SAs gone and a new one there: the peer has started afresh and knows
	// nothing of what it had agreed to.
	afresh := len(before) > 0 && p.hasIKE && !slices.ContainsFunc(p.ikes, func(id uint32) bool { return slices.Contains(before, id) })
	anew := p.anew(before)
	carried := false
	for i, l := range p.lanes {
		was := l.up.Load()
		replaced := was && !slices.ContainsFunc(found[i].installed, func(c charon.Child) bool {
			return slices.ContainsFunc(l.installed, func(o charon.Child) bool { return o.UniqueID == c.UniqueID })
		})
		events = append(events, p.fresh(l, found[i].foreign)...)
		l.installed, l.narrowed, l.foreign = found[i].installed, found[i].narrowed, found[i].foreign
		is := len(l.installed) > 0 && len(l.foreign) == 0
		carried = carried || len(l.installed) > 0
		l.up.Store(is)
		switch {
		case is && !was:
			if !l.lost.IsZero() {
				events = append(events, Event{Kind: EventRestored, Peer: p.name, Child: l.child, Reason: l.why,
					Detail: "streams go on after " + now.Sub(l.lost).Round(time.Millisecond).String()})
			}
			p.risen(l, now)
		case is && replaced: // lost and restored by the peer between two lists, or rekeyed
			l.kickFrom(now)
		case was && !is:
			p.fallen(l, now, lost, hadIKE && !p.hasIKE)
			if afresh && len(l.flows) > 0 {
				l.wanted(ReasonRestart)
			}
			if len(l.flows) > 0 {
				events = append(events, Event{Kind: EventPaused, Peer: p.name, Child: l.child, Reason: l.gone, Detail: plural(len(l.flows), "stream") + " without an SA"})
			}
		case !is && (lost || afresh) && len(l.flows) > 0 && !l.atRest:
			l.wanted(ReasonRestart)
		}
		if anew && l.admitted() > 0 {
			p.seek(l, is, now)
		}
		if settledChildren(l.installed) < 2 {
			l.duplicates = time.Time{}
		} else if l.duplicates.IsZero() {
			l.duplicates = now
		}
	}
	p.restate(now)
	close(p.changed)
	p.changed = make(chan struct{})
	p.mu.Unlock()
	p.steer(carried)
	for _, e := range events {
		p.m.note(e)
	}
	p.poke()
}

// anew tells that the peer has made an IKE SA while there was none, and not fresh keys
// for one: the event of that may come before the list that has it, or after; p.mu is held.
func (p *peer) anew(before []uint32) (anew bool) {
	if p.hasIKE && !slices.ContainsFunc(p.ikes, func(id uint32) bool { return slices.Contains(before, id) }) {
		p.generation = p.ikes
	}
	for _, id := range p.ikes {
		anew = anew || p.came[id] && slices.Contains(p.generation, id)
		delete(p.came, id)
	}
	return anew
}

// seek has the streams of a lane asked whether the peer still has them, the idle ones as
// well: it may have ended them while there was no SA that would have told. p.mu is held.
func (p *peer) seek(l *lane, is bool, now time.Time) {
	l.kickAll = true
	if is {
		l.kickFrom(now)
		return
	}
	l.wanted(ReasonRestart)
	if l.role == listener {
		l.notBefore = now.Add(listenerGrace)
	}
}

// settledChildren is how many children there are beside those that are being
// rekeyed.
func settledChildren(all []charon.Child) (n int) {
	for _, c := range all {
		if c.State == charon.StateInstalled {
			n++
		}
	}
	return n
}

// findings are what a list has of a lane.
type findings struct {
	installed, narrowed []charon.Child
	foreign             []foreign
}

// sort looks up what a list has of each lane; p.mu is held.
func (p *peer) sort(sas []charon.SA) []findings {
	found := make([]findings, len(p.lanes))
	for i := range sas {
		sa := &sas[i]
		if !alive(sa) {
			for _, c := range sa.Children {
				for j, l := range p.lanes {
					if l.inherited(sa, c) {
						found[j].installed = append(found[j].installed, c)
					}
				}
			}
			continue
		}
		own := p.cfg.owns(sa) == nil
		if own {
			p.hasIKE = true
			p.ikes = append(p.ikes, sa.UniqueID)
			p.live = append(p.live, *sa)
		}
		for _, c := range sa.Children {
			p.endings.saw(sa.UniqueID, c)
			for j, l := range p.lanes {
				switch {
				case !c.IsInstalled():
				case !own && (c.Name == l.child || charon.Overlap(c.LocalTS, l.local) && charon.Overlap(c.RemoteTS, l.remote)):
					found[j].foreign = append(found[j].foreign, newForeign(sa, c))
				case c.Name != l.child || !own:
				case charon.AnyContains(c.LocalTS, l.local) && charon.AnyContains(c.RemoteTS, l.remote):
					found[j].installed = append(found[j].installed, c)
				default:
					found[j].narrowed = append(found[j].narrowed, c)
				}
			}
		}
	}
	for _, f := range p.strangers {
		for j, l := range p.lanes {
			if f.covers(l) {
				found[j].foreign = append(found[j].foreign, f)
			}
		}
	}
	return found
}

// alive tells that an IKE SA has authenticated its peer and is not on its way
// out.
func alive(sa *charon.SA) bool { return sa.State == "ESTABLISHED" || sa.State == "REKEYING" }

// inherited tells that a child is one that the lane has had already, and waits
// with an IKEv1 SA whose hosts authenticate anew: charon hands the children over
// before that. Their keys are those that the old SA has authenticated.
func (l *lane) inherited(sa *charon.SA, c charon.Child) bool {
	return sa.Version == 1 && sa.State == "CONNECTING" && c.Name == l.child && c.IsInstalled() &&
		slices.ContainsFunc(l.installed, func(o charon.Child) bool { return o.UniqueID == c.UniqueID })
}

func (l *lane) wanted(why Reason) {
	if !l.want {
		l.want, l.why = true, why
	}
}

func (p *peer) risen(l *lane, now time.Time) {
	if !l.lost.IsZero() {
		p.counters.Outage += now.Sub(l.lost)
		p.counters.LongestOutage = max(p.counters.LongestOutage, now.Sub(l.lost))
		l.lost = time.Time{}
		l.kickFrom(now)
	}
	l.want, l.lostBefore, l.risenAt, l.vanished = false, true, now, 0
	l.atRest, l.reaped = false, false
	l.quiet = now
	if !l.dialledAt.IsZero() || l.isDialling(now) { // what comes in counts from here
		l.watchDial(now)
	}
	l.notBefore = time.Time{}
	p.lastErr = ""
	for w := range l.waiters {
		w <- nil
		delete(l.waiters, w)
	}
}

func (p *peer) fallen(l *lane, now time.Time, charonLost, ikeLost bool) {
	if len(l.flows) > 0 {
		l.hurry()
		l.lost = now
		p.counters.Outages++
	}
	l.fellAt, l.dialledAt = now, time.Time{}
	l.gone = p.endings.last(l.child)
	if charonLost {
		// The peer's charon knows of a delete, but nothing of the death of ours: it
		// goes on sending into the void until it is told by a new SA.
		l.gone = ReasonCharon
		l.wanted(ReasonRestart)
	}
	l.reaped = l.gone == ReasonIdle
	l.atRest = !charonLost && !l.waiting()
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
		l.notBefore = now.Add(max(grace, min(l.attempts.next(), retryShortLived)))
	}
}

// restate works out the state; p.mu is held.
func (p *peer) restate(now time.Time) {
	s := StateDown
	for _, l := range p.lanes {
		switch t := l.state(p.busy); {
		case t == StatePaused, t == StateUp && s != StatePaused, t == StateConnecting && s == StateDown:
			s = t
		}
	}
	if s != p.state {
		p.state, p.since = s, now
	}
}

func (l *lane) state(busy bool) State {
	switch {
	case !l.up.Load() && len(l.flows) > 0:
		return StatePaused
	case l.up.Load():
		return StateUp
	case len(l.waiters) > 0 || l.want && busy:
		return StateConnecting
	}
	return StateDown
}

func (p *peer) failed(err error) {
	p.lastErr, p.lastErrAt, p.lastFailure = err.Error(), time.Now(), err
}

func (p *peer) isLoaded() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.loaded
}

func (p *peer) flowCount() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, l := range p.lanes {
		n += len(l.flows)
	}
	return n
}

// laneOf returns the lane of a flow, nil if the flow is of none of this peer's
// links or of none of its blocks.
func (p *peer) laneOf(f transport.Flow, outgoing bool) *lane {
	if f.Remote.Addr() != p.remote {
		return nil
	}
	if outgoing && f.Local.Port() == 0 {
		return p.leastLoaded(f)
	}
	for _, l := range p.lanes {
		switch {
		case !l.link.carries(f, outgoing):
		case outgoing && l.role == dialler && l.local.HasPort(f.Local.Port()),
			!outgoing && l.role == listener && l.remote.HasPort(f.Remote.Port()):
			return l
		}
	}
	return nil
}

// hasLink tells whether a flow is one of the peer's links.
func (p *peer) hasLink(f transport.Flow, outgoing bool) bool {
	return f.Remote.Addr() == p.remote && slices.ContainsFunc(p.links, func(k Link) bool { return k.carries(f, outgoing) })
}

// kickFrom has the flows that wait kicked from now on; p.mu is held.
func (l *lane) kickFrom(now time.Time) {
	l.kicks, l.kickAt, l.kickUntil = kickTimes, now, now.Add(kickFor)
}

// kickWaiting kicks the flows that have data waiting, or all of them, and tells whether TCP has
// repeated data of one of them in vain so far; p.mu is held.
func (l *lane) kickWaiting() (stuck bool) {
	for f := range l.flows {
		if n, err := f.c.Outq(); err == nil && (n > 0 || l.kickAll) {
			stuck = kick(f.c) || stuck
		}
	}
	return stuck
}

// hurry is for the flows of a lane that has lost its child, calm for those that
// have it again; p.mu is held.
func (l *lane) hurry() {
	for f := range l.flows {
		if f.patience == 0 {
			f.patience = hurry(f.c)
		}
	}
}

func (l *lane) calm() {
	for f := range l.flows {
		if f.patience > 0 {
			calm(f.c, f.patience)
			f.patience = 0
		}
	}
}

// admitted is how many flows of the lane live under it; p.mu is held.
func (l *lane) admitted() int {
	n := 0
	for f := range l.flows {
		if f.admitted.Load() {
			n++
		}
	}
	return n
}

// pending tells whether a flow of a lane that went a moment ago waits to be
// admitted: it came in while the SA was up. One that comes when there was none
// is not worth an SA; p.mu is held.
func (l *lane) pending(now time.Time) bool {
	return l.lostBefore && len(l.flows) > l.admitted() && now.Sub(l.fellAt) < 2*admitWait
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
