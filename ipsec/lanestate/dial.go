package lanestate

import "time"

// DialBegins is a flow that this host is about to dial. Until it is admitted it is nobody's:
// if the child goes meanwhile, it has to come back all the same.
type DialBegins struct {
	Until time.Time // it may be on its way
}

func (e DialBegins) apply(l *Lane, now time.Time) (out Effect) {
	d := &l.dial
	if e.Until.After(d.until) {
		d.until = e.Until
	}
	if d.since.IsZero() {
		l.watchDial(now)
	}
	d.n++
	d.proved = false
	return out
}

// DialOver is one that has come to an end, whether it was admitted or not.
type DialOver struct{}

func (DialOver) apply(l *Lane, _ time.Time) (out Effect) {
	d := &l.dial
	if d.n--; d.n == 0 && d.proved {
		d.until, d.since = time.Time{}, time.Time{}
	}
	return out
}

// watchDial has the child proved from now on by what comes in, as long as a flow is being
// dialled.
func (l *Lane) watchDial(now time.Time) { l.dial.since, l.dial.packets = now, l.child.packets }

// dialEnds has one flow's way end well. That of others is watched from now on.
func (l *Lane) dialEnds(now time.Time) {
	l.dial.proved = true
	if l.dial.n > 1 && l.Dialling(now) { // the one that has ended is still among them
		l.watchDial(now)
		return
	}
	l.dial.until, l.dial.since = time.Time{}, time.Time{}
}

// Dialling reports whether a flow is on its way for all that is known.
func (l *Lane) Dialling(now time.Time) bool { return l.dial.n > 0 && now.Before(l.dial.until) }
