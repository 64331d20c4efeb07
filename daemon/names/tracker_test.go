package names

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	one   = netip.MustParseAddr("192.0.2.1")
	two   = netip.MustParseAddr("192.0.2.2")
	three = netip.MustParseAddr("2001:db8::3")
	lo    = netip.MustParseAddr("127.0.0.1")
	none  netip.Addr

	epoch = time.Unix(1790000000, 0)
)

func check(a netip.Addr) error {
	if a.IsLoopback() {
		return errors.New("it is on this host")
	}
	return nil
}

// TestWhereAPeerIsLookedFor by the answer to its name and the state of its link.
func TestWhereAPeerIsLookedFor(t *testing.T) {
	list := func(a ...netip.Addr) []netip.Addr { return a }
	for name, c := range map[string]struct {
		at      netip.Addr
		link    Link
		broken  time.Duration // for how long
		answers []netip.Addr
		err     error
		want    netip.Addr
		note    string
	}{
		"first answer":                         {none, Idle, 0, list(two, one), nil, one, ""},
		"answer that cannot be":                {none, Idle, 0, list(lo), nil, none, "127.0.0.1: it is on this host"},
		"one that can be beside it":            {none, Idle, 0, list(lo, two), nil, two, ""},
		"IPv4 in IPv6":                         {none, Idle, 0, list(netip.MustParseAddr("::ffff:192.0.2.2")), nil, two, ""},
		"no answer":                            {none, Idle, 0, nil, errSilent, none, "no answer in time"},
		"empty answer":                         {none, Idle, 0, nil, nil, none, "the answer is empty"},
		"same answer":                          {one, Idle, 0, list(two, one), nil, none, ""},
		"same answer, streams":                 {one, Carries, 0, list(two, one), nil, none, ""},
		"another answer, nothing runs":         {one, Idle, 0, list(two), nil, two, ""},
		"another answer, streams run":          {one, Carries, 0, list(two), nil, none, "streams run at 192.0.2.1"},
		"another answer, just broken":          {one, Broken, time.Second, list(two), nil, none, "192.0.2.2 now"},
		"another answer, broken":               {one, Broken, brokenTime, list(two), nil, two, ""},
		"several answers, broken":              {one, Broken, brokenTime, list(three, two, one), nil, two, ""},
		"several answers, the last is broken":  {three, Broken, brokenTime, list(three, two, one), nil, one, ""},
		"one answer, broken":                   {one, Broken, brokenTime, list(one), nil, none, ""},
		"the old address while none is found":  {one, Broken, brokenTime, nil, errSilent, none, "no answer in time"},
		"the old address while a lie is found": {one, Broken, brokenTime, list(lo), nil, none, "it is on this host"},
	} {
		tr := &tracker{at: c.at, moved: epoch.Add(-time.Hour)}
		tr.observe(epoch.Add(-c.broken), c.at, c.link)
		tr.observe(epoch, c.at, c.link)
		if got := tr.answered(epoch, c.answers, c.err, c.link, check); got != c.want || !strings.Contains(tr.note, c.note) || c.note == "" && tr.note != "" {
			t.Errorf("%s: moves to %v, want %v; note %q", name, got, c.want, tr.note)
		}
		if wait := tr.due.Sub(epoch); wait < 0 || wait > refreshEvery {
			t.Errorf("%s: is looked up again in %v", name, wait)
		}
	}
}

// TestAnswersThatFlapEndNoStreams, and have an idle peer move no more often than they are asked for.
func TestAnswersThatFlapEndNoStreams(t *testing.T) {
	for _, link := range []Link{Carries, Idle, Broken} {
		tr := &tracker{}
		at, moves, now := one, 0, epoch
		for i := range 1000 {
			now = now.Add(time.Second)
			tr.observe(now, at, link)
			if now.Before(tr.due) {
				continue
			}
			answer := []netip.Addr{one, two}[i%2]
			if to := tr.answered(now, []netip.Addr{answer}, nil, link, check); to.IsValid() {
				at, moves = to, moves+1
			}
		}
		if most := map[Link]int{Carries: 0, Idle: 1000 / 15, Broken: 1000 / 15}[link]; moves > most {
			t.Errorf("link %d: %d moves in 1000 seconds", link, moves)
		}
	}
}

// TestThousandAnswersAreBounded: few are looked at, the one that works among them.
func TestThousandAnswersAreBounded(t *testing.T) {
	var all []netip.Addr
	for i := range 1000 {
		all = append(all, netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}))
	}
	checked := 0
	count := func(netip.Addr) error { checked++; return errors.New("no") }
	tr := &tracker{}
	if to := tr.answered(epoch, all, nil, Idle, count); to.IsValid() || checked != maxAnswers || len(tr.note) > 1000 || !strings.Contains(tr.note, "984 more were not looked at") {
		t.Errorf("%v, %d, %d bytes: %s", to, checked, len(tr.note), tr.note)
	}
	last := all[999]
	tr.observe(epoch, last, Idle)
	if to := tr.answered(epoch, all, nil, Idle, check); to.IsValid() {
		t.Errorf("it moves to %v although the answer has its address", to)
	}
	// Broken, it goes round them all that are looked at.
	seen := map[netip.Addr]bool{}
	now := epoch
	at := last
	for range 200 {
		now = now.Add(time.Second)
		tr.observe(now, at, Broken)
		if now.Before(tr.due) {
			continue
		}
		if to := tr.answered(now, all[:3], nil, Broken, check); to.IsValid() {
			at, seen[to] = to, true
		}
	}
	if len(seen) != 3 {
		t.Errorf("%v", seen)
	}
}

// TestSilentServerIsNotAskedWithoutEnd, and one that answers again is heard soon.
func TestSilentServerIsNotAskedWithoutEnd(t *testing.T) {
	tr := &tracker{}
	asked, now := 0, epoch
	for range 600 {
		now = now.Add(time.Second)
		if now.Before(tr.due) {
			continue
		}
		asked++
		tr.answered(now, nil, errSilent, Idle, check)
	}
	if asked < 15 || asked > 30 {
		t.Errorf("asked %d times in 10 minutes", asked)
	}
	if tr.due.Sub(now) > retryMost {
		t.Errorf("asked again in %v", tr.due.Sub(now))
	}
}

// FuzzAnswers: whatever the answers and the link do, a peer moves to an answer that can be, and never while streams run.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 0x81, 0x42})
	f.Fuzz(func(t *testing.T, steps []byte) {
		pool := []netip.Addr{one, two, three, lo, none, netip.MustParseAddr("224.0.0.1")}
		bad := func(a netip.Addr) error {
			if !a.IsValid() || a.IsLoopback() || a.IsMulticast() {
				return fmt.Errorf("%v", a)
			}
			return nil
		}
		tr := &tracker{}
		var at netip.Addr
		now := epoch
		for i, s := range steps {
			now = now.Add(time.Duration(s%32) * time.Second)
			link := Link(s >> 6 % 3)
			if !at.IsValid() {
				link = Idle
			}
			tr.observe(now, at, link)
			answers := []netip.Addr{pool[int(s)%len(pool)], pool[i%len(pool)]}
			to := tr.answered(now, answers, nil, link, bad)
			if !to.IsValid() {
				continue
			}
			if bad(to) != nil || !slices.Contains(answers, to) || at.IsValid() && link == Carries {
				t.Fatalf("step %d: from %v to %v, link %d, answers %v", i, at, to, link, answers)
			}
			at = to
		}
	})
}
