package conformance

import (
	"slices"
	"strings"
	"testing"
)

// Case is one requirement on two ends.
type Case struct {
	Name string
	RFC  string  // what it proves
	A, B Feature // what it needs of the end that acts and of the other
	// Core marks the cases that depend on how segments travel, to be run over
	// each variant of a lower layer; the others are worth one run over each kind.
	Core bool

	run     func(a, b *side)
	connect func(c *connector) // in place of run, for cases of several streams
}

// Cases are all cases.
func Cases() []Case {
	return slices.Concat(sendCases(), taggedCases(), orderCases(), atomicCases(), notifyCases(), localCases(), faultCases(), closeCases())
}

// Core are the cases that are marked Core.
func Core() []Case {
	return slices.DeleteFunc(Cases(), func(c Case) bool { return !c.Core })
}

// Without leaves out the cases that need any of these features of either end, for
// ends that are known to lack them: they are not even skipped.
func Without(cases []Case, f Feature) []Case {
	return slices.DeleteFunc(slices.Clone(cases), func(c Case) bool { return (c.A|c.B)&f != 0 })
}

// Run runs cases, each on a stream of its own and in both directions: once with
// the end that Connect returns first as the one that acts, once with the other.
// A case whose features an end lacks is skipped, and names them.
func Run(t *testing.T, connect Connect, cases []Case) {
	for _, c := range cases {
		t.Run(strings.ReplaceAll(c.Name, " ", "-"), func(t *testing.T) {
			t.Run("a-to-b", func(t *testing.T) { c.Run(t, connect, false) })
			t.Run("b-to-a", func(t *testing.T) { c.Run(t, connect, true) })
		})
	}
}

// Run runs the case once. swap: the second end of connect is the one that acts.
func (c Case) Run(t testing.TB, connect Connect, swap bool) {
	t.Helper()
	k := &connector{t: t, connect: connect, swap: swap, c: &c}
	if c.connect != nil {
		c.connect(k)
	} else {
		c.run(k.pair())
	}
	k.finish()
}

// connector makes the streams of one run of a case.
type connector struct {
	t       testing.TB
	connect Connect
	swap    bool
	c       *Case
	sides   []*side
}

// pair is one more stream: the end that acts and the other.
func (k *connector) pair() (a, b *side) {
	k.t.Helper()
	x, y := k.connect(k.t)
	a, b = newSide(k.t, "a", x), newSide(k.t, "b", y)
	if k.swap {
		a, b = newSide(k.t, "b", y), newSide(k.t, "a", x)
	}
	for _, need := range []struct {
		s *side
		f Feature
	}{{a, k.c.A}, {b, k.c.B}} {
		for f := Feature(1); f < All; f <<= 1 {
			if need.f&f != 0 && !need.s.Can(f) {
				x.Abort()
				y.Abort()
				k.t.Skipf("end %s lacks: %v", need.s.name, f)
			}
		}
	}
	k.sides = append(k.sides, a, b)
	return a, b
}

// finish closes the streams that still live and makes the final checks of every end.
func (k *connector) finish() {
	k.t.Helper()
	for _, s := range k.sides {
		if s.end == nil {
			s.check("close", s.Close())
		}
	}
	for _, s := range k.sides {
		if s.end == nil {
			s.wantEnd(Graceful, PeerClosed)
		}
	}
	for _, s := range k.sides {
		s.settled()
	}
}
