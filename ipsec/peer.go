package ipsec

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironwarp/ironwarp/internal/rate"
	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/ipsec/lanestate"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/transport"
)

// lane is one of the children of a peer, and the flows that it carries. What it needs is
// decided by its life, a state machine. The peer's mutex guards it.
type lane struct {
	pad.Child

	life lanestate.Lane
	up   atomic.Bool // the peer's own child is installed, and nobody else's; read by Protection.Paused

	// By the last list.
	installed []charon.Child
	narrowed  []charon.Child // those that the peer has agreed to in part only, or with another label
	impostors []impostor     // children of others that would carry the lane's flows
	disowned  []charon.Child // those that the peer had deleted before they were here, see peer.disown

	lastFailure error // of the last attempt to bring it up; nil: it was up since

	flows   map[*protection]struct{}
	waiters map[chan error]struct{} // calls of Prepare

	// Flows to dial that were given to it.
	picks  []time.Time
	picked time.Time // the last one
}

// peer is a configured peer. Its keeper goroutine (keeper.go) brings lost
// children back.
type peer struct {
	m     *Manager
	name  string
	links []pad.Link
	lanes []*lane // those for flows that this host dials first

	local, remote netip.Addr

	wake chan struct{} // one slot
	stop func()        // ends the keeper
	done chan struct{} // closed when it has ended

	ready atomic.Bool // its guard is in place and tested, or was taken down on request

	lists    flights[struct{}]
	applying sync.Mutex // held while a list is compared with the link and applied
	steered  bool       // there is a route for it; guarded by peer.applying

	mu          sync.Mutex // guards the fields below it
	cfg         pad.Peer
	state       State
	since       time.Time
	guarded     bool
	hadGuard    bool
	noGuard     bool          // taken down on request
	removed     bool          // nobody answers those who wait any more
	tested      bool          // the guard has stopped a probe
	orphans     []guard.State // of the kernel, left by an earlier charon
	loaded      bool          // in the present life of charon
	hasIKE      bool          // an IKE SA is established
	ikes        []uint32
	generation  []uint32        // those that the list had which first had none of the one before
	came        map[uint32]bool // IKE SAs that charon says are up, and no list has had yet
	live        []charon.SA     // by the last list
	endings     endings
	settling    bool       // a goroutine waits for reasons
	ofOthers    []impostor // children of other connections that overlap with this peer's
	busy        bool       // an attempt is under way
	lastErr     string
	lastFailure error // what lastErr is the text of
	lastErrAt   time.Time
	reloadedAt  time.Time
	counters    Counters
	changed     chan struct{} // closed and replaced when the lanes change
}

func newPeer(m *Manager, cfg pad.Peer) *peer {
	p := &peer{m: m, name: cfg.Name, links: cfg.AllLinks(), local: cfg.Local, remote: cfg.Remote, cfg: cfg, wake: make(chan struct{}, 1), done: make(chan struct{}), state: StateDown, since: time.Now(), changed: make(chan struct{})}
	p.lists = flights[struct{}]{call: p.readSAs, work: m.goWork, ctx: m.ctx, pace: rate.NewPacer(paceEvery, paceBurst)}
	for _, s := range cfg.ChildSAs() {
		p.lanes = append(p.lanes, &lane{Child: s, life: lanestate.New(s.Role == pad.Dialler, p.leads()), flows: map[*protection]struct{}{}, waiters: map[chan error]struct{}{}})
	}
	return p
}

// isEarly reports whether the lane is brought up before a flow needs it because of its label: that the peer has another one
// is known at once, and not with the first stream.
func (l *lane) isEarly() bool { return l.Role == pad.Dialler && l.Link.Label != "" }

func (p *peer) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// leads reports whether this host is the one of the two that acts first where both
// might: the one with the lower address.
func (p *peer) leads() bool { return p.local.Less(p.remote) }

// laneNamed returns the lane of a child, or nil.
func (p *peer) laneNamed(child string) *lane {
	for _, l := range p.lanes {
		if l.Name == child {
			return l
		}
	}
	return nil
}

