package sa

import (
	"cmp"
	"slices"

	"github.com/ironwarp/ironwarp/fabric/mad"
)

// filter is which notices a subscription is to: an InformInfo without what does not tell two of one requester apart.
type filter mad.InformInfo

// subscription is one requester's interest in events (section 13.4.8.3). It goes by an InformInfo without Subscribe, and
// with its requester.
type subscription struct {
	owner    Requester
	filter   filter
	enum     uint16
	trusted  bool // its requester had the SA_Key
	reported uint64
	lost     uint64 // events of which it was not told
	toldLost bool   // the report that says so waits
}

type subscriptionID struct {
	owner  Requester
	filter filter
}

type subscriptions struct {
	of   map[subscriptionID]*subscription
	enum uint16
}

func (l *subscriptions) init() { l.of = make(map[subscriptionID]*subscription) }

// list returns the subscriptions by requester.
func (l *subscriptions) list() []*subscription {
	list := make([]*subscription, 0, len(l.of))
	for _, x := range l.of {
		list = append(list, x)
	}
	slices.SortFunc(list, func(a, b *subscription) int {
		return cmp.Or(compareRequesters(a.owner, b.owner), cmp.Compare(a.enum, b.enum))
	})
	return list
}

// The values of Subscribe and IsGeneric (section 13.4.8.3).
const (
	unsubscribe = 0
	subscribe   = 1
	anyGeneric  = 0xff
)

// subscribe begins or ends a subscription.
func (s *Server) subscribe(r *request) answer {
	asked, err := mad.ParseInformInfo(r.Data[:mad.InformInfoLen])
	switch {
	case err != nil:
		return fail(mad.StatusInvalidField)
	case asked.Subscribe > subscribe || asked.Generic > 1 && asked.Generic != anyGeneric:
		return fail(mad.StatusReqInvalid)
	case isSecurity(asked) && !maySeeSecurity(r.trusted):
		return fail(mad.StatusDenied)
	}
	id := subscriptionID{r.who, filter(asked)}
	id.filter.Subscribe, id.filter.QPN, id.filter.RespTime = 0, 0, 0
	sub := s.subs.of[id]
	if asked.Subscribe == unsubscribe {
		if sub == nil {
			return fail(mad.StatusReqInvalid)
		}
		s.removeSubscription(sub)
		return one(asked, mad.InformInfoLen)
	}
	if sub != nil {
		sub.trusted = r.trusted // a renewal
		return one(asked, mad.InformInfoLen)
	}
	switch {
	case r.overLimit(r.port.has(r.who.VPort).subscriptions, r.opts.MaxNumEventSubs):
		return drop(TooManySubscriptions)
	case r.port.used.subscriptions >= MaxSubscriptionsPerPort || len(s.subs.of) >= MaxSubscriptions:
		return fail(mad.StatusNoResources)
	}
	s.subs.enum++
	s.subs.of[id] = &subscription{owner: r.who, filter: id.filter, enum: s.subs.enum, trusted: r.trusted}
	s.charge(r.who, 0, 0, 1)
	return one(asked, mad.InformInfoLen)
}

func (s *Server) removeSubscription(sub *subscription) {
	delete(s.subs.of, subscriptionID{sub.owner, sub.filter})
	s.charge(sub.owner, 0, 0, -1)
	if p := s.ports[sub.owner.GUID]; p != nil {
		p.outbox.forget(sub)
	}
}

// distrust takes from all subscriptions what only the trusted may see, reports that wait included.
func (s *Server) distrust() {
	for _, sub := range s.subs.of {
		sub.trusted = false
	}
	secret := func(r report) bool { return r.notice.Security() && !maySeeSecurity(r.sub.trusted) }
	for _, p := range s.ports {
		b := &p.outbox
		b.queue, b.sent = slices.DeleteFunc(b.queue, secret), slices.DeleteFunc(b.sent, secret)
		if len(b.queue) > 0 {
			s.waiting[p] = true // there may be room
		}
	}
}

// forgetSubscriptions removes those of a requester.
func (s *Server) forgetSubscriptions(who Requester) {
	p := s.ports[who.GUID]
	if p == nil || p.uses[who.VPort] == nil || p.uses[who.VPort].subscriptions == 0 {
		return
	}
	for _, sub := range s.subs.of {
		if sub.owner == who {
			s.removeSubscription(sub)
		}
	}
}

// wants reports whether a notice about some ports is one that the subscription is to, and may see.
func (sub *subscription) wants(n *mad.Notice, about []end) bool {
	f := &sub.filter
	switch {
	case n.Security() && !maySeeSecurity(sub.trusted):
		return false
	case f.Generic != anyGeneric && (f.Generic == 1) != n.Generic,
		f.Type != mad.InformAllTypes && f.Type != uint16(n.Type),
		f.TrapNumber != mad.InformAllTraps && f.TrapNumber != n.TrapNumber,
		f.ProducerType != mad.InformAllProducers && f.ProducerType != n.ProducerType:
		return false
	case f.GID != mad.GID{}:
		return slices.ContainsFunc(about, func(e end) bool { return e.gid == f.GID })
	case f.LIDBegin == mad.InformAllLIDs:
		return true
	}
	return slices.ContainsFunc(about, func(e end) bool { return e.lid >= f.LIDBegin && e.lid <= max(f.LIDBegin, f.LIDEnd) })
}
