package lanestate

import "time"

// Event is something that happens to a lane: one of the types below.
type Event interface {
	apply(l *Lane, now time.Time) Effect
}

// Next is the transition function: what the lane is after an event, and what that asks for.
func (l Lane) Next(now time.Time, e Event) (Lane, Effect) {
	out := e.apply(&l, now)
	l.enter()
	return l, out
}

// Effect is what an event asks for.
type Effect struct {
	Work   Work          // at the daemon that does IKE; it takes its time, and other events may come meanwhile
	Do     Do            // at once
	Ask    Ask           // Tick again, with what the flows answer
	Again  time.Duration // Tick at the latest after so long; 0: the next event is in time
	Fault  Fault         // of an attempt that has failed
	Outage time.Duration // that is over, with Restore
}

// Work is what is to be done at the daemon that does IKE.
type Work uint8

const (
	// Nothing is to be done.
	Nothing Work = iota
	// Initiate brings the child up: AttemptBegins and AttemptEnds follow.
	Initiate
	// Dedupe ends all children but the youngest.
	Dedupe
	// Reap ends the child, since its streams are idle; ReapFailed follows if it could not.
	Reap
	// Evict ends children of others.
	Evict
	// Reject ends children that the peer asked for with other ports.
	Reject
	// Probe takes a fresh list and asks the flows again, since the child seems to lead
	// nowhere: Suspected follows.
	Probe
	// Renew ends the child, so that there is another.
	Renew
)

// Do is what is to be done to flows and waiting calls, one bit each.
type Do uint16

const (
	// Kick makes the flows that have data waiting ask their peer; Kicked follows.
	Kick Do = 1 << iota
	// KickAll makes the idle ones ask as well.
	KickAll
	// ShortenRTO keeps the retransmission timers of the flows short.
	ShortenRTO
	// RestoreRTO takes that back.
	RestoreRTO
	// Pause says that flows are without a child from now on.
	Pause
	// Restore says that they have it again.
	Restore
	// Answer lets calls of Prepare go on.
	Answer
	// Blame ends calls of Prepare with the impostor in their way as the reason.
	Blame
	// Refuse ends the calls that waited when the attempt began: it has failed.
	Refuse
	// EndNarrowed ends children that the peer agreed to in part only.
	EndNarrowed
)

// Has reports whether d has a bit of b.
func (d Do) Has(b Do) bool { return d&b != 0 }

// Ask is what a Tick wants to know of the flows, one bit each.
type Ask uint8

const (
	// AskWaiting asks whether one has data that was not acknowledged.
	AskWaiting Ask = 1 << iota
	// AskFading asks, if none has, whether one would soon be given up.
	AskFading
	// AskUse asks for how long none has carried anything.
	AskUse
	// AskSilence asks for how long nothing was heard.
	AskSilence
)

// Has reports whether a has a bit of b.
func (a Ask) Has(b Ask) bool { return a&b != 0 }

// Fault is why an attempt has failed.
type Fault uint8

const (
	// NoFault means that it has not, or that nobody is to hear of it.
	NoFault Fault = iota
	// FaultSaid means that the daemon has said so.
	FaultSaid
	// FaultImpostor means that a child of somebody else is in the way.
	FaultImpostor
	// FaultNarrowed means that the peer agreed to a part only.
	FaultNarrowed
	// FaultVanished means that the child went as soon as it was there, again and again.
	FaultVanished
)

// FlowComes is a flow that asks to be admitted.
type FlowComes struct{}

func (FlowComes) apply(l *Lane, now time.Time) (out Effect) {
	l.flows.all++
	if l.state != Up && l.outage.since.IsZero() && l.child.hasBeen {
		l.outage.since = now
	}
	return out
}

// FlowAdmitted is one that was.
type FlowAdmitted struct {
	Dialled bool // by this host
}

func (e FlowAdmitted) apply(l *Lane, now time.Time) (out Effect) {
	l.flows.admitted++
	if e.Dialled {
		l.dialEnds(now)
	}
	return out
}

// FlowLeaves is a flow that is over, or was refused.
type FlowLeaves struct {
	Admitted bool
}

func (e FlowLeaves) apply(l *Lane, now time.Time) (out Effect) {
	l.flows.all--
	if e.Admitted {
		l.flows.admitted--
	}
	if l.flows.all == 0 {
		l.outage.since = time.Time{} // nobody waits any longer
		l.child.quiet = now
	}
	return out
}

// Waiters says how many calls of Prepare wait for the child.
type Waiters int

func (e Waiters) apply(l *Lane, _ time.Time) (out Effect) {
	l.flows.waiters = int(e)
	return out
}

// Greet has the first child brought up before anybody needs it.
type Greet struct {
	Stays bool // and from then on whenever it has gone: flows are dialled by programs that ask nobody
}

func (e Greet) apply(l *Lane, now time.Time) (out Effect) {
	l.stays = l.stays || e.Stays
	if l.state == Up {
		return out
	}
	l.wanted(NeedGreeting)
	if !l.leads {
		l.attempt.notBefore = now.Add(greetDelay)
	}
	return out
}

// Passed is a child that came and went, maybe between two lists.
type Passed struct{}

func (Passed) apply(l *Lane, now time.Time) (out Effect) {
	if l.state == Up {
		return out // the next list tells
	}
	l.child.hasBeen, l.child.fellAt = true, now
	if grace := now.Add(listenerGrace); !l.dialler && grace.After(l.attempt.notBefore) {
		l.attempt.notBefore = grace
	}
	return out
}

// ReapFailed says that the child was not there to be ended.
type ReapFailed struct{}

func (ReapFailed) apply(l *Lane, now time.Time) (out Effect) {
	l.child.risenAt, l.child.quiet = now, now // not again at once
	return out
}

// Kicked says what came of Kick.
type Kicked struct {
	Stuck bool // a flow has repeated its data in vain so far
}

func (e Kicked) apply(l *Lane, now time.Time) Effect {
	k := &l.kick
	out := Effect{Again: kickEvery}
	if k.left = max(k.left-1, 0); k.left == 0 && e.Stuck && now.Before(k.until) {
		k.left, out.Again = 1, kickSlowly
	}
	if k.left == 0 {
		k.all = false
		out.Do = RestoreRTO
	}
	k.at = now.Add(out.Again)
	return out
}

// kickFrom has the flows that wait kicked from now on.
func (l *Lane) kickFrom(now time.Time) {
	l.kick.left, l.kick.at, l.kick.until = KickTimes, now, now.Add(kickFor)
}
