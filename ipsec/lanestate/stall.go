package lanestate

import "time"

// stalls reports whether the child seems to lead nowhere.
func (l *Lane) stalls(now time.Time, s Silence) bool {
	l.stall.at = now.Add(stallCheck * time.Duration(1+l.flows.all/maxPollFlows))
	if l.WatchesDial() && now.Sub(l.dial.since) > DialWait {
		l.dial.since = time.Time{}
	}
	return l.suspect(now, s) && now.Sub(l.child.risenAt) >= StallAfter && !now.Before(l.stall.reviveAt)
}

// suspect reports whether a flow is stuck while it is being dialled, or has sent data in
// vain, while nothing was heard on any other: its host may as well have died alone, without
// a word.
func (l *Lane) suspect(now time.Time, s Silence) bool {
	stuck := l.WatchesDial() && now.Sub(l.dial.since) > StallAfter
	return s.Of >= StallAfter && (stuck || s.Vain)
}

// Suspected is what was found of a child that seemed to lead nowhere, after a fresh list.
type Suspected struct {
	Silence Silence
	Draw    float64 // drawn from [0, 1)
}

func (e Suspected) apply(l *Lane, now time.Time) (out Effect) {
	s := &l.stall
	if l.state != Up || now.Before(s.reviveAt) || !l.suspect(now, e.Silence) { // it is gone, or a flow was admitted meanwhile
		return out
	}
	if now.Sub(s.reviveAt) > reviveMax {
		s.revivals = 0
	}
	watched, heard := l.WatchesDial(), l.child.packets != l.dial.packets
	l.dial.since = time.Time{}
	if watched && heard {
		// It was not the SA that the dialling suffered from, so far.
		if l.Dialling(now) {
			l.watchDial(now)
		}
		return out
	}
	s.reviveAt = now.Add(s.revivals.next(reviveMin, reviveMax, e.Draw))
	l.wanted(NeedRenewal)
	out.Work = Renew
	return out
}
