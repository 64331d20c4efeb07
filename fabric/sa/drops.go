package sa

import (
	"cmp"
	"slices"
	"time"
)

// Reason says why a request was dropped: it got no answer, not even an error.
type Reason uint8

// The reasons, in the order in which they are looked for.
const (
	UnknownPort          Reason = iota + 1 // the requester's port was never declared up
	BadMAD                                 // not a request of class SubnAdm
	SpoofedSGID                            // sa_check_sgid_spoofing
	WrongKey                               // SA_Key is neither 0 nor the directory's
	NotAllowed                             // sa_enhanced_trust_model: outside the set of untrusted requests
	UntrustedGUIDInfo                      // sa_etm_allow_untrusted_guidinfo_rec FALSE
	GUIDInfoByVPort                        // sa_etm_allow_guidinfo_rec_by_vf FALSE
	UntrustedProxy                         // sa_etm_allow_untrusted_proxy_requests FALSE
	TooManyGroups                          // sa_etm_max_num_mcgs
	TooManyServices                        // sa_etm_max_num_srvcs
	TooManySubscriptions                   // sa_etm_max_num_event_subs
	reasons
)

// String returns the reason in words.
func (r Reason) String() string {
	switch r {
	case UnknownPort:
		return "its port is not up"
	case BadMAD:
		return "it is no request to a subnet administrator"
	case SpoofedSGID:
		return "its SGID is not one of its port's"
	case WrongKey:
		return "its SA_Key is wrong"
	case NotAllowed:
		return "it is not among the requests that the untrusted may make"
	case UntrustedGUIDInfo:
		return "the untrusted may not change GUIDInfoRecords"
	case GUIDInfoByVPort:
		return "a vport may not change GUIDInfoRecords"
	case UntrustedProxy:
		return "the untrusted may not make it for another port"
	case TooManyGroups:
		return "its port has as many multicast groups as it may"
	case TooManyServices:
		return "its port has as many services as it may"
	case TooManySubscriptions:
		return "its port has as many event subscriptions as it may"
	}
	return "unknown"
}

// Drop is one dropped request.
type Drop struct {
	Time    time.Time
	From    Requester
	Name    string // of the requester's port or vport; empty if it is not known
	Request string // in words: "Set ServiceRecord"
	Reason  Reason
	Number  uint64 // in the requester's run of drops for this reason, from 0
}

// A run is the drops of one requester for one reason that follow each other. The manual has "many times consecutively". A
// request that is taken does not end a run here, only time does: or who alternates good and bad requests would have each bad
// one logged, and fill the log that the rule protects.
type run struct {
	next uint64 // the next drop's number
	last time.Time
}

// dropper is what is known of one requester's drops.
type dropper struct {
	runs  [reasons]run
	total [reasons]uint64
	last  Drop
}

// dropLog counts drops per requester, in a bounded table.
type dropLog struct {
	of  map[Requester]*dropper
	all uint64 // drops, those of requesters that the table has forgotten included
}

// note counts a drop, and reports its number and whether that is one to log.
func (l *dropLog) note(now time.Time, d Drop) (number uint64, log bool) {
	if d.Reason == UnknownPort {
		d.From = Requester{} // strangers share an entry, or each would have the table forget another's
	}
	e := l.of[d.From]
	if e == nil {
		l.makeRoom()
		e = &dropper{}
		l.of[d.From] = e
	}
	r := &e.runs[d.Reason]
	if now.Sub(r.last) >= quietRun {
		r.next = 0
	}
	number = r.next
	r.next++
	r.last = now
	e.total[d.Reason]++
	l.all++
	d.Number = number
	e.last = d
	return number, isLogged(number)
}

// makeRoom forgets the requester whose last drop is longest ago, if the table is full.
func (l *dropLog) makeRoom() {
	if len(l.of) < maxDroppers {
		return
	}
	var oldest Requester
	var at time.Time
	for who, e := range l.of {
		if at.IsZero() || e.last.Time.Before(at) {
			oldest, at = who, e.last.Time
		}
	}
	delete(l.of, oldest)
}

// onMark reports whether n is one of 0, 1, 2, 5, 10, 20, 50, 100, 200 and so on.
func onMark(n uint64) bool {
	for n >= 10 && n%10 == 0 {
		n /= 10
	}
	return n == 0 || n == 1 || n == 2 || n == 5
}

// DropCount is how many requests of one requester were dropped.
type DropCount struct {
	From     Requester
	Name     string
	ByReason map[Reason]uint64
	Last     Drop
}

// Total returns the number for all reasons.
func (c DropCount) Total() (n uint64) {
	for _, k := range c.ByReason {
		n += k
	}
	return n
}

// Drops returns the requesters of which requests were dropped, the last one first.
func (s *Server) Drops() []DropCount {
	list := make([]DropCount, 0, len(s.drops.of))
	for who, e := range s.drops.of {
		c := DropCount{From: who, Name: e.last.Name, ByReason: make(map[Reason]uint64), Last: e.last}
		for r, n := range e.total {
			if n > 0 {
				c.ByReason[Reason(r)] = n
			}
		}
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b DropCount) int {
		return cmp.Or(b.Last.Time.Compare(a.Last.Time), compareRequesters(a.From, b.From))
	})
	return list
}

func compareRequesters(a, b Requester) int {
	return cmp.Or(cmp.Compare(a.GUID, b.GUID), cmp.Compare(a.VPort, b.VPort))
}
