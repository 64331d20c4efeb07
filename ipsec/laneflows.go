package ipsec

import (
	"time"

	"github.com/ironwarp/ironwarp/ipsec/lanestate"
)

// happenLocked takes an event to a lane's state machine and does at once what that asks for;
// what takes time is left to the caller.
func (p *peer) happenLocked(l *lane, e lanestate.Event) lanestate.Effect {
	return p.happenAtLocked(p.m.now(), l, e)
}

func (p *peer) happenAtLocked(now time.Time, l *lane, e lanestate.Event) lanestate.Effect {
	var out lanestate.Effect
	l.life, out = l.life.Next(now, e)
	l.up.Store(l.life.State() == lanestate.Up)
	if out.Do.Has(lanestate.ShortenRTO) {
		for f := range l.flows {
			f.ShortenRTO()
		}
	}
	if out.Do.Has(lanestate.RestoreRTO) {
		for f := range l.flows {
			f.RestoreRTO()
		}
	}
	if out.Do.Has(lanestate.Pause) {
		p.counters.Outages++
	}
	if out.Do.Has(lanestate.Restore) {
		p.counters.Outage += out.Outage
		p.counters.LongestOutage = max(p.counters.LongestOutage, out.Outage)
	}
	if out.Do.Has(lanestate.Answer) {
		p.lastErr = ""
		l.answer(nil)
	}
	if out.Do.Has(lanestate.Blame) {
		err := p.impostorErrorLocked(l)
		p.failedLocked(err)
		l.answer(err)
	}
	if out.Do.Has(lanestate.Kick) {
		return p.happenAtLocked(now, l, lanestate.Kicked{Stuck: l.kickWaiting(out.Do.Has(lanestate.KickAll))})
	}
	return out
}

// needs are the reasons for bringing a child up, as they are shown.
var needs = map[lanestate.Need]Reason{
	lanestate.NeedFlow:     ReasonFlow,
	lanestate.NeedTraffic:  ReasonTraffic,
	lanestate.NeedSign:     ReasonKeepAlive,
	lanestate.NeedGreeting: ReasonGreeting,
	lanestate.NeedRestart:  ReasonRestart,
	lanestate.NeedRenewal:  ReasonStale,
}

// answer ends the calls of Prepare that wait.
func (l *lane) answer(err error) {
	for w := range l.waiters {
		w <- err
		delete(l.waiters, w)
	}
	l.countWaiters()
}

// countWaiters has the state machine know how many calls wait.
func (l *lane) countWaiters() {
	l.life, _ = l.life.Next(time.Time{}, lanestate.Waiters(len(l.waiters)))
}

// tickLocked asks what a lane needs now.
func (p *peer) tickLocked(l *lane) lanestate.Effect {
	now := p.m.now() // of the question and of the answer, or there would be another question
	e := lanestate.Tick{IdleReap: p.cfg.IdleReap}
	out := p.happenAtLocked(now, l, e)
	if out.Ask == 0 {
		return out
	}
	e.Answered = out.Ask
	if out.Ask.Has(lanestate.AskWaiting) {
		e.Waiting = l.waiting()
	}
	if out.Ask.Has(lanestate.AskFading) && !e.Waiting {
		e.Fading = l.fading(now)
	}
	if out.Ask.Has(lanestate.AskUse) {
		e.Use = l.use(now, e.IdleReap)
	}
	if out.Ask.Has(lanestate.AskSilence) {
		e.Silence = l.silence(now)
	}
	return p.happenAtLocked(now, l, e)
}

// kickWaiting kicks the flows that have data waiting, or all of them, and reports whether TCP
// has repeated data of one of them in vain so far.
func (l *lane) kickWaiting(all bool) (stuck bool) {
	for f := range l.flows {
		if n, err := f.Outq(); err == nil && (n > 0 || all) {
			stuck = f.Kick() || stuck
		}
	}
	return stuck
}

// waiting reports whether a flow of the lane has data that was not acknowledged.
func (l *lane) waiting() bool {
	for f := range l.flows {
		if !f.admitted {
			continue
		}
		if n, err := f.Outq(); err == nil && n > 0 {
			return true
		}
	}
	return false
}
