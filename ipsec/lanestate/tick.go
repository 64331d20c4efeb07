package lanestate

import "time"

// Tick asks what the lane needs now. It is asked twice where the first answer is a
// question (Effect.Ask).
type Tick struct {
	IdleReap time.Duration // after which idle children are ended; 0: they are not
	Answered Ask           // what the fields below answer

	Waiting bool
	Fading  bool
	Use     Use
	Silence Silence
}

// Use is for how long flows have carried nothing.
type Use struct {
	Busy   bool          // one has data waiting, or is not admitted yet
	Unused time.Duration // the least of all
}

// Silence is for how long nothing was heard on any flow.
type Silence struct {
	Of   time.Duration
	Vain bool // a flow has sent again and again, and nobody was heard since it began to
}

func (e Tick) apply(l *Lane, now time.Time) Effect {
	switch {
	case l.attempt.underWay:
		return Effect{}
	case l.child.impostors > 0:
		return l.tickImpostors(now)
	case l.child.mismatch:
		return Effect{Work: Reject, Again: rejectEvery}
	case l.state == Up:
		return l.tickUp(now, &e)
	}
	return l.tickDown(now, &e)
}

// tickImpostors ends children of others that would carry a live stream, and whatever has the
// name of the peer's connection.
func (l *Lane) tickImpostors(now time.Time) (out Effect) {
	if l.flows.waiters > 0 {
		out.Do = Blame
	}
	if l.flows.admitted == 0 && !l.child.named && !l.stays {
		return out
	}
	if wait := l.child.evictAt.Sub(now); wait > 0 {
		out.Again = wait
		return out
	}
	l.child.evictAt = now.Add(evictEvery)
	out.Work, out.Again = Evict, soon
	return out
}

// tickDown brings the child up for whoever needs it. Flows that are paused and idle do not,
// until one of them has data or would soon be given up.
func (l *Lane) tickDown(now time.Time, e *Tick) Effect {
	need := l.flows.waiters > 0 || l.want || now.Before(l.dial.until) || l.pending(now)
	if wait := l.attempt.notBefore.Sub(now); wait > 0 && l.flows.waiters == 0 {
		if !need && l.flows.all == 0 {
			return Effect{}
		}
		return Effect{Again: wait}
	}
	looks := !now.Before(l.outage.lookAt)
	switch {
	case need:
		if !l.want {
			l.why = NeedFlow
		}
	case l.flows.all == 0:
		return Effect{}
	case !e.Answered.Has(AskWaiting) && looks:
		return Effect{Ask: AskWaiting | AskFading}
	case !e.Answered.Has(AskWaiting):
		return Effect{Ask: AskWaiting}
	case e.Waiting:
		l.why = NeedTraffic
	default:
		if looks {
			l.outage.lookAt = now.Add(fadeCheck)
		}
		if !e.Fading {
			return Effect{Again: IdlePoll * time.Duration(1+l.flows.all/maxPollFlows)}
		}
		l.why = NeedSign
	}
	return Effect{Work: Initiate, Again: soon}
}

// pending reports whether a flow of a lane that went a moment ago waits to be admitted: it
// came in while the SA was up. One that comes when there was none is not worth an SA.
func (l *Lane) pending(now time.Time) bool {
	return l.child.hasBeen && l.flows.all > l.flows.admitted && now.Sub(l.child.fellAt) < 2*AdmitWait
}

// tickUp kicks flows that have their child again, and ends what is idle, superfluous or
// leads nowhere.
func (l *Lane) tickUp(now time.Time, e *Tick) (out Effect) {
	if l.kick.left > 0 {
		if wait := l.kick.at.Sub(now); wait > 0 {
			return Effect{Again: wait}
		}
		out.Do = Kick
		if l.kick.all {
			out.Do |= KickAll
		}
		return out
	}
	later := func(d time.Duration) {
		if d > 0 && (out.Again == 0 || d < out.Again) {
			out.Again = d
		}
	}
	reapable := e.IdleReap > 0 && !l.stays && l.flows.waiters == 0 && !l.want && !now.Before(l.dial.until)
	watched := l.flows.all > 0 || l.WatchesDial()
	looks := watched && !now.Before(l.stall.at)
	var ask Ask
	if reapable && l.flows.all > 0 {
		ask |= AskUse
	}
	if looks {
		ask |= AskSilence
	}
	if ask&^e.Answered != 0 {
		return Effect{Ask: ask}
	}
	if reapable {
		wait := l.idle(now, e)
		if wait == 0 {
			return Effect{Work: Reap, Again: soon}
		}
		later(wait)
	}
	if looks {
		if l.stalls(now, e.Silence) {
			return Effect{Work: Probe, Again: soon}
		}
	}
	if watched {
		later(l.stall.at.Sub(now))
	}
	if c := &l.child; !c.duplicates.IsZero() {
		limit := leaderDedupe
		if !l.leads {
			limit = followerDedupe
		}
		left := limit - now.Sub(c.duplicates)
		if left <= 0 {
			return Effect{Work: Dedupe, Again: leaderDedupe}
		}
		later(left)
	}
	return out
}

// idle returns when a lane that may be reaped is to be looked at again, 0: it is idle.
func (l *Lane) idle(now time.Time, e *Tick) time.Duration {
	limit := e.IdleReap
	// What the flows report counts from when the child came up at the earliest, so
	// that one brought back for a sign of life is not gone at once.
	quiet := now.Sub(l.child.risenAt)
	if l.flows.all == 0 {
		quiet = now.Sub(l.child.quiet)
	} else if e.Use.Busy {
		return limit / 4
	} else {
		quiet = min(quiet, e.Use.Unused)
	}
	if quiet < limit {
		return max(min(limit-quiet, limit/4), time.Millisecond)
	}
	return 0
}
