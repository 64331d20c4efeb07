package lanestate

import "time"

// AttemptBegins says that the child is being brought up.
type AttemptBegins struct{}

func (AttemptBegins) apply(l *Lane, now time.Time) (out Effect) {
	l.attempt.underWay, l.attempt.begun = true, now
	return out
}

// AttemptEnds says what came of it, after a fresh list.
type AttemptEnds struct {
	Failed   bool    // so the daemon says
	Crossed  bool    // a delete may have crossed the exchange
	Narrowed bool    // the list has children that the peer agreed to in part only
	Cut      bool    // the daemon or the manager is ending: that is no failure of the attempt
	Draw     float64 // drawn from [0, 1)
}

func (e AttemptEnds) apply(l *Lane, now time.Time) (out Effect) {
	a := &l.attempt
	a.underWay = false
	fault := NoFault
	switch {
	case l.state == Up:
	case l.child.impostors > 0:
		fault = FaultImpostor
	case !e.Failed && l.child.risenAt.After(a.begun): // up, and lost again meanwhile
		return out
	case !e.Failed && e.Narrowed:
		fault = FaultNarrowed
	case (!e.Failed || e.Crossed) && a.vanished < maxVanished: // by a delete
		a.vanished++
		return out
	case !e.Failed:
		fault = FaultVanished
	default:
		fault = FaultSaid
	}
	if e.Narrowed {
		out.Do |= EndNarrowed
	}
	if fault == NoFault || e.Cut {
		return out
	}
	a.vanished = 0
	a.notBefore = now.Add(a.failures.next(retryMin, RetryMax, e.Draw))
	l.want = l.want && (l.flows.all > 0 || l.stays)
	out.Do |= Refuse
	out.Fault = fault
	return out
}
