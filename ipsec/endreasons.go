package ipsec

import (
	"time"

	"github.com/ironwarp/ironwarp/ipsec/charon"
)

// endings remembers what is needed to say why an SA has ended: charon's events
// say only that it has. The peer's mutex guards it.
//
// A child is known from the first event or list that has it until its end is
// reported, once. Who ended it is known before: this package notes what it is
// about to end, and charon's log says what the peer has deleted before the
// event of the loss comes.
type endings struct {
	known       map[uint32]knownChild
	expected    map[uint32]Reason // children, by unique id
	expectedIKE map[uint32]Reason // IKE SAs, by unique id
	logged      map[string]uint64 // the peer's deletes by the child's outgoing SPI, numbered from 1
	deletes     uint64            // of those
	loggedIKE   map[uint32]Reason
	latest      map[string]Reason // of the children's names
	open        []ending          // whose reason may still come
	reported    map[uint32]bool
}

type knownChild struct {
	ike   uint32
	child charon.Child
	seen  time.Time
}

// ending is the end of a child, or of an IKE SA if it has none.
type ending struct {
	at    time.Time
	ike   uint32
	child charon.Child
	isIKE bool
}

// reasonWait is how long the end of an SA waits for charon's log to say the
// reason: charon sends the lines of its log from another thread than its events.
const reasonWait = 100 * time.Millisecond

// maxEndings bounds each map of endings, some of which the peer can fill. What
// does not fit is forgotten, and only costs a reason.
const maxEndings = 1024

func put[K comparable, V any](m *map[K]V, k K, v V) {
	if *m == nil || len(*m) >= maxEndings {
		*m = map[K]V{}
	}
	(*m)[k] = v
}

// saw notes a child that charon has.
func (e *endings) saw(ike uint32, c charon.Child) {
	if c.UniqueID == 0 || e.reported[c.UniqueID] || !c.IsInstalled() {
		return
	}
	put(&e.known, c.UniqueID, knownChild{ike, c, time.Now()})
}

// came notes a child that is new.
func (e *endings) came(ike uint32, c charon.Child) {
	delete(e.latest, c.Name)
	e.saw(ike, c)
}

// expect notes that the children which match are about to be ended here.
func (e *endings) expect(why Reason, match func(ike uint32, c charon.Child) bool) {
	for id, k := range e.known {
		if match(k.ike, k.child) {
			put(&e.expected, id, why)
		}
	}
}

// why returns why a child has ended.
func (e *endings) why(ike uint32, c charon.Child) Reason {
	if r := e.expected[c.UniqueID]; r != "" {
		return r
	}
	if e.logged[c.SPIOut] != 0 && c.SPIOut != "" {
		return ReasonPeer
	}
	if r := e.whyIKE(ike); r != ReasonElsewhere {
		return r
	}
	if !c.Expires.IsZero() && time.Until(c.Expires) < time.Second {
		return ReasonExpired
	}
	return ReasonElsewhere
}

// whyIKE returns why an IKE SA has ended.
func (e *endings) whyIKE(id uint32) Reason {
	for _, m := range []map[uint32]Reason{e.expectedIKE, e.loggedIKE} {
		if r := m[id]; r != "" {
			return r
		}
	}
	return ReasonElsewhere
}

// disowned reports whether the peer has deleted a child of a list before charon had it: charon
// answers a delete, logs it and drops the child while nobody can list it. had is how
// many deletes charon had logged when it was asked for the list.
func (e *endings) disowned(c charon.Child, had uint64) bool {
	n := e.logged[c.SPIOut]
	return n != 0 && n <= had
}

// last returns why the child of a name went last, or is about to go; "": not known
// yet.
func (e *endings) last(name string) Reason {
	r := e.latest[name]
	for _, k := range e.known {
		if k.child.Name == name {
			r = e.why(k.ike, k.child)
		}
	}
	for _, x := range e.open {
		if x.child.Name == name && !x.isIKE {
			r = e.why(x.ike, x.child)
		}
	}
	if r == ReasonElsewhere {
		return ""
	}
	return r
}

// ended notes the end of a child, unless it is known.
func (e *endings) ended(at time.Time, ike uint32, c charon.Child) {
	if c.UniqueID != 0 && e.reported[c.UniqueID] {
		return
	}
	if k, known := e.known[c.UniqueID]; known && c.Expires.IsZero() {
		c.Expires = k.child.Expires
	}
	delete(e.known, c.UniqueID)
	if c.UniqueID != 0 {
		put(&e.reported, c.UniqueID, true)
	}
	e.open = append(e.open, ending{at: at, ike: ike, child: c})
}

// settle takes out the endings whose reason is known, and those that have waited
// at least for wait.
func (e *endings) settle(now time.Time, wait time.Duration) (out []ending, why []Reason) {
	rest := e.open[:0]
	for _, x := range e.open {
		r := e.whyIKE(x.ike)
		if !x.isIKE {
			r = e.why(x.ike, x.child)
		}
		if r == ReasonElsewhere && now.Sub(x.at) < wait && len(e.open) < maxEndings {
			rest = append(rest, x)
			continue
		}
		if !x.isIKE {
			put(&e.latest, x.child.Name, r)
			e.drop(x.child)
		}
		out, why = append(out, x), append(why, r)
	}
	e.open = rest
	return out, why
}

// drop forgets a child that a younger one has replaced.
func (e *endings) drop(c charon.Child) {
	if c.UniqueID != 0 {
		put(&e.reported, c.UniqueID, true)
	}
	delete(e.known, c.UniqueID)
	delete(e.expected, c.UniqueID)
	delete(e.logged, c.SPIOut)
}

// of returns the known children which match.
func (e *endings) of(match func(knownChild) bool) []knownChild {
	var out []knownChild
	for _, k := range e.known {
		if match(k) {
			out = append(out, k)
		}
	}
	return out
}
