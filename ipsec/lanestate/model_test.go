package lanestate

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestLaneKeepsItsPromisesWhateverHappens draws runs of all events at any time and has the
// world check each step: how the lane stands, that its transitions are told once, one
// attempt at a time and none that nobody needs, and what may be ended when. Whatever has
// happened, data that waits gets its child in bounded time.
func TestLaneKeepsItsPromisesWhateverHappens(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt.Fatalf, rapid.Bool().Draw(rt, "dialler"), rapid.Bool().Draw(rt, "leads"))
		w.reap = rapid.SampledFrom([]time.Duration{0, time.Second, time.Minute}).Draw(rt, "reap")
		rt.Repeat(w.actions(rt))
		w.checkDue(rt)
	})
}

// actions are all that may happen.
func (w *world) actions(rt *rapid.T) map[string]func(*rapid.T) {
	pick := func(rt *rapid.T) int {
		if len(w.flows) == 0 {
			rt.Skip("no flow")
		}
		return rapid.IntRange(0, len(w.flows)-1).Draw(rt, "flow")
	}
	return map[string]func(*rapid.T){
		"time passes": func(rt *rapid.T) {
			w.now = w.now.Add(rapid.SampledFrom([]time.Duration{time.Millisecond, 20 * time.Millisecond, 75 * time.Millisecond, 200 * time.Millisecond,
				time.Second, 4 * time.Second, 40 * time.Second, 3 * time.Minute}).Draw(rt, "time"))
		},
		"tick": func(rt *rapid.T) { w.work(rt, w.tick().Work) },
		"list": func(rt *rapid.T) { w.anyList(rt) },
		"attempt ends": func(rt *rapid.T) {
			if !w.lane.Trying() {
				rt.Skip("none is under way")
			}
			w.ends(AttemptEnds{Failed: rapid.Bool().Draw(rt, "failed"), Crossed: rapid.Bool().Draw(rt, "crossed"),
				Narrowed: rapid.Bool().Draw(rt, "narrowed"), Cut: rapid.Bool().Draw(rt, "cut"), Draw: rapid.Float64Range(0, 0.999).Draw(rt, "draw")})
		},
		"flow comes": func(*rapid.T) {
			if w.lane.State() != Up && w.outage.IsZero() && w.hasBeen {
				w.outage = w.now
			}
			w.flows = append(w.flows, &flow{used: w.now})
			w.happen(FlowComes{})
		},
		"flow is admitted": func(rt *rapid.T) {
			f := w.flows[pick(rt)]
			if f.admitted {
				rt.Skip("it was")
			}
			f.admitted = true
			dialled := rapid.Bool().Draw(rt, "dialled")
			w.proved = w.proved || dialled
			if dialled && (w.dials <= 1 || !w.now.Before(w.until)) {
				w.until = time.Time{}
			}
			w.happen(FlowAdmitted{Dialled: dialled})
		},
		"flow leaves": func(rt *rapid.T) { w.leave(pick(rt)) },
		"flow is used": func(rt *rapid.T) {
			f := w.flows[pick(rt)]
			f.used, f.waiting, f.fading = w.now, rapid.Bool().Draw(rt, "waiting"), rapid.Bool().Draw(rt, "fading")
		},
		"silence": func(rt *rapid.T) {
			w.silence = Silence{Of: rapid.SampledFrom([]time.Duration{0, time.Hour}).Draw(rt, "of"), Vain: rapid.Bool().Draw(rt, "vain")}
		},
		"calls wait": func(rt *rapid.T) {
			if w.lane.State() == Up {
				rt.Skip("it is up")
			}
			w.waiters = rapid.IntRange(0, 3).Draw(rt, "calls")
			w.happen(Waiters(w.waiters))
		},
		"dial begins": func(rt *rapid.T) {
			until := w.now.Add(rapid.SampledFrom([]time.Duration{time.Second, DialWait}).Draw(rt, "until"))
			if until.After(w.until) {
				w.until = until
			}
			w.dials++
			w.proved = false
			w.happen(DialBegins{Until: until})
		},
		"dial is over": func(rt *rapid.T) {
			if w.dials == 0 {
				rt.Skip("there is none")
			}
			if w.dials--; w.dials == 0 && w.proved {
				w.until = time.Time{}
			}
			w.happen(DialOver{})
		},
		"greet": func(rt *rapid.T) {
			e := Greet{Stays: rapid.Bool().Draw(rt, "stays")}
			w.stays = w.stays || e.Stays
			w.happen(e)
		},
		"child passes": func(*rapid.T) { w.happen(Passed{}) },
		"reap fails": func(*rapid.T) {
			if w.lane.State() == Up {
				w.rose = w.now
			}
			w.happen(ReapFailed{})
		},
		"suspected": func(rt *rapid.T) {
			if w.happen(Suspected{Silence: w.silence, Draw: rapid.Float64Range(0, 0.999).Draw(rt, "draw")}).Work == Renew {
				w.renewed = w.now
			}
		},
	}
}

