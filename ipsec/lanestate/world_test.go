package lanestate

import (
	"fmt"
	"time"
)

// begin is when the clock of a test starts.
var begin = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// flow is a stream of a lane, as a test has it.
type flow struct {
	admitted, waiting, fading bool
	used                      time.Time // it last carried something
}

// world is what surrounds a lane: charon, its flows, calls of Prepare and a clock. It knows
// by itself how the lane has to stand, and checks each step of the state machine.
type world struct {
	fatalf func(format string, args ...any)
	lane   Lane
	now    time.Time
	reap   time.Duration
	stays  bool // the child is to be there at all times

	list    Listed // the last one
	flows   []*flow
	waiters int
	dials   int
	until   time.Time // the last dial may be on its way
	proved  bool      // one was admitted since the last began
	silence Silence

	hasBeen     bool
	fell, rose  time.Time
	outage      time.Time // since when flows have no child
	evicted     time.Time // impostors, last
	renewed     time.Time // the child, last
	failed      time.Time // the last attempt, while nobody waits for it
	initiations int
	pauses      int // flows were told of
}

func newWorld(fatalf func(string, ...any), dialler, leads bool) *world {
	return &world{fatalf: fatalf, lane: New(dialler, leads), now: begin, silence: Silence{Of: time.Hour}}
}

func (w *world) admitted() (n int) {
	for _, f := range w.flows {
		if f.admitted {
			n++
		}
	}
	return n
}

// waiting reports whether an admitted flow has data.
func (w *world) waiting() bool {
	for _, f := range w.flows {
		if f.admitted && f.waiting {
			return true
		}
	}
	return false
}

// state is how the lane has to stand.
func (w *world) state() State {
	switch {
	case w.list.Up():
		return Up
	case len(w.flows) > 0:
		return Paused
	case w.waiters > 0:
		return Connecting
	case w.lane.Wanted():
		return Wanted
	}
	return Down
}

// happen takes an event to the lane, and checks what comes of it.
func (w *world) happen(e Event) Effect {
	before := w.lane
	after, out := before.Next(w.now, e)
	if again, same := before.Next(w.now, e); again != after || same != out {
		w.fatalf("%T: another outcome for the same state, event and time", e)
	}
	w.lane = after
	list, isList := e.(Listed)
	if isList {
		w.list = list
	}
	rises, falls := before.State() != Up && after.State() == Up, before.State() == Up && after.State() != Up
	if (rises || falls) && !isList {
		w.fatalf("%T: from %v to %v without a list", e, before.State(), after.State())
	}
	if rises {
		w.waiters, w.hasBeen, w.rose, w.failed = 0, true, w.now, time.Time{}
		if w.lane.Wanted() {
			w.fatalf("a child that is there is wanted")
		}
	}
	if _, passed := e.(Passed); passed && before.State() != Up {
		w.hasBeen, w.fell = true, w.now
	}
	if want := w.state(); after.State() != want {
		w.fatalf("%T: the lane is %v, want %v", e, after.State(), want)
	}
	if out.Do.Has(Answer) != rises {
		w.fatalf("%T: from %v to %v, and calls of Prepare go on: %v", e, before.State(), after.State(), out.Do.Has(Answer))
	}
	w.checkOutage(e, rises, falls, out)
	w.checkWanted(e, &before)
	w.checkWork(e, &before, out)
	return out
}

// checkOutage holds that each loss of a child that pauses flows is told once, and each
// return with the time that it took.
func (w *world) checkOutage(e Event, rises, falls bool, out Effect) {
	if paused := falls && len(w.flows) > 0; out.Do.Has(Pause) != paused || out.Do.Has(ShortenRTO) != paused {
		w.fatalf("%T: flows are paused: %v, and this is told: %v", e, paused, out.Do.Has(Pause))
	}
	if falls {
		w.fell = w.now
		if len(w.flows) > 0 {
			w.outage = w.now
			w.pauses++
		}
	}
	restored := rises && !w.outage.IsZero()
	if out.Do.Has(Restore) != restored || restored && out.Outage != w.now.Sub(w.outage) || !restored && out.Outage != 0 {
		w.fatalf("%T: flows go on: %v, and this is told: %v, after %v", e, restored, out.Do.Has(Restore), out.Outage)
	}
	if restored || len(w.flows) == 0 {
		w.outage = time.Time{}
	}
}

// checkWanted holds that a child is wanted without traffic for a reason only.
func (w *world) checkWanted(e Event, before *Lane) {
	if before.Wanted() || !w.lane.Wanted() {
		return
	}
	ok := false
	switch e := e.(type) {
	case Greet:
		ok = before.State() != Up
	case Listed:
		ok = w.stays && before.State() == Up || e.CharonGone && (before.State() == Up || len(w.flows) > 0) || e.Afresh && len(w.flows) > 0 || e.Anew && w.admitted() > 0
	case Suspected:
		ok = before.State() == Up
	}
	if !ok {
		w.fatalf("%+v: a lane that was %v is wanted", e, before.State())
	}
}

