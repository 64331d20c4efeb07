package iscsitest

import (
	"slices"
	"strings"
)

// Need is what a case needs that not every run has. The bits add up.
type Need uint8

// What cases need.
const (
	Data    Need = 1 << iota // it writes to the disk
	Secrets                  // Target.CHAP
	Hostile                  // it attacks the target, which others may feel, and may not survive
	Soak                     // it takes as long as Options.Soak says
)

// Case is one sentence about targets.
type Case struct {
	ID     string      `json:"id"` // its group, a dot, and what it is about
	Level  Level       `json:"level"`
	Source string      `json:"source"`   // where the sentence stands
	Says   string      `json:"sentence"` // short
	Need   Need        `json:"-"`
	Over   []Transport `json:"over,omitempty"` // nil: all

	run func(t *T) // nil: it is watched in all others
}

// Group is the part of the ID before the dot.
func (c *Case) Group() string {
	g, _, _ := strings.Cut(c.ID, ".")
	return g
}

// over reports whether the case is for a transport.
func (c *Case) over(t Transport) bool { return c.Over == nil || slices.Contains(c.Over, t) }

// onTCP is for the cases whose sentence is about what only TCP has: Data-In, Data-Out and R2T PDUs, digests,
// and text that is read byte by byte.
var onTCP = []Transport{TCP}

// onRDMA is for those about iSER.
var onRDMA = []Transport{ISER, ISERStreaming}

// Cases are all cases, in the order in which they run.
func Cases() []Case {
	return slices.Concat(loginCases(), keyCases(), chapCases(), numberingCases(), nopCases(), textCases(), dataCases(), digestCases(),
		taskCases(), recoveryCases(), sessionCases(), iserCases(), scsiCases(), copyCases(), reservationCases(), soakCases(), hostileCases(), alwaysCases())
}