// work begins what the lane wants done.
func (w *world) work(rt *rapid.T, k Work) {
	switch k {
	case Initiate:
		w.happen(AttemptBegins{})
	case Reap, Dedupe, Evict, Reject:
		w.anyList(rt)
	}
}

// anyList has charon list anything.
func (w *world) anyList(rt *rapid.T) {
	n := rapid.IntRange(0, 3)
	e := Listed{Installed: n.Draw(rt, "installed"), Impostors: max(n.Draw(rt, "impostors")-2, 0), Packets: w.list.Packets,
		Mismatch: n.Draw(rt, "mismatch") == 3, Replaced: rapid.Bool().Draw(rt, "replaced"), IKEGone: rapid.Bool().Draw(rt, "no IKE SA"),
		Afresh: n.Draw(rt, "afresh") == 3, Anew: n.Draw(rt, "anew") == 3, Reaped: rapid.Bool().Draw(rt, "reaped"),
		Waiting: w.waiting(), Draw: rapid.Float64Range(0, 0.999).Draw(rt, "draw")}
	e.Settled = rapid.IntRange(0, e.Installed).Draw(rt, "settled")
	e.Named = e.Impostors > 0 && rapid.Bool().Draw(rt, "named")
	if e.CharonGone = n.Draw(rt, "charon") == 3; e.CharonGone {
		e = Listed{CharonGone: true, Waiting: e.Waiting, Draw: e.Draw}
	}
	if e.Installed > 0 && rapid.Bool().Draw(rt, "heard") {
		e.Packets++
	}
	w.happen(e)
}

// checkDue holds that a lane whose way is free is due in bounded time when data waits, or a
// call of Prepare does, if it is ticked when it asks for it.
func (w *world) checkDue(rt *rapid.T) {
	if w.lane.Trying() {
		w.ends(AttemptEnds{Failed: true})
	}
	w.lists(0)
	if rapid.Bool().Draw(rt, "a call waits") {
		w.waiters++
		w.happen(Waiters(w.waiters))
		if out := w.tick(); out.Work != Initiate {
			w.fatalf("%v: a call waits, and nothing is done: %+v", w, out)
		}
		return
	}
	if w.admitted() == 0 && !w.stays {
		return
	}
	for _, f := range w.flows {
		f.waiting = f.waiting || f.admitted
	}
	due := false
	w.run(2*RetryMax, func(k Work) bool { due = due || k == Initiate; return !due })
	if !due {
		w.fatalf("%v: data waits, and nothing is done", w)
	}
}