// checkWork holds what R5 promises of the work at charon.
func (w *world) checkWork(e Event, before *Lane, out Effect) {
	tick, _ := e.(Tick)
	if before.Trying() && out.Work != Nothing && out.Work != Renew {
		w.fatalf("work %d while an attempt is under way", out.Work)
	}
	switch out.Work {
	case Initiate:
		pending := w.hasBeen && len(w.flows) > w.admitted() && w.now.Sub(w.fell) < 2*AdmitWait
		switch {
		case before.State() == Up || w.list.Impostors > 0 || w.list.Mismatch:
			w.fatalf("a child is brought up under %+v", w.list)
		case w.waiters == 0 && !before.Wanted() && !w.now.Before(w.until) && !pending && !tick.Waiting && !tick.Fading:
			w.fatalf("a child is brought up that nobody needs, of a lane that is %v", before.State())
		case w.waiters == 0 && !w.failed.IsZero() && w.now.Sub(w.failed) < retryMin/2:
			w.fatalf("an attempt %v after one that failed", w.now.Sub(w.failed))
		}
		w.initiations++
	case Reap:
		if before.State() != Up || w.stays || w.reap == 0 || w.waiters > 0 || w.now.Before(w.until) || len(w.flows) > w.admitted() || w.waiting() {
			w.fatalf("a child is reaped that is in use")
		}
		for _, f := range w.flows {
			if w.now.Sub(f.used) < w.reap {
				w.fatalf("a child is reaped %v after a flow was used", w.now.Sub(f.used))
			}
		}
	case Evict:
		if w.list.Impostors == 0 || w.admitted() == 0 && !w.list.Named && !w.stays {
			w.fatalf("somebody's child is ended although it harms nobody: %+v", w.list)
		}
		if d := w.now.Sub(w.evicted); d < evictEvery {
			w.fatalf("evicted again after %v", d)
		}
		w.evicted = w.now
	case Reject:
		if !w.list.Mismatch {
			w.fatalf("children are rejected that are right")
		}
	case Dedupe:
		if before.State() != Up || w.list.Settled < 2 {
			w.fatalf("a duplicate is ended of %d children", w.list.Settled)
		}
	case Probe:
		if before.State() != Up || w.now.Sub(w.rose) < StallAfter {
			w.fatalf("a child is suspect %v after it came up", w.now.Sub(w.rose))
		}
	case Renew:
		if d := w.now.Sub(w.renewed); d < reviveMin/2 {
			w.fatalf("a child is made anew %v after the last time", d)
		}
	}
}

// tick ticks the lane, answers what it asks for, and carries out what needs no charon.
func (w *world) tick() Effect {
	e := Tick{IdleReap: w.reap}
	out := w.happen(e)
	if out.Ask != 0 {
		if out.Work != Nothing || out.Do != 0 {
			w.fatalf("a question and an answer: %+v", out)
		}
		e.Answered = out.Ask
		e.Waiting = out.Ask.Has(AskWaiting) && w.waiting()
		e.Silence = w.silence
		e.Use.Unused = time.Hour
		for _, f := range w.flows {
			e.Fading = e.Fading || f.admitted && f.fading && out.Ask.Has(AskFading) && !e.Waiting
			e.Use.Busy = e.Use.Busy || !f.admitted || f.waiting
			e.Use.Unused = min(e.Use.Unused, w.now.Sub(f.used))
		}
		if out = w.happen(e); out.Ask != 0 {
			w.fatalf("what was answered is asked again: %+v", out)
		}
	}
	if out.Do.Has(Kick) {
		if w.lane.State() != Up {
			w.fatalf("flows are kicked while the lane is %v", w.lane.State())
		}
		out = w.happen(Kicked{Stuck: w.waiting()})
	}
	// Data that comes to wait is an event for nobody: a lane that has flows asks in time.
	most := RetryMax
	if w.lane.State() == Up {
		most = stallCheck
	}
	if w.admitted() > 0 && !w.lane.Trying() && out.Work == Nothing && (out.Again <= 0 || out.Again > most) {
		w.fatalf("%v: the next tick is after %v", w, out.Again)
	}
	return out
}

// run ticks the lane when it asks to be ticked, for so long, and calls work for what it
// wants done until that returns false. It returns how much of the time is left.
func (w *world) run(d time.Duration, work func(Work) bool) time.Duration {
	for end := w.now.Add(d); ; {
		out := w.tick()
		if out.Work != Nothing && !work(out.Work) {
			return end.Sub(w.now)
		}
		if out.Again <= 0 || !w.now.Add(out.Again).Before(end) {
			w.now = end
			return 0
		}
		w.now = w.now.Add(out.Again)
	}
}

// ends says how an attempt ended.
func (w *world) ends(e AttemptEnds) Effect {
	out := w.happen(e)
	switch {
	case w.lane.Trying():
		w.fatalf("an attempt that has ended is under way")
	case out.Do.Has(Refuse) != (out.Fault != NoFault) || e.Cut && out.Fault != NoFault:
		w.fatalf("%+v: %+v", e, out)
	case out.Fault != NoFault:
		w.failed = w.now
		w.waiters = 0
		w.happen(Waiters(0))
	}
	return out
}

// lists has charon list so many children of the peer's, and nothing else.
func (w *world) lists(installed int) Effect {
	return w.happen(Listed{Installed: installed, Settled: installed, Packets: w.list.Packets, Waiting: w.waiting()})
}

// connect admits a flow under a child, and returns it.
func (w *world) connect() *flow {
	w.lists(1)
	f := &flow{used: w.now}
	w.flows = append(w.flows, f)
	w.happen(FlowComes{})
	f.admitted = true
	w.happen(FlowAdmitted{})
	return f
}

// leave has a flow end.
func (w *world) leave(i int) {
	f := w.flows[i]
	w.flows = append(w.flows[:i:i], w.flows[i+1:]...)
	w.happen(FlowLeaves{Admitted: f.admitted})
}

func (w *world) String() string {
	return fmt.Sprintf("%v with %d flows, %d calls, %+v", w.lane.State(), len(w.flows), w.waiters, w.list)
}
