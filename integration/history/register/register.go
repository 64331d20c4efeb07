// Package register is a model of a sector of a disk with a volatile cache, for porcupine,
// which searches a history of Steps for an order in which one disk could have carried them
// out.
package register

import (
	"fmt"
	"math"
	"slices"

	"github.com/anishathalye/porcupine"
)

// Kind is what happens to a sector in a step.
type Kind uint8

// The kinds of steps.
const (
	Read  Kind = iota
	Write      // acknowledged
	Maybe      // a write whose outcome is unknown, or that may be carried out once more
	Flush      // acknowledged
	Cut        // power
	Set        // the disk's content was replaced
)

// Step is one operation as a sector sees it.
type Step struct {
	Kind    Kind
	Value   uint32 // read, written or set: the number of the write
	Durable bool   // it counts as durable when it is carried out
	FUA     bool
	Epoch   int   // of the attachment: a new one starts with each attach
	Start   int64 // when the connection was opened
	Died    int64 // Maybe: when its connection ended; what was opened later is a successor
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
func (s state) next(x Step) []state {
	after := s
	after.last = max(s.last, x.Start)
	switch x.Kind {
	case Read:
		if x.Value != s.now {
			return nil
		}
		return []state{after}
	case Write:
		return []state{after.put(x.Value, x.Epoch, x.Durable)}
	case Maybe:
		if s.last > x.Died {
			return []state{s} // a successor has been served: too late
		}
		return []state{s, s.put(x.Value, 0, x.Durable)}
	case Flush:
		if s.lost >= x.Epoch {
			return nil // it vouches for what was lost
		}
		after.since = []held{{s.now, 0}}
		return []state{after}
	case Cut:
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
	default: // Set
		s.now, s.since = x.Value, []held{{x.Value, 0}}
		return []state{s}
	}
}

func (x Step) String() string {
	fua := ""
	if x.FUA {
		fua = " FUA"
	}
	switch x.Kind {
	case Read:
		return fmt.Sprintf("read %d", x.Value)
	case Write:
		return fmt.Sprintf("write %d%s", x.Value, fua)
	case Maybe:
		return fmt.Sprintf("write %d, or not", x.Value)
	case Flush:
		return "flush"
	case Cut:
		return "power cut"
	}
	return fmt.Sprintf("another disk, with %d", x.Value)
}

// Model is of one sector, a register: histories are cut into sectors before. The input of
// an operation is a Step.
var Model = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{state{since: []held{{}}}} },
	Step: func(st, in, _ any) []any {
		var out []any
		for _, n := range st.(state).next(in.(Step)) {
			out = append(out, n)
		}
		return out
	},
	Equal:             func(a, b any) bool { return a.(state).equal(b.(state)) },
	Hash:              func(s any) uint64 { return s.(state).hash() },
	DescribeOperation: func(in, _ any) string { return in.(Step).String() },
	DescribeState: func(s any) string {
		st := s.(state)
		return fmt.Sprintf("%d, after a power cut one of %v", st.now, st.since)
	},
}).ToModel()

// Never is the end time of what does not end.
const Never = math.MaxInt64
