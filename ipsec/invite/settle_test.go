package invite

import (
	"fmt"
	"testing"
	"time"
)

var tokenTime = time.Unix(1790000000, 0)

// half is one host of a simulated settlement.
type half struct {
	settlement
	has     bool // the other, as a peer
	answers event
	fails   bool // to write
	in      []event
}

var eventOf = map[kind]event{kindConfirm: confirm, kindWritten: written, kindDone: done, kindBye: bye, kindAbort: abort}

// settleBoth runs both to their ends. Of all messages that they send, cut is the first that is lost, as are
// all behind it; -1: none.
func settleBoth(t *testing.T, a, b *half, first, cut int) {
	t.Helper()
	sent := 0
	var feed func(h, other *half, e event)
	feed = func(h, other *half, e event) {
		do := h.on(e)
		if do.send != 0 {
			if cut < 0 || sent < cut {
				other.in = append(other.in, eventOf[do.send])
			}
			sent++
		}
		if do.undo {
			if !h.has {
				t.Error("undoes what it has not")
			}
			h.has = false
		}
		if do.write {
			if h.has {
				t.Error("writes twice")
			}
			if h.fails {
				feed(h, other, writeFailed)
				return
			}
			h.has = true
			feed(h, other, wrote)
		}
	}
	order := []*half{a, b}
	if first == 1 {
		order = []*half{b, a}
	}
	for _, h := range order {
		other := a
		if h == a {
			other = b
		}
		feed(h, other, h.answers)
	}
	for moved := true; moved; {
		moved = false
		for _, h := range order {
			other := a
			if h == a {
				other = b
			}
			if len(h.in) > 0 {
				e := h.in[0]
				h.in, moved = h.in[1:], true
				feed(h, other, e)
			}
		}
	}
	// Nothing more arrives.
	for _, h := range order {
		other := a
		if h == a {
			other = b
		}
		if h.state != ended {
			feed(h, other, lost)
		}
	}
}

// TestNeitherHostKeepsHalfAPeer, whichever message is the last that arrives, whoever answers first and whoever
// cannot write: both have each other, or neither the other, or the one that has it says that it isn't sure.
func TestNeitherHostKeepsHalfAPeer(t *testing.T) {
	unsure := 0
	for _, c := range []struct {
		i, j           event
		iFails, jFails bool
		want           bool // if no message is lost
	}{{agreed, agreed, false, false, true}, {declined, agreed, false, false, false}, {agreed, declined, false, false, false}, {declined, declined, false, false, false},
		{agreed, agreed, true, false, false}, {agreed, agreed, false, true, false}} {
		for first := range 2 {
			for cut := -1; cut < 8; cut++ {
				name := fmt.Sprintf("%+v, first %d, cut %d", c, first, cut)
				i, j := &half{settlement: settlement{role: inviter}, answers: c.i, fails: c.iFails}, &half{settlement: settlement{role: joiner}, answers: c.j, fails: c.jFails}
				settleBoth(t, i, j, first, cut)
				for _, h := range []*half{i, j} {
					if keeps := h.outcome == Kept || h.outcome == KeptUnsure; keeps != h.has || h.state != ended {
						t.Errorf("%s: outcome %d, has the peer: %v", name, h.outcome, h.has)
					}
				}
				if i.has != j.has && i.outcome != KeptUnsure {
					t.Errorf("%s: inviter %v (%d), joiner %v (%d)", name, i.has, i.outcome, j.has, j.outcome)
				}
				if i.outcome == KeptUnsure {
					unsure++
				}
				if cut < 0 && (i.has != c.want || j.has != c.want || c.want && (i.outcome != Kept || j.outcome != Kept)) {
					t.Errorf("%s: inviter %v (%d), joiner %v (%d)", name, i.has, i.outcome, j.has, j.outcome)
				}
			}
		}
	}
	if unsure != 4 {
		t.Errorf("%d ends in which the inviter isn't sure; want: the loss of Done and of Bye, by who answers first", unsure)
	}
}

// TestEveryEventInEveryState: nothing unexpected writes a peer, or ends with one that was not there.
func TestEveryEventInEveryState(t *testing.T) {
	for _, r := range []role{inviter, joiner} {
		for s := asking; s <= ended; s++ {
			for e := agreed; e <= lost; e++ {
				m := settlement{role: r, state: s}
				do := m.on(e)
				if do.write && !(s == awaiting && e == written && r == joiner) && m.state != writing {
					t.Errorf("role %d, state %d, event %d: writes", r, s, e)
				}
				if do.write && s == asking {
					t.Errorf("role %d, event %d: writes before both have confirmed", r, e)
				}
				if do.undo && s != settling && s != leaving {
					t.Errorf("role %d, state %d, event %d: undoes", r, s, e)
				}
			}
		}
	}
}
