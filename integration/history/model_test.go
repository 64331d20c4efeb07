package history

import (
	"fmt"
	"math"
	"slices"

	"github.com/anishathalye/porcupine"
)

// stepKind is what happens to a sector in a step.
type stepKind uint8

const (
	stepRead  stepKind = iota
	stepWrite          // acknowledged
	stepMaybe          // a write whose outcome is unknown, or that may be carried out once more
	stepFlush          // acknowledged
	stepCut            // power
	stepSet            // the disk's content was replaced
)

// step is one operation as a sector sees it.
type step struct {
	kind    stepKind
	value   uint32 // read, written or set: the number of the write
	durable bool   // it counts as durable when it is carried out
	fua     bool
	epoch   int   // of the attachment: a new one starts with each attach
	start   int64 // when the connection was opened
	died    int64 // stepMaybe: when its connection ended; what was opened later is a successor
}

// held is a value that a sector may have after a power cut.
type held struct {
	value uint32
	epoch int // in which it was acknowledged; 0: never
}

// state of a sector.
type state struct {
	now  uint32
	lost int   // the latest epoch in which a write was acknowledged that a power cut took
	last int64 // when the youngest connection with an effect was opened
	// since holds the durable value and what was written after it.
	since []held
}

func (s state) equal(o state) bool {
	return s.now == o.now && s.lost == o.lost && s.last == o.last && slices.Equal(s.since, o.since)
}

func (s state) hash() uint64 {
	h := mix(mix(mix(0, uint64(s.now)), uint64(s.lost)), uint64(s.last))
	for _, x := range s.since {
		h = mix(h, uint64(x.value)<<32|uint64(x.epoch))
	}
	return h
}

// mix is a step of FNV-1a.
func mix(h, x uint64) uint64 { return (h ^ x) * 0x100000001b3 }

func (s state) put(v uint32, epoch int, durable bool) state {
	s.now = v
	if durable {
		s.since = []held{{v, 0}}
	} else {
		s.since = append(slices.Clone(s.since), held{v, epoch})
	}
	return s
}

// next are the states that a step may lead to: none if the step is impossible.
func (s state) next(x step) []state {
	after := s
	after.last = max(s.last, x.start)
	switch x.kind {
	case stepRead:
		if x.value != s.now {
			return nil
		}
		return []state{after}
	case stepWrite:
		return []state{after.put(x.value, x.epoch, x.durable)}
	case stepMaybe:
		if s.last > x.died {
			return []state{s} // a successor has been served: too late
		}
		return []state{s, s.put(x.value, 0, x.durable)}
	case stepFlush:
		if s.lost >= x.epoch {
			return nil // it vouches for what was lost
		}
		after.since = []held{{s.now, 0}}
		return []state{after}
	case stepCut:
		var all []state
		lost := s.lost
		for i := len(s.since) - 1; i >= 0; i-- {
			c := state{now: s.since[i].value, lost: lost, last: s.last, since: []held{{s.since[i].value, 0}}}
			if !slices.ContainsFunc(all, c.equal) {
				all = append(all, c)
			}
			lost = max(lost, s.since[i].epoch)
		}
		return all
	default: // stepSet
		s.now, s.since = x.value, []held{{x.value, 0}}
		return []state{s}
	}
}

func (x step) String() string {
	fua := ""
	if x.fua {
		fua = " FUA"
	}
	switch x.kind {
	case stepRead:
		return fmt.Sprintf("read %d", x.value)
	case stepWrite:
		return fmt.Sprintf("write %d%s", x.value, fua)
	case stepMaybe:
		return fmt.Sprintf("write %d, or not", x.value)
	case stepFlush:
		return "flush"
	case stepCut:
		return "power cut"
	}
	return fmt.Sprintf("another disk, with %d", x.value)
}

// model of one sector, a register. Histories are cut into sectors before.
var model = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{state{since: []held{{}}}} },
	Step: func(st, in, _ any) []any {
		var out []any
		for _, n := range st.(state).next(in.(step)) {
			out = append(out, n)
		}
		return out
	},
	Equal:             func(a, b any) bool { return a.(state).equal(b.(state)) },
	Hash:              func(s any) uint64 { return s.(state).hash() },
	DescribeOperation: func(in, _ any) string { return in.(step).String() },
	DescribeState: func(s any) string {
		st := s.(state)
		return fmt.Sprintf("%d, after a power cut one of %v", st.now, st.since)
	},
}).ToModel()

// never is the end time of what does not end.
const never = math.MaxInt64
