package lanestate

import "time"

// Listed is what a list of all SAs of the peer has of the lane, and how it came to that.
type Listed struct {
	Installed int    // children of the peer's own that cover the lane
	Settled   int    // those of them that are not being rekeyed
	Packets   uint64 // that have come in on them
	Impostors int    // children of others that would carry the flows
	Named     bool   // one of those has the name of the peer's connection
	Mismatch  bool   // the peer has asked for one with other blocks of ports
	Replaced  bool   // none is one of the list before

	CharonGone bool // the daemon has, and all children with it
	IKEGone    bool // the last IKE SA has gone
	Afresh     bool // other IKE SAs than before: the peer knows nothing of what it had agreed to
	Anew       bool // the peer has made an IKE SA while there was none

	// Of a lane that falls by this list.
	Waiting bool    // a flow has data that was not acknowledged
	Reaped  bool    // the child was ended here since its flows were idle
	Draw    float64 // drawn from [0, 1)
}

// Up reports whether a lane is up under this list.
func (e *Listed) Up() bool { return e.Installed > 0 && e.Impostors == 0 }

func (e Listed) apply(l *Lane, now time.Time) (out Effect) {
	was, is := l.state == Up, e.Up()
	c := &l.child
	c.installed, c.packets, c.impostors, c.named, c.mismatch = e.Installed, e.Packets, e.Impostors, e.Named, e.Mismatch
	switch {
	case is && !was:
		out = l.childUp(now)
	case is && e.Replaced: // lost and restored by the peer between two lists, or rekeyed
		l.kickFrom(now)
	case was && !is:
		out = l.childLost(now, &e)
		if e.Afresh && l.flows.all > 0 {
			l.wanted(NeedRestart)
		}
	case !is && (e.CharonGone || e.Afresh) && l.flows.all > 0 && !l.outage.atRest:
		l.wanted(NeedRestart)
	}
	if e.Anew && l.flows.admitted > 0 {
		l.probeAll(is, now)
	}
	if e.Settled < 2 {
		c.duplicates = time.Time{}
	} else if c.duplicates.IsZero() {
		c.duplicates = now
	}
	return out
}

// childUp takes in that the child is there.
func (l *Lane) childUp(now time.Time) Effect {
	out := Effect{Do: Answer}
	if !l.outage.since.IsZero() {
		out.Do |= Restore
		out.Outage = now.Sub(l.outage.since)
		l.outage.since = time.Time{}
		l.kickFrom(now)
	}
	l.want, l.flows.waiters = false, 0
	l.attempt.vanished, l.attempt.notBefore = 0, time.Time{}
	l.child.hasBeen, l.child.risenAt, l.child.quiet = true, now, now
	l.outage.atRest, l.child.reaped = false, false
	if !l.dial.since.IsZero() || l.Dialling(now) { // what comes in counts from here
		l.watchDial(now)
	}
	return out
}

// childLost takes in that it is not there any more.
func (l *Lane) childLost(now time.Time, e *Listed) (out Effect) {
	if l.flows.all > 0 {
		out.Do = ShortenRTO | Pause
		l.outage.since = now
	}
	l.child.fellAt, l.dial.since = now, time.Time{}
	if e.CharonGone {
		// The peer's daemon knows of a delete, but nothing of the death of ours: it
		// goes on sending into the void until it is told by a new SA.
		l.wanted(NeedRestart)
	}
	if l.stays {
		l.wanted(NeedGreeting)
	}
	l.child.reaped = e.Reaped
	l.outage.atRest = !e.CharonGone && !e.Waiting
	a := &l.attempt
	var grace time.Duration
	if !l.dialler {
		grace += listenerGrace
	}
	if e.IKEGone && !l.leads {
		grace += followerGrace
	}
	switch {
	case e.CharonGone:
		a.failures = 0
	case now.Sub(l.child.risenAt) >= stableAfter:
		a.failures = 0
		a.notBefore = now.Add(grace)
	default: // a child that is deleted as soon as it is there must not keep us busy
		a.notBefore = now.Add(max(grace, min(a.failures.next(retryMin, RetryMax, e.Draw), retryShortLived)))
	}
	return out
}

// probeAll has the streams of a lane asked whether the peer still has them, the idle ones as
// well: it may have ended them while there was no SA that would have told.
func (l *Lane) probeAll(is bool, now time.Time) {
	l.kick.all = true
	if is {
		l.kickFrom(now)
		return
	}
	l.wanted(NeedRestart)
	if !l.dialler {
		l.attempt.notBefore = now.Add(listenerGrace)
	}
}
