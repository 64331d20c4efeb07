package iscsitest

import (
	"encoding"
	"fmt"
	"time"

	"github.com/ironwarp/ironwarp/internal/printable"
)

// Verdict is what a case has come to.
type Verdict uint8

// The verdicts.
const (
	Pass         Verdict = iota
	Fail                 // a sentence with MUST was broken
	Warn                 // a sentence with SHOULD was, or a custom
	Skip                 // the target, or the caller, does not have what the case needs
	Inconclusive         // the case could not be finished, and that proves nothing
	TargetDown           // the target takes no login any more
)

var verdictNames = [...]string{"PASS", "FAIL", "WARN", "SKIP", "INCONCLUSIVE", "TARGET-DOWN"}

// String returns the name of the verdict.
func (v Verdict) String() string { return verdictNames[v] }

// MarshalText returns the name of the verdict. It never fails.
func (v Verdict) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

var _ encoding.TextMarshaler = Verdict(0)

// Bad reports that the target is to blame.
func (v Verdict) Bad() bool { return v == Fail || v == TargetDown }

// Level is how much a sentence demands.
type Level uint8

// The levels.
const (
	Must     Level = iota // MUST of the RFC, or of T10's standards
	Should                // SHOULD
	Practice              // what initiators that exist rely on
)

// String returns the name of the level.
func (l Level) String() string { return [...]string{"MUST", "SHOULD", "practice"}[l] }

// MarshalText returns the name of the level. It never fails.
func (l Level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// Result is what one case has come to.
type Result struct {
	Case    string        `json:"case"`
	Over    Transport     `json:"over"`
	Verdict Verdict       `json:"verdict"`
	Level   Level         `json:"level"`
	Source  string        `json:"source"`          // of the sentence: the RFC and its section
	Says    string        `json:"sentence"`        // what a target does
	Found   string        `json:"found,omitempty"` // what this one has done instead, or why there is no verdict
	Tries   int           `json:"tries"`           // more than 1: a connection had ended before
	Took    time.Duration `json:"took_ns"`
	Trace   []Event       `json:"-"` // what was sent and received, if the verdict is not Pass or Skip
}

// Report is what Run returns.
type Report struct {
	Target  string   `json:"target"` // its URL
	Seed    uint64   `json:"seed"`
	Results []Result `json:"results"`
}

// Count is how many results have a verdict.
func (r *Report) Count(v Verdict) (n int) {
	for i := range r.Results {
		if r.Results[i].Verdict == v {
			n++
		}
	}
	return n
}

// Bad reports that the target has failed a case.
func (r *Report) Bad() bool { return r.Count(Fail)+r.Count(TargetDown) > 0 }

// Event is a PDU that was sent or received, or something that has happened to its connection.
type Event struct {
	At   time.Duration // since the case began
	Conn int           // the number of its connection in the case, from 1 on
	Sent bool
	PDU  *PDU // nil: Note says what has happened
	Note string
}

// String returns the event in words.
func (e Event) String() string {
	arrow := "<-"
	if e.Sent {
		arrow = "->"
	}
	if e.PDU == nil {
		return fmt.Sprintf("%9.3f ms  #%d     %s", e.At.Seconds()*1e3, e.Conn, printable.Text(e.Note))
	}
	return fmt.Sprintf("%9.3f ms  #%d  %s %s", e.At.Seconds()*1e3, e.Conn, arrow, e.PDU)
}
