package lanestate

import "time"

// State is how it stands with a lane.
//
//	      Greet, a restart     a call of Prepare waits
//	     +--------> Wanted ---------+
//	     |            |             v
//	+-> Down ---------|------> Connecting
//	|    |            |  the peer's  |
//	|    | a flow     v  child is    v
//	|    | is        Up <------------+
//	|    | there      | ^
//	|    v            | | the child is back: flows are kicked
//	|   Paused <------+ |
//	|    |  |  child    |
//	|    |  |  gone     | data waits, idle flows fade, the peer has restarted
//	|    |  +-----------+
//	+----+ the last flow has left
//
// From Up a lane without flows falls to Down. A child that others have, or that somebody
// else shares with the peer, is no child: the lane is not up under it.
type State uint8

const (
	// Down means that there is no child, and nobody needs one.
	Down State = iota
	// Wanted means that there is no child and no flow, and the child is to be brought up.
	Wanted
	// Connecting means that a call of Prepare waits for a first child.
	Connecting
	// Up means that the peer's own child is installed, and nobody else's.
	Up
	// Paused means that flows wait for a child.
	Paused
)

// String returns the state's name.
func (s State) String() string {
	return [...]string{"down", "wanted", "connecting", "up", "paused"}[s]
}

// Need is why a child is brought up.
type Need uint8

const (
	// NoNeed means that it has not been brought up here.
	NoNeed Need = iota
	// NeedFlow means that a flow is opened.
	NeedFlow
	// NeedTraffic means that a stream has data to send.
	NeedTraffic
	// NeedSign means that idle streams would soon be given up for their peer's silence.
	NeedSign
	// NeedGreeting means that it is brought up to have it in time.
	NeedGreeting
	// NeedRestart means that streams were left without it by a restart, here or there.
	NeedRestart
	// NeedRenewal means that the peer does not answer on the last one.
	NeedRenewal
)

// Lane is one child SA and what waits for it. It is a plain value: copies are independent.
type Lane struct {
	dialler bool // this host dials its flows
	leads   bool // this host acts first where both might
	stays   bool // the child is wanted at all times

	state State
	flows struct{ all, admitted, waiters int }
	child child

	want bool // bring it up although no flow has data waiting
	why  Need // it is wanted, or was brought up

	attempt attempt
	outage  outage
	dial    dial
	kick    kick
	stall   stall
}

// child is what the last list has of the lane, and since when.
type child struct {
	installed int    // of the peer's own
	packets   uint64 // that have come in on those
	impostors int
	named     bool // an impostor has the name of the peer's connection
	mismatch  bool // the peer has asked for one with other blocks of ports

	hasBeen    bool      // it has been up since the peer was added
	risenAt    time.Time // when it last came up
	fellAt     time.Time // when it last went
	quiet      time.Time // since when the lane has no flow
	duplicates time.Time // since when there is more than one
	evictAt    time.Time // when impostors are ended (again)
	reaped     bool      // it was ended here since its flows were idle
}

// attempt is what bringing the child up has come to.
type attempt struct {
	underWay  bool
	begun     time.Time
	notBefore time.Time // of the next one
	failures  backoff
	vanished  int // attempts in a row whose child went before it was listed
}

// outage is the time that flows are without a child.
type outage struct {
	since  time.Time // zero: they are not
	atRest bool      // the child was deleted while its flows were idle
	lookAt time.Time // when idle flows are looked at for signs of fading
}

// dial is what is known of flows that are being dialled and not admitted yet.
type dial struct {
	n       int       // that are not known to be over
	until   time.Time // until then one may be on its way
	since   time.Time // since when the child is proved by what comes in; zero: it is not
	packets uint64    // that had come in at that time
	proved  bool      // a flow was admitted since the last of them began
}

// kick is what is left to do for flows that have their child again.
type kick struct {
	left  int
	all   bool // and idle ones: the peer may not have them any more
	at    time.Time
	until time.Time
}

// stall is the search for a child that leads nowhere.
type stall struct {
	at       time.Time // of the next look
	reviveAt time.Time // not made anew before
	revivals backoff
}

// New returns a lane that is down. dialler says that this host dials its flows, leads that
// it acts first where both hosts might.
func New(dialler, leads bool) Lane { return Lane{dialler: dialler, leads: leads} }

// State returns how it stands with the lane.
func (l *Lane) State() State { return l.state }

// Why returns why the child is wanted, or was last brought up from here.
func (l *Lane) Why() Need { return l.why }

// HasBeenUp reports whether the lane has been up since it was made.
func (l *Lane) HasBeenUp() bool { return l.child.hasBeen }

// Wanted reports whether the child is to be brought up although no flow has data waiting.
func (l *Lane) Wanted() bool { return l.want }

// Trying reports whether an attempt to bring the child up is under way.
func (l *Lane) Trying() bool { return l.attempt.underWay }

// Reaped reports whether the child was ended here since its flows were idle.
func (l *Lane) Reaped() bool { return l.child.reaped }

// WatchesDial reports whether the child has to prove itself by what comes in, since a flow
// is being dialled.
func (l *Lane) WatchesDial() bool { return !l.dial.since.IsZero() }

// wanted has the child brought up; the first reason counts.
func (l *Lane) wanted(why Need) {
	if !l.want {
		l.want, l.why = true, why
	}
}

// enter sets the state that follows from what is there.
func (l *Lane) enter() {
	switch {
	case l.child.installed > 0 && l.child.impostors == 0:
		l.state = Up
	case l.flows.all > 0:
		l.state = Paused
	case l.flows.waiters > 0:
		l.state = Connecting
	case l.want:
		l.state = Wanted
	default:
		l.state = Down
	}
}
