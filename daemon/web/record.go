package web

import (
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/doctor"
)

// record is what is known of the host: the last answer of its daemon, what has changed, and how fast disks were. It asks nobody
// and has no clock.
//
//	(new) --look: answer--> answered --look: error--> silent --look: answer--> answered
//	  \-----look: error--> silent
//
// Each edge between answered and silent is an event.
type record struct {
	status  *api.Status // the last answer, nil before the first
	problem *api.Error  // why there was no answer at the last look; nil: there was one
	at      time.Time   // of the last answer
	history history
	events  []event // the newest last

	findings []doctor.Finding
	examined time.Time // when the doctor had looked; zero: not yet
}

// look takes the daemon's answer, or why there is none.
func (r *record) look(at time.Time, st api.Status, problem *api.Error) {
	if r.history == nil {
		r.history = history{}
	}
	if problem != nil {
		clean(problem)
		if r.problem == nil {
			r.note(event{at, "bad", "the daemon does not answer: " + problem.Message})
		}
		r.problem = problem
		r.history.look(nil)
		return
	}
	clean(&st)
	if r.problem != nil {
		r.note(event{at, "good", "the daemon answers"})
	}
	if r.status != nil {
		for _, e := range compare(at, r.status, &st) {
			r.note(e)
		}
	}
	r.status, r.problem, r.at = &st, nil, at
	r.history.look(&st)
}

// note keeps an event, and forgets the oldest if there are too many.
func (r *record) note(e event) {
	if len(r.events) == maxEvents {
		copy(r.events, r.events[1:])
		r.events = r.events[:maxEvents-1]
	}
	r.events = append(r.events, e)
}

// examine takes what the doctor has found.
func (r *record) examine(at time.Time, findings []doctor.Finding) {
	clean(&findings)
	r.findings, r.examined = findings, at
}