// TestEveryEventInEveryState takes each event to a lane in each state.
func TestEveryEventInEveryState(t *testing.T) {
	states := map[State]func(*world){
		Down:       func(*world) {},
		Wanted:     func(w *world) { w.happen(Greet{}) },
		Connecting: func(w *world) { w.waiters = 1; w.happen(Waiters(1)) },
		Up:         func(w *world) { w.connect() },
		Paused:     func(w *world) { w.connect(); w.lists(0) },
	}
	up := Listed{Installed: 1, Settled: 1}
	events := []struct {
		name string
		take func(*world)
		to   map[State]State // where it is another one
	}{
		{"child is listed", func(w *world) { w.happen(up) }, map[State]State{Down: Up, Wanted: Up, Connecting: Up, Paused: Up}},
		{"child is gone", func(w *world) { w.lists(0) }, map[State]State{Up: Paused}},
		{"an impostor", func(w *world) { w.happen(Listed{Installed: 1, Settled: 1, Impostors: 1}) }, map[State]State{Up: Paused}},
		{"charon is gone", func(w *world) { w.happen(Listed{CharonGone: true}) }, map[State]State{Up: Paused}},
		{"the peer's new IKE SA", func(w *world) { w.happen(Listed{Afresh: true, Anew: true}) }, map[State]State{Up: Paused}},
		{"a call waits", func(w *world) { w.waiters++; w.happen(Waiters(w.waiters)) }, map[State]State{Down: Connecting, Wanted: Connecting}},
		{"no call waits", func(w *world) { w.waiters = 0; w.happen(Waiters(0)) }, map[State]State{Connecting: Down}},
		{"greeting", func(w *world) { w.happen(Greet{}) }, map[State]State{Down: Wanted}},
		{"a flow comes", func(w *world) { w.flows = append(w.flows, &flow{}); w.happen(FlowComes{}) }, map[State]State{Down: Paused, Wanted: Paused, Connecting: Paused}},
		{"the flow leaves", func(w *world) {
			if len(w.flows) > 0 {
				w.leave(0)
			}
		}, map[State]State{Paused: Down}},
		{"dial begins", func(w *world) { w.dials, w.until = 1, w.now.Add(time.Second); w.happen(DialBegins{Until: w.until}) }, nil},
		{"dial begins and is over", func(w *world) {
			w.until = w.now.Add(time.Second)
			w.happen(DialBegins{Until: w.until})
			w.happen(DialOver{})
		}, nil},
		{"attempt begins", func(w *world) { w.happen(AttemptBegins{}) }, nil},
		{"attempt fails", func(w *world) { w.happen(AttemptBegins{}); w.ends(AttemptEnds{Failed: true}) }, map[State]State{Wanted: Down, Connecting: Down}},
		{"attempt is cut", func(w *world) { w.happen(AttemptBegins{}); w.ends(AttemptEnds{Failed: true, Cut: true}) }, nil},
		{"attempt is crossed", func(w *world) { w.happen(AttemptBegins{}); w.ends(AttemptEnds{Failed: true, Crossed: true}) }, nil},
		{"child passes", func(w *world) { w.happen(Passed{}) }, nil},
		{"child vanishes", func(w *world) { w.happen(AttemptBegins{}); w.ends(AttemptEnds{}) }, nil},
		{"reaping fails", func(w *world) { w.happen(ReapFailed{}) }, nil},
		{"nothing is suspect", func(w *world) { w.happen(Suspected{}) }, nil},
		{"tick", func(w *world) { w.tick() }, nil},
		{"tick much later", func(w *world) { w.now = w.now.Add(time.Hour); w.tick() }, nil},
	}
	for from, bring := range states {
		for _, e := range events {
			w := newWorld(func(format string, args ...any) { t.Fatalf(from.String()+", "+e.name+": "+format, args...) }, true, true)
			bring(w)
			if got := w.lane.State(); got != from {
				t.Fatalf("the lane is %v, want %v", got, from)
			}
			e.take(w)
			want, changes := e.to[from]
			if !changes {
				want = from
			}
			if got := w.lane.State(); got != want {
				t.Errorf("%v: %s: the lane is %v, want %v", from, e.name, got, want)
			}
		}
	}
}
