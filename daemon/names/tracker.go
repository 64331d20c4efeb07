package names

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Link is the state of a peer's link at its address.
type Link int

// The states of a link.
const (
	Idle    Link = iota // nothing is wrong, and nothing is lost if the peer is looked for elsewhere
	Carries             // streams run
	Broken              // streams can't run, or wait
)

// tracker decides at which of the addresses of its name a peer is: a state machine without I/O or clock.
//
//	unresolved --an answer that can be--> at an address
//	at: answers have the address, or the link carries streams --> stays
//	at: answers don't have it, and the link carries nothing   --> moves to the first that can be
//	at: the link is broken for brokenTime                     --> moves to the next that can be
//
// An answer decides where a peer is looked for, never who it is: IKE has to authenticate it there. So an answer that
// lies ends no stream that runs.
type tracker struct {
	at     netip.Addr // zero: unresolved
	broken time.Time  // since when the link is; zero: it is not
	moved  time.Time  // when at last changed
	due    time.Time  // for the next lookup
	pause  time.Duration
	note   string
}

// observe notes the state of the link. A link that has just broken has its name looked up.
func (t *tracker) observe(now time.Time, at netip.Addr, link Link) {
	if t.at != at {
		t.at, t.moved, t.broken = at, now, time.Time{}
	}
	switch {
	case link != Broken:
		t.broken = time.Time{}
	case t.broken.IsZero():
		t.broken = now
		if soon := now.Add(brokenTime); soon.Before(t.due) {
			t.due, t.pause = soon, 0
		}
	}
}

// answered is given the outcome of a lookup, and returns the address to which the peer is to move; a zero one if it stays.
// check says why an address cannot be the peer's.
func (t *tracker) answered(now time.Time, answers []netip.Addr, err error, link Link, check func(netip.Addr) error) netip.Addr {
	usable, why := judge(answers, t.at, check)
	switch {
	case err != nil:
		t.note = fmt.Sprintf("its name cannot be looked up: %v", err)
	case len(usable) == 0:
		t.note = "its name has no address that can be another host's: " + why
	default:
		t.note = ""
	}
	if settled := t.note == "" && t.broken.IsZero(); settled {
		t.pause = refreshEvery
	} else {
		t.pause = min(max(2*t.pause, retryFirst), retryMost)
	}
	t.due = now.Add(t.pause)
	if len(usable) == 0 {
		return netip.Addr{}
	}
	i := slices.Index(usable, t.at)
	waits := !t.broken.IsZero() && now.Sub(t.broken) < brokenTime
	switch {
	case !t.at.IsValid():
		return usable[0]
	case i >= 0 && (t.broken.IsZero() || len(usable) == 1):
		return netip.Addr{}
	case link == Carries || waits:
		if i < 0 {
			t.note = fmt.Sprintf("its name has the address %s now; streams run at %s, and it is looked for there when they do no more", usable[0], t.at)
		}
		return netip.Addr{}
	case now.Sub(t.moved) < moveEvery:
		t.due = t.moved.Add(moveEvery)
		return netip.Addr{}
	}
	return usable[(i+1)%len(usable)]
}

// judge returns the answers that can be, in order and without repetitions, at most maxAnswers, the present one among them if
// it is one, and what is wrong with the others.
func judge(answers []netip.Addr, at netip.Addr, check func(netip.Addr) error) (usable []netip.Addr, why string) {
	all := slices.Clone(answers)
	for i := range all {
		all[i] = all[i].Unmap()
	}
	slices.SortFunc(all, netip.Addr.Compare)
	all = slices.Compact(all)
	if i := slices.Index(all, at); i >= maxAnswers {
		all[maxAnswers-1] = at
	}
	var wrong []string
	if len(all) > maxAnswers {
		wrong = append(wrong, fmt.Sprintf("%d more were not looked at", len(all)-maxAnswers))
		all = all[:maxAnswers]
	}
	for _, a := range all {
		if err := check(a); err != nil {
			wrong = append(wrong, fmt.Sprintf("%s: %v", a, err))
			continue
		}
		usable = append(usable, a)
	}
	if len(answers) == 0 {
		wrong = append(wrong, "the answer is empty")
	}
	return usable, strings.Join(wrong, "; ")
}

// errSilent is a lookup that took too long.
var errSilent = errors.New("no answer in time")