// takeListLocked takes over what charon lists of this peer, which it was asked for when it had
// logged so many deletes; lost means that charon itself has gone.
func (p *peer) takeListLocked(sas []charon.SA, deletes uint64, lost bool) {
	var events []Event
	p.mu.Lock()
	hadIKE, before := p.hasIKE, p.ikes
	p.hasIKE, p.ikes, p.live = false, nil, nil
	found := p.sortLocked(sas, deletes)
	// All IKE SAs gone and a new one there: the peer has started afresh and knows
	// nothing of what it had agreed to.
	afresh := len(before) > 0 && p.hasIKE && !slices.ContainsFunc(p.ikes, func(id uint32) bool { return slices.Contains(before, id) })
	anew := p.anewLocked(before)
	carried := false
	for i, l := range p.lanes {
		had := l.installed
		events = append(events, p.impostorEventsLocked(l, found[i].impostors)...)
		l.installed, l.narrowed, l.impostors, l.disowned = found[i].installed, found[i].narrowed, found[i].impostors, found[i].disowned
		carried = carried || len(l.installed) > 0
		e := lanestate.Listed{Installed: len(l.installed), Settled: settledChildren(l.installed), Packets: l.packetsIn(), Impostors: len(l.impostors),
			Named:    slices.ContainsFunc(l.impostors, func(f impostor) bool { return f.conn == p.name }),
			Mismatch: l.Role == pad.Listener && mismatch(l, p.cfg.Children) != "",
			Replaced: !slices.ContainsFunc(l.installed, func(c charon.Child) bool {
				return slices.ContainsFunc(had, func(o charon.Child) bool { return o.UniqueID == c.UniqueID })
			}),
			CharonGone: lost, IKEGone: hadIKE && !p.hasIKE, Afresh: afresh, Anew: anew}
		var gone Reason
		if l.up.Load() && !e.Up() {
			if gone = p.endings.last(l.Name); lost {
				gone = ReasonCharon
			}
			e.Waiting, e.Reaped, e.Draw = l.waiting(), gone == ReasonIdle, rand.Float64()
		}
		out := p.happenLocked(l, e)
		if l.up.Load() {
			l.lastFailure = nil
		}
		if out.Do.Has(lanestate.Restore) {
			events = append(events, Event{Kind: EventRestored, Peer: p.name, Child: l.Name, Reason: needs[l.life.Why()],
				Detail: "streams go on after " + out.Outage.Round(time.Millisecond).String()})
		}
		if out.Do.Has(lanestate.Pause) {
			events = append(events, Event{Kind: EventPaused, Peer: p.name, Child: l.Name, Reason: gone, Detail: plural(len(l.flows), "stream") + " without an SA"})
		}
		// The peer has changed, as far as anybody knows: whether it has the label now shows on both hosts.
		if anew && l.isEarly() && !l.up.Load() && !p.cfg.OnDemand {
			p.happenLocked(l, lanestate.Greet{})
		}
	}
	p.restateLocked()
	close(p.changed)
	p.changed = make(chan struct{})
	p.mu.Unlock()
	p.steerLocked(carried)
	for _, e := range events {
		p.m.note(e)
	}
	p.poke()
}

// anewLocked reports whether the peer has made an IKE SA while there was none, and not fresh keys
// for one: the event of that may come before the list that has it, or after.
func (p *peer) anewLocked(before []uint32) (anew bool) {
	if p.hasIKE && !slices.ContainsFunc(p.ikes, func(id uint32) bool { return slices.Contains(before, id) }) {
		p.generation = p.ikes
	}
	for _, id := range p.ikes {
		anew = anew || p.came[id] && slices.Contains(p.generation, id)
		delete(p.came, id)
	}
	return anew
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
	installed, narrowed, disowned []charon.Child
	impostors                     []impostor
}

// sortLocked looks up what a list has of each lane. See takeListLocked.
func (p *peer) sortLocked(sas []charon.SA, deletes uint64) []findings {
	found := make([]findings, len(p.lanes))
	for i := range sas {
		sa := &sas[i]
		if !sa.IsAlive() {
			for _, c := range sa.Children {
				for j, l := range p.lanes {
					if l.inherited(sa, c) {
						found[j].installed = append(found[j].installed, c)
					}
				}
			}
			continue
		}
		own := p.cfg.Owns(sa) == nil
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
				case !own && (c.Name == l.Name || charon.Overlap(c.LocalTS, l.Local) && charon.Overlap(c.RemoteTS, l.Remote)):
					found[j].impostors = append(found[j].impostors, newImpostor(sa, c))
				case c.Name != l.Name || !own:
				case p.endings.disowned(c, deletes):
					found[j].disowned = append(found[j].disowned, c)
				case l.HasLabel(c) && charon.AnyContains(c.LocalTS, l.Local) && charon.AnyContains(c.RemoteTS, l.Remote):
					found[j].installed = append(found[j].installed, c)
				default:
					found[j].narrowed = append(found[j].narrowed, c)
				}
			}
		}
	}
	for _, f := range p.ofOthers {
		for j, l := range p.lanes {
			if f.covers(l) {
				found[j].impostors = append(found[j].impostors, f)
			}
		}
	}
	return found
}

// inherited reports whether a child is one that the lane has had already, and waits
// with an IKEv1 SA whose hosts authenticate anew: charon hands the children over
// before that. Their keys are those that the old SA has authenticated.
func (l *lane) inherited(sa *charon.SA, c charon.Child) bool {
	return sa.Version == 1 && sa.State == "CONNECTING" && c.Name == l.Name && c.IsInstalled() &&
		slices.ContainsFunc(l.installed, func(o charon.Child) bool { return o.UniqueID == c.UniqueID })
}

// restateLocked works out the state.
func (p *peer) restateLocked() {
	s := StateDown
	for _, l := range p.lanes {
		switch t := l.state(p.busy); {
		case t == StatePaused, t == StateUp && s != StatePaused, t == StateConnecting && s == StateDown:
			s = t
		}
	}
	if s != p.state {
		p.state, p.since = s, time.Now()
	}
}

// state returns the lane's state as it is shown; busy says that an attempt is under way.
func (l *lane) state(busy bool) State {
	switch l.life.State() {
	case lanestate.Up:
		return StateUp
	case lanestate.Paused:
		return StatePaused
	case lanestate.Connecting:
		return StateConnecting
	case lanestate.Wanted:
		if busy {
			return StateConnecting
		}
	}
	return StateDown
}

func (p *peer) failedLocked(err error) {
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
		case !l.Link.Carries(f, outgoing):
		case outgoing && l.Role == pad.Dialler && l.Local.HasPort(f.Local.Port()),
			!outgoing && l.Role == pad.Listener && l.Remote.HasPort(f.Remote.Port()):
			return l
		}
	}
	return nil
}

// hasLink reports whether a flow is one of the peer's links.
func (p *peer) hasLink(f transport.Flow, outgoing bool) bool {
	return f.Remote.Addr() == p.remote && slices.ContainsFunc(p.links, func(k pad.Link) bool { return k.Carries(f, outgoing) })
}
