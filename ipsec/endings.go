package ipsec

import "time"

// endings remembers what is needed to say why an SA has ended: charon's events
// tell only that it has. The peer's mutex guards it.
//
// A child is known from the first event or list that has it until its end is
// reported, once. Who ended it is known before: this package notes what it is
// about to end, and charon's log tells what the peer has deleted before the
// event of the loss comes.
type endings struct {
	known     map[uint32]knownChild
	doomed    map[uint32]Reason // children, by unique id
	doomedIKE map[uint32]Reason // IKE SAs, by unique id
	told      map[string]Reason // children, by their outgoing SPI
	toldIKE   map[uint32]Reason
	latest    map[string]Reason // of the children's names
	reported  map[uint32]bool
}

type knownChild struct {
	ike   uint32
	child Child
	seen  time.Time
}

// maxEndings bounds each map of endings, some of which the peer can fill. What
// does not fit is forgotten, and only costs a reason.
const maxEndings = 1024

// forgetAfter is how long after it was last listed a child is taken for gone of
// which no event told.
const forgetAfter = 2 * versionPoll

func put[K comparable, V any](m *map[K]V, k K, v V) {
	if *m == nil || len(*m) >= maxEndings {
		*m = map[K]V{}
	}
	(*m)[k] = v
}

// saw notes a child that charon has.
func (e *endings) saw(ike uint32, c Child) {
	if c.UniqueID == 0 || e.reported[c.UniqueID] || !c.IsInstalled() {
		return
	}
	put(&e.known, c.UniqueID, knownChild{ike, c, time.Now()})
}

// came notes a child that is new.
func (e *endings) came(ike uint32, c Child) {
	delete(e.latest, c.Name)
	e.saw(ike, c)
}

// doom notes that the children which match are about to be ended here.
func (e *endings) doom(why Reason, match func(ike uint32, c Child) bool) {
	for id, k := range e.known {
		if match(k.ike, k.child) {
			put(&e.doomed, id, why)
		}
	}
}

// why tells why a child has ended.
func (e *endings) why(ike uint32, c Child) Reason {
	if r := e.doomed[c.UniqueID]; r != "" {
		return r
	}
	if r := e.told[c.SPIOut]; r != "" && c.SPIOut != "" {
		return r
	}
	if r := e.whyIKE(ike); r != ReasonElsewhere {
		return r
	}
	k, known := e.known[c.UniqueID]
	if known && c.Expires.IsZero() {
		c.Expires = k.child.Expires
	}
	if !c.Expires.IsZero() && time.Until(c.Expires) < time.Second {
		return ReasonExpired
	}
	return ReasonElsewhere
}

// whyIKE tells why an IKE SA has ended.
func (e *endings) whyIKE(id uint32) Reason {
	for _, m := range []map[uint32]Reason{e.doomedIKE, e.toldIKE} {
		if r := m[id]; r != "" {
			return r
		}
	}
	return ReasonElsewhere
}

// last tells why the child of a name went last, or is about to go.
func (e *endings) last(name string) Reason {
	if r := e.latest[name]; r != "" {
		return r
	}
	for _, k := range e.known {
		if k.child.Name == name {
			return e.why(k.ike, k.child)
		}
	}
	return ReasonElsewhere
}

// ended notes the end of a child; false: it was reported before.
func (e *endings) ended(ike uint32, c Child) (Reason, bool) {
	if e.reported[c.UniqueID] && c.UniqueID != 0 {
		return "", false
	}
	why := e.why(ike, c)
	e.drop(c)
	put(&e.latest, c.Name, why)
	return why, true
}

// drop forgets a child that a younger one has replaced.
func (e *endings) drop(c Child) {
	if c.UniqueID != 0 {
		put(&e.reported, c.UniqueID, true)
	}
	delete(e.known, c.UniqueID)
	delete(e.doomed, c.UniqueID)
	delete(e.told, c.SPIOut)
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
